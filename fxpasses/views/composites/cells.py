"""One step of a recurrent layer, written out."""

from typing import Any

import torch
import torch.nn.functional as F
from torch.fx import Node

from fxpasses.core import Editor, Facts
from fxpasses.ops import Composite
from fxpasses.views.composites.call import CompositeCall, Results, parts_of_tensor, taken


def written_cell(edit: Editor, call: CompositeCall, facts: Facts) -> Results:
    """The next state of a cell: of an LSTM the hidden one and the cell's."""
    x, state = call.arguments["input"], call.arguments["hx"]
    batched = facts.rank(x) == 2
    states = [state] if call.kind is not Composite.LSTM_CELL else _both(edit, state)
    if not batched:
        x, *states = (s and edit.call_method("unsqueeze", s, 0) for s in (x, *states))
    if states[0] is None:
        size = edit.call_method("size", x, 0)
        zeros = edit.call_method("new_zeros", x, (size, call.module.hidden_size))
        states = [zeros] * len(states)
    results = _next(edit, call, x, states)
    if batched:
        return results
    return tuple(edit.call_method("squeeze", result, 0) for result in results)


def _both(edit: Editor, state: Any) -> list[Any]:
    return [None, None] if state is None else [taken(edit, state, 0), taken(edit, state, 1)]


def _next(edit: Editor, call: CompositeCall, x: Node, states: list[Any]) -> tuple[Node, ...]:
    if call.kind is Composite.LSTM_CELL:
        return _lstm(edit, call, x, *states)
    return (_gru if call.kind is Composite.GRU_CELL else _rnn)(edit, call, x, *states)


def _gates(edit: Editor, call: CompositeCall, kind: str, x: Node) -> Node:
    weight, bias = (call.tensor(edit, f"{name}_{kind}") for name in ("weight", "bias"))
    return edit.call_function(F.linear, x, weight, bias)


def _all_gates(edit: Editor, call: CompositeCall, x: Node, hidden: Node) -> Node:
    given, kept = _gates(edit, call, "ih", x), _gates(edit, call, "hh", hidden)
    return edit.call_function(torch.add, given, kept)


def _lstm(edit: Editor, call: CompositeCall, x: Node, hidden: Node, cell: Node) -> tuple[Node, ...]:
    gates = parts_of_tensor(edit, _all_gates(edit, call, x, hidden), 4, 1)
    taken_in, kept, shown = (edit.call_function(torch.sigmoid, gates[i]) for i in (0, 1, 3))
    new = edit.call_function(torch.tanh, gates[2])
    old = edit.call_function(torch.mul, kept, cell)
    cell = edit.call_function(torch.add, old, edit.call_function(torch.mul, taken_in, new))
    return edit.call_function(torch.mul, shown, edit.call_function(torch.tanh, cell)), cell


def _gru(edit: Editor, call: CompositeCall, x: Node, hidden: Node) -> tuple[Node, ...]:
    given = parts_of_tensor(edit, _gates(edit, call, "ih", x), 3, 1)
    kept = parts_of_tensor(edit, _gates(edit, call, "hh", hidden), 3, 1)
    reset, update = (
        edit.call_function(torch.sigmoid, edit.call_function(torch.add, given[i], kept[i]))
        for i in (0, 1)
    )
    recalled = edit.call_function(torch.mul, reset, kept[2])
    new = edit.call_function(torch.tanh, edit.call_function(torch.add, given[2], recalled))
    gap = edit.call_function(torch.sub, hidden, new)
    return (edit.call_function(torch.add, edit.call_function(torch.mul, gap, update), new),)


def _rnn(edit: Editor, call: CompositeCall, x: Node, hidden: Node) -> tuple[Node, ...]:
    gates = _all_gates(edit, call, x, hidden)
    activation = {"tanh": torch.tanh, "relu": torch.relu}[call.module.nonlinearity]
    return (edit.call_function(activation, gates),)

"""Examples that give one tensor, or one memory, as several arguments.

A graph that was recorded with such an example holds for calls that share in the same way. Where
the model neither writes what it is given nor tells one argument from another, a second trace with
arguments of their own finds the same operations, and its graph holds for every call.
"""

import inspect
import operator
from collections.abc import Callable, Mapping
from typing import Any, Final, cast

from torch import Tensor
from torch.fx import Node
from torch.fx.node import map_arg

from fxpasses.capture.arguments import Arguments
from fxpasses.capture.result.forms import aliases_of, tensors_of
from fxpasses.capture.tracing.request import Note, NoteKind, Trace
from fxpasses.capture.tracing.structures import map_leaves

SHARING_MATTERS: Final = Note(
    NoteKind.SHARED_MEMORY,
    "the example gives one tensor, or one memory, as several arguments, and the model writes it or "
    "asks whether they are one: the graph holds for such calls alone",
    "give the example tensors of their own, if calls do",
)


def shares(example: Arguments | None) -> bool:
    """Whether arguments of the example share memory."""
    if example is None:
        return False
    pairs = aliases_of(tensors_of((example.args, dict(example.kwargs))))
    return any(pair != (index, index) for index, pair in enumerate(pairs))


def apart(example: Arguments) -> Arguments:
    """The same call, each of its tensors a copy of its own."""

    def copied(leaf: Any) -> Any:
        alone = Arguments((leaf,), {})
        return alone.copied().args[0] if isinstance(leaf, Tensor) else leaf

    args, kwargs = map_leaves((example.args, dict(example.kwargs)), copied)
    return Arguments(args, kwargs)


def holds_for_both(
    forward: Callable[..., Any],
    shared: tuple[Trace, Arguments],
    separate: tuple[Trace, Arguments],
) -> bool:
    """Whether the graph of separate arguments also is the one of shared arguments."""
    made, example = separate
    if made.writes_given:
        return False
    theirs = tensors_of((shared[1].args, dict(shared[1].kwargs)))
    mine = tensors_of((example.args, dict(example.kwargs)))
    same = {id(a): id(b) for a, b in zip(mine, theirs, strict=True)}
    return _operations(forward, made, example, same) == _operations(forward, *shared, {})


def _operations(
    forward: Callable[..., Any], made: Trace, example: Arguments, same: Mapping[int, int]
) -> list[Any]:
    """What the graph does, apart from reading its arguments, in terms of the example's tensors."""
    signature = inspect.signature(forward)
    given = signature.bind(*example.args, **example.kwargs).arguments
    inputs: dict[Node, Any] = {}
    numbers: dict[Node, int] = {}
    found: list[Any] = []

    def named(node: Node) -> Any:
        if node not in inputs:
            return ("operation", numbers[node])
        value = inputs[node]
        return ("input", same.get(id(value), id(value)))

    parameters = iter(signature.parameters)
    for node in made.graph.nodes:
        if node.op == "placeholder":
            inputs[node] = given.get(next(parameters))
        elif _is_read_from_container(node, inputs):
            container, key = cast("tuple[Node, Any]", node.args)
            inputs[node] = node.target(inputs[container], key)
        else:
            numbers[node] = len(found)
            found.append((node.op, node.target, *map_arg((node.args, node.kwargs), named)))
    return found


def _is_read_from_container(node: Node, inputs: Mapping[Node, Any]) -> bool:
    owner: Any = node.args[0] if node.args else None
    is_read = node.op == "call_function" and node.target in (operator.getitem, getattr)
    return is_read and owner in inputs and not isinstance(inputs[owner], Tensor)

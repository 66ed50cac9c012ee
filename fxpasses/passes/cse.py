"""Compute once what is computed twice.

    a = cos(x); b = cos(x); return a + b  ->  a = cos(x); return a + a

Common subexpression elimination by value numbering, after Cocke and Schwartz, "Programming
Languages and Their Compilers" (1970). What is computed does not change by a bit.
"""

from collections.abc import Hashable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Final

from torch import Tensor, nn
from torch.fx import GraphModule, Node

from fxpasses.core import (
    Condition,
    Facts,
    GraphPass,
    Numerics,
    Refusal,
    Step,
    is_replaced,
)
from fxpasses.ops import ELEMENTWISE, Op, bind, module_of, op_of, op_of_module

_SYMMETRIC: Final = frozenset(
    {
        *(Op.ADD, Op.MUL, Op.EQ, Op.NE, Op.BITWISE_AND, Op.BITWISE_OR, Op.BITWISE_XOR),
        *(Op.LOGICAL_AND, Op.LOGICAL_OR, Op.LOGICAL_XOR),
    }
)
"""Bit-equal with the operands the other way round; `maximum` is not, for zeros of two signs."""

_SPELLED_ALIKE: Final = ELEMENTWISE - {Op.CAST, Op.IDENTITY, Op.CLONE}
"""All that tells two calls apart is in the operands; the name of a cast may hold its dtype."""

_NUMBERS: Final = frozenset({Op.SIZE, Op.RANK, Op.NUMEL})
"""Nobody can write what these answer."""


@dataclass(frozen=True, slots=True)
class Site:
    """Two calls that look the same."""

    first: Node
    second: Node


def both_only_compute(site: Site, facts: Facts) -> str | None:
    """What writes in place computes from what it writes: nothing that follows is the same."""
    told = facts.effects(site.second).told
    if told is None and (of_first := facts.effects(site.first).told) is not None:
        return f"{site.first.name} looks the same, but {of_first}"
    return told


def nothing_writes_what_it_reads(site: Site, facts: Facts) -> str | None:
    for operand in site.second.all_input_nodes:
        writer = facts.written_between(site.first, site.second, operand)
        if writer is not None:
            return f"{writer.name} may write {operand.name} between the two"
    return None


def its_state_is_never_written(site: Site, facts: Facts) -> str | None:
    if site.second.op != "call_module":
        return None
    module = module_of(site.second)
    written = (name for name, t in _tensors(module) if facts.is_written(t))
    return next((f"the {name} of the module is written in the graph" for name in written), None)


def neither_is_written(site: Site, facts: Facts) -> str | None:
    if site.second.op == "get_attr" or op_of(site.second) in _NUMBERS:
        return None
    end = site.second.graph.output_node()
    for node in (site.first, site.second):
        writer = facts.written_between(node, end, node)
        if writer is not None:
            return f"{writer.name} may write {node.name}"
    return None


def not_both_are_handed_out(site: Site, facts: Facts) -> str | None:
    """Who gets two results may write the one and keep the other."""
    if site.second.op == "get_attr" or op_of(site.second) in _NUMBERS:
        return None
    end = site.second.graph.output_node()
    both = facts.may_alias(end, site.first) and facts.may_alias(end, site.second)
    return "the model returns both" if both else None


class Cse(GraphPass):
    """Compute once what is computed twice.

    Two calls are the same if the op, the operands, the settings and the types of numbers are: `1`,
    `1.0` and `True` differ. Spellings of one op are the same. Random draws, what has effects, and
    what is written, read or handed out in ways that tell the two apart stay as they are.
    """

    name = "cse"
    numerics = Numerics.EXACT
    trains = True
    legal_if: ClassVar[tuple[Condition[Any], ...]] = (
        both_only_compute,
        nothing_writes_what_it_reads,
        its_state_is_never_written,
        neither_is_written,
        not_both_are_handed_out,
    )
    remedies: ClassVar[Mapping[Condition[Any], str]] = {
        both_only_compute: "nothing: it has to run in every call",
        nothing_writes_what_it_reads: "replace the in-place call by the plain one",
        its_state_is_never_written: "nothing: the second call sees what was written",
        neither_is_written: "replace the in-place call by the plain one",
        not_both_are_handed_out: "return the one result twice, if nobody writes it",
    }

    def steps(self, module: GraphModule, facts: Facts) -> Iterator[Step | Refusal]:
        seen: dict[Hashable, Node] = {}
        for node in list(module.graph.nodes):
            key = None if is_replaced(node) else _key(node, facts)
            if key is None:
                continue
            if (first := seen.get(key)) is not None:
                site = Site(first, node)
                refusal = self.refusal(node, site, facts)
                if refusal is None:
                    yield _merging(site)
                    continue
                yield refusal
            # What follows is closer to this one: less can have been written in between.
            seen[key] = node


def _merging(site: Site) -> Step:
    why = f"{site.first.name} is the same"
    return Step(site.second, why, lambda edit: edit.replace(site.second, site.first))


def _key(node: Node, facts: Facts) -> Hashable:
    """Equal for two nodes that compute the same, if nothing is written between; None: no value."""
    match node.op:
        case "get_attr":
            return "get_attr", node.target
        case "call_module":
            callee = _module_key(module_of(node))
            return "call_module", callee, _frozen(node.args), _frozen(node.kwargs)
        case "call_function" | "call_method":
            return _call_key(node, facts)
        case _:
            return None


def _call_key(node: Node, facts: Facts) -> Hashable:
    op = op_of(node)
    # Of numbers and tuples, the same name may mean another thing: (1,) + (2,).
    if op in _SPELLED_ALIKE and facts.dtype(node) is not None:
        operands = bind(node)
        if operands is not None:
            return op, _frozen(_in_order(op, operands))
    return node.op, node.target, _frozen(node.args), _frozen(node.kwargs)


def _in_order(op: Op | None, operands: dict[str, Any]) -> dict[str, Any]:
    """Operands that may change places, in an order that hangs on them alone."""
    if op not in _SYMMETRIC or operands.get("alpha", 1) != 1:
        return operands
    pair = sorted((operands["input"], operands["other"]), key=_rank)
    return {**operands, "input": pair[0], "other": pair[1]}


def _rank(operand: object) -> tuple[str, str]:
    return type(operand).__name__, str(operand)


def _module_key(module: nn.Module) -> Hashable:
    """Equal for modules of one class with equal settings and the same tensors."""
    if op_of_module(module) is None or any(True for _ in module.children()):
        return id(module)
    settings = {
        name: value
        for name, value in vars(module).items()
        if not isinstance(value, (dict, set, Tensor))
    }
    tensors = tuple((name, id(tensor)) for name, tensor in _tensors(module))
    return type(module), _frozen(settings), tensors


def _tensors(module: nn.Module) -> Iterator[tuple[str, Tensor]]:
    yield from module.named_parameters(remove_duplicate=False)
    yield from module.named_buffers(remove_duplicate=False)
    for name, value in vars(module).items():
        if isinstance(value, Tensor):
            yield name, value


def _frozen(value: Any) -> Hashable:
    """A key that is equal for equal operands of equal type, and not else: 1, 1.0, True, -0.0."""
    if isinstance(value, Node):
        return value
    if isinstance(value, (tuple, list)):
        return type(value), *map(_frozen, value)
    if isinstance(value, dict):
        return dict, *(
            (_frozen(key), _frozen(item)) for key, item in sorted(value.items(), key=str)
        )
    if isinstance(value, slice):
        return slice, _frozen(value.start), _frozen(value.stop), _frozen(value.step)
    if isinstance(value, (int, float, complex, str)) or value is None:
        return type(value), repr(value)
    try:
        hash(value)
    except TypeError:
        return "identity", id(value)
    # Tensors, dtypes, devices, functions.
    return type(value), id(value) if isinstance(value, Tensor) else value

"""Let results take the memory of an operand that nothing needs any more.

    y = conv(x); return relu(y)  ->  y = conv(x); return relu_(y)

What is computed does not change by a bit; fewer activations are held at a time.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Final

from torch.fx import GraphModule, Node

from fxpasses.analysis.layouts import reader_of_layout
from fxpasses.core import (
    Condition,
    Editor,
    Facts,
    GraphPass,
    Numerics,
    Refusal,
    Step,
    is_replaced,
)
from fxpasses.ops import (
    FACTORIES,
    OPERANDS_NOT_SAVED,
    RESULT_SAVED,
    RESULT_SAVED_IN_PLACE,
    Op,
    is_number,
    op_of,
    reads_only_metadata,
)
from fxpasses.views import View
from fxpasses.views.in_place import HAVE_FORMS, written_in_place
from fxpasses.views.sizes import Sizes

_EITHER_SIDE: Final = frozenset({Op.ADD, Op.MUL})
_SLOPES: Final = {Op.LEAKY_RELU: "negative_slope", Op.ELU: "alpha", Op.CELU: "alpha"}


@dataclass(frozen=True, slots=True, eq=False)
class Site:
    """A call, and the operand whose memory its result may take."""

    call: View
    target: Node
    other: Any
    """The first operand, where `target` is the second."""
    sizes: Sizes
    memory: tuple[Node, ...]
    """All values that may lie in the memory of `target`, it among them."""

    @property
    def node(self) -> Node:
        return self.call.node

    @property
    def others(self) -> list[Node]:
        return [n for n in self.node.all_input_nodes if n is not self.target]


# -- the result would be another


def dtype_stays(site: Site, facts: Facts) -> str | None:
    before, after = facts.dtype(site.target), facts.dtype(site.node)
    if before is None or after is None:
        return "the dtype is not known"
    return None if before is after else f"it turns {before} into {after}"


def shape_stays(site: Site, _: Facts) -> str | None:
    for other in site.others:
        if not is_number(other) and not site.sizes.holds(site.target, other):
            return f"{other.name} may be larger than {site.target.name}"
    return None


def layout_stays(site: Site, facts: Facts) -> str | None:
    """A result is laid out as its first operand is."""
    if site.other is None:
        return None
    reader = reader_of_layout(site.node, facts)
    return None if reader is None else f"{reader.name} may depend on the memory layout"


# -- somebody else would see it


def memory_is_of_a_result(site: Site, facts: Facts) -> str | None:
    for node in site.memory:
        if node.op == "placeholder":
            return f"it may be the memory of the argument {node.name}"
        if node.op == "get_attr":
            return f"it may be the memory of {node.target}"
        if node.op == "output":
            return "the model returns it"
        if facts.effects(node).unknown or op_of(node) is None:
            return f"nothing is known of who else has the memory of {node.name}"
    return None


def nothing_looks_into_it(site: Site, facts: Facts) -> str | None:
    """Nothing but calls that wrote the whole of it before."""
    for node in site.memory:
        writes = facts.effects(node).writes
        made = not any(operand in site.memory for operand in node.all_input_nodes)
        if not made and not any(operand in site.memory for operand in writes):
            return f"{node.name} looks into it"
    return None


def nothing_reads_it_again(site: Site, _: Facts) -> str | None:
    for reader in _readers(site):
        if reader > site.node:
            return f"{reader.name} reads it afterwards"
    return None


def it_is_read_once(site: Site, _: Facts) -> str | None:
    operands = [*site.call.arguments.values()]
    twice = sum(operand is site.target for operand in operands) > 1
    also = next((n for n in site.others if n in site.memory), None)
    return "it reads the same memory twice" if twice or also is not None else None


def _readers(site: Site) -> Iterator[Node]:
    """Who reads the values of the memory, besides the call itself and what lies in it as well."""
    for node in site.memory:
        for reader in node.users:
            if reader is site.node or reader in site.memory or is_replaced(reader):
                continue
            if not reads_only_metadata(reader, node):
                yield reader


# -- a backward would be another


def no_backward_needs_it(site: Site, facts: Facts) -> str | None:
    """Also in evaluation: whoever calls the result may ask for gradients."""
    target = site.target
    op, writes = op_of(target), bool(facts.effects(target).writes)
    if op in (RESULT_SAVED_IN_PLACE if writes else RESULT_SAVED):
        return f"the backward of {target.name} needs its result"
    for reader in _readers(site):
        only_checks = facts.effects(reader).raises
        if not only_checks and op_of(reader) not in OPERANDS_NOT_SAVED:
            return f"the backward of {reader.name} needs it"
    return None


def it_is_no_leaf(site: Site, _: Facts) -> str | None:
    target = site.target
    asks = op_of(target) in FACTORIES and bool(target.kwargs.get("requires_grad"))
    return f"{target.name} is a leaf that a backward gives a gradient to" if asks else None


def its_backward_is_known_in_place(site: Site, _: Facts) -> str | None:
    name = _SLOPES.get(site.call.op)
    slope = None if name is None else site.call.operand(name)
    if slope is None or (isinstance(slope, (int, float)) and slope >= 0):
        return None
    return f"torch has no backward of it in place where {name} is negative"


class Inplace(GraphPass):
    """Let results take the memory of an operand that nothing needs any more.

    Activations, sums, products and functions of one tensor. Arguments, weights, what is returned,
    views and what they look into, and what a backward may need keep their memory, in every call
    that the graph accepts.
    """

    name = "inplace"
    numerics = Numerics.EXACT
    trains = True
    saves_memory = True
    legal_if: ClassVar[tuple[Condition[Any], ...]] = (
        dtype_stays,
        memory_is_of_a_result,
        nothing_looks_into_it,
        it_is_read_once,
        nothing_reads_it_again,
        no_backward_needs_it,
        it_is_no_leaf,
        its_backward_is_known_in_place,
        shape_stays,
        layout_stays,
    )
    remedies: ClassVar[Mapping[Condition[Any], str]] = {
        dtype_stays: "nothing: the result does not fit into the memory",
        memory_is_of_a_result: "nothing: who holds the tensor would see it change",
        nothing_looks_into_it: "use reshape or clone in the place of the view",
        it_is_read_once: "nothing: it is read while it is written",
        nothing_reads_it_again: "nothing: the value is needed later",
        no_backward_needs_it: "nothing: gradients would be wrong",
        it_is_no_leaf: "make the tensor without requires_grad",
        its_backward_is_known_in_place: "nothing: torch would raise in the backward",
        shape_stays: "pass example_inputs, or make both operands in one shape",
        layout_stays: "change the order of the operands",
    }

    def steps(self, module: GraphModule, facts: Facts) -> Iterator[Step | Refusal]:
        nodes = list(module.graph.nodes)
        sizes = Sizes(nodes, facts)
        for node in nodes:
            refused: list[Refusal] = []
            for site in _sites(node, facts, sizes):
                refusal = self.refusal(node, site, facts)
                if refusal is None:
                    yield _step(site)
                    refused.clear()
                    break
                refused.append(refusal)
            if refused:
                yield max(refused, key=self._comes_near)

    def _comes_near(self, refusal: Refusal) -> int:
        """How many conditions hold where one does not."""
        return [condition.__name__ for condition in self.legal_if].index(refusal.condition)


def _sites(node: Node, facts: Facts, sizes: Sizes) -> Iterator[Site]:
    """The operands that the result of a call might take the memory of."""
    view = None if is_replaced(node) or op_of(node) not in HAVE_FORMS else View.at(node)
    if view is None or not facts.effects(node).none:
        return
    first, second = view.input, view.operand("other")
    if isinstance(first, Node):
        yield Site(view, first, None, sizes, _memory(first, facts))
    is_symmetric = view.op in _EITHER_SIDE and view.operand("alpha", 1) == 1
    if is_symmetric and isinstance(second, Node) and isinstance(first, Node):
        yield Site(view, second, first, sizes, _memory(second, facts))


def _memory(value: Node, facts: Facts) -> tuple[Node, ...]:
    """What may lie in the same memory: it got there from node to node."""
    found = {value: None}
    stack = [value]
    while stack:
        node = stack.pop()
        for near in (*node.all_input_nodes, *node.users):
            only_checks = facts.effects(near).raises
            if near not in found and not only_checks and facts.may_alias(near, value):
                found[near] = None
                stack.append(near)
    return tuple(found)


def _step(site: Site) -> Step:
    def do(edit: Editor) -> None:
        new = written_in_place(edit, site.call, site.target, site.other)
        site.sizes.alike(new, site.node)
        edit.replace(site.node, new)

    return Step(site.node, f"nothing needs {site.target.name} any more", do)

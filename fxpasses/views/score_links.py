"""What the scores of an attention go through one by one: scales, biases, masks, orders of axes."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import sqrt
from typing import Any, Final, TypeAlias

from torch.fx import Node

from fxpasses.core import Facts
from fxpasses.ops import ELEMENTWISE, Op, is_number, op_of
from fxpasses.views.base import View, constant
from fxpasses.views.contractions import Operand, permute_at
from fxpasses.views.elementwise import Binary, Dropout, Identity
from fxpasses.views.shapes import Cast


@dataclass(frozen=True, slots=True)
class Factor:
    """What the scores are multiplied with, or divided by."""

    value: Any
    """A number, the node of a number, or that of a tensor."""
    by: Node
    """The call that does it."""
    divides: bool = False

    @property
    def is_number(self) -> bool:
        return not isinstance(self.value, Node) or is_number(self.value)

    @property
    def constant(self) -> float | None:
        """What the scores are multiplied with, where that is one number in every call."""
        if isinstance(self.value, Node):
            return None
        if not self.divides:
            return float(self.value)
        return 1 / self.value if self.value else None


@dataclass(frozen=True, slots=True)
class Bias:
    """A tensor that is added to the scores."""

    node: Node
    by: Node
    subtracted: bool = False
    factor: Any = 1
    """What it is multiplied with first."""


@dataclass(frozen=True, slots=True)
class Fill:
    """Scores that are given one value instead: where a mask is true, or where it is not."""

    mask: Node
    value: float
    by: Node
    keeps: bool = False
    """Whether the mask is true where scores are kept."""


Change: TypeAlias = Factor | Bias | Fill


@dataclass(frozen=True, slots=True)
class Link:
    """One call that the scores go through."""

    result: Operand
    input: Operand
    does: Change | None = None
    """None: they stay as they are, or are dropped, cast or put in another order of axes."""

    @property
    def node(self) -> Node:
        return self.result.node

    @property
    def tensor(self) -> Node | None:
        """The tensor that the scores meet, axis by axis."""
        if isinstance(self.does, Bias):
            return self.does.node
        if isinstance(self.does, Fill):
            return self.does.mask
        if self.does is None or self.does.is_number:
            return None
        return self.does.value


Leads: TypeAlias = Callable[[Node], bool]
_Found: TypeAlias = tuple[Node, Change | None] | None


def link_of(result: Operand, leads: Leads) -> Link | None:
    """The call that made `result`, or None where it is none of those that are understood.

    `leads` says whether a node is on the way up to the product.
    """
    node = result.node
    permute = permute_at(node)
    if permute is not None:
        return Link(result, result.before(permute))
    read = _READ.get(op_of(node))
    found = read(node, leads) if read else None
    return None if found is None else Link(result, Operand(found[0], result.axes), found[1])


def unscaled(operand: Operand) -> tuple[Operand, tuple[Factor, ...]]:
    """The operand before it was multiplied with numbers, and those; itself where it was not."""
    best, factors, at = operand, (), operand
    found: tuple[Factor, ...] = ()
    while (link := link_of(at, lambda _: True)) is not None:
        if isinstance(link.does, Factor) and link.does.is_number:
            found = (*found, link.does)
            best, factors = link.input, found
        elif link.does is not None or op_of(link.node) in (Op.CAST, Op.DROPOUT):
            break
        at = link.input
    return best, factors


def is_positive(value: object) -> bool:
    """Whether a number is more than 0 in every call, where no size is 0."""
    if not isinstance(value, Node):
        return isinstance(value, (int, float)) and value > 0
    op = op_of(value)
    if op in (Op.SIZE, Op.NUMEL):
        return True
    if not is_number(value):
        return False
    if op is Op.POW or value.target is sqrt:
        return is_positive(value.args[0])
    return op in (Op.MUL, Op.DIV) and all(map(is_positive, value.args))


# -- one reader for each op: the scores that go in, and what is done to them


def _passed(node: Node, _: Leads) -> _Found:
    view = Identity.at(node) or Dropout.at(node) or Cast.at(node)
    if view is None or not isinstance(view.input, Node):
        return None
    is_plain = not isinstance(view, Cast) or (view.device is None and view.like is None)
    return (view.input, None) if is_plain else None


def _multiplied(node: Node, leads: Leads) -> _Found:
    call = Binary.at(node)
    if call is None or call.rounding_mode is not None:
        return None
    divides = call.op is Op.DIV
    for scores, by in ((call.left, call.right), (call.right, call.left)):
        if _are_scores(scores, leads):
            return None if divides and scores is call.right else (scores, Factor(by, node, divides))
    return None


def _added(node: Node, leads: Leads) -> _Found:
    call = Binary.at(node)
    if call is None or isinstance(call.alpha, Node):
        return None
    pairs = ((call.left, call.right), (call.right, call.left))
    for scores, by in pairs[: 1 if call.op is Op.SUB else 2]:
        if _are_scores(scores, leads) and isinstance(by, Node) and not is_number(by):
            is_right = by is call.right
            if not is_right and call.alpha != 1:
                return None  # The scores are multiplied.
            factor = call.alpha if is_right else 1
            return scores, Bias(by, node, call.op is Op.SUB, factor)
    return None


def _filled(node: Node, leads: Leads) -> _Found:
    view = View.at(node)
    if view is None or not _are_scores(view.input, leads):
        return None
    mask, value = view.operand("mask"), number_in(view.operand("value"))
    if value is None or not isinstance(mask, Node):
        return None
    return view.input, Fill(mask, value, node)


def _chosen(node: Node, leads: Leads) -> _Found:
    view = View.at(node)
    mask = None if view is None else view.operand("condition")
    if view is None or not isinstance(mask, Node):
        return None
    first, second = view.input, view.operand("other")
    for scores, other, keeps in ((first, second, True), (second, first, False)):
        value = number_in(other)
        if value is not None and _are_scores(scores, leads):
            return scores, Fill(mask, value, node, keeps)
    return None


def _are_scores(value: object, leads: Leads) -> bool:
    return isinstance(value, Node) and not is_number(value) and leads(value)


_READ: Final[Mapping[Op | None, Callable[[Node, Leads], _Found]]] = {
    **dict.fromkeys((Op.IDENTITY, Op.CONTIGUOUS, Op.DROPOUT, Op.CAST), _passed),
    **dict.fromkeys((Op.MUL, Op.DIV), _multiplied),
    **dict.fromkeys((Op.ADD, Op.SUB), _added),
    Op.MASKED_FILL: _filled,
    Op.WHERE: _chosen,
}


def number_in(value: object) -> float | None:
    """The number that an operand is in every call: given as such, or filled into a tensor."""
    if isinstance(value, (int, float)):
        return float(value)
    view = View.at(value)
    if view is None:
        return None
    if view.op in (Op.FULL, Op.FULL_LIKE, Op.NEW_FULL):
        return number_in(view.operand("fill_value"))
    if view.op in (Op.TENSOR, Op.NEW_TENSOR):
        return number_in(view.operand("data"))
    return None


def negated(mask: Node) -> Node | None:
    """What `mask` is the negation of, if it is one."""
    view = View.at(mask)
    if view is None or view.op not in (Op.LOGICAL_NOT, Op.BITWISE_NOT):
        return None
    return view.input if isinstance(view.input, Node) else None


def is_alike_for_keys(value: object, facts: Facts) -> bool:
    """Whether a number or tensor is the same all along its last axis, in every call."""
    if not isinstance(value, Node) or is_number(value) or facts.rank(value) == 0:
        return True
    stored = constant(value)
    if stored is not None:
        return stored.shape[-1] == 1
    operands = value.all_input_nodes
    return op_of(value) in ELEMENTWISE and all(is_alike_for_keys(one, facts) for one in operands)

"""Leave out what changes nothing, and do in one step what is done in two.

    contiguous(transpose(transpose(x * 1, 1, 2), 1, 2))  ->  x

The results are those of the original, but for the sign of zeros (`x + 0`) and one rounding less
where two factors become one.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum, auto
from typing import Any, ClassVar, Final, TypeAlias

import torch
from torch.fx import Node

from fxpasses.analysis.layouts import reader_of_layout
from fxpasses.core import Condition, Editor, Facts, Numerics, Rewrite
from fxpasses.ops import FACTORIES, Op, op_of
from fxpasses.views import Binary, Cast, Cat, Dropout, Flatten, Permute, Reshape, View


class Result(Enum):
    """What a call hands on that computes nothing new."""

    SAME = auto()
    """The very tensor that it was given."""
    VIEW = auto()
    """Another tensor in the same memory."""
    COPY = auto()
    """Memory of its own, laid out as the operand was where that is dense."""
    LAID_OUT_ANEW = auto()
    """Memory of its own, in a layout that may be another."""

    @property
    def is_copy(self) -> bool:
        return self in (Result.COPY, Result.LAID_OUT_ANEW)


@dataclass(frozen=True, slots=True)
class Site:
    """A call whose result can be had from `value` with less."""

    node: Node
    value: Node
    """What is left of the operands."""
    why: str
    build: Callable[[Editor], Node] | None = None
    """Makes what takes the place of `node`; None: `value` itself does."""
    inner: Node | None = None
    """The call in between, of which the two become one."""
    result: Result = Result.SAME
    """What `node` handed on."""


Rule: TypeAlias = Callable[[Node, Facts], Site | None]


def _end(site: Site) -> Node:
    end = site.node.graph.output_node()
    assert end is not None, "a captured graph has an output"
    return end


def it_only_computes(site: Site, facts: Facts) -> str | None:
    """An in-place spelling counts as a write, also where it changes no value."""
    for node in (site.inner, site.node):
        if node is not None and not facts.effects(node).none:
            return f"{node.name} does more than compute its result"
    return None


def dtype_stays(site: Site, facts: Facts) -> str | None:
    if site.build is not None:
        return None
    before, after = facts.dtype(site.value), facts.dtype(site.node)
    if before is None or after is None:
        return "the dtype is not known"
    return None if before is after else f"it turns {before} into {after}"


def nothing_writes_in_between(site: Site, facts: Facts) -> str | None:
    if site.inner is None:
        return None
    for value in (site.inner, site.value):
        writer = facts.written_between(site.inner, site.node, value)
        if writer is not None:
            return f"{writer.name} may write {value.name} in between"
    return None


def no_write_is_seen(site: Site, facts: Facts) -> str | None:
    """A result of its own does not see what is written into the operand, nor the other way.

    In a view only its form is its own: `unsqueeze_` changes that.
    """
    if site.result is Result.VIEW:
        writers = (user for user in site.node.users if site.node in facts.effects(user).writes)
        writer = next(writers, None)
        return f"{writer.name} may write {site.node.name} later on" if writer else None
    for value in (site.node, site.value) if site.result.is_copy else ():
        writer = facts.written_between(site.node, _end(site), value)
        if writer is not None:
            return f"{writer.name} may write {value.name} later on"
    return None


def nothing_new_is_shared(site: Site, facts: Facts) -> str | None:
    """Who gets the result must not get an argument, a weight or another result instead."""
    if site.result is Result.SAME or (site.build is not None and not site.result.is_copy):
        return None
    if not facts.may_alias(_end(site), site.node):
        return None
    if site.result is Result.VIEW:
        is_other = site.value.op in ("placeholder", "get_attr") or _end(site) in site.value.users
        handed_out = _end(site) in site.node.users
        return (
            f"the model would return {site.value.name} itself" if is_other and handed_out else None
        )
    if facts.may_alias(_end(site), site.value):
        return f"the model returns it and {site.value.name}, in memory of their own"
    outside = (n for n in site.node.graph.nodes if n.op in ("placeholder", "get_attr"))
    shared = next((n for n in outside if facts.may_alias(n, site.value)), None)
    return None if shared is None else f"the model would return the memory of {shared.name}"


def layout_stays(site: Site, facts: Facts) -> str | None:
    """A copy is dense, its original may not be; what is computed of either is laid out alike."""
    if not site.result.is_copy:
        return None
    if site.result is Result.COPY and _is_dense(site.value, facts):
        return None
    reader = reader_of_layout(site.node, facts)
    if reader is None:
        return None
    if reader.op == "output":
        return "the model could return a result in another memory layout"
    return f"{reader.name} depends on its memory layout"


def inner_call_goes(site: Site, facts: Facts) -> str | None:
    if site.inner is None or site.build is None:
        return None
    others = [n for n in facts.readers(site.inner) if n is not site.node]
    return f"{others[0].name} reads {site.inner.name} too" if others else None


def _is_dense(value: Node, facts: Facts) -> bool:
    """Whether the value is laid out as a copy of it would be: made by a call, in new memory."""
    if op_of(value) is None or not value.op.startswith("call"):
        return False
    return not any(facts.may_alias(value, operand) for operand in value.all_input_nodes)


# -- the rules


def _inactive(node: Node, _: Facts) -> Site | None:
    """Dropout that drops nothing, and the identity."""
    dropout = Dropout.at(node)
    if dropout is not None and not dropout.is_active:
        return _same(node, dropout.input, "it drops nothing")
    identity = View.at(node) if op_of(node) is Op.IDENTITY else None
    return None if identity is None else _same(node, identity.input, "it is the identity")


_NEUTRAL: Final[Mapping[Op, int]] = {Op.ADD: 0, Op.SUB: 0, Op.MUL: 1, Op.DIV: 1, Op.POW: 1}
_EITHER_SIDE: Final = frozenset({Op.ADD, Op.MUL})


def _neutral(node: Node, _: Facts) -> Site | None:
    """`x * 1`, `1 * x`, `x / 1`, `x + 0`, `0 + x`, `x - 0`, `x ** 1`."""
    call = Binary.at(node)
    if call is None or call.op not in _NEUTRAL or call.rounding_mode is not None:
        return None
    left, right, neutral = call.left, call.right, _NEUTRAL[call.op]
    if _is_number(right) and right == neutral:
        return _same(node, left, f"{call.op} with {right} changes nothing", result=Result.COPY)
    if call.op in _EITHER_SIDE and call.alpha == 1 and _is_number(left) and left == neutral:
        return _same(node, right, f"{call.op} with {left} changes nothing", result=Result.COPY)
    return None


def _factors(node: Node, facts: Facts) -> Site | None:
    """`x * a * b`, where neither overflows what the other would bring back."""
    outer, dtype = Binary.at(node), facts.dtype(node)
    if outer is None or outer.op is not Op.MUL or dtype is None or not dtype.is_floating_point:
        return None
    inner_node, second = _operand_and_factor(outer)
    inner = Binary.at(inner_node)
    if inner is None or inner.op is not Op.MUL or facts.dtype(inner.node) is not dtype:
        return None
    value, first = _operand_and_factor(inner)
    if value is None or first is None or second is None or facts.dtype(value) is not dtype:
        return None
    product = first * second
    if (abs(first) < 1) is not (abs(second) < 1) or not _is_normal(product, dtype):
        return None

    def build(edit: Editor) -> Node:
        return edit.call_function(torch.mul, value, product)

    why = f"{first} times {second} is {product}"
    return Site(node, value, why, build, inner.node)


def _is_normal(number: float, dtype: torch.dtype) -> bool:
    """Whether a dtype holds the number in full precision."""
    limits = torch.finfo(dtype)
    return limits.tiny <= abs(number) <= limits.max


def _operand_and_factor(call: Binary) -> tuple[Node | None, Any]:
    pair = call.left, call.right
    numbers = [n for n in pair if _is_number(n)]
    nodes = [n for n in pair if isinstance(n, Node)]
    return (nodes[0], numbers[0]) if len(numbers) == len(nodes) == 1 else (None, None)


def _negations(node: Node, _: Facts) -> Site | None:
    inner = _inner_of(node, Op.NEG)
    if inner is None:
        return None
    return _same(node, inner.input, "two negations", inner=inner.node, result=Result.COPY)


def _cast_to_itself(node: Node, facts: Facts) -> Site | None:
    cast = _plain_cast(node)
    if cast is None or not isinstance(cast.input, Node):
        return None
    if cast.dtype is not facts.dtype(cast.input):
        return None
    return _same(node, cast.input, f"it is {cast.dtype} already")


def _casts(node: Node, facts: Facts) -> Site | None:
    """Two casts of which the first loses nothing."""
    outer = _plain_cast(node)
    inner = None if outer is None else _plain_cast(outer.input)
    if outer is None or inner is None or not isinstance(inner.input, Node):
        return None
    value, dtype = inner.input, outer.dtype
    before, between = facts.dtype(value), inner.dtype
    if before is None or between is None or dtype is None or not _holds_all(between, before):
        return None
    why = f"{between} holds all of {before}"
    if before is dtype:
        return _same(
            node,
            value,
            why,
            inner=inner.node,
            result=Result.SAME if before is between else Result.COPY,
        )

    def build(edit: Editor) -> Node:
        return edit.call_method("to", value, dtype)

    return Site(node, value, why, build, inner.node)


def _plain_cast(node: object) -> Cast | None:
    """A cast to a dtype that is named, and nothing else."""
    cast = Cast.at(node)
    if cast is None or cast.dtype is None or cast.device is not None or cast.like is not None:
        return None
    others = (cast.operand(name) for name in ("copy", "memory_format"))
    return (
        None if any(other not in (None, False, torch.preserve_format) for other in others) else cast
    )


def _holds_all(wide: torch.dtype, narrow: torch.dtype) -> bool:
    if wide is narrow or narrow is torch.bool:
        return True
    if narrow.is_complex or wide.is_complex or wide is torch.bool:
        return False
    if wide.is_floating_point and narrow.is_floating_point:
        large, small = torch.finfo(wide), torch.finfo(narrow)
        return large.max >= small.max and large.eps <= small.eps and large.tiny <= small.tiny
    if narrow.is_floating_point:
        return False
    numbers = torch.iinfo(narrow)
    if wide.is_floating_point:
        return 2 / torch.finfo(wide).eps >= max(numbers.max, -numbers.min)
    return torch.iinfo(wide).min <= numbers.min and numbers.max <= torch.iinfo(wide).max


def _orders(node: Node, facts: Facts) -> Site | None:
    """Two permutations become one, or none."""
    outer = Permute.at(node)
    inner = None if outer is None else Permute.at(outer.input)
    if outer is None or inner is None or not isinstance(inner.input, Node):
        return None
    value, rank = inner.input, facts.rank(node)
    if rank is None:
        return None
    first, second = inner.order(rank), outer.order(rank)
    order = tuple(first[axis] for axis in second)
    if order == tuple(range(rank)):
        return _same(node, value, "it turns the first back", inner=inner.node, result=Result.VIEW)

    def build(edit: Editor) -> Node:
        return edit.call_method("permute", value, *order)

    return Site(node, value, "two permutations are one", build, inner.node)


def _shapes(node: Node, _: Facts) -> Site | None:
    """Of two reshapes in a row only the second counts."""
    outer = Reshape.at(node) or Flatten.at(node)
    inner = None if outer is None else (Reshape.at(outer.input) or Flatten.at(outer.input))
    if outer is None or inner is None or not isinstance(inner.input, Node):
        return None
    if isinstance(outer, Flatten):
        if not _flattens_more(outer, inner):
            return None
    elif outer.size is None:
        return None
    if isinstance(inner, Reshape) and inner.size is None:
        return None
    value = inner.input
    views = op_of(node) is op_of(inner.node) is Op.VIEW
    result = Result.VIEW if views else Result.LAID_OUT_ANEW

    def build(edit: Editor) -> Node:
        if isinstance(outer, Flatten):
            return edit.call_function(torch.flatten, value, outer.start_dim, outer.end_dim)
        if views:
            return edit.call_method("view", value, *_sizes(outer))
        return edit.call_method("reshape", value, *_sizes(outer))

    return Site(node, value, "only the second shape counts", build, inner.node, result)


def _sizes(call: Reshape) -> tuple[Any, ...]:
    return tuple(call.size) if isinstance(call.size, (tuple, list)) else (call.size,)


def _flattens_more(outer: Flatten, inner: View) -> bool:
    """Whether all that the inner one joins, to the last axis, the outer one joins too."""
    if not isinstance(inner, Flatten) or outer.end_dim != -1 or inner.end_dim != -1:
        return False
    return 0 <= outer.start_dim <= inner.start_dim


def _flat_already(node: Node, facts: Facts) -> Site | None:
    call = Flatten.at(node)
    rank = None if call is None or not isinstance(call.input, Node) else facts.rank(call.input)
    if call is None or rank is None or rank == 0:
        return None
    if call.start_dim % rank != call.end_dim % rank:
        return None
    return _same(node, call.input, "it is flat already")


def _only_one(node: Node, _: Facts) -> Site | None:
    call = Cat.at(node)
    if call is None or call.op is not Op.CAT or not isinstance(call.tensors, (list, tuple)):
        return None
    if len(call.tensors) != 1:
        return None
    return _same(node, call.tensors[0], "it joins one tensor", result=Result.LAID_OUT_ANEW)


def _everything(node: Node, facts: Facts) -> Site | None:
    """`x[:]`, `x[..., 0:]`."""
    if op_of(node) is not Op.GETITEM or len(node.args) != 2:
        return None
    value, index = node.args
    rank = facts.rank(value) if isinstance(value, Node) else None
    indices = index if isinstance(index, tuple) else (index,)
    if rank is None or not indices or not all(map(_takes_all, indices)):
        return None
    if sum(isinstance(index, slice) for index in indices) > rank:
        return None
    return _same(node, value, "it takes everything", result=Result.VIEW)


def _takes_all(index: object) -> bool:
    if index is Ellipsis:
        return True
    if not isinstance(index, slice) or isinstance(index.start, Node):
        return False
    return index.start in (None, 0) and index.stop is None and index.step in (None, 1)


def _clones(node: Node, _: Facts) -> Site | None:
    call = View.at(node) if op_of(node) is Op.CLONE else None
    if call is None or call.operand("memory_format") not in (None, torch.preserve_format):
        return None
    return _same(node, call.input, "nobody can tell the copy from the original", result=Result.COPY)


def _contiguous(node: Node, _: Facts) -> Site | None:
    call = View.at(node) if op_of(node) is Op.CONTIGUOUS else None
    if call is None or call.operand("memory_format") not in (None, torch.contiguous_format):
        return None
    if not _is_contiguous(call.input):
        return None
    return _same(node, call.input, "it is contiguous already")


_LAID_OUT_ANEW: Final = FACTORIES - {*(Op.ZEROS_LIKE, Op.ONES_LIKE, Op.FULL_LIKE, Op.EMPTY_LIKE)}
_STAYS_CONTIGUOUS: Final = frozenset({Op.VIEW, Op.RESHAPE, Op.FLATTEN, Op.UNSQUEEZE, Op.SQUEEZE})


def _is_contiguous(value: object) -> bool:
    """Whether a value is contiguous in every call."""
    while isinstance(value, Node):
        call = View.at(value)
        if call is None:
            return False
        if call.op not in _STAYS_CONTIGUOUS:
            known = call.op is Op.CONTIGUOUS or call.op in _LAID_OUT_ANEW
            return known and call.operand("memory_format") in (None, torch.contiguous_format)
        value = call.input
    return False


def _inner_of(node: Node, op: Op) -> View | None:
    """The call that `node` repeats, if both compute `op`."""
    outer = View.at(node) if op_of(node) is op else None
    if outer is None or not isinstance(outer.input, Node) or op_of(outer.input) is not op:
        return None
    return View.at(outer.input)


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _same(
    node: Node, value: Any, why: str, *, inner: Node | None = None, result: Result = Result.SAME
) -> Site | None:
    return Site(node, value, why, None, inner, result) if isinstance(value, Node) else None


RULES: Final[tuple[Rule, ...]] = (
    *(_inactive, _neutral, _factors, _negations, _cast_to_itself, _casts, _orders, _flat_already),
    *(_shapes, _only_one, _everything, _clones, _contiguous),
)


class Simplify(Rewrite[Site]):
    """Leave out what changes nothing, and do in one step what is done in two.

    Dropout that drops nothing, neutral numbers, casts that lose nothing, permutations and
    reshapes in a row, joins of one, slices of everything, copies that nobody can tell from the
    original. Type promotion, writes, and who owns the memory of a result stay as they are.
    """

    name = "simplify"
    numerics = Numerics.ROUNDING
    trains = True
    legal_if = (
        it_only_computes,
        dtype_stays,
        nothing_writes_in_between,
        no_write_is_seen,
        nothing_new_is_shared,
        layout_stays,
    )
    worthwhile_if = (inner_call_goes,)
    remedies: ClassVar[Mapping[Condition[Any], str]] = {
        it_only_computes: "replace the in-place call by the plain one",
        dtype_stays: "nothing: the call changes the dtype of its operand",
        nothing_writes_in_between: "replace the in-place call by the plain one",
        no_write_is_seen: "replace the in-place call by the plain one",
        nothing_new_is_shared: "nothing: who gets the result may write it",
        layout_stays: "use reshape in the place of view, if the layout is no matter",
        inner_call_goes: "nothing: both calls are needed",
    }

    def match(self, node: Node, facts: Facts) -> Site | None:
        return next((site for rule in RULES if (site := rule(node, facts)) is not None), None)

    def why(self, site: Site) -> str:
        return site.why

    def rewrite(self, site: Site, edit: Editor) -> None:
        new = site.value if site.build is None else site.build(edit)
        absorbed = [] if site.inner is None else [site.inner]
        edit.replace(site.node, new, absorbing=absorbed)

"""How large the elements of a tensor can be in any call, and what each of its rows begins with.

Told by what made it: constants, comparisons, fills, sums of such. Parameters and buffers are taken
to stay finite, and as large as they are.
"""

from collections.abc import Callable, Mapping
from math import inf, isnan
from typing import Any, Final, TypeAlias

import torch
from torch import Tensor
from torch.fx import Node

from fxpasses.core import Facts
from fxpasses.ops import COMPARISONS, VIEWS, Op, arguments_of, attribute, op_of

_DEEPEST: Final = 40
_ONES: Final = frozenset({Op.ONES, Op.ONES_LIKE, Op.NEW_ONES})
_ZEROS: Final = frozenset({Op.ZEROS, Op.ZEROS_LIKE, Op.NEW_ZEROS})
_FULL: Final = frozenset({Op.FULL, Op.FULL_LIKE, Op.NEW_FULL})
_WITHIN_ONE: Final = COMPARISONS | {
    *(Op.SIGMOID, Op.HARDSIGMOID, Op.SOFTMAX, Op.TANH, Op.SIN, Op.COS, Op.SIGN),
    *(Op.LOGICAL_NOT, Op.ISNAN, Op.ISINF, Op.ISFINITE),
}
_AT_MOST: Final[Mapping[Op | None, float]] = {
    **dict.fromkeys(_WITHIN_ONE | _ONES, 1.0),
    **dict.fromkeys(_ZEROS, 0.0),
}
_SELECTING: Final = VIEWS | {
    *(Op.CLONE, Op.RELU, Op.NEG, Op.ABS, Op.TRIL, Op.TRIU, Op.REPEAT, Op.REPEAT_INTERLEAVE),
    *(Op.TILE, Op.FLIP, Op.ROLL, Op.INDEX_SELECT, Op.GATHER, Op.AMAX, Op.AMIN),
}
"""Every element is one of the first operand's, but for its sign, or 0."""


def _times(one: float, other: float) -> float:
    return 0.0 if one == 0 or other == 0 else one * other


_Join: TypeAlias = Callable[..., float]
_READ: Final[Mapping[Op | None, tuple[tuple[str, ...], _Join]]] = {
    **dict.fromkeys(_SELECTING, (("input",), lambda one: one)),
    **dict.fromkeys(_FULL, (("fill_value",), lambda one: one)),
    **dict.fromkeys(
        (Op.ADD, Op.SUB), (("input", "other", "alpha"), lambda a, b, c: a + _times(b, c))
    ),
    Op.MUL: (("input", "other"), _times),
    **dict.fromkeys((Op.WHERE, Op.MAXIMUM, Op.MINIMUM), (("input", "other"), max)),
    Op.MASKED_FILL: (("input", "value"), max),
}
"""Which operands the result is made of, and its bound by theirs."""
_DEFAULTS: Final = {"alpha": 1}


def largest_magnitude(value: object, facts: Facts, *, until: Node) -> float:
    """A bound on every element of a tensor or number; infinite where none is known.

    A tensor that may be written before `until` runs has none. NaN is not told of.
    """
    return _Bounds(facts, until).of(value, _DEEPEST)


class _Bounds:
    def __init__(self, facts: Facts, until: Node) -> None:
        self._facts = facts
        self._until = until

    def of(self, value: object, depth: int) -> float:
        if isinstance(value, (bool, int, float)):
            return inf if isnan(value) else abs(value)
        if not isinstance(value, Node) or depth == 0:
            return inf
        if self._facts.written_between(value, self._until, value) is not None:
            return inf
        dtype = self._facts.dtype(value)
        if dtype is None or dtype.is_complex:
            return inf
        limit = _limit(dtype)
        bound = self._computed(value, depth - 1)
        if dtype.is_floating_point:
            return bound if bound <= limit else inf
        return min(bound, limit)

    def _computed(self, node: Node, depth: int) -> float:
        if node.op == "get_attr":
            return self._stored(node)
        op, given = op_of(node), arguments_of(node)
        if op in _AT_MOST:
            return _AT_MOST[op]
        if op is Op.EMBEDDING:
            return self._embedded(node, given, depth)
        if op is Op.DIV:
            return self._divided(given, depth)
        if op not in _READ:
            return inf
        names, join = _READ[op]
        found = (self.of(given.get(name, _DEFAULTS.get(name)), depth) for name in names)
        return join(*found)

    def _divided(self, given: Mapping[str, Any], depth: int) -> float:
        divisor = given.get("other")
        if not isinstance(divisor, (int, float)) or divisor == 0:
            return inf
        return self.of(given.get("input"), depth) / abs(divisor)

    def _embedded(self, node: Node, given: Mapping[str, Any], depth: int) -> float:
        if node.op == "call_module":
            return _largest(attribute(self._facts.module, f"{node.target}.weight"))
        return self.of(given.get("weight"), depth)

    def _stored(self, node: Node) -> float:
        value = attribute(self._facts.module, str(node.target))
        is_known = isinstance(value, Tensor) and not self._facts.is_written(value)
        return _largest(value) if is_known else inf


def _limit(dtype: torch.dtype) -> float:
    if dtype is torch.bool:
        return 1.0
    return torch.finfo(dtype).max if dtype.is_floating_point else -float(torch.iinfo(dtype).min)


def _largest(tensor: Tensor) -> float:
    if tensor.is_meta or tensor.is_complex():
        return inf
    if not tensor.numel():
        return 0.0
    found = float(tensor.detach().abs().amax()) if tensor.dtype is not torch.bool else 1.0
    return inf if isnan(found) else found


# -- what rows begin with

_KEEPING_ROWS: Final = frozenset(
    {Op.CAST, Op.EXPAND, Op.CONTIGUOUS, Op.CLONE, Op.IDENTITY, Op.DETACH}
)
_COMPARED: Final[Mapping[Op | None, Callable[[float, float], bool]]] = {
    Op.EQ: lambda a, b: a == b,
    Op.NE: lambda a, b: a != b,
    Op.LT: lambda a, b: a < b,
    Op.LE: lambda a, b: a <= b,
    Op.GT: lambda a, b: a > b,
    Op.GE: lambda a, b: a >= b,
}


def beginning_of_rows(value: object, facts: Facts, *, until: Node) -> float | None:
    """The number that every row along the last axis begins with, or None where it is not known.

    True is 1. A triangle below the diagonal keeps the first column, one above it has zeros there.
    """
    if not isinstance(value, Node):
        return None
    if facts.written_between(value, until, value) is not None:
        return None
    op, given = op_of(value), arguments_of(value)
    if op in _ZEROS or op in _ONES:
        return float(op in _ONES)
    if op in _FULL:
        fill = given.get("fill_value")
        return float(fill) if isinstance(fill, (int, float)) else None
    if op is Op.TRIU and _is_at_least(given.get("diagonal"), 1):
        return 0.0
    first = beginning_of_rows(given.get("input"), facts, until=until)
    if first is None or _keeps_the_beginning(value, facts):
        return first
    if op in (Op.LOGICAL_NOT, Op.BITWISE_NOT):
        return float(not first) if facts.dtype(value) is torch.bool else None
    return _compared(op, first, given.get("other"))


def _compared(op: Op | None, first: float, other: object) -> float | None:
    if op not in _COMPARED or not isinstance(other, (int, float)):
        return None
    return float(_COMPARED[op](first, other))


def _is_at_least(diagonal: object, least: int) -> bool:
    return isinstance(diagonal, int) and diagonal >= least


def _keeps_the_beginning(node: Node, facts: Facts) -> bool:
    op, given = op_of(node), arguments_of(node)
    if op is Op.TRIL:
        return _is_at_least(given.get("diagonal"), 0)
    if op is Op.UNSQUEEZE:
        rank, dim = facts.rank(node), given.get("dim")
        return rank is not None and isinstance(dim, int) and dim % rank < rank - 1
    return op in _KEEPING_ROWS

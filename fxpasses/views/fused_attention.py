"""The one call that attention which is written out can be, and what has to stand around it."""

import operator
from collections.abc import Mapping
from dataclasses import dataclass
from functools import reduce
from math import inf, nan, prod
from typing import Any

import torch
from torch.fx import Node

from fxpasses.core import Editor
from fxpasses.views.products import Attention
from fxpasses.views.score_links import Bias, Factor, Fill, is_positive, negated
from fxpasses.views.shapes import Reshape
from fxpasses.views.written_attention import WrittenAttention

_KERNEL_RANK = 4
"""Fused kernels take (batch, heads, length, features)."""


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What the graph says of an attention besides how it is written.

    Attributes:
        hides_rows: whether a mask may hide all keys from a query. The call gives 0 there.
        is_dense: whether the result has to be laid out as a product lays it out.
        ranks: of all that the scores meet.
        casts: what is added in a dtype that the call does not take, and the dtype for it.
    """

    hides_rows: bool
    is_dense: bool
    ranks: Mapping[Node, int]
    casts: Mapping[Node, torch.dtype]


def fused(found: WrittenAttention, around: Surroundings, edit: Editor) -> Node:
    """Nodes that compute what `found` does; the last of them is its result."""
    return _Building(found, around, edit).result()


class _Building:
    def __init__(self, found: WrittenAttention, around: Surroundings, edit: Editor) -> None:
        self._found = found
        self._around = around
        self._edit = edit
        self._missing = max(0, _KERNEL_RANK - len(found.axes))

    def result(self) -> Node:
        found, edit = self._found, self._edit
        scores = found.scores
        assert scores is not None
        *batch, queries, keys = found.axes
        scale, factors = self._scale()
        query = self._scaled(
            scores.query.laid_out((*batch, queries, scores.product.summed), edit), factors
        )
        key = scores.key.laid_out((*batch, keys, scores.product.summed), edit)
        value = self._deepened(found.value.laid_out((*batch, keys, found.features), edit))
        mask = self._mask()
        made = Attention.create(
            edit, self._deepened(query), self._deepened(key), value, mask=mask, scale=scale
        )
        if mask is not None and self._around.hides_rows:
            made = self._with_hidden_rows(made, mask, value)
        for _ in range(self._missing):
            made = edit.call_method("squeeze", made, 0)
        axes = (*batch, queries, found.features)
        order = tuple(axes.index(axis) for axis in found.last.axes)
        if order != tuple(range(len(axes))):
            made = edit.call_method("permute", made, *order)
        return edit.call_method("contiguous", made) if self._around.is_dense else made

    # -- the scale

    def _scale(self) -> tuple[Any, list[Factor]]:
        """The number for the call, and the factors that only the queries can be given."""
        constants = [f.constant for f in self._found.factors]
        number = prod(one for one in constants if one is not None)
        others = [f for f in self._found.factors if f.constant is None]
        if number <= 0:
            # Kernels look for the largest score before they scale.
            others.append(Factor(number, self._found.node))
            number = 1.0
        left: list[Factor] = []
        scale: Any = number
        for factor in others:
            if factor.is_number and is_positive(factor.value):
                function = operator.truediv if factor.divides else operator.mul
                scale = self._edit.call_function(function, scale, factor.value)
            else:
                left.append(factor)
        return scale, left

    def _scaled(self, value: Node, factors: list[Factor] | tuple[Factor, ...]) -> Node:
        for factor in factors:
            function = operator.truediv if factor.divides else operator.mul
            value = self._edit.call_function(function, value, factor.value)
        return value

    # -- the mask

    @property
    def _fills(self) -> list[Fill]:
        return [change for change, _ in self._found.changes if isinstance(change, Fill)]

    def _mask(self) -> Node | None:
        """True where scores count, or a number for each that is added to it."""
        edit, fills = self._edit, self._fills
        added = self._sum()
        if not fills:
            return None if added is None else self._deepened(added, self._rank_of_the_sum())
        if added is None and len(fills) == 1:
            mask = self._kept(fills[0])
            return self._deepened(mask, self._around.ranks[fills[0].mask])
        rank = max(self._around.ranks[fill.mask] for fill in fills)
        hidden = reduce(
            lambda one, other: edit.call_function(operator.or_, one, other),
            [self._hidden(fill) for fill in fills],
        )
        if added is None:
            return self._deepened(edit.call_method("logical_not", hidden), rank)
        filled = edit.call_method("masked_fill", added, hidden, -inf)
        return self._deepened(filled, max(rank, self._rank_of_the_sum()))

    def _sum(self) -> Node | None:
        parts = [
            self._added(change, later)
            for change, later in self._found.changes
            if isinstance(change, Bias)
        ]
        if not parts:
            return None
        return reduce(lambda one, other: self._edit.call_function(operator.add, one, other), parts)

    def _rank_of_the_sum(self) -> int:
        ranks = self._around.ranks
        return max(ranks[c.node] for c, _ in self._found.changes if isinstance(c, Bias))

    def _added(self, bias: Bias, later: tuple[Factor, ...]) -> Node:
        edit, value = self._edit, self._repeated(bias.node, bias.node)
        if bias.node in self._around.casts:
            value = edit.call_method("to", value, self._around.casts[bias.node])
        if bias.subtracted:
            value = edit.call_function(operator.neg, value)
        if bias.factor != 1:
            value = edit.call_function(operator.mul, value, bias.factor)
        return self._scaled(value, later)

    def _kept(self, fill: Fill) -> Node:
        return self._mask_of(fill, wanted=True)

    def _hidden(self, fill: Fill) -> Node:
        return self._mask_of(fill, wanted=False)

    def _mask_of(self, fill: Fill, *, wanted: bool) -> Node:
        """The mask that is true where scores are kept, or where they are not."""
        edit, mask = self._edit, fill.mask
        if fill.keeps is not wanted:
            mask = negated(mask) or edit.call_method("logical_not", mask)
        return self._repeated(mask, fill.mask)

    def _repeated(self, tensor: Node, met: Node) -> Node:
        """What met the scores window by window, once for each group of windows."""
        split = self._found.windows.get(met)
        scores = self._found.scores
        if split is None or scores is None:
            return tensor
        edit, (groups, windows, *others) = self._edit, Reshape(split).size
        batch = edit.call_method(
            "size", scores.query.node, scores.query.axes.index(self._found.axes[0])
        )
        if groups == -1:
            groups = edit.call_function(operator.floordiv, batch, windows)
        elif windows == -1:
            windows = edit.call_function(operator.floordiv, batch, groups)
        kept = [-1] * len(others)
        expanded = edit.call_method("expand", tensor, groups, windows, *kept)
        return edit.call_method("flatten", expanded, 0, 1)

    # -- shapes, and rows that nothing is left of

    def _deepened(self, value: Node, rank: int | None = None) -> Node:
        """With axes of one element in front, as many as a kernel needs.

        Masks of two axes are taken as they are.
        """
        missing = self._missing if rank is None else 0 if rank == 2 else _KERNEL_RANK - rank
        if rank is not None and rank < 2:
            missing = 2 - rank
        for _ in range(missing):
            value = self._edit.call_method("unsqueeze", value, 0)
        return value

    def _with_hidden_rows(self, made: Node, mask: Node, value: Node) -> Node:
        """A softmax over nothing but -inf is NaN, and over one finite number the same for all."""
        edit, fills = self._edit, self._fills
        if len(fills) == len(self._found.changes):
            seen = edit.call_method("any", mask, -1, True)
        else:
            largest = edit.call_method("amax", mask, -1, True)
            seen = edit.call_function(torch.isfinite, largest)
        if not fills or fills[0].value == -inf:
            return edit.call_function(torch.where, seen, made, nan)
        mean = edit.call_method("mean", value, -2, True)
        return edit.call_function(torch.where, seen, made, mean)

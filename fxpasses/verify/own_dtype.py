"""How much precision rewritten pieces lose in the dtypes that the model itself computes in.

In float64 a detour over large numbers costs nothing: `(x + 1e4) - 1e4` is `x` to twelve digits.
In float32 it leaves four of them. So the old and the new way to a value are run in the model's own
dtypes as well, from the float64 values at their border, rounded, and each is compared with float64.

The new way may be `FACTOR` times as far off as the old one: right rewrites were seen to be up to
3 times as far off, detours begin at 10. Nobody is asked for less than one rounding of the result,
and a slice of it not for less than the slices are off on average: a few elements may be exact by
luck. What rounding the border does is part of the error on both sides, so a new way is right that
is exact for inputs a rounding away.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_leaves, tree_unflatten

from fxpasses.core import TensorInfo
from fxpasses.verify.float64 import unaffected
from fxpasses.verify.losses import MARGIN, Loss, leaf_loss, unit
from fxpasses.verify.unavailable import first_line

DRAWS = 5
"""On how many more sets of values the error must be too large in the same slice.

On one it may be chance: where a slice holds little but what is left of large numbers that cancel,
both ways are off by as much, and one time in ten the original by an eighth of that.
"""


class NotComparableError(Exception):
    """The original itself cannot be run as it is from the border on, and why."""


@dataclass(frozen=True, slots=True, eq=False)
class Way:
    """One way to a value, from values at its border.

    Attributes:
        borders: in float64.
        kinds: a TensorInfo, or a structure of them, for each border: what the model has there.
        own: gives the value in the model's own dtypes, from borders in them, which it may write.
        wide: gives the value in float64.
    """

    borders: Sequence[Any]
    kinds: Sequence[Any]
    own: Callable[[Sequence[Any]], Any]
    wide: Callable[[Sequence[Any]], Any]

    def rounded(self) -> list[Any]:
        """The borders as the model has them, in memory of their own."""

        def rounded(value: Tensor, kind: TensorInfo | None) -> Tensor:
            return value.detach().to(value.dtype if kind is None else kind.dtype, copy=True)

        return self._changed(rounded)

    def moved(self, seed: int) -> "Way":
        """The same way from other borders, some roundings away: all that follows rounds anew."""

        def moved(value: Tensor, kind: TensorInfo | None) -> Tensor:
            if kind is None:
                return value
            generator = torch.Generator(value.device).manual_seed(seed)
            shares = torch.rand(value.shape, generator=generator, device=value.device)
            made = value * (1 + MARGIN * unit(kind.dtype) * (2 * shares - 1))
            # What the model has exactly, such as its inputs, it has exactly here as well.
            is_exact = torch.equal(value.to(kind.dtype).to(value.dtype), value)
            return made.to(kind.dtype).to(value.dtype) if is_exact else made

        return replace(self, borders=self._changed(moved))

    def _changed(self, change: Callable[[Tensor, TensorInfo | None], Tensor]) -> list[Any]:
        with unaffected():
            pairs = zip(self.borders, self.kinds, strict=True)
            return [_changed(border, kind, change) for border, kind in pairs]


def precision_lost(new: Way, old: Way, truth: Any) -> Loss:
    """What the new way loses in the model's own dtypes.

    Args:
        new: the way to judge.
        old: the original's, on the same values.
        truth: what both give in float64.

    Raises:
        NotComparableError: nothing can be said.
    """
    loss = _loss(new, old, truth, truth)
    if loss.allowed and not loss.absurd:
        return loss
    lost = None if loss.allowed else loss
    for seed in range(DRAWS):
        there, here = new.moved(seed), old.moved(seed)
        loss = _loss(there, here, _truth(there), _truth(here))
        lost = loss if lost is None else lost.again(loss)
        if lost.allowed:
            break
    return lost or loss


def _truth(way: Way) -> Any:
    try:
        return way.wide(way.borders)
    except Exception as error:  # values some roundings away may be outside of what an op takes
        text = f"a few roundings away float64 raises {type(error).__name__}: {first_line(error)}"
        raise NotComparableError(text) from error


def _loss(new: Way, old: Way, new_truth: Any, old_truth: Any) -> Loss:
    try:
        expected = old.own(old.rounded())
    except Exception as error:  # the original has no such kernel, or needs more than its border
        text = f"the original raises {type(error).__name__} there: {first_line(error)}"
        raise NotComparableError(text) from error
    try:
        value = new.own(new.rounded())
    except Exception as error:  # whatever a rewritten region raises is a finding
        text = f"the rewritten part raises {type(error).__name__}: {first_line(error)}"
        return Loss(text=f"{text}, in the model's own dtypes")
    with unaffected():
        leaves = zip(*map(tree_leaves, (value, expected, new_truth, old_truth)), strict=False)
        return Loss.over(leaf_loss(number, *leaf) for number, leaf in enumerate(leaves))


def _changed(value: Any, kind: Any, change: Callable[[Tensor, TensorInfo | None], Tensor]) -> Any:
    """The structure with its tensors changed; floats by what is known of them."""
    leaves, spec = tree_flatten(value)
    kinds = tree_leaves(kind)
    if len(kinds) != len(leaves):
        kinds = [None] * len(leaves)
    changed = [
        change(leaf, _known(leaf, one)) if isinstance(leaf, Tensor) else leaf
        for leaf, one in zip(leaves, kinds, strict=True)
    ]
    return tree_unflatten(changed, spec)


def _known(value: Tensor, kind: Any) -> TensorInfo | None:
    if not (value.is_floating_point() or value.is_complex()):
        return None
    if not isinstance(kind, TensorInfo):
        raise NotComparableError("the dtype of a value that is read there is not known")
    return kind

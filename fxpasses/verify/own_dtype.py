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

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_leaves, tree_unflatten

from fxpasses.core import TensorInfo
from fxpasses.verify.distance import outlier_limit
from fxpasses.verify.float64 import WIDE, unaffected
from fxpasses.verify.unavailable import first_line

FACTOR = 8
"""How many times the error of the original a rewrite may make."""

ROUNDING = 0.5
"""What one rounding of every element makes, in units of the largest: 0.4 in the mean of squares."""

DRAWS = 3
"""On how many more sets of values the error must be too large: on one it may be chance."""

_MOVED = 16
"""By how many roundings those values are moved, so that all that follows rounds otherwise."""

_PIECE = 2**15  # elements

_ABSURD = 2.0**10
"""An old way that many roundings off may lack a write in between: it gets its own float64 value."""


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
        """The same way from other borders, some roundings away."""

        def moved(value: Tensor, kind: TensorInfo | None) -> Tensor:
            if kind is None:
                return value
            generator = torch.Generator(value.device).manual_seed(seed)
            shares = torch.rand(value.shape, generator=generator, device=value.device)
            made = value * (1 + _MOVED * _unit(kind.dtype) * (2 * shares - 1))
            # What the model has exactly, such as its inputs, it has exactly here as well.
            is_exact = torch.equal(value.to(kind.dtype).to(value.dtype), value)
            return made.to(kind.dtype).to(value.dtype) if is_exact else made

        return replace(self, borders=self._changed(moved))

    def _changed(self, change: Callable[[Tensor, TensorInfo | None], Tensor]) -> list[Any]:
        with unaffected():
            pairs = zip(self.borders, self.kinds, strict=True)
            return [_changed(border, kind, change) for border, kind in pairs]


@dataclass(frozen=True, slots=True)
class Loss:
    """The worst of what a new way loses. Errors are relative to the size of the value."""

    error: float = 0.0
    yardstick: float = 1.0
    dtype: torch.dtype = torch.float64
    text: str = ""
    absurd: bool = False

    @property
    def ratio(self) -> float:
        return math.inf if self.text else self.error / self.yardstick

    @property
    def allowed(self) -> bool:
        return self.ratio <= FACTOR

    @property
    def message(self) -> str:
        """What is lost beyond what may be, in words; "" if nothing."""
        if self.allowed:
            return ""
        return self.text or (
            f"in {self.dtype} the value is off by {self.error:.1e} of its size, more than "
            f"{FACTOR} times the {self.yardstick:.1e} that the original is off by there"
        )


def precision_lost(new: Way, old: Way, truth: Any) -> Loss:
    """What the new way loses in the model's own dtypes.

    Args:
        new: the way to judge.
        old: the original's, on the same values.
        truth: what both give in float64.

    Raises:
        NotComparableError: nothing can be said.
    """
    first = loss = _loss(new, old, truth, truth)
    if first.allowed and not first.absurd:
        return first
    for seed in range(DRAWS):
        there, here = new.moved(seed), old.moved(seed)
        loss = _loss(there, here, _truth(there), _truth(here))
        if loss.allowed:
            return loss
    return loss if first.allowed else first


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
        return _largest([_leaf_loss(*leaf) for leaf in leaves])


def _largest(losses: Sequence[Loss]) -> Loss:
    largest = max(losses, key=lambda loss: loss.ratio, default=Loss())
    return replace(largest, absurd=any(loss.absurd for loss in losses))


def _leaf_loss(new: Any, old: Any, new_truth: Any, old_truth: Any) -> Loss:
    tensors = (new, old, new_truth, old_truth)
    if not all(isinstance(one, Tensor) for one in tensors) or old.dtype not in WIDE:
        # Where the model has float64 nothing is finer. Decisions are compared in float64.
        return Loss()
    if new.dtype != old.dtype:
        return Loss(text=f"the dtype is {new.dtype}, not {old.dtype}")
    if len({(one.shape, one.layout) for one in tensors}) > 1 or old.layout is not torch.strided:
        return Loss()
    sums = _Sums(outlier_limit(old_truth))
    for block in zip(*(_blocks(one.detach()) for one in tensors), strict=True):
        sums.add(*block)
    if sums.lost:
        text = f"in {old.dtype} {sums.lost} of {old.numel()} elements are NaN or infinite"
        return Loss(text=f"{text}, which the original's are not")
    return _largest([loss for part in sums.parts() for loss in _by_slices(*part, old.dtype)])


def _blocks(tensor: Tensor) -> tuple[Tensor, ...]:
    """Some channels at a time, in at least three dimensions: channels are the second."""
    if tensor.dim() < 3:
        tensor = tensor.unsqueeze(0) if tensor.dim() == 2 else tensor.reshape(-1, 1, 1)
    count = max(1, _PIECE * tensor.shape[1] // max(1, tensor.numel()))
    return tensor.split(count, 1)


class _Sums:
    """Squares of errors and sizes, added up by channels and by features, without large temporaries.

    Each has three rows: for the new way, the old way and the value itself. What lies above `limit`
    is counted apart: next to the -3e38 of a mask every error would vanish.
    """

    def __init__(self, limit: float) -> None:
        self.limit = limit
        self.lost = 0
        self._channels: tuple[list[Tensor], list[Tensor]] = [], []
        self._features: list[Tensor | None] = [None, None]

    def add(self, new: Tensor, old: Tensor, new_truth: Tensor, old_truth: Tensor) -> None:
        """Count one block of channels."""
        all_parts = torch.stack(
            [new.to(new_truth.dtype) - new_truth, old.to(old_truth.dtype) - old_truth, old_truth]
        )
        if not bool(torch.isfinite(all_parts).all()):
            known = torch.isfinite(old) & _fits(old_truth, old.dtype) & _fits(new_truth, old.dtype)
            right = known | (torch.isinf(old) & (old == old_truth))
            self.lost += int((right & ~torch.isfinite(new) & (new != old)).sum())
            all_parts = torch.where(known & torch.isfinite(new), all_parts, 0)
        squares = all_parts.abs().square()
        far = squares[2] > self.limit * self.limit
        if not bool(far.any()):
            self._count(0, squares)
            return
        self._count(0, torch.where(far, 0, squares))
        self._count(1, torch.where(far, squares, 0))

    def _count(self, part: int, squares: Tensor) -> None:
        last = squares.dim() - 1
        self._channels[part].append(squares.sum([d for d in range(1, last + 1) if d != 2]))
        features = squares.sum(list(range(1, last)))
        so_far = self._features[part]
        self._features[part] = features if so_far is None else so_far + features

    def parts(self) -> Iterator[tuple[Tensor, Tensor]]:
        """By channels and by features: what is near, and what is far if there is anything."""
        for channels, features in zip(self._channels, self._features, strict=True):
            if features is not None:
                yield torch.cat(channels, 1), features


def _fits(value: Tensor, dtype: torch.dtype) -> Tensor:
    """Where a value is so far from the largest of a dtype that no few roundings exceed it."""
    return value.abs() <= torch.finfo(dtype).max * (1 - _MOVED * _unit(dtype))


def _by_slices(channels: Tensor, features: Tensor, dtype: torch.dtype) -> Iterator[Loss]:
    """The whole, the worst channel and the worst feature."""
    unit = _unit(dtype)
    for squares in (channels.sum(1, keepdim=True), channels, features):
        error, own, large = squares.sqrt()
        large = torch.maximum(large, _typical(large))
        yardstick = torch.maximum(torch.maximum(own, _typical(own)), ROUNDING * unit * large)
        if not bool(large.any()):
            return
        at = int((error / yardstick).argmax())
        scale = float(large[at])
        absurd = len(own) == 1 and float(own) > min(_ABSURD * unit, 0.25) * scale
        yield Loss(float(error[at]) / scale, float(yardstick[at]) / scale, dtype, absurd=absurd)


def _typical(sizes: Tensor) -> Tensor:
    return sizes.square().mean().sqrt()


def _unit(dtype: torch.dtype) -> float:
    """The largest relative error of one rounding."""
    return torch.finfo(dtype).eps / 2


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

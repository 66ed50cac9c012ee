"""What a value loses against a yardstick, slice by slice: whole, by channels, by features."""

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fxpasses.verify.distance import outlier_limit
from fxpasses.verify.float64 import WIDE

FACTOR = 8
"""How many times the error of the original a rewrite may make."""

ROUNDING = 0.5
"""What one rounding of every element makes, in units of the largest: 0.4 in the mean of squares."""

MARGIN = 16
"""How many roundings apart values may be without being others."""

_PIECE = 2**15  # elements

_ABSURD = 2.0**10
"""An old way that many roundings off may lack a write in between: it gets its own float64 value."""


class _Kind(NamedTuple):
    """Which slices of a value are meant."""

    leaf: int
    dtype: torch.dtype
    is_far: bool
    by: str


_Slices = Mapping[_Kind, Tensor]
"""Error and yardstick of each slice, in units of its size: shape [2, slices] each."""


@dataclass(frozen=True, slots=True)
class Loss:
    """What a new way loses. The figures are of the slice that loses most, in units of its size."""

    error: float = 0.0
    yardstick: float = 1.0
    dtype: torch.dtype = torch.float64
    text: str = ""
    absurd: bool = False
    slices: _Slices = field(default_factory=dict[_Kind, Tensor])

    @classmethod
    def of(cls, slices: _Slices, *, absurd: bool = False) -> "Loss":
        worst = cls(absurd=absurd, slices=slices)
        for kind, (errors, yardsticks) in slices.items():
            at = int((errors / yardsticks).argmax())
            error, yardstick = float(errors[at]), float(yardsticks[at])
            if error / yardstick > worst.ratio or worst.dtype is torch.float64:
                worst = replace(worst, error=error, yardstick=yardstick, dtype=kind.dtype)
        return worst

    @classmethod
    def over(cls, losses: Iterable["Loss"]) -> "Loss":
        """What is lost in several values."""
        every = list(losses)
        said = next((loss for loss in every if loss.text), None)
        absurd = any(loss.absurd for loss in every)
        slices = {kind: found for loss in every for kind, found in loss.slices.items()}
        return replace(said, absurd=absurd) if said else cls.of(slices, absurd=absurd)

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

    def again(self, other: "Loss") -> "Loss":
        """What is lost in the same slice both times."""
        if self.text or other.text:
            return self if other.text else other
        common = self.slices.keys() & other.slices.keys()
        pairs = {kind: (self.slices[kind], other.slices[kind]) for kind in common}
        return Loss.of({kind: _smaller(*pair) for kind, pair in pairs.items()})


def _smaller(one: Tensor, other: Tensor) -> Tensor:
    return torch.where(one[0] / one[1] <= other[0] / other[1], one, other)


def leaf_loss(number: int, new: Any, old: Any, new_truth: Any, old_truth: Any) -> Loss:
    """What is lost in one value of several.

    Args:
        number: which of them it is.
        new: in the model's own dtype, as the next one.
        old: the yardstick: what the original makes.
        new_truth: in float64, as the next one: what `new` should be.
        old_truth: what `old` should be.
    """
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
    slices, absurd = dict[_Kind, Tensor](), False
    for is_far, (channels, features) in sums.parts():
        whole = channels.sum(1, keepdim=True)
        for by, squares in (("whole", whole), ("channels", channels), ("features", features)):
            if bool(squares[2].any()):
                slices[_Kind(number, old.dtype, is_far, by)] = _by_size(squares, old.dtype)
        absurd = absurd or _is_absurd(whole, old.dtype)
    return Loss.of(slices, absurd=absurd)


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

    def parts(self) -> Iterator[tuple[bool, tuple[Tensor, Tensor]]]:
        """By channels and by features: what is near, and what is far if there is anything."""
        for is_far, channels in enumerate(self._channels):
            features = self._features[is_far]
            if features is not None:
                yield bool(is_far), (torch.cat(channels, 1), features)


def _fits(value: Tensor, dtype: torch.dtype) -> Tensor:
    """Where a value is so far from the largest of a dtype that no few roundings exceed it."""
    return value.abs() <= torch.finfo(dtype).max * (1 - MARGIN * unit(dtype))


def _by_size(squares: Tensor, dtype: torch.dtype) -> Tensor:
    """Error and yardstick of each slice, in units of its size: shape [2, slices]."""
    error, own, large = squares.sqrt()
    large = torch.maximum(large, _typical(large))
    yardstick = torch.maximum(torch.maximum(own, _typical(own)), ROUNDING * unit(dtype) * large)
    return torch.stack([error, yardstick]) / large


def _is_absurd(whole: Tensor, dtype: torch.dtype) -> bool:
    _, own, large = whole[:, 0].sqrt().tolist()
    return own > min(_ABSURD * unit(dtype), 0.25) * large > 0


def _typical(sizes: Tensor) -> Tensor:
    return sizes.square().mean().sqrt()


def unit(dtype: torch.dtype) -> float:
    """The largest relative error of one rounding."""
    return torch.finfo(dtype).eps / 2

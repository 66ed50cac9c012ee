"""Values at a border cut down to few places, where old and new region treat every place alike.

A convolution, an inference-time batch norm and arithmetic element by element make the same of
every place. So two regions of them that agree on a small map agree on a large one, if the small
one leaves out nothing that may tell them apart:

- it has every channel, and so meets every weight;
- it is as wide as what one result follows from, and twice the step between results beyond that:
  every tap of every kernel meets values in its middle, and what is added round a map (which
  belongs to the region) on each side of it. Its size leaves the same rest by the step as the
  whole one's does, so that the last window ends where it did;
- each channel is cut out around its own largest value, so that one which is zero nearly
  everywhere, as behind a relu, is not zero there;
- samples are computed one by one: of many, every few give one.

Where both are affine as well, a sample of made-up values lies beside the real ones, also for
channels that are zero everywhere. What agrees there agrees on all values: a difference that is
affine, and zero on values drawn at random, is zero.

What differs on a piece is judged on the whole values, which alone can make a rewrite fail.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import torch
from torch import Tensor
from torch.fx import Node

from fxpasses.analysis.effects import effects_of
from fxpasses.core import Region
from fxpasses.verify.float64 import unaffected
from fxpasses.verify.made_up import drawn
from fxpasses.verify.regions import needed, owned
from fxpasses.views import BatchNorm, Conv, ConvOfUnit, Window, is_affine, view_at, window_of

_SAMPLES = 4
"""Of so many samples at most a piece is made."""

_PIECE = 2**16  # elements that are looked through at a time: about what the nearest caches hold

_WORTHWHILE = 0.5
"""The largest share of the whole that a piece may be: old and new value are both made of it."""


@dataclass(frozen=True, slots=True)
class Likeness:
    """How a result follows from maps, every place of which is treated alike."""

    window: Window
    is_affine: bool

    def then(self, following: Window, *, is_affine: bool) -> "Likeness":
        """How what is computed of the result follows from the maps."""
        return Likeness(self.window.then(following), self.is_affine and is_affine)

    def beside(self, other: "Likeness") -> "Likeness | None":
        """How the two together do; None if their places differ."""
        window = self.window.beside(other.window)
        return window and Likeness(window, self.is_affine and other.is_affine)


def likeness_of(region: Region, index: int) -> Likeness | None:
    """How the result at `index` of a region follows from its borders.

    None where one of its nodes does not treat all places alike or does more than compute, and
    where there is no convolution: then nothing costs much.
    """
    nodes = needed(owned(region), index)
    convolutions = (view_at(node, Conv, ConvOfUnit) for node in nodes)
    ranks = {conv.spatial_rank for conv in convolutions if conv is not None}
    if len(ranks) != 1:
        return None
    rank = ranks.pop()
    moving: dict[Node, Likeness] = {}
    for node in nodes:
        read = [one for one in node.all_input_nodes if one in moving]
        if node.op == "placeholder":
            moving[node] = Likeness(Window.of_one(rank), is_affine=True)
        elif not effects_of(node).none:
            return None
        elif read:
            found = _likeness_of(node, rank, read, moving)
            if found is None:
                return None
            moving[node] = found
    return moving.get(nodes[-1])


def _likeness_of(
    node: Node, rank: int, read: Sequence[Node], moving: Mapping[Node, Likeness]
) -> Likeness | None:
    own, affine = window_of(node, rank), is_affine(node, read)
    if own is None:
        return None
    layer = view_at(node, Conv, ConvOfUnit, BatchNorm)
    if layer is None:
        joined = moving[read[0]]
        for other in read[1:]:
            beside = joined.beside(moving[other])
            if beside is None:
                return None
            joined = beside
        return joined.then(own, is_affine=affine)
    residual = layer.residual if isinstance(layer, ConvOfUnit) else None
    if {layer.input, residual} - {None} != set(read) or layer.input is residual:
        return None
    result = moving[layer.input].then(own, is_affine=affine)
    return result if residual is None else result.beside(moving[residual])


def cropped(borders: Mapping[Node, Any], alike: Likeness) -> dict[Node, Any] | None:
    """The borders cut down to what is needed; None where that cannot be, or gains little."""
    window, rank = alike.window, len(alike.window.reach)
    if not all(isinstance(one, Tensor) and one.dim() == rank + 2 for one in borders.values()):
        return None
    sizes = {node: _sizes(one, window) for node, one in borders.items()}
    part = sum(min(_SAMPLES, len(borders[node])) * prod(size) for node, size in sizes.items())
    if part > _WORTHWHILE * sum(len(one) * prod(one.shape[2:]) for one in borders.values()):
        return None
    with unaffected():
        small = {node: _cropped(one, sizes[node]) for node, one in borders.items()}
        return {n: _with_made_up(t) for n, t in small.items()} if alike.is_affine else small


def _with_made_up(samples: Tensor) -> Tensor:
    size = samples.abs().max()
    made_up: Tensor = drawn(samples[:1])
    is_usable = bool(torch.isfinite(size)) and bool(size)
    return torch.cat([samples, made_up * size if is_usable else made_up])


def _sizes(whole: Tensor, window: Window) -> list[int]:
    axes = zip(whole.shape[2:], window.reach, window.step, strict=True)
    return [_size(*axis) for axis in axes]


def _cropped(whole: Tensor, sizes: Sequence[int]) -> Tensor:
    groups = whole.split(max(1, -(-len(whole) // _SAMPLES)))
    return torch.cat([_around_largest(group, sizes) for group in groups])


def _size(whole: int, reach: int, step: int) -> int:
    """How many places of an axis are kept: see above for why they suffice."""
    return min(whole, reach + 2 * step + (whole - reach) % step)


def _around_largest(samples: Tensor, sizes: Sequence[int]) -> Tensor:
    """One sample, each channel cut out of that of `samples` which has its largest value, there."""
    count, channels, *places = samples.shape
    by_channel = samples.transpose(0, 1).flatten(1)
    few = max(1, _PIECE // by_channel.shape[1])
    largest = torch.cat([some.abs().max(1).indices for some in by_channel.split(few)])
    sample, *at = torch.unravel_index(largest, (count, *places))
    found = sample * prod(places)
    for axis, (size, whole) in enumerate(zip(sizes, places, strict=True)):
        start = (at[axis] - size // 2).clamp(0, whole - size)
        along = start[:, None] + torch.arange(size, device=start.device)
        inner = prod(places[axis + 1 :])
        found = found[..., None] + inner * along.reshape(channels, *[1] * axis, size)
    return by_channel.gather(1, found.flatten(1)).reshape(1, channels, *sizes)

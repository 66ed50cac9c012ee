"""Inputs to try besides the example: zeros, other values, large values of both signs."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map_only

from fxpasses.verify.state import fresh

_LARGE = 10
_LARGE_OTHERS = "other values x 10 of both signs"


@dataclass(frozen=True, slots=True)
class Probe:
    """One set of arguments. With `rows`, each row of the first dimension is a sample by itself."""

    name: str
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    rows: bool = False

    def call(self) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The arguments, copied: the model may write them."""
        args, kwargs = fresh((tuple(self.args), dict(self.kwargs)))
        return args, kwargs


def example_probe(args: tuple[Any, ...], kwargs: Mapping[str, Any], outputs: Any = None) -> Probe:
    """The example; `outputs` are the model's own, where they are known."""
    size = _batch_size((args, kwargs))
    return Probe("example", args, kwargs, rows=size is not None and _comes_out(size, outputs))


def _comes_out(size: int, outputs: Any) -> bool:
    """Whether some output may have as many samples as the arguments, or a multiple of them.

    What three images of a list have in common is that each has three channels.
    """
    leaves = [leaf for leaf in tree_leaves(outputs) if isinstance(leaf, Tensor) and leaf.dim()]
    return not leaves or any(leaf.shape[0] % size == 0 for leaf in leaves)


def composite_probes(example: Probe) -> list[Probe]:
    """Zeros and other values, large and of both signs, in one batch; and one of tamer values.

    That is for models which make no numbers of the first. None where the example has no samples
    by rows. The size of the batch differs from the example's.
    """
    size = _batch_size((example.args, example.kwargs))
    if size is None or not example.rows:
        return []
    return [
        _composed(example, size, f"zeros, {_LARGE_OTHERS} in one batch", _zeros, _large_others),
        _composed(example, size, "example, other values in one batch", _same, _others),
    ]


def _composed(example: Probe, size: int, name: str, *rows: Callable[[Tensor], Tensor]) -> Probe:
    if size == len(rows):
        rows = (*rows, _same)

    def composed(tensor: Tensor) -> Tensor:
        first = tensor[:1]
        return torch.cat([_varied(make, first, tensor) for make in rows])

    return _mapped(example, name, composed, rows=True)


def single_probes(example: Probe) -> Iterator[Probe]:
    """The same probes one by one, in the shape of the example, the most telling first."""
    yield _mapped(example, _LARGE_OTHERS, _whole(_large_others), rows=example.rows)
    yield _mapped(example, "zeros", _whole(_zeros), rows=example.rows)
    yield _mapped(example, "other values", _whole(_others), rows=example.rows)
    yield _mapped(example, "example x 10", _whole(_large), rows=example.rows)


def reseeded_probe(example: Probe, seed: int) -> Probe:
    """The example with other values drawn from `seed`."""

    def drawn(tensor: Tensor) -> Tensor:
        return _others(tensor, seed)

    return _mapped(example, f"other values, seed {seed}", _whole(drawn), rows=example.rows)


def has_floats(probe: Probe) -> bool:
    """Whether anything in a probe can be varied freely."""
    return any(
        isinstance(leaf, Tensor) and leaf.is_floating_point()
        for leaf in tree_leaves((probe.args, probe.kwargs))
    )


def _mapped(example: Probe, name: str, change: Callable[[Tensor], Tensor], *, rows: bool) -> Probe:
    with torch.no_grad():
        args, kwargs = tree_map_only(Tensor, change, (tuple(example.args), dict(example.kwargs)))
    return Probe(name, args, kwargs, rows)


def _whole(make: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    return lambda tensor: _varied(make, tensor, tensor)


def _varied(make: Callable[[Tensor], Tensor], part: Tensor, whole: Tensor) -> Tensor:
    """`part` made anew, where that can be done without breaking what the values mean."""
    if part.layout is not torch.strided or part.is_complex() or part.is_quantized:
        return part
    if part.dtype is torch.bool:
        return part
    if not part.is_floating_point():
        return _indices(part, whole) if make in (_others, _large_others) else part
    # An infinity in an argument is a mask.
    return make(part) if bool(torch.isfinite(whole).all()) else part


def _zeros(part: Tensor) -> Tensor:
    return torch.zeros_like(part)


def _large(part: Tensor) -> Tensor:
    return part * _LARGE


def _same(part: Tensor) -> Tensor:
    return part


def _others(part: Tensor, seed: int = 1) -> Tensor:
    """Normal values of the mean and spread of `part`, none negative where it has none."""
    wide = part.detach().double()
    spread = float(wide.std()) if part.numel() > 1 else 1.0
    generator = torch.Generator(part.device).manual_seed(seed)
    drawn = torch.randn(part.shape, generator=generator, device=part.device, dtype=torch.float64)
    made = drawn * (spread or 1.0) + float(wide.mean())
    return (made.abs() if bool((part >= 0).all()) else made).to(part.dtype)


def _large_others(part: Tensor) -> Tensor:
    """Normal values about zero, ten times the size of `part`: an example may have one sign only."""
    size = float(part.detach().double().square().mean().sqrt()) if part.numel() else 0.0
    generator = torch.Generator(part.device).manual_seed(4)
    drawn = torch.randn(part.shape, generator=generator, device=part.device, dtype=torch.float64)
    return (drawn * _LARGE * (size or 1.0)).to(part.dtype)


def _indices(part: Tensor, whole: Tensor) -> Tensor:
    """Integers within the range that the example shows to be allowed."""
    if whole.numel() == 0:
        return part
    low, high = int(whole.min()), int(whole.max())
    generator = torch.Generator(part.device).manual_seed(1)
    drawn = torch.randint(low, high + 1, part.shape, generator=generator, device=part.device)
    return drawn.to(part.dtype)


def _batch_size(values: Any) -> int | None:
    """The first dimension that all tensors have in common."""
    tensors = [leaf for leaf in tree_leaves(values) if isinstance(leaf, Tensor)]
    if not tensors or any(t.dim() == 0 or t.layout is not torch.strided for t in tensors):
        return None
    sizes = {tensor.shape[0] for tensor in tensors}
    return sizes.pop() if len(sizes) == 1 and min(sizes) > 0 else None

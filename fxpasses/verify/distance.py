"""How far two tensors are apart, looked at piece by piece: no temporary has their size."""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

# An element that many times above the typical one is compared by itself: next to the -3e38 of a
# mask, every error of a score would vanish.
_OUTLIER = 1e6
_SAMPLE = 4096

_PIECE = 2**16  # elements: in float64, about what the nearest caches hold

_SMALL, _LARGE = 1e-100, 1e140
"""Norms between them are exact though they are made of squares."""

_SMALLEST_ROW = 1e-6


@dataclass(frozen=True, slots=True)
class Distance:
    """The relative L2 distance, and how many elements are NaN or infinite on one side only."""

    error: float
    misplaced: int = 0


@dataclass(frozen=True, slots=True)
class _Measured:
    """Some rows, or a part of one: the norms of the difference and of what it should be."""

    apart: Tensor
    size: Tensor
    outliers: float = 0.0
    """The largest relative error of an element that is compared by itself."""
    misplaced: int = 0


def distance_of(new: Tensor, old: Tensor, *, rows: bool = False) -> Distance:
    """Compare two tensors of one shape and of float or complex dtypes, in float64.

    NaN and infinities of `old` do not count for the error. With `rows` it is the worst over the
    rows of the first dimension. A row far smaller than the largest one (below a millionth) is
    measured by a millionth of that.
    """
    if old.numel() == 0:
        return Distance(0.0)
    if not (rows and old.dim()):
        new, old = new.unsqueeze(0), old.unsqueeze(0)
    limit = outlier_limit(old)
    parts = [_rows_measured(a, b, limit) for a, b in _blocks_of_rows(new, old)]
    apart = torch.cat([part.apart for part in parts])
    size = torch.cat([part.size for part in parts])
    size = torch.maximum(size, _SMALLEST_ROW * size.max())
    ratios = torch.where(apart == 0, 0.0, apart / size)
    error = max(*(part.outliers for part in parts), float(ratios.max()))
    return Distance(error, sum(part.misplaced for part in parts))


def _blocks_of_rows(new: Tensor, old: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    """As many rows at a time as make a piece, or one."""
    count = max(1, _PIECE * len(old) // old.numel())
    return zip(new.split(count), old.split(count), strict=True)


def _rows_measured(new: Tensor, old: Tensor, limit: float) -> _Measured:
    norms = torch.stack([_quick_norms(a, b) for a, b in _pieces(new, old)])
    apart, size = torch.linalg.vector_norm(norms, dim=0)
    if _are_plain(apart, size, limit):
        return _Measured(apart, size)
    parts = [_measured_with_care(a, b, limit) for a, b in _pieces(new, old)]
    return _Measured(
        _norms(torch.stack([part.apart for part in parts], dim=1)),
        _norms(torch.stack([part.size for part in parts], dim=1)),
        max(part.outliers for part in parts),
        sum(part.misplaced for part in parts),
    )


def _pieces(new: Tensor, old: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    """Parts that lie together in memory; all of it where it is small."""
    if old.numel() <= _PIECE:
        yield new, old
        return
    dim = max(range(old.dim()), key=lambda d: (old.shape[d] > 1, old.stride(d)))
    count = max(1, _PIECE * old.shape[dim] // old.numel())
    for part_of_new, part in zip(new.split(count, dim), old.split(count, dim), strict=True):
        yield from _pieces(part_of_new, part)


def _quick_norms(new: Tensor, old: Tensor) -> Tensor:
    """Of the difference and of `old`, row by row: shape [2, rows]."""
    new, old = _wide_matrix(new), _wide_matrix(old)
    norms = (torch.linalg.vector_norm(matrix, dim=1) for matrix in (new - old, old))
    return torch.stack(tuple(norms))


def _are_plain(apart: Tensor, size: Tensor, limit: float) -> bool:
    """Whether norms say it all: they are finite only where every element is.

    No element is larger than its norm. Differences too small to be squared do not matter next to
    sizes that are not.
    """
    smallest, largest = (float(bound) for bound in size.aminmax())
    return smallest > _SMALL and largest <= min(limit, _LARGE) and float(apart.max()) < _LARGE


def _measured_with_care(new: Tensor, old: Tensor, limit: float) -> _Measured:
    """Where something is infinite, no number, or so large that it would hide all else."""
    new, old = _wide_matrix(new), _wide_matrix(old)
    finite = torch.isfinite(old)
    distance, reference = torch.where(finite, new - old, 0), torch.where(finite, old, 0)
    large = reference.abs() > limit
    outliers = distance[large].abs() / reference[large].abs()
    distance, reference = torch.where(large, 0, distance), torch.where(large, 0, reference)
    return _Measured(
        _norms(distance),
        _norms(reference),
        float(outliers.max()) if outliers.numel() else 0.0,
        misplaced(new, old),
    )


def misplaced(new: Tensor, old: Tensor) -> int:
    """How many elements are NaN or infinite on one side only, or are other infinities."""
    both_nan = torch.isnan(new) & torch.isnan(old)
    different = (torch.isfinite(new) != torch.isfinite(old)) | (~torch.isfinite(old) & (new != old))
    return int((different & ~both_nan).sum())


def _wide_matrix(rows: Tensor) -> Tensor:
    wide = torch.promote_types(rows.dtype, torch.float64)
    return rows.reshape(len(rows), -1).to(wide)


def _norms(matrix: Tensor) -> Tensor:
    """The L2 norm of each row, also of what has squares beyond the range of float64."""
    top = matrix.abs().amax(1, keepdim=True)
    scale = torch.where((top > 0) & torch.isfinite(top), top, 1)
    return torch.linalg.vector_norm(matrix / scale, dim=1) * scale.squeeze(1)


def outlier_limit(old: Tensor) -> float:
    """How large an element may be before it is compared by itself."""
    by_stride = sorted(range(old.dim()), key=old.stride, reverse=True)
    flat = old.permute(by_stride).flatten()
    few = flat[:: max(1, flat.numel() // _SAMPLE)].abs().double()
    few = few[torch.isfinite(few) & (few > 0)]
    return _OUTLIER * float(few.median()) if few.numel() else float("inf")

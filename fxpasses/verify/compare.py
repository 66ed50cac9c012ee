"""How far two values are apart, and whether they have the same structure."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_flatten_with_path

# An element that many times above the typical one is compared by itself: next to the -3e38 of a
# mask, every error of a score would vanish.
_OUTLIER = 1e6
_SAMPLE = 4096


@dataclass(frozen=True, slots=True)
class Difference:
    """How two values differ: by a relative error, or (then it is infinite) in kind."""

    error: float
    message: str = ""
    where: str = ""

    @property
    def in_kind(self) -> bool:
        return bool(self.message)


EQUAL = Difference(0.0)


def differences(
    new: Any, old: Any, *, rows: bool = False, dtypes: bool = False
) -> list[Difference]:
    """Compare two values leaf by leaf; one entry for each leaf, or one if the structures differ.

    Args:
        new: the value to judge.
        old: what it should be.
        rows: compare each row of the first dimension by itself and take the worst.
        dtypes: whether float dtypes must be equal, too. Where both ran in float64 they say nothing.
    """
    new_leaves, new_kind = _flat(new)
    old_leaves, old_kind = _flat(old)
    if new_kind != old_kind:
        return [Difference(math.inf, f"the structure is {new_kind}, not {old_kind}")]
    return [
        _with_place(_leaf_difference(a, b, rows=rows, dtypes=dtypes), where)
        for (where, a), (_, b) in zip(new_leaves, old_leaves, strict=True)
    ]


def worst(found: list[Difference]) -> Difference:
    """The largest of some differences; none at all is equality."""
    return max(found, key=lambda difference: difference.error, default=EQUAL)


def relative_error(new: Tensor, old: Tensor, *, rows: bool = False) -> float:
    """The relative L2 distance of two tensors of one shape, NaN and inf not counted.

    With `rows` the worst over the rows of the first dimension. A row far smaller than the
    largest one (below a millionth) is measured by a millionth of that.
    """
    if old.numel() == 0:
        return 0.0
    distance, reference = new - old, old
    finite = torch.isfinite(old)
    if not bool(finite.all()):
        distance = torch.where(finite, distance, 0)
        reference = torch.where(finite, reference, 0)
    apart = 0.0
    if (outliers := _outliers(reference)) is not None:
        apart = float((distance[outliers].abs() / reference[outliers].abs()).max())
        distance = torch.where(outliers, 0, distance)
        reference = torch.where(outliers, 0, reference)
    return max(apart, _l2(distance, reference, rows=rows))


def _l2(distance: Tensor, reference: Tensor, *, rows: bool) -> float:
    if rows and reference.dim():
        distance, reference = (t.reshape(t.shape[0], -1) for t in (distance, reference))
        error, size = _norms(distance), _norms(reference)
        size = torch.maximum(size, 1e-6 * size.max())
    else:
        error = _norms(distance.reshape(1, -1))
        size = _norms(reference.reshape(1, -1))
    ratios = torch.where(error == 0, 0.0, error / size)
    return float(ratios.max()) if ratios.numel() else 0.0


def _norms(matrix: Tensor) -> Tensor:
    if matrix.dim() < 2 or matrix.shape[1] == 0:
        matrix = matrix.reshape(matrix.shape[0], -1) if matrix.numel() else matrix.new_zeros(1, 1)
    # Scaled first: squares of what is below 1e-160 or above 1e150 leave the range of float64.
    top = matrix.abs().amax(1, keepdim=True)
    scale = torch.where((top > 0) & torch.isfinite(top), top, 1)
    return torch.linalg.vector_norm(matrix / scale, dim=1) * scale.squeeze(1).abs()


def _outliers(reference: Tensor) -> Tensor | None:
    sizes = reference.abs()
    flat = sizes.flatten()
    few = flat[:: max(1, flat.numel() // _SAMPLE)]
    few = few[few > 0]
    if few.numel() == 0:
        return None
    limit = _OUTLIER * float(few.median())
    return sizes > limit if float(flat.max()) > limit else None


def _flat(value: Any) -> tuple[list[tuple[str, Any]], str]:
    leaves, spec = tree_flatten_with_path(value)
    named = [("".join(str(key) for key in path), leaf) for path, leaf in leaves]
    return named, str(spec)


def _with_place(difference: Difference, where: str) -> Difference:
    return Difference(difference.error, difference.message, where)


def _leaf_difference(new: Any, old: Any, *, rows: bool, dtypes: bool) -> Difference:
    if isinstance(new, Tensor) and isinstance(old, Tensor):
        return _tensor_difference(new, old, rows=rows, dtypes=dtypes)
    if type(new) is not type(old):
        kinds = f"a value of type {type(new).__name__}, not {type(old).__name__}"
        return Difference(math.inf, kinds)
    return _object_difference(new, old)


def _object_difference(new: Any, old: Any) -> Difference:
    if isinstance(new, float):
        if math.isnan(new) and math.isnan(old):
            return EQUAL
        return Difference(abs(new - old) / abs(old) if old else abs(new - old))
    if isinstance(new, int | str | bytes | None) and new != old:
        return Difference(math.inf, f"{new!r}, not {old!r}")
    return EQUAL


def _tensor_difference(new: Tensor, old: Tensor, *, rows: bool, dtypes: bool) -> Difference:
    if mismatch := next(_mismatches(new, old, dtypes=dtypes), None):
        return Difference(math.inf, mismatch)
    if not (old.is_floating_point() or old.is_complex()):
        wrong = int((new != old).sum())
        if wrong:
            return Difference(math.inf, f"{wrong} of {old.numel()} elements differ")
        return EQUAL
    wide = torch.promote_types(old.dtype, torch.float64)
    new, old = _dense(new).to(wide), _dense(old).to(wide)
    if misplaced := _misplaced(new, old):
        text = f"NaN or infinity at other places ({misplaced} of {old.numel()} elements)"
        return Difference(math.inf, text)
    return Difference(relative_error(new, old, rows=rows))


def _dense(tensor: Tensor) -> Tensor:
    tensor = tensor.detach()
    return tensor if tensor.layout is torch.strided else tensor.to_dense()


def _mismatches(new: Tensor, old: Tensor, *, dtypes: bool) -> Iterator[str]:
    if new.shape != old.shape:
        yield f"the shape is {tuple(new.shape)}, not {tuple(old.shape)}"
    both_float = new.is_floating_point() and old.is_floating_point()
    if new.dtype != old.dtype and (dtypes or not both_float):
        yield f"the dtype is {new.dtype}, not {old.dtype}"
    if new.device != old.device:
        yield f"the device is {new.device}, not {old.device}"
    if new.layout != old.layout:
        yield f"the layout is {new.layout}, not {old.layout}"


def _misplaced(new: Tensor, old: Tensor) -> int:
    if bool(torch.isfinite(new).all()) and bool(torch.isfinite(old).all()):
        return 0
    both_nan = torch.isnan(new) & torch.isnan(old)
    different = (torch.isfinite(new) != torch.isfinite(old)) | (~torch.isfinite(old) & (new != old))
    return int((different & ~both_nan).sum())


def bit_equal(new: Any, old: Any) -> Difference:
    """Whether two values are the same to the bit, NaN equal to NaN."""
    found = worst(differences(new, old, dtypes=True))
    if found.in_kind or found.error == 0:
        return found
    text = f"not bit-equal (relative error {found.error:.1e})"
    return Difference(found.error, text, found.where)

"""How far two values are apart, and whether they have the same structure."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_flatten_with_path

from fxpasses.verify.distance import distance_of


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
    found = distance_of(_dense(new), _dense(old), rows=rows)
    if found.misplaced:
        text = f"NaN or infinity at other places ({found.misplaced} of {old.numel()} elements)"
        return Difference(math.inf, text)
    return Difference(found.error)


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


def bit_equal(new: Any, old: Any) -> Difference:
    """Whether two values are the same to the bit, NaN equal to NaN."""
    found = worst(differences(new, old, dtypes=True))
    if found.in_kind or found.error == 0:
        return found
    text = f"not bit-equal (relative error {found.error:.1e})"
    return Difference(found.error, text, found.where)

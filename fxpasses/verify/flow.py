"""Whether gradients pass a rewritten piece as they passed the original, where it may stop them.

A `detach` leaves values as they are, so nothing else tells that it is gone, or new.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from fxpasses.core import Region
from fxpasses.ops import Op, op_of
from fxpasses.verify.float64 import unaffected

_BOUND = 1e-2
"""Relative to their size: what stops gradients changes them altogether, roundings do not."""

Compute = Callable[[Sequence[Any]], Any]


def stops_gradients(region: Region) -> bool:
    """Whether a node of a region lets no gradient through that would pass without it."""
    return any(op_of(node) is Op.DETACH for node in region.graph.nodes)


def flows_otherwise(
    new: tuple[Compute, Sequence[Any]],
    old: tuple[Compute, Sequence[Any]],
    names: Sequence[Any],
    *,
    may_lose: bool,
) -> str:
    """What differs in the gradients of a value with respect to what it follows from; "" if nothing.

    Args:
        new: what computes the value, and on what.
        old: the same of the original.
        names: what each of the two reads, in that order; the same names stand for the same values.
        may_lose: whether the pass says that its result cannot be trained.
    """
    with unaffected(), torch.enable_grad():
        found, expected = (
            dict(zip(read, _gradients(*one), strict=True))
            for one, read in zip((new, old), names, strict=True)
        )
    reached, expected_at = ([n for n, g in of.items() if g is not None] for of in (found, expected))
    if reached and not expected_at:
        return f"the gradient reaches {reached[0]}, unlike the original's"
    if may_lose:
        return ""
    if not reached and expected_at:
        return f"the gradient no longer reaches {expected_at[0]}, unlike the original's"
    # Where the two begin at other values, there is nothing more to compare.
    shared = found if found.keys() == expected.keys() else ()
    differing = (name for name in shared if not _agree(found[name], expected[name]))
    return next((f"the gradient differs at {n}, from the original's" for n in differing), "")


def _gradients(compute: Compute, borders: Sequence[Any]) -> list[Tensor | None]:
    leaves = [_leaf(border) for border in borders]
    value = compute(leaves)
    results = [one for one in tree_leaves(value) if isinstance(one, Tensor) and one.requires_grad]
    asked = [one for one in leaves if isinstance(one, Tensor) and one.requires_grad]
    if not results or not asked:
        return [None] * len(leaves)
    given = [torch.ones_like(one) for one in results]
    gradients = iter(torch.autograd.grad(results, asked, given, allow_unused=True))
    return [
        next(gradients) if isinstance(one, Tensor) and one.requires_grad else None for one in leaves
    ]


def _leaf(border: Any) -> Any:
    """A tensor that gradients are asked of; what is no float, and structures, as they are."""
    is_float = isinstance(border, Tensor) and border.is_floating_point()
    return border.detach().requires_grad_() if is_float else border


def _agree(a: Tensor | None, b: Tensor | None) -> bool:
    """None is a gradient of zeros."""
    if a is None or b is None:
        other = b if a is None else a
        return other is None or not bool(other.any())
    size = torch.linalg.vector_norm(b)
    return bool(torch.linalg.vector_norm(a - b) <= _BOUND * size) or torch.equal(a, b)

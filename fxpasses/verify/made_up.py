"""Values at a border, and others in their place that show what the real ones hide."""

from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map_only


def _floats(value: Any) -> list[Tensor]:
    leaves = (leaf for leaf in tree_leaves(value) if isinstance(leaf, Tensor))
    return [leaf for leaf in leaves if leaf.is_floating_point() and leaf.numel()]


def is_zero(value: Any) -> bool:
    floats = _floats(value)
    return bool(floats) and not any(bool(one.any()) for one in floats)


def is_constant(value: Any) -> bool:
    return all(_has_one_value(one) for one in _floats(value))


def _has_one_value(tensor: Tensor) -> bool:
    first, last = tensor[(0,) * tensor.dim()], tensor[(-1,) * tensor.dim()]
    # The two are told apart at once; most tensors end here.
    return bool(first == last) and bool((tensor == first).all())


def moved(value: Any) -> Any:
    """Floats moved by a thousandth, each by another share."""

    def move(tensor: Tensor) -> Tensor:
        if not tensor.is_floating_point():
            return tensor
        generator = torch.Generator(tensor.device).manual_seed(1)
        shares = torch.rand(tensor.shape, generator=generator, device=tensor.device)
        return tensor * (1 + 1e-3 * shares)

    return tree_map_only(Tensor, move, value)


def drawn(value: Any) -> Any:
    def draw(tensor: Tensor) -> Tensor:
        if not tensor.is_floating_point():
            return tensor
        generator = torch.Generator(tensor.device).manual_seed(2)
        drawn = torch.randn(tensor.shape, generator=generator, device=tensor.device)
        return drawn.to(tensor.dtype)

    return tree_map_only(Tensor, draw, value)

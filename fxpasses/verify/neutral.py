"""Neutral runs: the original with other kernels and other orders of summation.

One run is one lucky or unlucky draw; the largest error of three says how far rounding goes.
"""

from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map_only

_MATMULS = frozenset({"mm", "bmm"})
_ADDING_MATMULS = frozenset({"addmm", "baddbmm"})


@contextmanager
def other_kernels() -> Generator[None]:
    """Without oneDNN on the CPU, without TF32 on a GPU. The flags hold for the whole process."""
    flags: list[tuple[Any, str, bool]] = [(torch.backends.mkldnn, "enabled", False)]
    if torch.cuda.is_initialized():
        flags.append((torch.backends.cudnn, "allow_tf32", False))
        flags.append((torch.backends.cuda.matmul, "allow_tf32", False))
    before = [(owner, name, getattr(owner, name)) for owner, name, _ in flags]
    try:
        for owner, name, value in flags:
            setattr(owner, name, value)
        yield
    finally:
        for owner, name, value in before:
            setattr(owner, name, value)


def channels_last(values: Any) -> Any:
    """Arguments with images laid out channels-last."""

    def laid_out(tensor: Tensor) -> Tensor:
        if tensor.dim() != 4 or not tensor.is_floating_point():
            return tensor
        return tensor.contiguous(memory_format=torch.channels_last)

    return tree_map_only(Tensor, laid_out, values)


class SplitSums(TorchDispatchMode):
    """Adds up matrix products in two halves."""

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        name = func.overloadpacket.__name__
        if kwargs:
            return func(*args, **kwargs)
        if name in _MATMULS:
            return _halves(func, *args)
        if name in _ADDING_MATMULS:
            product = torch.mm if name == "addmm" else torch.bmm
            return func(*_first_half(args)) + product(*_second_half(args))
        return func(*args)


def _halves(product: Callable[..., Tensor], a: Tensor, b: Tensor) -> Tensor:
    half = a.shape[-1] // 2
    if not half or not a.is_floating_point():
        return product(a, b)
    return product(a[..., :half], b[..., :half, :]) + product(a[..., half:], b[..., half:, :])


def _first_half(args: Sequence[Any]) -> tuple[Any, Any, Any]:
    added, a, b = args
    half = a.shape[-1] // 2
    return added, a[..., :half], b[..., :half, :]


def _second_half(args: Sequence[Any]) -> tuple[Any, Any]:
    _, a, b = args
    half = a.shape[-1] // 2
    return a[..., half:], b[..., half:, :]

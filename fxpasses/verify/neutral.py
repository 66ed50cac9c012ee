"""Neutral runs: the original with its sums added up in another order, and so rounded otherwise.

One run is one lucky or unlucky draw; the largest error of three says how far rounding goes. What
a neutral run computes otherwise, modes of torch decide, which hold for this thread alone: the
switches for whole kernel libraries hold for the process, where other threads compute meanwhile.
"""

from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch import Tensor, nn
from torch._prims_common import suggest_memory_format
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from fxpasses.verify.structures import tensors_of

SHARES: Final = (0.3, 0.4)
"""Where the neutral runs cut their sums: not where kernels do, which cut in equal blocks."""

_HALF: Final = frozenset({torch.float16, torch.bfloat16})
_DTYPES: Final = _HALF | {torch.float32, torch.float64}


@contextmanager
def other_sums(share: float) -> Generator[None]:
    """In the block, sums are added up in two parts (`share` of their length, the rest) or turned.

    The values are as near to the truth as without. Random numbers, written tensors and layouts
    are the same. Tensors of other layouts and classes are computed with as they would be.
    """
    with _NoFastPaths(), _OtherSums(share):
        yield


class _NoFastPaths(TorchFunctionMode):
    """Changes nothing, but where a mode is on, torch's layers write their fused kernels out."""

    def __torch_function__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        return func(*args, **(kwargs or {}))


class _OtherSums(TorchDispatchMode):
    def __init__(self, share: float) -> None:
        super().__init__()
        self.share = share

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        is_known = func in _CUT or func in _TURNED
        if not is_known or not all(map(_has_other_kernels, tensors_of((args, kwargs)))):
            return func(*args, **kwargs)
        if func in _TURNED:
            return _turned(func, args, kwargs)
        return _CUT[func](func, self.share, *args, **kwargs)


def _has_other_kernels(tensor: Tensor) -> bool:
    is_plain = type(tensor) in (Tensor, nn.Parameter) and not tensor.is_nested
    return is_plain and tensor.layout is torch.strided and tensor.dtype in _DTYPES


# -- sums in two parts


@dataclass(frozen=True, slots=True)
class _Part:
    start: int
    length: int


def _parts(length: int, share: float) -> tuple[_Part, _Part]:
    cut = max(1, int(length * share))
    return _Part(0, cut), _Part(cut, length - cut)


def _product(func: Any, share: float, a: Tensor, b: Tensor) -> Tensor:
    if a.shape[-1] < 2:
        return func(a, b)
    first, second = _parts(a.shape[-1], share)
    return func(*_summed(a, b, first)).add_(func(*_wide(*_summed(a, b, second))))


def _wide(*operands: Tensor) -> Iterator[Tensor]:
    """Operands of the part that is added last, which must not be rounded to half before."""
    return (t.float() if t.dtype in _HALF else t for t in operands)


def _added_product(func: Any, share: float, added: Tensor, *factors: Tensor, **scales: Any) -> Any:
    a, b = factors
    if a.shape[-1] < 2:
        return func(added, a, b, **scales)
    first, second = _parts(a.shape[-1], share)
    begun = func(added, *_summed(a, b, first), **scales)
    return func(begun, *_summed(a, b, second), alpha=scales.get("alpha", 1))


def _summed(a: Tensor, b: Tensor, part: _Part) -> tuple[Tensor, Tensor]:
    """The part of two factors, matrices or vectors, along the dimension that is summed over."""
    rows = max(b.dim() - 2, 0)
    return a.narrow(-1, part.start, part.length), b.narrow(rows, part.start, part.length)


def _convolution(
    func: Any, share: float, x: Tensor, weight: Tensor, bias: Tensor | None, *how: Any
) -> Tensor:
    *_, transposed, _, groups = how
    channels = x.shape[1] // groups
    if channels > 1:
        first, second = _parts(channels, share)
        begun = func(*_channels(x, weight, first, how), bias, *how)
        return begun.add_(func(*_wide(*_channels(x, weight, second, how)), None, *how))
    if transposed or max(weight.shape[2:]) < 2:
        return func(x, weight, bias, *how)
    return _by_taps(func, share, x, weight, bias, *how)


def _channels(x: Tensor, weight: Tensor, part: _Part, how: Sequence[Any]) -> tuple[Tensor, Tensor]:
    """The part of the input channels of each group, and of the weight, which keeps its layout."""
    *_, transposed, _, groups = how
    grouped = x.unflatten(1, (groups, -1)).narrow(2, part.start, part.length).flatten(1, 2)
    inputs = grouped.contiguous(memory_format=suggest_memory_format(x))
    if not transposed:
        return inputs, weight.narrow(1, part.start, part.length)
    by_group = weight.unflatten(0, (groups, -1))
    return inputs, by_group.narrow(1, part.start, part.length).flatten(0, 1)


def _by_taps(
    func: Any, share: float, x: Tensor, weight: Tensor, bias: Tensor | None, *how: Any
) -> Tensor:
    """A convolution with one channel a group: its kernel is cut, and the input moved along."""
    stride, padding, dilation, *rest = how
    sizes = list(weight.shape[2:])
    axis = sizes.index(max(sizes))
    inner = [0, 0] * (len(sizes) - 1 - axis)
    padded = torch.constant_pad_nd(x, [*inner, padding[axis], padding[axis]])
    unpadded = [0 if i == axis else size for i, size in enumerate(padding)]

    how = (stride, unpadded, dilation, *rest)

    def reached_by(part: _Part) -> tuple[Tensor, Tensor]:
        reach = padded.shape[2 + axis] - (sizes[axis] - part.length) * dilation[axis]
        inputs = padded.narrow(2 + axis, part.start * dilation[axis], reach)
        return inputs, weight.narrow(2 + axis, part.start, part.length)

    first, second = _parts(sizes[axis], share)
    begun = func(*reached_by(first), bias, *how)
    return begun.add_(func(*_wide(*reached_by(second)), None, *how))


def _named(*names: str) -> list[Any]:
    return [getattr(torch.ops.aten, name).default for name in names]


_CUT: Final[dict[Any, Callable[..., Tensor]]] = {
    **dict.fromkeys(_named("mm", "bmm", "mv", "dot"), _product),
    **dict.fromkeys(_named("addmm", "baddbmm", "addmv"), _added_product),
    **dict.fromkeys(_named("convolution"), _convolution),
}


# -- sums from the other end


@dataclass(frozen=True, slots=True)
class _Turn:
    """Which operands are turned round along the last dimension, and whether the result is back."""

    operands: tuple[int, ...]
    back: bool = True


_ATTENTION: Final = (
    "_scaled_dot_product_flash_attention_for_cpu",
    "_scaled_dot_product_flash_attention",
    "_scaled_dot_product_efficient_attention",
    "_scaled_dot_product_cudnn_attention",
)
_TURNED: Final[dict[Any, _Turn]] = {
    # Mean and variance are of the last dimension, the scale and the shift lie along it.
    **dict.fromkeys(_named("native_layer_norm"), _Turn((0, 2, 3))),
    # The features of queries and keys are summed over; those of values only come along.
    **dict.fromkeys(_named(*_ATTENTION), _Turn((0, 1, 2))),
    # The features of the input, and the weight that they meet.
    **dict.fromkeys(_named("mkldnn_rnn_layer"), _Turn((0, 1), back=False)),
}


def _turned(func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    turn = _TURNED[func]
    turned = [
        arg.flip(-1) if i in turn.operands and isinstance(arg, Tensor) else arg
        for i, arg in enumerate(args)
    ]
    first, *others = func(*turned, **kwargs)
    return (first.flip(-1) if turn.back else first, *others)

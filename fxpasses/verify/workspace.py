"""Ops in float64 with less memory beside their results.

Torch has no fast convolution in float64: it writes out what every output reads, nine times the
input for a kernel of 3 x 3, and for all samples of a batch at once.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

_CONVOLUTION = torch.ops.aten.convolution.default


def computed(func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    """The result of an op: a convolution is made sample by sample."""
    if func is _CONVOLUTION and not kwargs and _gathers_columns(args):
        return _sample_by_sample(args)
    return func(*args, **kwargs)


def _gathers_columns(args: Sequence[Any]) -> bool:
    """Whether a convolution writes out what its outputs read."""
    x, weight, _, stride, padding, _, transposed, _, groups = args
    pointwise = all(size == 1 for size in weight.shape[2:])
    reads_all_once = pointwise and all(s == 1 for s in stride) and not any(padding)
    return x.shape[0] > 1 and x.is_cpu and groups == 1 and not transposed and not reads_all_once


def _sample_by_sample(args: Sequence[Any]) -> Tensor:
    x, *rest = args
    result = _batch_beginning_with(_CONVOLUTION(x[:1], *rest), len(x))
    for number in range(1, len(x)):
        result[number : number + 1] = _CONVOLUTION(x[number : number + 1], *rest)
    return result


def _batch_beginning_with(first: Tensor, size: int) -> Tensor:
    """A batch laid out as its first sample is, which alone is filled in."""
    strides = (first.numel(), *first.stride()[1:])
    batch = first.new_empty_strided((size, *first.shape[1:]), strides)
    batch[:1] = first
    return batch

"""Nodes and values as people read them: names, shapes and dtypes."""

from typing import Any, Final

import torch
from torch import Tensor
from torch.fx import Node

from fxpasses.core.values import VALUE, TensorInfo

_ITEMS_SHOWN: Final = 3
_SHORT: Final = {
    torch.float64: "f64",
    torch.float32: "f32",
    torch.float16: "f16",
    torch.bfloat16: "bf16",
    torch.int64: "i64",
    torch.int32: "i32",
    torch.int8: "i8",
    torch.uint8: "u8",
    torch.bool: "bool",
}


def full_name(path: str, node: str) -> str:
    """The name of a node of the graph at a path, one of a kind in the model."""
    return f"{path}/{node}" if path else node


def value_of(node: Node) -> str:
    """`1x64x56x56 f32`; several values in parentheses; nothing where it is not known."""
    known = node.meta.get(VALUE)
    for foreign in ("val", "tensor_meta"):
        known = node.meta.get(foreign) if known is None else known
    return described(known)


def described(known: Any) -> str:
    """The same of a tensor, of what is known of one, or of several in a container."""
    if isinstance(known, TensorInfo):
        return _tensor(known.example_shape, known.dtype)
    if isinstance(known, Tensor) or _is_like_a_tensor(known):
        return _tensor(known.shape, known.dtype)
    if isinstance(known, dict):
        known = list(known.values())
    if isinstance(known, tuple | list):
        items = [described(item) for item in known[:_ITEMS_SHOWN]]
        if not any(items):
            return ""
        told = [item or "?" for item in items] + (["..."] if len(known) > _ITEMS_SHOWN else [])
        return f"({', '.join(told)})"
    return ""


def _is_like_a_tensor(known: Any) -> bool:
    """As torch's own `TensorMetadata` is."""
    return hasattr(known, "shape") and hasattr(known, "dtype")


def _tensor(shape: Any, dtype: Any) -> str:
    size = "x".join(map(str, shape)) or "scalar"
    return f"{size} {_SHORT.get(dtype) or str(dtype).removeprefix('torch.')}"

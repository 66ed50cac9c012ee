"""Whether two values are the same for a model, bit by bit, though other objects."""

import types
from collections.abc import Mapping
from typing import Any, Final, cast

import torch
from torch import Tensor, nn
from torch.fx import Graph, GraphModule

_INTEGERS: Final = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def bits_equal(a: Tensor, b: Tensor) -> bool:
    """Whether two tensors have the same kind, layout and bits; NaN equals the same NaN."""
    if a is b:
        return True
    if type(a) is not type(b) or _layout(a) != _layout(b):
        return False
    if a.layout is not torch.strided or a.is_quantized or a.is_meta:
        return False
    a, b = a.detach(), b.detach()
    if a.is_complex():
        a, b = torch.view_as_real(a), torch.view_as_real(b)
    integer = _INTEGERS.get(a.element_size())
    if integer is None or a.is_conj() or a.is_neg():
        return False
    return torch.equal(a.view(integer), b.view(integer))


def _layout(tensor: Tensor) -> tuple[object, ...]:
    strides = tensor.stride() if tensor.layout is torch.strided else ()
    kind = (tensor.dtype, tensor.device, tensor.layout, tensor.requires_grad)
    return (*kind, tuple(tensor.shape), strides, tensor.is_conj(), tensor.is_neg())


def same(a: Any, b: Any) -> bool:
    """Whether two values, containers or modules hold the same all the way down.

    What cannot be told is taken to differ.
    """
    return _same(a, b, set())


def same_kind(a: Any, b: Any) -> bool:
    """Whether two values are of one class; every graph module has a class of its own."""
    return type(a) is type(b) or (isinstance(a, GraphModule) and isinstance(b, GraphModule))


def _same(a: Any, b: Any, assumed: set[tuple[int, int]]) -> bool:
    if a is b or (id(a), id(b)) in assumed:
        return True
    if not same_kind(a, b):
        return False
    assumed.add((id(a), id(b)))
    if isinstance(a, Tensor):
        return bits_equal(a, b)
    if isinstance(a, Graph):
        return str(a) == str(b)
    if isinstance(a, Mapping):
        return _same_mapping(cast("Mapping[Any, Any]", a), b, assumed)
    if isinstance(a, list | tuple):
        pair = cast("list[Any]", a), cast("list[Any]", b)
        return len(pair[0]) == len(pair[1]) and all(
            _same(x, y, assumed) for x, y in zip(*pair, strict=True)
        )
    return _same_object(a, b, assumed)


def _same_mapping(
    a: Mapping[Any, Any], b: Mapping[Any, Any], assumed: set[tuple[int, int]]
) -> bool:
    return list(a) == list(b) and all(_same(a[key], b[key], assumed) for key in a)


def _same_object(a: Any, b: Any, assumed: set[tuple[int, int]]) -> bool:
    if isinstance(a, str | bytes | bool | int | float | complex | set | frozenset):
        return bool(a == b) or (a != a and b != b)  # noqa: PLR0124  a NaN
    if isinstance(a, types.FunctionType | types.BuiltinFunctionType | types.MethodType):
        return bool(a == b)
    if isinstance(a, torch.dtype | torch.device | torch.Size):
        return bool(a == b)
    if isinstance(a, nn.Module):
        return _same_mapping(_settings(a), _settings(b), assumed)
    has_slots = any("__slots__" in kind.__dict__ for kind in type(a).__mro__[:-1])
    if has_slots or not hasattr(a, "__dict__"):
        return False
    return _same_mapping(vars(a), vars(b), assumed)


def _settings(module: nn.Module) -> dict[str, Any]:
    """All that a module holds; the code of a graph module follows from its graph."""
    own = vars(module)
    if isinstance(module, GraphModule):
        return {k: v for k, v in own.items() if k not in ("_code", "_lineno_map", "meta")}
    return own

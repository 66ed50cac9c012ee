"""Whether two values are the same for a model, bit by bit, though other objects."""

import functools
import re
import types
import weakref
from collections.abc import Mapping
from typing import Any, Final, cast

import torch
from torch import Tensor, nn
from torch.fx import Graph, GraphModule
from torch.nn.modules.module import _WrappedHook  # pyright: ignore[reportPrivateUsage]  what hooks of state dicts are kept in

_ADDRESS: Final = re.compile(r"0x[0-9a-f]+")
_ROWS, _COLUMNS = ("crow_indices", "col_indices"), ("ccol_indices", "row_indices")
_PARTS: Final = {
    torch.sparse_coo: ("_indices", "_values"),
    torch.sparse_csr: (*_ROWS, "values"),
    torch.sparse_bsr: (*_ROWS, "values"),
    torch.sparse_csc: (*_COLUMNS, "values"),
    torch.sparse_bsc: (*_COLUMNS, "values"),
}
_ATOMS: Final = (
    *(str, bytes, bool, int, float, complex, set, frozenset, torch.dtype, torch.device),
    *(types.FunctionType, types.BuiltinFunctionType),
)
_INTEGERS: Final = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def bits_equal(a: Tensor, b: Tensor) -> bool:
    """Whether two tensors have the same layout and bits; NaN equals the same NaN."""
    if a is b:
        return True
    if _layout(a) != _layout(b) or a.is_meta:
        return False
    a, b = a.detach(), b.detach()
    if a.is_quantized:
        return torch.equal(a, b)
    if a.layout is not torch.strided:
        return _parts_equal(a, b)
    if a.is_complex():
        a, b = torch.view_as_real(a), torch.view_as_real(b)
    integer = _INTEGERS.get(a.element_size())
    if integer is None or a.is_conj() or a.is_neg():
        return False
    return torch.equal(a.view(integer), b.view(integer))


def _parts_equal(a: Tensor, b: Tensor) -> bool:
    names = _PARTS.get(a.layout)
    return names is not None and all(
        bits_equal(getattr(a, name)(), getattr(b, name)()) for name in names
    )


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
    """Whether two values are of one class.

    Every graph module has a class of its own, and copies of TorchScript modules have another.
    """
    alike = (GraphModule, torch.jit.ScriptModule)
    return type(a) is type(b) or any(isinstance(a, k) and isinstance(b, k) for k in alike)


def _same(a: Any, b: Any, assumed: set[tuple[int, int]]) -> bool:
    if a is b or (id(a), id(b)) in assumed:
        return True
    if not same_kind(a, b):
        return False
    assumed.add((id(a), id(b)))
    return _same_content(a, b, assumed)


def _same_content(a: Any, b: Any, assumed: set[tuple[int, int]]) -> bool:
    if isinstance(a, Tensor):
        return bits_equal(a, b)
    if isinstance(a, Graph):
        return str(a) == str(b)
    if isinstance(a, torch.jit.ScriptModule):
        return _same_script(a, b)
    if isinstance(a, _ATOMS):
        return bool(a == b) or (a != a and b != b)  # noqa: PLR0124  a NaN
    if isinstance(a, Mapping):
        mine = cast("Mapping[Any, Any]", a)
        return list(mine) == list(b) and all(_same(mine[key], b[key], assumed) for key in mine)
    if isinstance(a, list | tuple):
        items = cast("list[Any]", a)
        pairs = zip(items, b, strict=False)
        return len(items) == len(b) and all(_same(x, y, assumed) for x, y in pairs)
    parts = _parts(a)
    # These are made for the moment, so that their numbers say nothing.
    return parts is not None and _same_content(parts, _parts(b), assumed)


def _parts(value: Any) -> tuple[Any, ...] | dict[str, Any] | None:
    """What an object consists of; None where that cannot be told."""
    if isinstance(value, types.MethodType):
        return (value.__func__, value.__self__)
    if isinstance(value, weakref.ref):
        return (value(),)
    if isinstance(value, functools.partial):
        return (value.func, value.args, value.keywords)
    if isinstance(value, _WrappedHook):  # a copy of which lacks the name of its function
        return (value.hook,)
    if isinstance(value, nn.Module):
        return _settings(value)
    has_slots = any("__slots__" in kind.__dict__ for kind in type(value).__mro__[:-1])
    return None if has_slots else getattr(value, "__dict__", None)


def _same_script(a: torch.jit.ScriptModule, b: torch.jit.ScriptModule) -> bool:
    mine, other = a.state_dict(keep_vars=True), b.state_dict(keep_vars=True)
    return (
        list(mine) == list(other)
        and all(bits_equal(mine[name], other[name]) for name in mine)
        and _text_of_script(a) == _text_of_script(b)
    )


def _text_of_script(module: torch.jit.ScriptModule) -> str:
    """Its code and attributes, without the addresses of objects."""
    text = module._c.dump_to_str(True, True, False)  # noqa: SLF001  torch has no public name, and no names for the arguments
    return _ADDRESS.sub("", text)


def _settings(module: nn.Module) -> dict[str, Any]:
    """All that a module holds; the code of a graph module follows from its graph."""
    own = vars(module)
    if isinstance(module, GraphModule):
        return {k: v for k, v in own.items() if k not in ("_code", "_lineno_map", "meta")}
    return own

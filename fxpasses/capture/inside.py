"""The dicts in which a module holds what is registered with it.

Torch has no public name for the dicts themselves, which captured modules share with each other.
"""

import sys
from collections.abc import Iterator
from typing import Any, Final

import torch
from torch import Tensor, nn

from fxpasses.ops import kept

HOOK_DICTS: Final = frozenset(key for key in nn.Module().__dict__ if "hooks" in key)


def modules_of(module: nn.Module) -> dict[str, nn.Module | None]:
    return module.__dict__["_modules"]


def parameters_of(module: nn.Module) -> dict[str, nn.Parameter | None]:
    return module.__dict__["_parameters"]


def buffers_of(module: nn.Module) -> dict[str, Tensor | None]:
    return module.__dict__["_buffers"]


def attributes_of(thing: Any) -> dict[str, Any]:
    """The instance dict, which a class may hide behind an own `__setattr__`."""
    return thing.__dict__


def slots_of(value: Any) -> Iterator[tuple[str, Any]]:
    """What an object holds in slots, by the names that reach them."""
    for kind in type(value).__mro__:
        slots = kind.__dict__.get("__slots__", ())
        for name in (slots,) if isinstance(slots, str) else slots:
            private = name.startswith("__") and not name.endswith("__")
            key = f"_{kind.__name__.lstrip('_')}{name}" if private else name
            if key not in ("__dict__", "__weakref__") and hasattr(value, key):
                yield key, getattr(value, key)


def memory_of(tensor: Tensor) -> int | None:
    """Identifies the memory a tensor lies in; None for tensors that have none of their own."""
    if tensor.layout is not torch.strided or tensor.is_nested or tensor.is_meta:
        return None
    return tensor.untyped_storage()._cdata  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]  fake tensors have no address


def is_sealed(module: nn.Module) -> bool:
    """Whether a module runs compiled code that no copy of its Python state can stand in for."""
    return _is_compiled(type(module))


@kept
def _is_compiled(cls: type[nn.Module]) -> bool:
    dynamo = sys.modules.get("torch._dynamo.eval_frame")
    is_optimized = dynamo is not None and issubclass(cls, dynamo.OptimizedModule)
    return is_optimized or issubclass(cls, torch.jit.ScriptModule)


def all_modules(root: nn.Module) -> Iterator[nn.Module]:
    """Every registered module once, in the order of `modules()`, without recursion.

    What lies inside TorchScript and compiled modules is left out.
    """
    seen: set[int] = set()
    stack = [root]
    while stack:
        module = stack.pop()
        if id(module) in seen:
            continue
        seen.add(id(module))
        yield module
        if is_sealed(module):
            continue
        children = modules_of(module).values()
        stack.extend(child for child in reversed(children) if child is not None)


_TENSOR: Final[Any] = Tensor
_UNTOUCHED: Final[Any] = torch._C._disabled_torch_function_impl  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]  torch has no public name


def overrides_functions(kind: Any) -> bool:
    """Whether a class of tensors does something of its own where torch's functions are called."""
    function = kind.__torch_function__
    own = getattr(function, "__func__", function)
    return own not in (_TENSOR.__torch_function__.__func__, _UNTOUCHED)


def overrides_operations(kind: Any) -> bool:
    """Whether a class of tensors does something of its own where operations are dispatched."""
    return kind.__torch_dispatch__ is not _TENSOR.__torch_dispatch__

"""Torch functions, methods and properties that the model calls, as nodes or as answers."""

import inspect
import operator
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

import torch
from torch import Tensor

from fxpasses.capture.result.calls import IN_PLACE
from fxpasses.capture.tracing.internals import ScriptMethod
from fxpasses.capture.tracing.proxies import Held, Made, Shape, Size, Value, find_value
from fxpasses.capture.tracing.request import OpaqueKind
from fxpasses.capture.tracing.unbound import method_of
from fxpasses.capture.tracing.values import (
    ANSWERED,
    REFUSED,
    RESHAPES_IN_PLACE,
    SIZE_METHODS,
    UNKNOWN,
    Taint,
)

if TYPE_CHECKING:
    from fxpasses.capture.tracing.recorder import Recorder

# Functions of no tensor whose effect or answer is Python's, not the graph's.
_NATIVE: Final = frozenset(
    [
        "_set_grad_enabled",
        "get_default_dtype",
        "get_rng_state",
        "_record_function_enter_new",
        "_record_function_exit",
        "__set__",
        "get_device_module",
        "set_default_dtype",
    ]
)
# Questions about real tensors that Python may decide on for good: weights keep their shapes.
_ABOUT_CONSTANTS: Final = (
    SIZE_METHODS
    | (ANSWERED - {"type"})  # which converts, too
    | frozenset(
        ["__repr__", "__format__", "__str__", "__hash__", "__dir__", "is_same_size", "is_tensor"]
    )
)
# Functions that ask what a method of the same name does.
_ASKING: Final = frozenset(
    function
    for name in sorted(SIZE_METHODS | ANSWERED)
    if inspect.isbuiltin(function := getattr(torch, name, None))
)
_ABOUT_MEMORY: Final = frozenset(("stride", "is_contiguous", "storage_offset"))
_DECISIONS: Final = frozenset(
    [
        "__bool__",
        "__int__",
        "__float__",
        "__index__",
        "__complex__",
        "__contains__",
        "__deepcopy__",
        "__reduce_ex__",
        "requires_grad_",
        "backward",
    ]
)


def torch_function(
    host: "Recorder", function: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> Any:
    """A torch function or method that the model calls, with traced values or without."""
    function = method_of(function)
    name: str = getattr(function, "__name__", "")
    if isinstance(function, ScriptMethod):
        raise host.refuse(OpaqueKind.COMPILED, "calls a TorchScript method")
    if find_value((args, kwargs)) is None:
        if _runs_natively(function, name, args):
            sets_mode = name == "_set_grad_enabled"
            host.reads_grad_mode |= sets_mode and not host.request.without_gradients
            return function(*args, **kwargs)
        if name in _DECISIONS:
            raise host.refuse(OpaqueKind.CONTROL_FLOW, f"{name} of a tensor of the model")
    if name == "_assert":
        return _assert(host, function, *args, **kwargs)
    if torch.overrides.is_tensor_method_or_property(function):
        return _method(host, function, name, args, kwargs)
    if function in _ASKING and isinstance(args[0] if args else None, Value):
        return getattr(args[0], name)(*args[1:], **kwargs)
    return host.record("call_function", function, args, kwargs)


_OF_A_VALUE: Final = re.compile(r"\{[\w.]+\}")  # as the text of a traced value


def _assert(host: "Recorder", function: Any, condition: Any, message: Any) -> Any:
    """An assertion on a traced value. Its text shall not tell of nodes."""
    text = _OF_A_VALUE.sub("...", message) if isinstance(message, str) else message
    return host.record("call_function", function, (condition, text), {})


def _method(
    host: "Recorder", function: Any, name: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> Any:
    owner = args[0] if args else UNKNOWN
    if name in ("__get__", "__set__", "__delete__"):
        return _property(host, function, name, owner)
    if name.startswith("__") and name.endswith("__"):
        return _special(host, name, args, kwargs)
    if isinstance(owner, (Value, Tensor)):
        value = owner if isinstance(owner, Value) else host.lift(owner)
        return host.call_tensor_method(value, name, args[1:], kwargs)
    return host.record("call_method", name, args, kwargs)


def _property(host: "Recorder", function: Any, name: str, owner: Any) -> Any:
    attribute_name: str = function.__self__.__name__
    if name != "__get__":
        reason = f"sets .{attribute_name} of a tensor"
        raise host.refuse(OpaqueKind.UNTRACEABLE_VALUE, reason)
    return getattr(owner if isinstance(owner, Value) else host.lift(owner), attribute_name)


def _special(host: "Recorder", name: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    """`Tensor.__getitem__` and its kin, in the spelling of an operator."""
    bare = name.strip("_")
    if name == "__iter__":
        return iter(host.record("call_method", "unbind", (args[0], 0), {}))
    if hasattr(operator, bare) and not kwargs:
        return host.record("call_function", getattr(operator, bare), args, {})
    if bare[:1] == "r" and hasattr(operator, bare[1:]) and len(args) == 2:
        swapped = (args[1], args[0])
        return host.record("call_function", getattr(operator, bare[1:]), swapped, {})
    raise host.refuse(OpaqueKind.UNTRACEABLE_VALUE, f"calls {name} of a tensor")


def call_tensor_method(
    host: "Recorder", value: Value, name: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> Any:
    """A method of a tensor: questions are answered or become sizes, the rest is a node."""
    if name in REFUSED:
        raise host.refuse(OpaqueKind.UNTRACEABLE_VALUE, f"calls .{name}()")
    if name in RESHAPES_IN_PLACE:
        reason = f"changes a shape in place by .{name}()"
        raise host.refuse(OpaqueKind.UNTRACEABLE_VALUE, reason)
    known = value.known
    if not isinstance(known, Tensor) or name not in SIZE_METHODS:
        return host.record("call_method", name, (value, *args), kwargs)
    return _question(host, value, known, name, args, kwargs)


def _question(
    host: "Recorder",
    value: Value,
    known: Tensor,
    name: str,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
) -> Any:
    if value.taint is Taint.FIXED and not value.loose and not _may_change(host, value, name):
        return _ask(host, known, name, args, kwargs)
    if name in ("dim", "ndimension") and not value.loose:
        return known.dim()
    if name == "size" and not value.loose:
        return _size(value, known, *args, **kwargs)
    node = host.make_node("call_method", name, (value, *args))
    answer = _ask(host, known, name, args, kwargs)
    host.note_value(node, answer, rank_is_fixed=True)
    return Made(node, host, answer, max(value.taint, Taint.SIZE))


def _may_change(host: "Recorder", value: Value, name: str) -> bool:
    """Whether an answer for one call may be another for the next, all inputs being alike.

    How a result lies in memory is up to the kernel that computes it.
    """
    return host.sizes_are_fixed and name in _ABOUT_MEMORY and not isinstance(value, Held)


def _ask(
    host: "Recorder", known: Tensor, name: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> Any:
    with host.quiet():
        return getattr(known, name)(*args, **kwargs)


def assign(host: "Recorder", operation: Any, left: Value, right: Any) -> Any:
    """`left += right` and its kin: only a tensor is changed in place."""
    if isinstance(left.known, Tensor) or left.is_tensor:
        return host.record("call_function", operation, (left, right), {})
    if left.known is UNKNOWN:
        return host.record("call_function", IN_PLACE[operation], (left, right), {})
    name = operation.__name__[1:]
    pure = getattr(operator, name, None) or getattr(operator, f"{name}_")
    return host.record("call_function", pure, (left, right), {})


def _size(value: Value, known: Tensor, dim: int | None = None) -> Any:
    if dim is None:
        return Shape([Size(value, axis) for axis in range(known.dim())])
    axis = int(dim)
    if not -known.dim() <= axis < known.dim():
        raise IndexError(f"Dimension out of range: {axis} of {known.dim()}")
    return Size(value, axis)


def _runs_natively(function: Any, name: str, args: tuple[Any, ...]) -> bool:
    """Whether a call without traced values is Python's business: no tensor comes of it."""
    if name in _NATIVE or "_record_function" in str(function):
        return name != "__set__"
    if name == "__get__":
        tensor, attribute_name = args[0], function.__self__.__name__
        is_shape = attribute_name in ("shape", "ndim", "dtype", "device", "layout", "is_cuda")
        return is_shape and not isinstance(tensor, Value)
    return name in _ABOUT_CONSTANTS or name == "device"

"""Methods of tensors that a model calls as functions: `Tensor.relu(x)`.

Written in C, they refuse a traced value before anything of ours is asked. The first that does is
replaced for the trace, and the module that called it traced again.
"""

import inspect
from collections.abc import Callable, Mapping
from types import FunctionType
from typing import Any, Protocol

from torch import Tensor

from fxpasses.capture.tracing.proxies import VALUE_TYPES, Value, is_operator
from fxpasses.capture.tracing.refusal import Refusal
from fxpasses.capture.tracing.request import OpaqueKind


class Host(Protocol):
    """What the replacements need of the tracer."""

    def refuse(self, kind: OpaqueKind, reason: str) -> Refusal: ...
    def call_tensor_method(
        self, value: Value, name: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> Any: ...


def replacements(
    name: str, host: Host, is_tracing: Callable[[], bool]
) -> dict[str, Callable[..., Any]]:
    """What lets `Tensor.name(x)` take traced values, by attribute; empty where nothing can.

    Torch's complaint names some operators, `__neg__` for one, as the method that they are.
    """
    made: dict[str, Callable[..., Any]] = {}
    for spelling in dir(Tensor):
        method = getattr(Tensor, spelling, None)
        if not inspect.ismethoddescriptor(method) or method.__name__ != name:
            continue
        if is_operator(spelling):
            made[spelling] = _operator(spelling, method, host, is_tracing)
        elif not spelling.startswith("__"):
            made[spelling] = _method(spelling, method, host, is_tracing)
    return made


def method_of(function: Any) -> Any:
    """The method that `function` replaces: torch finds methods by their names, and so ours."""
    if type(function) is not FunctionType:
        return function
    return vars(function).get("replaced_method", function)


def _method(
    name: str, method: Callable[..., Any], host: Host, is_tracing: Callable[[], bool]
) -> Callable[..., Any]:
    def call(*args: Any, **kwargs: Any) -> Any:
        if args and type(args[0]) in VALUE_TYPES and is_tracing():
            return host.call_tensor_method(args[0], name, args[1:], kwargs)
        return method(*args, **kwargs)

    return _replacing(call, method)


def _operator(
    name: str, method: Callable[..., Any], host: Host, is_tracing: Callable[[], bool]
) -> Callable[..., Any]:
    def call(*args: Any) -> Any:
        if not (args and type(args[0]) in VALUE_TYPES and is_tracing()):
            return method(*args)
        # Of other operands the method may say that it has no answer, which no operator does.
        if not name.endswith("item__") and not all(map(_is_number, args)):
            raise host.refuse(OpaqueKind.UNTRACEABLE_VALUE, f"calls {name} of a tensor")
        return getattr(args[0], name)(*args[1:])

    return _replacing(call, method)


def _is_number(value: Any) -> bool:
    return isinstance(value, (Value, Tensor, int, float, complex))


def _replacing(new: Any, method: Any) -> Callable[..., Any]:
    new.replaced_method = method
    for name in ("__name__", "__qualname__", "__doc__"):
        setattr(new, name, getattr(method, name))
    return new

"""`type` and `isinstance` as model code sees them during a trace."""

import types
from abc import ABCMeta
from collections.abc import Callable, Iterator
from typing import Any, Final, Protocol

import torch
from torch import Tensor, nn

from fxpasses.capture.result.questions import CLASSES
from fxpasses.capture.tracing.proxies import Shape, Value
from fxpasses.capture.tracing.refusal import Refusal
from fxpasses.capture.tracing.request import OpaqueKind
from fxpasses.capture.tracing.values import UNKNOWN


class Host(Protocol):
    """What the answers need of the tracer."""

    reads_device: bool

    def refuse(self, kind: OpaqueKind, reason: str) -> Refusal: ...
    def ask(self, value: Value, question: str) -> Any: ...


class _Builtin(type):
    """The class of what stands for `type`: alike in all that model code asks of it."""

    type_of: Callable[[Any], type]

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        if len(args) != 1 or kwargs:
            return type(*args, **kwargs)
        found = cls.type_of(args[0])
        return cls if found is type else found

    def __instancecheck__(cls, instance: Any) -> bool:
        return isinstance(instance, type)

    def __subclasscheck__(cls, subclass: type) -> bool:
        return issubclass(subclass, type)

    def __getitem__(cls, item: Any) -> types.GenericAlias:
        return types.GenericAlias(type, item)

    def __eq__(cls, other: object) -> bool:
        return other is cls or other is type

    def __hash__(cls) -> int:
        return hash(type)


def type_that_answers(type_of: Callable[[Any], type]) -> type:
    """A class like `type`, of which `type(x)` is `type_of(x)`."""
    return _Builtin("type", (type,), {"type_of": staticmethod(type_of)})


# -- which class a value is of


def type_of_value(host: Host, value: Any) -> type:
    """The type of what `value` stands for."""
    if type(value) is Shape:
        return torch.Size
    found = stand_in(host, value, "type()")
    return type(CLASSES[host.ask(value, "class")]) if isinstance(found, Tensor) else type(found)


def is_instance(host: Host, value: Any, kinds: Any) -> bool:
    """Whether what `value` stands for is one of `kinds`, as eager would say."""
    if type(value) is Shape:
        return issubclass(torch.Size, kinds) or issubclass(Shape, kinds)
    found = stand_in(host, value, "isinstance()")
    if not isinstance(found, Tensor):
        return isinstance(found, kinds)
    return any(_is_of(host, value, found, kind) for kind in _flat(kinds))


def stand_in(host: Host, value: Value, question: str) -> Any:
    """What answers a question about the type of `value`."""
    if value.known is UNKNOWN and not value.is_tensor:
        raise host.refuse(OpaqueKind.CONTROL_FLOW, f"{question} of a value that is not known")
    return _SOME_TENSOR if value.known is UNKNOWN else value.known


def _flat(kinds: Any) -> Iterator[Any]:
    """The classes in what `isinstance` is given: one, a union, or a nested tuple of them."""
    if isinstance(kinds, (tuple, types.UnionType)):
        for kind in kinds if isinstance(kinds, tuple) else kinds.__args__:
            yield from _flat(kind)
    else:
        yield kinds


def _is_of(host: Host, value: Value, found: Tensor, kind: Any) -> bool:
    if kind is Tensor:
        return True
    if type(kind) is _LEGACY:  # torch.FloatTensor: a dtype and a device
        if value.known is UNKNOWN:
            raise host.refuse(OpaqueKind.CONTROL_FLOW, f"isinstance() of {kind.__name__}")
        host.reads_device = True
        return isinstance(found, kind)
    if getattr(type(kind), "__instancecheck__", None) not in _BY_CLASS and not _is_typing(kind):
        name = getattr(kind, "__name__", str(kind))
        reason = f"isinstance() of {name}, which decides by more than the class"
        raise host.refuse(OpaqueKind.CONTROL_FLOW, reason)
    answers = {isinstance(like, kind) for like in CLASSES.values()}
    return (
        answers.pop() if len(answers) == 1 else isinstance(CLASSES[host.ask(value, "class")], kind)
    )


def _is_typing(kind: Any) -> bool:
    """Whether this is a generic such as `typing.Sequence`, which asks the class it stands for."""
    return type(kind).__module__ == "typing" and not isinstance(kind, type)


_SOME_TENSOR: Final = torch.empty(0)
_LEGACY: Final[type] = type(torch.FloatTensor)
# How classes tell their instances where that follows from the class of these, and from what
# torch's own marks say.
_BY_CLASS: Final = tuple(
    kind.__instancecheck__
    for kind in (type, ABCMeta, type(Tensor), type(nn.Parameter), type(nn.Buffer))
)

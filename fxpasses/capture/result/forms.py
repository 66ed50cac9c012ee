"""Forms: what a graph takes for granted of each value that it is given."""

import dataclasses
import enum
import inspect
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final, TypeAlias, cast

import torch
from torch import Tensor, nn
from torch.fx import Proxy

from fxpasses.capture.inside import memory_of
from fxpasses.capture.result.questions import answer_of, said, same_answer
from fxpasses.core.given import an

Args: TypeAlias = tuple[Any, ...]
Kwargs: TypeAlias = Mapping[str, Any]
Difference: TypeAlias = str | None
Answers: TypeAlias = tuple[tuple[str, Any], ...]
"""Questions about a tensor, and the answers that a graph takes for granted."""
Asked: TypeAlias = Mapping[int, Answers]

_NOTHING_ASKED: Final[Asked] = MappingProxyType({})

PLAIN = (type(None), bool, int, str, bytes, torch.dtype, torch.device, torch.Size, torch.layout)
_SAID = (int, float, complex, str, torch.dtype, torch.device, enum.Enum)
_BY_IDENTITY = (type, torch.memory_format, enum.Enum)
_TRACING = ("torch._subclasses", "torch.nn.", "fxpasses.capture")
_TENSOR_TYPES: Final = frozenset((Tensor, nn.Parameter))


@dataclass(frozen=True, slots=True)
class TensorForm:
    """A tensor as the graph takes it: everything but its sizes and values."""

    rank: int
    dtype: torch.dtype
    device: str
    layout: torch.layout
    subclass: type | None
    requires_grad: bool | None = None
    asked: Answers = ()

    def difference(self, value: Any, where: str) -> Difference:
        if not isinstance(value, Tensor):
            return f"{where} is {_said(value)} instead of a tensor"
        if self.subclass is not _subclass(value):
            return f"{where} is {_said(value)} instead of {_said_of_class(self.subclass)}"
        for word, mine, other in (
            ("rank", self.rank, value.dim()),
            ("dtype", self.dtype, value.dtype),
            ("device", self.device, value.device.type),
            ("layout", self.layout, value.layout),
        ):
            if mine != other:
                return f"{where} has {word} {other} instead of {mine}"
        if self.requires_grad not in (None, value.requires_grad):
            return f"{where} has requires_grad={value.requires_grad}"
        return _other_answer(self.asked, value, where)


@dataclass(frozen=True, slots=True, eq=False)
class Constant:
    """A value that the graph has taken for granted."""

    value: Any

    def difference(self, value: Any, where: str) -> Difference:
        if _same_constant(self.value, value):
            return None
        return f"{where} is {_said(value)} instead of {_said(self.value)}"


@dataclass(frozen=True, slots=True)
class Structure:
    """A container of one class, its items by index, key or field."""

    kind: type
    keys: tuple[Any, ...]
    items: "tuple[Form, ...]"

    def difference(self, value: Any, where: str) -> Difference:
        if type(value) is not self.kind:
            return f"{where} is {_said(value)} instead of {an(self.kind)}"
        parts = _parts(value)
        keys, items = parts if parts is not None else ((), ())
        if len(keys) != len(self.keys):
            return f"{where} has {len(keys)} items instead of {len(self.keys)}"
        for mine, key, form, item in zip(self.keys, keys, self.items, items, strict=True):
            if mine != key:
                return f"{where} has {key!r} where {mine!r} was"
            if found := form.difference(item, f"{where}[{key!r}]"):
                return found
        return None


@dataclass(frozen=True, slots=True)
class Unknown:
    """An object that says nothing of itself: no call fits."""

    kind: str

    def difference(self, value: Any, where: str) -> Difference:
        return f"{where} is {_said(value)}, and objects of that kind cannot be compared"


@dataclass(frozen=True, slots=True)
class Omitted:
    """An argument that the call leaves out, which cannot be told from its default's value."""

    def difference(self, value: Any, where: str) -> Difference:
        return None if value is OMITTED else f"{where} is given"


@dataclass(frozen=True, slots=True)
class AnyTensor:
    """A tensor of which nothing is known: the graph was recorded by names alone."""

    asked: Answers = ()

    def difference(self, value: Any, where: str) -> Difference:
        if isinstance(value, Tensor) and _subclass(value) is None:
            return _other_answer(self.asked, value, where)
        return f"{where} is {_said(value)} instead of an ordinary tensor"


Form: TypeAlias = AnyTensor | TensorForm | Constant | Structure | Unknown | Omitted
OMITTED = inspect.Parameter.empty


class Anything:
    """Stands for an argument of an example that nobody gave."""


def form_of(value: Any, *, gradients: bool = False, asked: Asked = _NOTHING_ASKED) -> Form:
    """What a graph that was recorded with `value` takes for granted of it.

    Args:
        value: An argument, or an element of one.
        gradients: Whether `requires_grad` of every tensor is taken for granted.
        asked: What the model has asked of each tensor, by its identity, and the answers.
    """
    if isinstance(value, Tensor):
        needs = value.requires_grad if gradients else None
        subclass = _subclass(value)
        return TensorForm(
            value.dim(),
            value.dtype,
            value.device.type,
            value.layout,
            subclass,
            needs,
            asked.get(id(value), ()),
        )
    if type(value) in (float, complex) or isinstance(value, (*PLAIN, *_BY_IDENTITY)):
        return Constant(value)
    if inspect.isroutine(value):
        return Constant(value)
    if isinstance(value, Anything):
        return AnyTensor(asked.get(id(value), ()))
    parts = _parts(value)
    if parts is None:
        return Unknown(type(value).__qualname__)
    keys, items = parts
    forms = tuple(form_of(item, gradients=gradients, asked=asked) for item in items)
    return Structure(type(value), tuple(keys), forms)


def _parts(value: Any) -> tuple[tuple[Any, ...], tuple[Any, ...]] | None:
    if isinstance(value, dict):
        mapping = cast("dict[Any, Any]", value)
        return tuple(mapping.keys()), tuple(mapping.values())
    if isinstance(value, (tuple, list)):
        items = tuple(cast("tuple[Any, ...]", value))
        return getattr(value, "_fields", tuple(range(len(items)))), items
    if isinstance(value, slice):
        return ("start", "stop", "step"), (value.start, value.stop, value.step)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        names = tuple(field.name for field in dataclasses.fields(value))
        return names, tuple(getattr(value, name, None) for name in names)
    return None


def _other_answer(asked: Answers, value: Tensor, where: str) -> Difference:
    for question, mine in asked:
        other = answer_of(value, question)
        if not same_answer(mine, other):
            return f"{where} {said(question, other)}, where the capture's {said(question, mine)}"
    return None


def tensors_of(value: Any) -> list[Tensor]:
    """Every tensor in a structure of arguments, in order, with repetitions."""
    found: list[Tensor] = []
    stack = [value]
    while stack:
        item = stack.pop()
        if isinstance(item, Tensor):
            found.append(item)
        elif (parts := _parts(item)) is not None:
            stack.extend(reversed(parts[1]))
    return found


def has_proxy(value: Any) -> bool:
    """Whether torch.fx traces what this is, or holds."""
    return bool(proxies_in(value))


def is_starred(value: Any) -> bool:
    """Whether this is a proxy of any number of arguments."""
    node = value.node if isinstance(value, Proxy) else None
    return node is not None and node.op == "placeholder" and str(node.target).startswith("*")


def proxies_in(value: Any) -> list[Proxy]:
    """What torch.fx traces, in a structure of arguments."""
    found: list[Proxy] = []
    stack = [value]
    while stack:
        item = stack.pop()
        if isinstance(item, Proxy):
            found.append(item)
        elif (parts := _parts(item)) is not None:
            stack.extend(parts[1])
    return found


def _subclass(value: Tensor) -> type | None:
    """The class of a tensor that overrides what operations do; None for ordinary tensors.

    What torch and this package trace with counts as ordinary, so that results can be exported,
    and captured as a part of other models.
    """
    kind = type(value)
    if kind in _TENSOR_TYPES or kind.__module__.startswith(_TRACING):
        return None
    return kind


def _same_constant(mine: Any, other: Any) -> bool:
    if type(mine) is not type(other):
        return False
    if isinstance(mine, float):
        if math.isnan(mine):
            return math.isnan(other)
        return mine == other and math.copysign(1.0, mine) == math.copysign(1.0, other)
    if isinstance(mine, complex):
        return repr(mine) == repr(other)
    return mine is other or bool(mine == other)


def _said(value: Any) -> str:
    if isinstance(value, Tensor):
        kind = _subclass(value)
        return f"a tensor of rank {value.dim()}" if kind is None else _said_of_class(kind)
    if value is OMITTED:
        return "missing"
    if value is None or isinstance(value, _SAID):
        text = repr(value)
        return text if len(text) <= 40 else f"{text[:37]}..."
    return an(type(value))


def _said_of_class(kind: type | None) -> str:
    return "an ordinary tensor" if kind is None else f"a tensor of class {kind.__name__}"


# -- one tensor seen through several arguments

SHARED: Final = "other arguments share memory, or are one tensor"
Aliases: TypeAlias = tuple[tuple[int, int], ...]


def aliases_of(tensors: list[Tensor]) -> Aliases:
    """For each tensor the first that is the same object, and the first over the same memory."""
    if len(tensors) < 2:
        return ()
    objects: dict[int, int] = {}
    memories: dict[int, int] = {}
    found: list[tuple[int, int]] = []
    for index, tensor in enumerate(tensors):
        same = objects.setdefault(id(tensor), index)
        memory = memory_of(tensor)
        first = index if memory is None else memories.setdefault(memory, index)
        found.append((same, first))
    return tuple(found)


def moved(form: Form, old: str, new: str) -> Form:
    """The form of the same value after everything on one type of device went to another."""
    if isinstance(form, TensorForm):
        return dataclasses.replace(form, device=new) if form.device == old else form
    if isinstance(form, Structure):
        return dataclasses.replace(form, items=tuple(moved(i, old, new) for i in form.items))
    return form


# -- compiled checks

Check: TypeAlias = Callable[[Any], bool]


def compiled_check(
    args: tuple[Form, ...], kwargs: Mapping[str, Form], aliases: Aliases
) -> Callable[[Args, Kwargs], bool]:
    """A function that says whether arguments have these forms; the common cases are its own."""
    count = len(args)
    checks = tuple(_check(form) for form in args)
    if not kwargs and count == 1 and not aliases:
        (only,) = checks
        return lambda args, kwargs: not kwargs and len(args) == 1 and only(args[0])
    named = tuple((key, _check(form)) for key, form in kwargs.items())

    def fits(args: Args, kwargs: Kwargs) -> bool:
        if len(args) != count or len(kwargs) != len(named):
            return False
        for check, value in zip(checks, args, strict=True):
            if not check(value):
                return False
        for key, check in named:
            if key not in kwargs or not check(kwargs[key]):
                return False
        return not aliases or aliases_of(tensors_of((args, dict(kwargs)))) == aliases

    return fits


def _check(form: Form) -> Check:
    if isinstance(form, TensorForm):
        return _tensor_check(form)
    if isinstance(form, Constant) and (form.value is None or isinstance(form.value, bool)):
        expected = form.value
        return lambda value: value is expected
    if isinstance(form, Structure):
        return _structure_check(form)
    return lambda value: form.difference(value, "") is None


def _tensor_check(form: TensorForm) -> Check:
    rank, dtype, device, layout = form.rank, form.dtype, form.device, form.layout
    ordinary, subclass, needs = _TENSOR_TYPES, form.subclass, form.requires_grad
    if form.asked:
        plain = _tensor_check(dataclasses.replace(form, asked=()))
        return lambda value: plain(value) and _other_answer(form.asked, value, "") is None
    if device in ("cpu", "cuda") and layout is torch.strided and needs is None and not subclass:
        on_cpu = device == "cpu"

        def fits(value: Any) -> bool:
            if type(value) not in ordinary and not _ordinary(value):
                return False
            return (
                value.ndim == rank
                and value.dtype is dtype
                and (value.is_cpu if on_cpu else value.is_cuda)
                and value.layout is layout
            )

        return fits
    return lambda value: form.difference(value, "") is None


def _ordinary(value: Any) -> bool:
    return isinstance(value, Tensor) and _subclass(value) is None


def _structure_check(form: Structure) -> Check:
    kind, keys = form.kind, form.keys
    checks = tuple(_check(item) for item in form.items)

    def fits(value: Any) -> bool:
        if type(value) is not kind:
            return False
        parts = _parts(value)
        if parts is None or parts[0] != keys:
            return False
        return all(check(item) for check, item in zip(checks, parts[1], strict=True))

    return fits

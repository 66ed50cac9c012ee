"""Forms: what a graph takes for granted of each value that it is given."""

import dataclasses
import enum
import inspect
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeAlias, cast

import torch
from torch import Tensor, nn

from fxpasses.capture.inside import memory_of

Args: TypeAlias = tuple[Any, ...]
Kwargs: TypeAlias = Mapping[str, Any]
Difference: TypeAlias = str | None

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

    def difference(self, value: Any, where: str) -> Difference:
        if not isinstance(value, Tensor):
            return f"{where} is {_said(value)} instead of a tensor"
        for word, mine, other in (
            ("type", self.subclass, _subclass(value)),
            ("rank", self.rank, value.dim()),
            ("dtype", self.dtype, value.dtype),
            ("device", self.device, value.device.type),
            ("layout", self.layout, value.layout),
        ):
            if mine != other:
                return f"{where} has {word} {other} instead of {mine}"
        if self.requires_grad not in (None, value.requires_grad):
            return f"{where} has requires_grad={value.requires_grad}"
        return None


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
            return f"{where} is {_said(value)} instead of a {self.kind.__name__}"
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

    def difference(self, value: Any, where: str) -> Difference:
        if isinstance(value, Tensor) and _subclass(value) is None:
            return None
        return f"{where} is {_said(value)} instead of a tensor"


Form: TypeAlias = AnyTensor | TensorForm | Constant | Structure | Unknown | Omitted
OMITTED = inspect.Parameter.empty


class _Any:
    """Stands for an argument of an example that nobody gave."""


ANY: Final = _Any()


def form_of(value: Any, *, gradients: bool = False) -> Form:
    """What a graph that was recorded with `value` takes for granted of it."""
    if isinstance(value, Tensor):
        needs = value.requires_grad if gradients else None
        subclass = _subclass(value)
        return TensorForm(
            value.dim(), value.dtype, value.device.type, value.layout, subclass, needs
        )
    if type(value) in (float, complex) or isinstance(value, (*PLAIN, *_BY_IDENTITY)):
        return Constant(value)
    if inspect.isroutine(value):
        return Constant(value)
    if value is ANY:
        return AnyTensor()
    parts = _parts(value)
    if parts is None:
        return Unknown(type(value).__qualname__)
    keys, items = parts
    return Structure(
        type(value), tuple(keys), tuple(form_of(item, gradients=gradients) for item in items)
    )


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
        return f"a tensor of rank {value.dim()}"
    if value is OMITTED:
        return "missing"
    if value is None or isinstance(value, _SAID):
        text = repr(value)
        return text if len(text) <= 40 else f"{text[:37]}..."
    return f"a {type(value).__name__}"


# -- one tensor seen through several arguments

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

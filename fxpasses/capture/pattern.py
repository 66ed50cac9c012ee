"""What a call must look like for a graph to hold for it, and what differs where it does not.

A graph was recorded for one structure of arguments: for other ranks, dtypes or constants the
module's own code may take another way. A `Pattern` compares the arguments and torch's ambient
state in about a microsecond, and is plain data otherwise.
"""

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

_PLAIN = (type(None), bool, int, str, bytes, torch.dtype, torch.device, torch.Size, torch.layout)
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
        return None if value is _OMITTED else f"{where} is given"


@dataclass(frozen=True, slots=True)
class AnyTensor:
    """A tensor of which nothing is known: the graph was recorded by names alone."""

    def difference(self, value: Any, where: str) -> Difference:
        if isinstance(value, Tensor) and _subclass(value) is None:
            return None
        return f"{where} is {_said(value)} instead of a tensor"


Form: TypeAlias = AnyTensor | TensorForm | Constant | Structure | Unknown | Omitted
_OMITTED = inspect.Parameter.empty


class _Any:
    """Stands for an argument of an example that nobody gave."""


_ANY: Final = _Any()


def form_of(value: Any, *, gradients: bool = False) -> Form:
    """What a graph that was recorded with `value` takes for granted of it."""
    if isinstance(value, Tensor):
        needs = value.requires_grad if gradients else None
        subclass = _subclass(value)
        return TensorForm(
            value.dim(), value.dtype, value.device.type, value.layout, subclass, needs
        )
    if type(value) in (float, complex) or isinstance(value, (*_PLAIN, *_BY_IDENTITY)):
        return Constant(value)
    if inspect.isroutine(value):
        return Constant(value)
    if value is _ANY:
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
    if value is _OMITTED:
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


# -- torch's ambient state


@dataclass(frozen=True, slots=True)
class Ambient:
    """What of torch's thread-wide state a graph depends on."""

    autocast: tuple[tuple[str, bool, torch.dtype], ...]
    grad: bool | None
    """Compared only where the model read it."""
    inference: bool
    """A graph recorded outside of inference mode holds inside it too."""

    @classmethod
    def now(cls, devices: tuple[str, ...], *, grad_matters: bool) -> "Ambient":
        states = tuple(
            (device, torch.is_autocast_enabled(device), torch.get_autocast_dtype(device))
            for device in devices
        )
        grad = torch.is_grad_enabled() if grad_matters else None
        return cls(states, grad, torch.is_inference_mode_enabled())

    def difference(self) -> Difference:
        for device, enabled, dtype in self.autocast:
            if torch.is_autocast_enabled(device) != enabled:
                return f"autocast for {device} is {'off' if enabled else 'on'}"
            if enabled and torch.get_autocast_dtype(device) != dtype:
                return f"autocast for {device} is to another dtype than {dtype}"
        if self.grad not in (None, torch.is_grad_enabled()):
            return f"gradients are {'off' if self.grad else 'on'}"
        if self.inference and not torch.is_inference_mode_enabled():
            return "inference mode is off"
        return None

    def compiled(self) -> Callable[[], bool]:
        autocast_on = torch.is_autocast_enabled
        devices = tuple(device for device, _, _ in self.autocast)
        plain = self.grad is None and not self.inference
        if plain and not any(enabled for _, enabled, _ in self.autocast):
            if len(devices) == 1:
                (only,) = devices
                return lambda: not autocast_on(only)
            first, second = devices[0], devices[-1]
            if len(devices) == 2:
                return lambda: not (autocast_on(first) or autocast_on(second))
        return lambda: self.difference() is None


# -- the pattern


class Pattern:
    """What a call must look like. Immutable; copies of it are itself.

    Args:
        args: The positional arguments of the example.
        kwargs: Its keyword arguments.
        forward: The function that they were passed to, if it may be given the same arguments in
            another form (by name, by position, defaults spelled out).
        grad_matters: Whether the grad mode is part of the pattern.
        gradients: Whether `requires_grad` of every tensor is part of the pattern.
    """

    def __init__(
        self,
        args: Args,
        kwargs: Kwargs,
        *,
        forward: Callable[..., Any] | None = None,
        grad_matters: bool = False,
        gradients: bool = False,
    ) -> None:
        self._gradients = gradients
        self._args = tuple(form_of(value, gradients=gradients) for value in args)
        self._kwargs = {key: form_of(v, gradients=gradients) for key, v in kwargs.items()}
        tensors = tensors_of((args, dict(kwargs)))
        self._aliases = aliases_of(tensors)
        devices = dict.fromkeys(("cpu", *(tensor.device.type for tensor in tensors), "cuda"))
        self._ambient = Ambient.now(
            tuple(d for d in devices if d != "meta"), grad_matters=grad_matters
        )
        self._signature = None if forward is None else _plain_signature(forward)
        self._named = self._name_arguments(args, kwargs)
        self._compile()

    @classmethod
    def by_names(cls, forward: Callable[..., Any]) -> "Pattern | None":
        """What a call of `forward` must look like where there is no example.

        Every argument that must be given is a tensor, and no other is given. None where
        `forward` takes any number of arguments.
        """
        positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
        parameters = list(inspect.signature(forward).parameters.values())
        if inspect.isfunction(forward):
            parameters = parameters[1:]
        required = [p for p in parameters if p.default is p.empty]
        if any(p.kind not in positional for p in required):
            return None
        return cls(tuple(_ANY for _ in required), {}, forward=forward)

    def _name_arguments(self, args: Args, kwargs: Kwargs) -> dict[str, Form] | None:
        if self._signature is None:
            return None
        try:
            bound = self._signature.bind(*args, **kwargs)
        except TypeError:
            return None
        named: dict[str, Form] = {}
        for name, parameter in self._signature.parameters.items():
            if name in bound.arguments:
                named[name] = form_of(bound.arguments[name], gradients=self._gradients)
            elif isinstance(parameter.default, (float, *_PLAIN)):
                named[name] = Constant(parameter.default)
            else:
                named[name] = Omitted()
        return named

    def _compile(self) -> None:
        self.ambient_fits = self._ambient.compiled()
        self.fits = _fits_closure(self._args, self._kwargs, self._aliases)

    @property
    def reads_grad_mode(self) -> bool:
        """Whether the grad mode is part of the pattern."""
        return self._ambient.grad is not None

    def admits(self, args: Args, kwargs: Kwargs) -> bool:
        """Whether the graph holds for a call in exactly the form of the example."""
        return self.ambient_fits() and self.fits(args, kwargs)

    def normalized(self, args: Args, kwargs: Kwargs) -> tuple[Args, Kwargs] | None:
        """The same call in a form that the graph takes, or None where the graph does not hold.

        For calls that `admits` refused: they may only spell their arguments otherwise.
        """
        if self._signature is None or self._named is None or not self.ambient_fits():
            return None
        return None if self._named_difference(args, kwargs) else self._spelled(args, kwargs)

    def _spelled(self, args: Args, kwargs: Kwargs) -> tuple[Args, Kwargs]:
        bound = cast("inspect.Signature", self._signature).bind(*args, **kwargs)
        return bound.args, bound.kwargs

    def _named_difference(self, args: Args, kwargs: Kwargs) -> Difference:
        signature, named = self._signature, self._named
        if signature is None or named is None:
            return "the arguments have another form"
        try:
            bound = signature.bind(*args, **kwargs)
        except TypeError as error:
            return str(error)
        for name, form in named.items():
            parameter = signature.parameters[name]
            left_out = _OMITTED if isinstance(form, Omitted) else parameter.default
            if found := form.difference(bound.arguments.get(name, left_out), name):
                return found
        if aliases_of(tensors_of(dict(bound.arguments))) != self._aliases:
            return "other arguments share memory, or are one tensor"
        return None

    def describe_difference(self, args: Args, kwargs: Kwargs) -> str:
        """In words, how a call differs from what the graph holds for; "" where it does not."""
        if found := self._ambient.difference():
            return found
        if self._named is not None:
            return self._named_difference(args, kwargs) or ""
        if len(args) != len(self._args):
            return f"{len(args)} positional arguments instead of {len(self._args)}"
        if list(kwargs) != list(self._kwargs):
            return f"keyword arguments {list(kwargs)} instead of {list(self._kwargs)}"
        for index, (form, value) in enumerate(zip(self._args, args, strict=True)):
            if found := form.difference(value, f"argument {index}"):
                return found
        for key, form in self._kwargs.items():
            if found := form.difference(kwargs[key], key):
                return found
        if aliases_of(tensors_of((args, dict(kwargs)))) != self._aliases:
            return "other arguments share memory, or are one tensor"
        return ""

    def resembles(self, args: Args, kwargs: Kwargs) -> bool:
        """Whether the arguments fit one by one: what a compiler can trace of `admits`."""
        if len(args) != len(self._args) or len(kwargs) != len(self._kwargs):
            return False
        for form, value in zip(self._args, args, strict=True):
            if form.difference(value, "") is not None:
                return False
        for key, form in self._kwargs.items():
            if key not in kwargs or form.difference(kwargs[key], "") is not None:
                return False
        return self._ambient.difference() is None

    def on_device(self, old: str, new: str) -> "Pattern":
        """The pattern after the weights have moved from one type of device to another."""
        moved = object.__new__(Pattern)
        moved.__dict__.update(self.__dict__)
        moved._args = tuple(_moved(form, old, new) for form in self._args)
        moved._kwargs = {key: _moved(form, old, new) for key, form in self._kwargs.items()}
        named = self._named
        moved._named = named and {key: _moved(form, old, new) for key, form in named.items()}
        moved._compile()
        return moved

    def __copy__(self) -> "Pattern":
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> "Pattern":
        return self

    def __getstate__(self) -> dict[str, Any]:
        compiled = ("ambient_fits", "fits")
        return {key: value for key, value in self.__dict__.items() if key not in compiled}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._compile()


def _moved(form: Form, old: str, new: str) -> Form:
    if isinstance(form, TensorForm):
        return dataclasses.replace(form, device=new) if form.device == old else form
    if isinstance(form, Structure):
        return dataclasses.replace(form, items=tuple(_moved(i, old, new) for i in form.items))
    return form


def _plain_signature(forward: Callable[..., Any]) -> inspect.Signature | None:
    """The signature of a forward that cannot see how its arguments were passed, else None."""
    if hasattr(forward, "__wrapped__") or not inspect.isfunction(forward):
        return None
    parameters = list(inspect.signature(forward).parameters.values())[1:]
    plain = [p.replace(annotation=_OMITTED, default=_plain_default(p.default)) for p in parameters]
    kinds = {p.kind for p in plain}
    if kinds & {inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD}:
        return None
    return inspect.Signature(plain)


class _Default:
    """Stands for a default value that is not plain data: only whether it is left out matters."""


def _plain_default(default: Any) -> Any:
    if default is _OMITTED or isinstance(default, (float, *_PLAIN)):
        return default
    return _Default()


# -- compiled checks

Check: TypeAlias = Callable[[Any], bool]


def _fits_closure(
    args: tuple[Form, ...], kwargs: Mapping[str, Form], aliases: Aliases
) -> Callable[[Args, Kwargs], bool]:
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

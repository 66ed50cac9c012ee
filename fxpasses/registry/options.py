"""Options of a pass: its fields, filled from plain data of the right type."""

import types
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, Field, dataclass, fields
from enum import Enum
from typing import Any, Final, Literal, Union, cast, get_args, get_origin, get_type_hints

import torch

from fxpasses.core import GraphPass
from fxpasses.core.nearest import did_you_mean
from fxpasses.core.plain import Plain, plain
from fxpasses.errors import PipelineError
from fxpasses.registry.values import parse_value, text_of_value


class _Mismatch(Exception):  # noqa: N818  never leaves this module
    """A value is not of the type that a field has."""


def made(kind: type[GraphPass], options: Mapping[str, Plain], place: str) -> GraphPass:
    """The pass with these options.

    Raises:
        PipelineError: an option does not exist, is missing or has the wrong type, or the pass
            itself rejects a value.
    """
    known = _fields(kind)
    types_of = _types_of(kind, place)
    for name in options:
        if name not in known:
            raise PipelineError(
                f"{place}: {kind.name} has no option {name!r}{did_you_mean(name, known)}"
            )
    values = {
        name: _converted(value, types_of[name], f"{place}: option {name} of {kind.name}")
        for name, value in options.items()
    }
    missing = [name for name, item in known.items() if _is_needed(item) and name not in values]
    if missing:
        raise PipelineError(f"{place}: {kind.name} needs the option {', '.join(missing)}")
    try:
        return kind(**values)
    except (TypeError, ValueError) as error:
        raise PipelineError(
            f"{place}: {kind.name} does not take {dict(options)}: {error}"
        ) from error


def _types_of(kind: type[GraphPass], place: str) -> Mapping[str, Any]:
    try:
        return get_type_hints(kind)
    except (NameError, TypeError) as error:
        text = f"{place}: the types of the options of {kind.name} cannot be read, {error}"
        raise PipelineError(text) from error


def set_options(graph_pass: GraphPass) -> dict[str, Plain]:
    """The options that are not at their defaults, as plain data."""
    return {
        name: plain(getattr(graph_pass, name))
        for name, item in _fields(type(graph_pass)).items()
        if getattr(graph_pass, name) != _default(item)
    }


@dataclass(frozen=True, slots=True)
class Option:
    """One option of a pass, in words."""

    name: str
    takes: str
    """`an integer`, `a text or none`."""
    default: str | None
    """As the text of a pipeline has it; None where it has to be given."""


def options_of(kind: type[GraphPass]) -> list[Option]:
    """The options of a pass.

    Raises:
        PipelineError: the types of its fields cannot be read.
    """
    types_of = _types_of(kind, "fields")
    return [
        Option(name, _expected(types_of[name]), _default_text(item))
        for name, item in _fields(kind).items()
    ]


def _default_text(item: Field[Any]) -> str | None:
    return None if _is_needed(item) else text_of_value(plain(_default(item)))


def _expected(kind: Any) -> str:
    """What an error would say of a value that is of no type at all."""
    try:
        _as(kind, _Mismatch())
    except _Mismatch as mismatch:
        return str(mismatch)
    return "anything"


def _fields(kind: type[GraphPass]) -> dict[str, Field[Any]]:
    return {item.name: item for item in fields(cast("Any", kind)) if item.init}


def _is_needed(item: Field[Any]) -> bool:
    return item.default is MISSING and item.default_factory is MISSING


def _default(item: Field[Any]) -> Any:
    return item.default if item.default_factory is MISSING else item.default_factory()


def _converted(value: Plain, kind: Any, where: str) -> Any:
    try:
        return _as(kind, value)
    except _Mismatch as error:
        raise PipelineError(f"{where} is {value!r}, where {error} is expected") from error


def _as(kind: Any, value: Any) -> Any:
    origin = get_origin(kind)
    if kind is Any or kind is object:
        return value
    if origin in (Union, types.UnionType):
        return _as_any_of(get_args(kind), value)
    if origin is Literal:
        return _literal(get_args(kind), value)
    if kind is None or kind is type(None):
        return _checked(value is None, value, "none")
    if isinstance(kind, type) and issubclass(kind, Enum):
        return _enum(kind, value)
    convert = _CONVERT.get(origin or kind)
    if convert is None:
        raise _Mismatch(f"a {getattr(kind, '__name__', kind)}, which no text can be,")
    return convert(value, get_args(kind))


def _as_any_of(kinds: tuple[Any, ...], value: Any) -> Any:
    # A number is an int before it is a float, whatever the order they are written in.
    ordered = sorted(kinds, key=lambda kind: kind is float)
    expected: list[str] = []
    for kind in ordered:
        try:
            return _as(kind, value)
        except _Mismatch as error:
            expected.append(str(error))
    raise _Mismatch(" or ".join(expected))


def _checked(holds: bool, value: Any, expected: str) -> Any:
    if not holds:
        raise _Mismatch(expected)
    return value


def _literal(choices: tuple[Any, ...], value: Any) -> Any:
    if not any(value == choice and type(value) is type(choice) for choice in choices):
        listed = " or ".join(map(repr, choices))
        raise _Mismatch(listed + (did_you_mean(value, choices) if isinstance(value, str) else ""))
    return value


def _enum(kind: type[Enum], value: Any) -> Any:
    try:
        return kind(value)
    except ValueError:
        choices = [str(member.value) for member in kind]
        hint = did_you_mean(value, choices) if isinstance(value, str) else ""
        raise _Mismatch(f"one of {', '.join(choices)}{hint}") from None


def _float(value: Any, _: tuple[Any, ...]) -> float:
    _checked(isinstance(value, int | float) and not isinstance(value, bool), value, "a number")
    return float(value)


def _dtype(value: Any, _: tuple[Any, ...]) -> torch.dtype:
    name = value.removeprefix("torch.") if isinstance(value, str) else ""
    found = getattr(torch, name, None)
    return _checked(isinstance(found, torch.dtype), found, "the name of a dtype")


def _items(value: Any, args: tuple[Any, ...]) -> list[Any]:
    items: list[Any] = _checked(isinstance(value, list | tuple), value, "a list")
    (kind,) = args or (Any,)
    return [_as(kind, item) for item in items]


def _tuple(value: Any, args: tuple[Any, ...]) -> tuple[Any, ...]:
    if len(args) == 2 and args[1] is ...:
        return tuple(_items(value, args[:1]))
    if not args:
        return tuple(_items(value, ()))
    items = _items(value, ())
    _checked(len(items) == len(args), value, f"a list of {len(args)}")
    return tuple(_as(kind, item) for kind, item in zip(args, items, strict=True))


def _tuple_of_any_length(value: Any, args: tuple[Any, ...]) -> tuple[Any, ...]:
    return tuple(_items(value, args))


def _mapping(value: Any, args: tuple[Any, ...]) -> dict[Any, Any]:
    items: dict[Any, Any] = _checked(isinstance(value, dict), value, "a mapping")
    key_kind, value_kind = args or (str, Any)
    return {_key(key_kind, key): _as(value_kind, item) for key, item in items.items()}


def _key(kind: Any, key: str) -> Any:
    """A key, which is text in every form of a pipeline, as what it stands for."""
    try:
        return _as(kind, key)
    except _Mismatch as mismatch:
        try:
            value = parse_value(key)
        except PipelineError:
            raise mismatch from None
        return _as(kind, value)


_CONVERT: Final[Mapping[Any, Callable[[Any, tuple[Any, ...]], Any]]] = {
    bool: lambda value, _: _checked(isinstance(value, bool), value, "true or false"),
    int: lambda value, _: _checked(
        isinstance(value, int) and not isinstance(value, bool), value, "an integer"
    ),
    float: _float,
    str: lambda value, _: _checked(isinstance(value, str), value, "a text"),
    torch.dtype: _dtype,
    list: _items,
    tuple: _tuple,
    set: lambda value, args: set(_items(value, args)),
    frozenset: lambda value, args: frozenset(_items(value, args)),
    dict: _mapping,
    Mapping: _mapping,
    Sequence: _tuple_of_any_length,
}

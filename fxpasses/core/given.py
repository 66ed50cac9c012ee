"""Checks of what callers pass, before anything is done with it."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeVar, cast

from torch import Tensor

from fxpasses.errors import ArgumentError

T = TypeVar("T")
Call = tuple[tuple[Any, ...], dict[str, Any]]
_SHORT = (str, int, float, bool, type(None))
_VOWELS = frozenset("AEIO")
"""Not U: a UInt8Tensor."""


def an(kind: type) -> str:
    """The name of a class, with its article: `a Tensor`, `an ImageList`."""
    return with_article(kind.__name__)


def with_article(name: str) -> str:
    return f"{'an' if name[:1].upper() in _VOWELS else 'a'} {name}"


def shown(value: object) -> str:
    """A value as an error message names it: plain data itself, anything else by its type."""
    return repr(value) if isinstance(value, _SHORT) else an(type(value))


def flag(choice: object, argument: str) -> bool:
    """A yes or no.

    Raises:
        ArgumentError: it is neither True nor False; any other value would count as one of them.
    """
    if isinstance(choice, bool):
        return choice
    raise ArgumentError(f"{argument}={shown(choice)}: pass True or False")


def one_of(choice: object, argument: str, choices: Sequence[T]) -> T:
    """One of some words.

    Raises:
        ArgumentError: it is none of them.
    """
    for known in choices:
        if type(choice) is type(known) and choice == known:
            return known
    words = [f'"{known}"' if isinstance(known, str) else str(known) for known in choices]
    raise ArgumentError(f"{argument}={shown(choice)}: pass {' or '.join(words)}")


def count_of(choice: object, argument: str, what: str) -> int | None:
    """A number of things, or None for no bound.

    Raises:
        ArgumentError: it is no whole number, or a negative one.
    """
    if choice is None or (type(choice) is int and choice >= 0):
        return choice
    raise ArgumentError(f"{argument}={shown(choice)}: pass a number of {what}, 0 or more, or None")


def instance(value: object, argument: str, kind: type[T] | tuple[type[T], ...], advice: str) -> T:
    """An object of a class.

    Raises:
        ArgumentError: it is of another; `advice` says what to pass.
    """
    if isinstance(value, kind):
        return value
    if isinstance(value, type) and issubclass(value, kind):
        raise ArgumentError(
            f"{argument} is the class {value.__name__}: pass an instance, {value.__name__}(...)"
        )
    raise ArgumentError(f"{argument}={shown(value)}: pass {advice}")


def texts(names: object, argument: str, what: str) -> frozenset[str]:
    """A collection of texts.

    Raises:
        ArgumentError: it is one text, or holds something else than text.
    """
    if isinstance(names, str) or not isinstance(names, Iterable):
        raise ArgumentError(f"{argument}={shown(names)}: pass a collection of {what}")
    found = list(cast("Iterable[object]", names))
    if strangers := [name for name in found if not isinstance(name, str)]:
        raise ArgumentError(f"{argument} holds {shown(strangers[0])}: {what} are text")
    return frozenset(cast("list[str]", found))


def as_call(
    inputs: Any, kwargs: Any, names: tuple[str, str] = ("example_inputs", "example_kwargs")
) -> Call | None:
    """The example as positional and keyword arguments; None where none was given.

    Raises:
        ArgumentError: `inputs` is no tuple, list or tensor, or `kwargs` no mapping with text as
            keys.
    """
    if inputs is None and kwargs is None:
        return None
    return _positional(inputs, *names), _keywords(kwargs, names[1])


def _positional(inputs: Any, name: str, keywords: str) -> tuple[Any, ...]:
    if inputs is None:
        return ()
    if isinstance(inputs, Tensor):
        return (inputs,)
    if isinstance(inputs, Mapping):
        raise ArgumentError(
            f"{name} is a mapping: pass keyword arguments as {keywords}, and a mapping "
            "that is itself the argument as (mapping,)"
        )
    if isinstance(inputs, Sequence) and not isinstance(inputs, str | bytes):
        return tuple(inputs)
    raise ArgumentError(
        f"{name} is of type {type(inputs).__name__}: pass a tuple of the positional "
        "arguments, or the one tensor"
    )


def _keywords(kwargs: Any, name: str) -> dict[str, Any]:
    if kwargs is None:
        return {}
    if not isinstance(kwargs, Mapping):
        raise ArgumentError(
            f"{name} is of type {type(kwargs).__name__}: pass a mapping of names to values"
        )
    if unnamed := [key for key in kwargs if not isinstance(key, str)]:
        raise ArgumentError(f"{name} has the key {unnamed[0]!r}: keys are argument names")
    return dict(kwargs)

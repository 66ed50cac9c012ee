"""Nodes that check, as the graph runs, what the capture took for granted."""

import dataclasses
from collections.abc import Callable, Mapping, Sized
from functools import wraps
from typing import Any, Final, TypeAlias

from torch import Tensor
from torch.fx import Proxy

from fxpasses.errors import GuardError
from fxpasses.ops import raising


class GuardMiss(Exception):  # noqa: N818 - a signal to the caller's fallback, not an error
    """A call differs from the example where the graph depends on it: run the module's own code."""


Check: TypeAlias = Callable[[Any, Any], None]


def _stays(check: Check) -> Check:
    """A check that only raises, and that stays a node where `torch.fx` traces its graph."""

    @raising
    @wraps(check)
    def checked(value: Any, expected: Any) -> None:
        if isinstance(value, Proxy):
            value.tracer.create_proxy("call_function", checked, (value, expected), {})
        else:
            check(value, expected)

    return checked


def _misses(value: Any, expected: object) -> Any:
    """Whether a value is another. Compilers have symbols for decisions, and tell their truth."""
    if isinstance(expected, bool):
        return not value if expected else value
    return value != expected


@_stays
def guard(value: object, expected: object) -> None:
    """Raise `GuardMiss` unless `value`, computed from sizes, is what the capture saw."""
    if _misses(value, expected):
        raise GuardMiss(f"{value} where the capture saw {expected}")


@_stays
def check_len(values: Sized, expected: int) -> None:
    """Raise `GuardMiss` unless there are as many values as the capture saw."""
    if len(values) != expected:
        raise GuardMiss(f"{len(values)} values where the capture saw {expected}")


@_stays
def check_unpack(values: Sized, expected: int) -> None:
    """Raise what `a, b = values` raises unless there are `expected` values."""
    found = len(values)
    if found < expected:
        raise ValueError(f"not enough values to unpack (expected {expected}, got {found})")
    if found > expected:
        raise ValueError(f"too many values to unpack (expected {expected})")


def structure_of(value: Any) -> Any:
    """What of a result Python code may decide on, as literals: containers, keys, None, text."""
    if isinstance(value, Tensor):
        return "tensor"
    if value is None:
        return None
    if isinstance(value, str):
        return ("text", value)
    kind = type(value).__qualname__
    if isinstance(value, Mapping):
        return (kind, *[(key, structure_of(item)) for key, item in value.items()])
    if isinstance(value, (tuple, list)):
        return (kind, *[structure_of(item) for item in value])
    if dataclasses.is_dataclass(value):
        names = [field.name for field in dataclasses.fields(value)]
        return (kind, *[(name, structure_of(getattr(value, name))) for name in names])
    return (kind,)


@_stays
def check_structure(value: Any, expected: Any) -> None:
    """Raise `GuardMiss` unless a module returned the structure that the capture saw."""
    found = structure_of(value)
    if found != expected:
        raise GuardMiss(f"a result {found} where the capture saw {expected}")


@_stays
def require_structure(value: Any, expected: Any) -> None:
    """As `check_structure`, behind an effect: the call cannot be taken back, so it is an error."""
    found = structure_of(value)
    if found != expected:
        raise GuardError(
            f"an opaque module returned {found} where the capture saw {expected}, and the call "
            "cannot run again because it has changed something already: capture with an example "
            "that takes this path"
        )


CHECKS: Final = (guard, check_len, check_unpack, check_structure, require_structure)

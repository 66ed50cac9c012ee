"""Nodes that check, as the graph runs, what the capture took for granted."""

import dataclasses
from collections.abc import Callable, Mapping, Sized
from typing import Any

import torch
from torch import Tensor
from torch.fx import Proxy

from fxpasses.errors import GuardError
from fxpasses.ops import raising


class GuardMiss(Exception):  # noqa: N818 - a signal to the caller's fallback, not an error
    """A call differs from the example where the graph depends on it: run the module's own code."""


def _traced(check: Callable[..., Any], value: Proxy, expected: object) -> None:
    """In a graph that torch.fx traces, a check stays a check."""
    value.tracer.create_proxy("call_function", check, (value, expected), {})


@raising
def guard(value: object, expected: object) -> None:
    """Raise `GuardMiss` unless `value`, computed from sizes, is what the capture saw."""
    if isinstance(value, Proxy):
        _traced(guard, value, expected)
        return
    if value != expected:
        raise GuardMiss(f"{value} where the capture saw {expected}")


class AssertionMiss(GuardMiss, AssertionError):  # noqa: N818 - as its base
    """An assertion of the model fails: its own code says so in its own words."""


@raising
def check_assert(condition: object, message: object) -> None:
    """As `torch._assert` where nothing has been changed yet, so that the own code can run."""
    if isinstance(condition, Proxy):
        _traced(check_assert, condition, message)
        return
    if torch.compiler.is_compiling():
        torch._assert(condition, message)  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]  what compilers know
    elif not condition:
        raise AssertionMiss(f"an assertion of the model fails: {message}")


@raising
def check_len(values: Sized, expected: int) -> None:
    """Raise `GuardMiss` unless there are as many values as the capture saw."""
    if isinstance(values, Proxy):
        _traced(check_len, values, expected)
        return
    if len(values) != expected:
        raise GuardMiss(f"{len(values)} values where the capture saw {expected}")


@raising
def check_unpack(values: Sized, expected: int) -> None:
    """Raise what `a, b = values` raises unless there are `expected` values."""
    if isinstance(values, Proxy):
        _traced(check_unpack, values, expected)
        return
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


@raising
def check_structure(value: Any, expected: Any) -> None:
    """Raise `GuardMiss` unless a module returned the structure that the capture saw."""
    if isinstance(value, Proxy):
        _traced(check_structure, value, expected)
        return
    found = structure_of(value)
    if found != expected:
        raise GuardMiss(f"a result {found} where the capture saw {expected}")


@raising
def require_structure(value: Any, expected: Any) -> None:
    """As `check_structure`, behind an effect: the call cannot be taken back, so it is an error."""
    if isinstance(value, Proxy):
        _traced(require_structure, value, expected)
        return
    found = structure_of(value)
    if found != expected:
        raise GuardError(
            f"an opaque module returned {found} where the capture saw {expected}, and the call "
            "cannot run again because it has changed something already: capture with an example "
            "that takes this path"
        )

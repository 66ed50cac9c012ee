"""The tensors that a Python callable can get at without being given them."""

import collections
import functools
import inspect
import types
import weakref
from collections.abc import Callable, Iterator
from typing import Any

from torch import Tensor, nn
from torch.fx import Graph

from fxpasses.ops import kept

# Graphs hold nodes, which hold no tensors but by name.
_ATOMS = (str, bytes, int, float, complex, bool, type(None), type, types.ModuleType, Graph)
_ATOM_TYPES = frozenset(_ATOMS)
_CONTAINERS = frozenset((dict, list, tuple, set, frozenset, collections.OrderedDict))
_HOLDERS = (Tensor, nn.Module, dict, list)
_NO_MODELS = frozenset(("torch", "builtins"))
_MOST_OBJECTS = 200_000


def tensors_within_reach(callee: Any) -> list[Tensor] | None:
    """Every tensor that `callee` holds: in attributes, containers, closures, globals it names.

    What is held by code that is not written in Python cannot be seen. None where it holds too
    much to look through.
    """
    found: list[Tensor] = []
    seen: dict[int, Any] = {}
    stack = [callee]
    while stack:
        if len(seen) > _MOST_OBJECTS:
            return None
        item = stack.pop()
        if isinstance(item, _ATOMS) or id(item) in seen:
            continue
        seen[id(item)] = item
        if isinstance(item, Tensor):
            found.append(item)
            continue
        for held in _held_by(item):
            # Most of what modules hold is told at a glance to hold nothing.
            kind = type(held)
            if kind not in _ATOM_TYPES and not (kind in _CONTAINERS and not held):
                stack.append(held)
    return found


def _held_by(item: Any) -> Iterator[Any]:
    if isinstance(item, dict):
        yield from item.values()
    elif isinstance(item, list | tuple | set | frozenset | collections.deque):
        yield from item
    elif isinstance(item, weakref.ref):
        yield item()
    elif isinstance(item, functools.partial):
        yield from (item.func, item.args, item.keywords)
    elif isinstance(item, types.MethodType):
        yield from (item.__func__, item.__self__)
    elif isinstance(item, types.FunctionType):
        yield from _held_by_function(item)
    else:
        yield from getattr(item, "__dict__", {}).values()
        yield from _slots(item)
        if not _is_torchs(type(item)):
            yield from _methods(item)
            yield from _class_attributes(item)


def _held_by_function(function: types.FunctionType) -> Iterator[Any]:
    yield function.__defaults__
    yield function.__kwdefaults__
    for cell in function.__closure__ or ():
        try:
            yield cell.cell_contents
        except ValueError:  # not filled yet
            continue
    for name in function.__code__.co_names:
        value = function.__globals__.get(name)
        if isinstance(value, _HOLDERS):
            yield value


def _slots(item: Any) -> Iterator[Any]:
    return (getattr(item, name, None) for name in _slot_names(type(item)))


@kept
def _slot_names(cls: type) -> tuple[str, ...]:
    found: list[str] = []
    for kind in inspect.getmro(cls):
        slots = kind.__dict__.get("__slots__", ())
        found.extend((slots,) if isinstance(slots, str) else slots)
    return tuple(found)


def _methods(item: Any) -> tuple[Callable[..., Any], ...]:
    """The Python methods of a module's or callable's own classes, for the globals they name."""
    is_code = isinstance(item, nn.Module) or callable(item)
    return _own_methods(type(item)) if is_code else ()


@kept
def _own_methods(cls: type) -> tuple[Callable[..., Any], ...]:
    return tuple(v for v in _own_attributes(cls) if isinstance(v, types.FunctionType))


def _class_attributes(item: Any) -> Iterator[Any]:
    """What the classes of a module hold for all its instances, as it is now."""
    if isinstance(item, nn.Module):
        yield from (v for v in _own_attributes(type(item)) if isinstance(v, _HOLDERS))


@kept
def _is_torchs(cls: type) -> bool:
    """Whether neither a class nor any of its bases is of a model."""
    return all(kind.__module__.partition(".")[0] in _NO_MODELS for kind in inspect.getmro(cls))


def _own_attributes(cls: type) -> Iterator[Any]:
    for kind in inspect.getmro(cls):
        if kind.__module__.partition(".")[0] not in _NO_MODELS:
            yield from list(kind.__dict__.values())

"""Containers of values: those that a model is given, returns, and passes on."""

import collections
import copy
import dataclasses
import types
from collections.abc import Callable, Iterable, Iterator, Mapping
from enum import Enum
from operator import is_
from typing import Any, Final

import torch
from torch import Tensor, nn

from fxpasses.capture.inside import slots_of
from fxpasses.capture.tracing.proxies import VALUE_TYPES, Field, Item, Value
from fxpasses.capture.tracing.values import Taint

PLAIN: Final = frozenset(
    (
        int,
        float,
        bool,
        str,
        bytes,
        complex,
        type(None),
        type(...),
        torch.dtype,
        torch.device,
        torch.layout,
        torch.memory_format,
    )
)
_HARMLESS: Final = (
    Tensor,
    type,
    types.ModuleType,
    types.FunctionType,
    types.BuiltinFunctionType,
    types.MethodType,
    Enum,
    nn.Module,
    torch.Size,
    range,
    slice,
)


_COLLECTIONS: Final = frozenset((tuple, list, set, frozenset))


def is_record(value: object) -> bool:
    """Whether `value` is an instance of a dataclass."""
    return dataclasses.is_dataclass(value) and not isinstance(value, type)


def is_named_tuple(kind: type) -> bool:
    return issubclass(kind, tuple) and hasattr(kind, "_fields")


def children_of(value: Any) -> Iterator[tuple[Any, Any]]:
    """Keys and elements of a container, none where `value` is no container."""
    kind = type(value)
    if kind in PLAIN or kind in VALUE_TYPES:
        return
    if issubclass(kind, dict):
        yield from value.items()
    elif issubclass(kind, (tuple, list)) and not issubclass(kind, torch.Size):
        yield from enumerate(value)
    elif is_record(value):
        for field in dataclasses.fields(value):
            yield field.name, getattr(value, field.name)


def rebuilt(value: Any, items: Mapping[Any, Any]) -> Any:
    """A container as `value` with other elements, under the same keys."""
    kind = type(value)
    if issubclass(kind, dict):
        return _rebuilt_mapping(value, items)
    if issubclass(kind, tuple):
        return kind(*items.values()) if is_named_tuple(kind) else kind(list(items.values()))
    if issubclass(kind, list):
        return kind(items.values())
    return with_fields(value, items)


def _rebuilt_mapping(value: Any, items: Mapping[Any, Any]) -> Any:
    if is_record(value):  # the outputs of transformers: dataclasses that are dicts
        return type(value)(**items)
    if isinstance(value, collections.defaultdict):
        return type(value)(value.default_factory, items)
    return type(value)(items)


def with_fields(value: Any, items: Mapping[Any, Any]) -> Any:
    """A copy of a dataclass instance with other fields, made without running its `__init__`."""
    new = copy.copy(value)
    for name, item in items.items():
        object.__setattr__(new, name, item)
    return new


def map_leaves(value: Any, change: Callable[[Any], Any]) -> Any:
    """`value` with each leaf changed; containers without a changed leaf stay the same object."""
    children = dict(children_of(value))
    if not children:
        return change(value)
    items = {key: map_leaves(item, change) for key, item in children.items()}
    if all(items[key] is item for key, item in children.items()):
        return value
    return rebuilt(value, items)


def leaves(value: Any) -> Iterator[Any]:
    """The leaves of nested containers."""
    stack = [value]
    while stack:
        item = stack.pop()
        children = [child for _, child in children_of(item)]
        if children:
            stack.extend(children)
        else:
            yield item


def has_tensor(value: Any) -> bool:
    return any(isinstance(leaf, Tensor) for leaf in leaves(value))


def stateful(value: Any) -> str | None:
    """The class name of the first object whose state a graph cannot keep: caches, image lists."""
    seen: set[int] = set()
    stack = [value]
    while stack:
        item = stack.pop()
        kind = type(item)
        if kind in PLAIN or kind in VALUE_TYPES or id(item) in seen:
            continue
        seen.add(id(item))
        # The usual kinds first: this is asked of every call of a module.
        if kind in _COLLECTIONS:
            stack.extend(item)
        elif kind is dict:
            stack.extend(item.values())
        elif issubclass(kind, _HARMLESS):
            continue
        elif issubclass(kind, (tuple, list)) or _is_plain_mapping(item) or is_record(item):
            stack.extend(child for _, child in children_of(item))
        else:
            return kind.__name__
    return None


def _is_plain_mapping(value: Any) -> bool:
    known = (dict, collections.OrderedDict, collections.defaultdict)
    return isinstance(value, dict) and (type(value) in known or is_record(value))


def element(
    root: Value, key: Any, known: Any, taint: Taint, *, loose: bool, container: Any
) -> Value:
    """A lazy value for one element of a container that `root` stands for."""
    is_field = is_record(container) and not isinstance(container, dict)
    return (Field if is_field else Item)(root, key, known, taint, loose=loose)


# What follows reads and fills containers by the methods of the built-in classes: a subclass may
# compute in its own, and code of the model's must not run because the trace looks at a container.

_CONTAINERS: Final = (dict, list, set, collections.deque)
_BARE: Final = frozenset(_CONTAINERS)  # exactly these hold nothing but their elements
_EXACT_CONTAINERS: Final = _BARE | {collections.OrderedDict}
_NO_LEVEL: Final = (*_CONTAINERS, tuple)
_NO_OBJECTS: Final = (nn.Module, Tensor, type, types.FunctionType, types.ModuleType, Enum)
_MOST: Final = 1024  # containers that are looked into in one place, the nearest first
_WIDEST: Final = 64  # what holds more elements is compared, but not what they hold in turn
_DEEPEST: Final = 16


class Held:
    """The containers and objects in a value, with what they hold, to see and undo changes.

    Containers in containers are looked into however deep; from the first object on, no more than
    `deepest` levels.
    """

    def __init__(self, value: Any, deepest: int = _DEEPEST) -> None:
        kind = type(value)
        self._held: list[tuple[Any, Any]] = []
        if kind in _EXACT_CONTAINERS and not value:
            self._held.append((value, snapshot(value)))
        elif kind not in PLAIN:
            self._add(value, deepest)

    def __bool__(self) -> bool:
        return bool(self._held)

    def _add(self, value: Any, deepest: int) -> None:
        seen: set[int] = set()
        waiting = collections.deque([(value, 0)])
        while waiting and len(self._held) < _MOST:
            item, depth = waiting.popleft()
            kind = type(item)
            if kind in PLAIN or kind in VALUE_TYPES or id(item) in seen:
                continue
            seen.add(id(item))
            depth += bool(depth) or not issubclass(kind, _NO_LEVEL)
            if depth > deepest:
                continue
            inside = self._look_into(item, kind)
            if len(inside) <= _WIDEST:
                waiting.extend((held, depth) for held in inside)

    def _look_into(self, item: Any, kind: type) -> tuple[Any, ...]:
        """Keep what an object holds, and return it."""
        if kind in _BARE:
            self._held.append((item, snapshot(item)))
            return tuple(held_by(item))
        if issubclass(kind, _NO_OBJECTS):
            return ()
        inside: tuple[Any, ...] = ()
        if issubclass(kind, _CONTAINERS):
            self._held.append((item, snapshot(item)))
            inside = tuple(held_by(item))
        elif issubclass(kind, tuple):
            return tuple(tuple.__iter__(item))
        attributes = getattr(item, "__dict__", None)
        if type(attributes) is dict:
            self._held.append((attributes, dict(attributes)))
            inside += tuple(attributes.values())
        slots = dict(slots_of(item))
        if slots:
            self._held.append((item, slots))
            inside += tuple(slots.values())
        return inside

    def changed(self) -> bool:
        return not all(same_content(container, held) for container, held in self._held)

    def changed_ones(self) -> list[Any]:
        """What holds something else by now: containers, and the attributes of objects."""
        return [one for one, held in self._held if not same_content(one, held)]

    def holds(self, containers: Iterable[Any]) -> bool:
        """Whether one of these very containers is here."""
        mine = {id(one) for one, _ in self._held}
        return any(id(one) in mine for one in containers)

    def restore(self) -> None:
        for container, held in self._held:
            if not same_content(container, held):
                refill(container, held)


def held_by(container: Any) -> Iterable[Any]:
    """The values of a dict, the elements of a list, set or deque."""
    if isinstance(container, dict):
        return _built_in(container).values(container)
    if isinstance(container, list):
        return list.__iter__(container)
    if isinstance(container, collections.deque):
        return collections.deque.__iter__(container)
    return set.__iter__(container)


def _built_in(container: Any) -> Any:
    """The class whose methods tell what a dict holds, in its order."""
    return collections.OrderedDict if isinstance(container, collections.OrderedDict) else dict


def snapshot(container: Any) -> Any:
    """A shallow copy of what a mutable container holds."""
    if type(container) is dict:
        return container.copy()
    if isinstance(container, dict):
        return dict(_built_in(container).items(container))
    return list(held_by(container))


def same_content(container: Any, held: Any) -> bool:
    """Whether `container` holds the same objects under the same keys, in the same order."""
    if type(container) is dict and len(container) == len(held):
        same_values = all(map(is_, container.values(), held.values()))
        return same_values and (all(map(is_, container, held)) or all(map(_same, container, held)))
    if not isinstance(container, _CONTAINERS):
        return same_content(dict(slots_of(container)), held)
    if not isinstance(container, dict):
        now = list(held_by(container))
        return len(now) == len(held) and all(map(is_, now, held))
    if dict.__len__(container) != len(held):
        return False
    kind = _built_in(container)
    same_values = all(map(is_, kind.values(container), held.values()))
    return same_values and all(map(_same, kind.keys(container), held))


def _same(key: object, other: object) -> bool:
    return key is other or (type(key) in PLAIN and key == other)


def refill(container: Any, held: Any) -> None:
    """Put back what was held."""
    if not isinstance(container, _CONTAINERS):
        _refill_slots(container, held)
    elif isinstance(container, dict):
        kind = _built_in(container)
        kind.clear(container)
        for key, value in held.items():
            kind.__setitem__(container, key, value)
    elif isinstance(container, set):
        set.clear(container)
        set.update(container, held)
    elif isinstance(container, collections.deque):
        collections.deque.clear(container)
        collections.deque.extend(container, held)
    else:
        list.__setitem__(container, slice(None), held)


def _refill_slots(value: Any, held: Mapping[str, Any]) -> None:
    for name, _ in list(slots_of(value)):
        if name not in held:
            object.__delattr__(value, name)
    for name, item in held.items():
        object.__setattr__(value, name, item)

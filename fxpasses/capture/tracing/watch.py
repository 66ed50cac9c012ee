"""What Python and torch keep outside the model's tensors: seen when a forward changes it."""

import collections
import dis
import inspect
import sys
import types
from collections.abc import Callable, Iterable, Iterator, Mapping
from operator import is_
from typing import Any, Final

import torch
from torch import nn

from fxpasses.capture.tracing.internals import REGION_NAMES
from fxpasses.capture.tracing.journal import same_attributes
from fxpasses.capture.tracing.structures import Held


def first_difference(now: tuple[Any, ...], before: tuple[Any, ...]) -> str:
    """The name of the first part of torch's state that differs."""
    pairs = zip(REGION_NAMES, now, before, strict=True)
    return next(name for name, a, b in pairs if a != b)


# -- globals, classes, closures

_FOREIGN: Final = frozenset(("torch", "numpy", "builtins", "fxpasses", "einops"))
# Instances of these packages' classes are no place where a model keeps its state.
_NO_STATE: Final = _FOREIGN | sys.stdlib_module_names
_CONTAINERS: Final = (dict, list, set, collections.deque, collections.OrderedDict)
_DEEPEST: Final = 2
_CLASS_KEYS: Final = frozenset(
    ("__doc__", "__dict__", "__weakref__", "__abstractmethods__", "_abc_impl", "__module__")
)


def is_foreign(module_name: str | None) -> bool:
    """Whether code of this module is no code of the model's."""
    return (module_name or "builtins").split(".")[0] in _FOREIGN


class _Snapshot:
    """What a namespace holds at one moment, and what the containers in it hold."""

    def __init__(self, items: dict[str, Any]) -> None:
        self.items = items
        self.held: dict[str, Held] = {}
        for name, value in items.items():
            if _may_hold(value) and (held := Held(value, _DEEPEST)):
                self.held[name] = held

    def differences(self, now: dict[str, Any]) -> list[str]:
        """The names whose value, or what it holds, is another by now."""
        before = self.items
        names: list[str] = []
        if now.keys() != before.keys() or not all(map(is_, now.values(), before.values())):
            names = [name for name in {**before, **now} if _differs(now, before, name)]
        return [*names, *(name for name, held in self.held.items() if held.changed())]


def _may_hold(value: Any) -> bool:
    """Whether a global can hold what a forward changes, its own value apart."""
    kind = type(value)
    if kind in _CONTAINERS:
        return True
    return kind.__module__.split(".")[0] not in _NO_STATE


class Place:
    """A namespace that a forward may write: a file's globals, a class, a closure."""

    def __init__(
        self,
        label: str,
        read: Callable[[], dict[str, Any]],
        write: Callable[[str, Any], None],
        remove: Callable[[str], None],
    ) -> None:
        self.label = label
        self._read = read
        self._write = write
        self._remove = remove
        self._first = self._last = _Snapshot(read())

    def take(self) -> None:
        """What is there now counts as unchanged from here on."""
        if self.changed():
            self._last = _Snapshot(self._read())

    def changed(self) -> list[str]:
        """The names that have changed since the last `take`."""
        return self._last.differences(self._read())

    def restore(self, *, first: bool) -> None:
        """Put back what was there at the last `take`, or at first."""
        snapshot = self._first if first else self._last
        now = self._read()
        if not snapshot.differences(now):
            return
        for name in now.keys() - snapshot.items.keys():
            if not name.startswith("__"):
                self._remove(name)
        for name, value in snapshot.items.items():
            if name not in now or now[name] is not value:
                self._write(name, value)
        for held in snapshot.held.values():
            held.restore()


def _differs(now: dict[str, Any], before: dict[str, Any], name: str) -> bool:
    if name.startswith("__"):  # the registry of warnings and its like
        return False
    both = name in now and name in before
    return not (both and same_attributes({name: now[name]}, {name: before[name]}))


class World:
    """The globals, classes and closures of the model's code."""

    def __init__(self, modules: Iterable[nn.Module]) -> None:
        self.files: dict[int, dict[str, Any]] = {}
        self._classes: dict[type, None] = {}
        self._functions: dict[int, types.FunctionType] = {}
        self._stored: set[str] | None = None
        for module in modules:
            self._visit(type(module))
            for hooks in ("_forward_hooks", "_forward_pre_hooks"):
                for hook in module.__dict__.get(hooks, {}).values():
                    self._visit_function(hook)
        self._visit_helpers()
        self.places: list[Place] = []

    def watch(self) -> None:
        """Remember what is there now, to be compared with and put back."""
        self.places = list(self._make_places())

    def changed(self) -> list[str]:
        """Labels of what has changed since the last look."""
        return [f"{place.label}{name}" for place in self.places for name in place.changed()]

    def take(self) -> None:
        for place in self.places:
            place.take()

    def restore(self, *, first: bool) -> None:
        """Put back what was there at the last `take`, or when the watch began.

        That another thread wrote a name, which code of the model's writes as well, nothing shows:
        it counts as the model's doing.
        """
        for place in self.places:
            place.restore(first=first)

    def _visit(self, kind: type) -> None:
        if kind in self._classes or is_foreign(kind.__module__):
            return
        self._classes[kind] = None
        for base in kind.__mro__[1:]:
            self._visit(base)
        for value in list(kind.__dict__.values()):
            self._visit_function(value)

    def _visit_function(self, value: Any) -> None:
        function = getattr(value, "__func__", value)
        while isinstance(function, types.FunctionType) and id(function) not in self._functions:
            if not is_foreign(function.__module__):
                self.files.setdefault(id(function.__globals__), function.__globals__)
                self._functions[id(function)] = function
            function = getattr(function, "__wrapped__", None)

    def _visit_helpers(self) -> None:
        """Functions of the model's files, and of the files that those come from."""
        for names in list(self.files.values()):
            for value in list(names.values()):
                if isinstance(value, types.FunctionType):
                    self._visit_function(value)

    def _may_store(self, name: str) -> bool:
        """Whether a function of the model's may write a global of this name."""
        if self._stored is None:
            codes = [function.__code__ for function in self._functions.values()]
            self._stored = {stored for code in codes for stored in _stored_names(code)}
        return name in self._stored or not _WRITES_ANY_NAME.isdisjoint(self._stored)

    def _make_places(self) -> Iterator[Place]:
        for names in self.files.values():
            label = f"global {names.get('__name__', '?')}."
            yield _GlobalPlace(label, names, self._may_store)
        for kind in self._classes:
            yield _class_place(kind)
        for function in self._functions.values():
            if _has_state(function):
                yield _closure_place(function)


class _GlobalPlace(Place):
    """The globals of a file. What the model's functions cannot write, other threads did."""

    def __init__(self, label: str, names: dict[str, Any], may_store: Callable[[str], bool]) -> None:
        def write(name: str, value: Any) -> None:
            if may_store(name):
                names[name] = value

        def remove(name: str) -> None:
            if may_store(name):
                del names[name]

        super().__init__(label, _reader(names), write, remove)


_WRITES_ANY_NAME: Final = frozenset(("globals", "vars", "exec"))


def _stored_names(code: types.CodeType) -> Iterator[str]:
    """The globals that code writes, by name or as `file.name`, and what it calls to write any."""
    owner = ""
    for instruction in dis.get_instructions(code):
        action, _, kind = instruction.opname.partition("_")
        is_global = kind == "GLOBAL" or (kind == "ATTR" and owner == "LOAD_GLOBAL")
        if action in ("STORE", "DELETE") and is_global:
            yield instruction.argval
        owner = instruction.opname
    yield from _WRITES_ANY_NAME.intersection(code.co_names)
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _stored_names(constant)


def _reader(names: Mapping[str, Any]) -> Callable[[], dict[str, Any]]:
    def read() -> dict[str, Any]:
        return dict(names)

    return read


def _class_place(kind: type) -> Place:
    def read() -> dict[str, Any]:
        return {k: v for k, v in kind.__dict__.items() if k not in _CLASS_KEYS}

    def write(name: str, value: Any) -> None:
        setattr(kind, name, value)

    def remove(name: str) -> None:
        delattr(kind, name)

    return Place(f"class {kind.__name__}.", read, write, remove)


def _has_state(function: types.FunctionType) -> bool:
    """Whether a closure holds more than the functions and classes that decorators put there."""
    held = [*map(_content, function.__closure__ or ()), *function.__dict__.values()]
    return not all(callable(value) for value in held)


def _closure_place(function: types.FunctionType) -> Place:
    cells = dict(zip(function.__code__.co_freevars, function.__closure__ or (), strict=True))

    def read() -> dict[str, Any]:
        filled = {name: _content(cell) for name, cell in cells.items()}
        return {**{k: v for k, v in filled.items() if v is not _EMPTY}, **function.__dict__}

    def write(name: str, value: Any) -> None:
        if name in cells:
            cells[name].cell_contents = value
        else:
            function.__dict__[name] = value

    def remove(name: str) -> None:
        if name in cells:
            del cells[name].cell_contents
        else:
            del function.__dict__[name]

    return Place(f"closure of {function.__qualname__}, ", read, write, remove)


_EMPTY: Final = object()


def _content(cell: types.CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:
        return _EMPTY


# -- who reads a name


class Readers:
    """Finds classes whose code mentions one of some names, directly or through helpers."""

    def __init__(self, world: World, labels: Iterable[str]) -> None:
        self._names = {label.rsplit(".", 1)[-1].rsplit(", ", 1)[-1] for label in labels}
        helpers = [
            (name, value.__code__)
            for names in world.files.values()
            for name, value in names.items()
            if isinstance(value, types.FunctionType)
        ]
        before = -1
        while before != len(self._names):
            before = len(self._names)
            self._names |= {name for name, code in helpers if self._mentions(code)}

    def is_reader(self, module: nn.Module) -> bool:
        kinds = [kind for kind in type(module).__mro__ if not is_foreign(kind.__module__)]
        codes = [code for kind in kinds for code in _codes_of(kind)]
        return any(map(self._mentions, codes))

    def _mentions(self, code: types.CodeType) -> bool:
        if not self._names.isdisjoint((*code.co_names, *code.co_freevars)):
            return True
        nested = (c for c in code.co_consts if isinstance(c, types.CodeType))
        return any(map(self._mentions, nested))


def stored_attributes(module: nn.Module) -> set[str]:
    """The names of attributes that the module's forward, by its code, may write."""
    stores = ("STORE_ATTR", "DELETE_ATTR")
    forward: Any = getattr(inspect.unwrap(type(module).forward), "__code__", None)
    if forward is None or isinstance(module, torch.jit.ScriptModule):
        return set()
    return {i.argval for i in dis.get_instructions(forward) if i.opname in stores}


def _codes_of(kind: type) -> Iterator[types.CodeType]:
    for value in kind.__dict__.values():
        function = getattr(value, "fget", None) or getattr(value, "__func__", value)
        while isinstance(function, types.FunctionType):
            if function.__name__ != "__init__":
                yield function.__code__
            function = getattr(function, "__wrapped__", None)

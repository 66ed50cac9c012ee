"""What a module holds in Python, to see what its forward changes and to put it back."""

from operator import is_
from typing import Any, Final

from torch import nn

from fxpasses.capture.tracing.structures import PLAIN, Held

BASE_KEYS: Final = frozenset(nn.Module().__dict__)
_REGISTRIES: Final = ("_parameters", "_buffers", "_modules", "_non_persistent_buffers_set")


def is_registry(name: str) -> bool:
    """Whether `name` is torch's own dict of parameters, buffers or modules."""
    return name in _REGISTRIES


def own_items(module: nn.Module) -> dict[str, Any]:
    """The attributes that the module's own class has set."""
    return {name: value for name, value in module.__dict__.items() if name not in BASE_KEYS}


class ModuleState:
    """The Python state of one module at one moment."""

    def __init__(self, module: nn.Module) -> None:
        state = module.__dict__
        self._module = module
        self._items = own_items(module)
        self._held = {name: Held(state[name]) for name in _REGISTRIES}
        for name, value in self._items.items():
            if type(value) not in PLAIN and (held := Held(value)):
                self._held[name] = held

    def changed(self) -> bool:
        same = same_attributes(own_items(self._module), self._items)
        return not same or any(map(Held.changed, self._held.values()))

    def changed_names(self) -> set[str]:
        """The attributes that are other objects by now, or hold something else."""
        now, before = own_items(self._module), self._items
        if same_attributes(now, before):
            names = set[str]()
        else:
            names = {n for n in {**before, **now} if not _same_at(n, now, before)}
        return names | {name for name, held in self._held.items() if held.changed()}

    def restore(self) -> None:
        state = self._module.__dict__
        for name in own_items(self._module):
            if name not in self._items:
                del state[name]
        for name, value in self._items.items():
            if state.get(name) is not value:
                state[name] = value
        for held in self._held.values():
            held.restore()


def _same_at(name: str, now: dict[str, Any], before: dict[str, Any]) -> bool:
    return name in now and name in before and _same(now[name], before[name])


def same_attributes(now: dict[str, Any], before: dict[str, Any]) -> bool:
    """Whether two sets of attributes are the same objects, or equal plain values."""
    if now.keys() != before.keys():
        return False
    if all(map(is_, now.values(), before.values())):
        return True
    return all(_same(value, before[name]) for name, value in now.items())


def _same(value: Any, other: Any) -> bool:
    if value is other:
        return True
    return type(value) in PLAIN and type(value) is type(other) and value == other


def is_same_write(had: bool, old: Any, new: Any) -> bool:
    """Whether writing `new` over `old` changes nothing."""
    return had and _same(new, old)


class AttributeWrites:
    """The attributes that the model's code has written during the trace, to be put back."""

    def __init__(self) -> None:
        self._writes: list[tuple[nn.Module, str, str | None, Any]] = []

    def __len__(self) -> int:
        return len(self._writes)

    def note(self, module: nn.Module, name: str) -> None:
        place, old = place_of(module, name)
        self._writes.append((module, name, place, old))

    def last_name(self) -> str:
        return self._writes[-1][1]

    def since(self, count: int) -> list[tuple[nn.Module, str]]:
        """The modules and attributes written behind the first `count` writes."""
        return [(module, name) for module, name, _, _ in self._writes[count:]]

    def undo(self, count: int) -> None:
        """Put back everything behind the first `count` writes, the last one first."""
        while len(self._writes) > count:
            module, name, place, old = self._writes.pop()
            _put(module, name, place, old)


def place_of(module: nn.Module, name: str) -> tuple[str | None, Any]:
    """The dict of the module that holds `name` ("" its own, None if there is none), its value."""
    for registry in _REGISTRIES[:3]:
        if name in module.__dict__.get(registry, ()):
            return registry, module.__dict__[registry][name]
    if name in module.__dict__:
        return "", module.__dict__[name]
    return None, None


def _put(module: nn.Module, name: str, place: str | None, old: Any) -> None:
    state = module.__dict__
    for registry in (state, *(state[name] for name in _REGISTRIES[:3])):
        registry.pop(name, None)
    if place is not None:
        (state[place] if place else state)[name] = old

"""Attributes of a module by path: new names, and removal of what nothing uses."""

import keyword
import re
from collections.abc import Collection, Iterable, Mapping
from typing import Any, TypeAlias

from torch import Tensor, nn
from torch.fx import GraphModule

from fxpasses.ops import attribute, parts_of

_REMOVED = "removed_names"  # in the meta of a graph module: names that must not come back


Numbers: TypeAlias = dict[str, int]
"""The number that the next name on a stem is tried with, so that no name is tried twice."""


def add(
    module: GraphModule, near: str, value: nn.Module | Tensor, numbers: Numbers | None = None
) -> str:
    """Put `value` on the module under a new name like `near`, and return the name."""
    name = fresh_name(module, near, numbers)
    # The name is new, so that nothing of what torch's own methods ask need be asked.
    if isinstance(value, nn.Module):
        vars(module)["_modules"][name] = value
    elif isinstance(value, nn.Parameter):
        vars(module)["_parameters"][name] = value
    elif isinstance(value, nn.Buffer):
        module.register_buffer(name, value, persistent=value.persistent)
    else:
        module.__dict__[name] = value
    return name


def fresh_name(module: GraphModule, near: str, numbers: Numbers | None = None) -> str:
    """A name like `near` that the module does not have, and has never had.

    `numbers` is kept from name to name as long as none is taken off the module.
    """
    numbers = {} if numbers is None else numbers
    stem = near if near.isidentifier() else re.sub(r"\W", "_", near) or "_"
    if stem[0].isdigit() or keyword.iskeyword(stem):
        stem = f"_{stem}"
    removed: Collection[str] = module.meta.get(_REMOVED, ())
    number = numbers.get(stem, 0)
    while True:
        name = f"{stem}_{number}" if number else stem
        number += 1
        if name not in removed and not has_name(module, name):
            numbers[stem] = number
            return name


def has_name(module: nn.Module, name: str) -> bool:
    """Like hasattr, but without asking a `__getattr__` that may answer to anything."""
    own = vars(module)
    is_registered = name in own["_modules"] or name in own["_parameters"] or name in own["_buffers"]
    return name in own or is_registered or hasattr(type(module), name)


def holder(module: nn.Module, path: str) -> tuple[nn.Module, str]:
    """The module that holds what `path` names, and its name there."""
    parent, _, name = path.rpartition(".")
    return (attribute(module, parent) if parent else module), name


def remove_unused(module: GraphModule, paths: Iterable[str]) -> list[str]:
    """Delete attributes; those that the graph still uses, under any name, stay.

    Returns the paths that are gone.
    """
    paths = dict.fromkeys(paths)
    if not paths:
        return []
    used = _Used(module)
    # What lies below another of the paths goes with it, or is in use with it.
    deepest_first = sorted(paths, key=lambda path: -path.count("."))
    gone = [path for path in deepest_first if _delete(module, path, used)]
    tops = (path for path in gone if "." not in path)
    module.meta[_REMOVED] = tuple(dict.fromkeys((*module.meta.get(_REMOVED, ()), *tops)))
    return gone


def settle(module: GraphModule, places: Mapping[str, str]) -> set[str]:
    """Move submodules, each to the path of one that the graph does not use.

    Only where that holds the same tensors under the same names. Returns the names of the submodules
    that are moved; who calls them is to be told.
    """
    if not places:
        return set()
    used, moved = _Used(module), set[str]()
    own = vars(module)["_modules"]
    for name, path in places.items():
        owner, place = holder(module, path)
        held = vars(owner)["_modules"]
        if used.names(owner, place) or _tensors(held[place]) != _tensors(own[name]):
            continue
        held[place] = own.pop(name)
        moved.add(name)
    return moved


def _tensors(module: nn.Module) -> dict[str, int]:
    """The parameters and buffers by name, each as a number."""
    held = (*module.named_parameters(), *module.named_buffers())
    return {name: id(tensor) for name, tensor in held}


def _delete(module: nn.Module, path: str, used: "_Used") -> bool:
    owner, name = holder(module, path)
    if used.names(owner, name):
        return False
    delattr(owner, name)
    return True


class _Used:
    """What a graph uses of its module: names on the way to its targets, and called modules."""

    def __init__(self, module: GraphModule) -> None:
        self._names: set[tuple[int, str]] = set()
        self._called: dict[int, nn.Module] = {}
        for node in module.graph.nodes:
            if node.op in ("get_attr", "call_module"):
                self._follow(module, str(node.target), called=node.op == "call_module")

    def names(self, owner: nn.Module, name: str) -> bool:
        return (id(owner), name) in self._names or id(owner) in self._called

    def _follow(self, module: nn.Module, path: str, *, called: bool) -> None:
        value: Any = module
        for name in path.split("."):
            self._names.add((id(value), name))
            value = attribute(value, name)
        if called and id(value) not in self._called:
            self._called.update((id(part), part) for part in parts_of(value))

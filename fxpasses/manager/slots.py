"""The places in a tree of modules where tensors and submodules are held, by path."""

from collections.abc import Iterator, MutableMapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn


@dataclass(frozen=True, slots=True, eq=False)
class Slot:
    """One name in one dictionary of one module."""

    path: str
    """From the top of the tree."""
    held: MutableMapping[str, Any]
    name: str

    @property
    def value(self) -> Any:
        return self.held[self.name]

    def fill(self, value: Any) -> None:
        self.held[self.name] = value


def tensor_slots(module: nn.Module, *, every_path: bool = False) -> Iterator[Slot]:
    """Where parameters, buffers and plain tensor attributes are held.

    A module at several paths comes once, or with `every_path` under each of them.
    """
    for path, part in _python_modules(module, every_path=every_path):
        own = vars(part)
        for held in (own["_parameters"], own["_buffers"], own):
            for name in [name for name, value in held.items() if isinstance(value, Tensor)]:
                yield Slot(_below(path, name), held, name)


def module_slots(module: nn.Module) -> Iterator[Slot]:
    """Where submodules are held; a module at several paths comes once."""
    for path, part in list(_python_modules(module)):
        held = vars(part)["_modules"]
        for name in [name for name, child in held.items() if child is not None]:
            yield Slot(_below(path, name), held, name)


def _python_modules(
    module: nn.Module, *, every_path: bool = False
) -> Iterator[tuple[str, nn.Module]]:
    for path, part in module.named_modules(remove_duplicate=not every_path):
        # TorchScript keeps its state out of reach of Python.
        if not isinstance(part, torch.jit.ScriptModule):
            yield path, part


def _below(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name

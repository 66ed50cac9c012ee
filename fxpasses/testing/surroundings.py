"""What a run must leave alone: the model, the example, and what is global to the process."""

import random
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, Self

import torch
from torch import Tensor, nn

from fxpasses.testing.behaviour import same_bits
from fxpasses.testing.model import Model

_GLOBAL: Final[Mapping[str, Callable[[], Any]]] = {
    "Python's random state": random.getstate,
    "torch's random state": lambda: torch.get_rng_state().tolist(),
    "the default dtype": torch.get_default_dtype,
    "the default device": torch.get_default_device,
    "the number of threads": torch.get_num_threads,
    "grad mode": torch.is_grad_enabled,
    "deterministic mode": torch.are_deterministic_algorithms_enabled,
    "oneDNN's flag": lambda: torch.backends.mkldnn.enabled,
}


@dataclass(frozen=True, slots=True, eq=False)
class _Tensor:
    tensor: Tensor
    values: Tensor
    version: int
    requires_grad: bool
    grad: Tensor | None

    @classmethod
    def of(cls, tensor: Tensor) -> Self:
        values = tensor.detach().clone()
        return cls(tensor, values, tensor._version, tensor.requires_grad, tensor.grad)  # noqa: SLF001  torch has no public name

    def change(self) -> str | None:
        now = self.tensor
        if not same_bits(now.detach(), self.values):
            return "was written"
        if now._version != self.version:  # noqa: SLF001  torch has no public name
            return "was written and put back"
        if now.requires_grad != self.requires_grad:
            return f"has requires_grad={now.requires_grad}"
        return None if now.grad is self.grad else "has another gradient"


class Surroundings:
    """How all of that was at one moment."""

    def __init__(self, model: Model) -> None:
        self._model = model
        self._tensors = {what: _Tensor.of(tensor) for what, tensor in _tensors(model)}
        self._attributes = dict(_attributes(model.module))
        self._global = {what: ask() for what, ask in _GLOBAL.items()}

    def changes(self) -> list[str]:
        """What is not as it was, in words."""
        found = [f"{what} {text}" for what, one in self._tensors.items() if (text := one.change())]
        now = dict(_attributes(self._model.module))
        keys = dict.fromkeys((*self._attributes, *now))
        found += [f"{key} is changed" for key in keys if not self._is_kept(key, now)]
        found += [f"{what} is changed" for what, v in self._global.items() if v != _GLOBAL[what]()]
        return found

    def _is_kept(self, key: str, now: Mapping[str, Any]) -> bool:
        before, after = self._attributes.get(key, _MISSING), now.get(key, _MISSING)
        if isinstance(before, _Contents) and isinstance(after, _Contents):
            return before.same_as(after)
        return before is after or (type(before) is type(after) is bool and before == after)


_MISSING: Final = object()
_CONTAINERS: Final = (dict, list, set)


@dataclass(frozen=True, slots=True, eq=False)
class _Contents:
    """What a container held: the objects themselves, and in a dictionary under which keys."""

    keys: tuple[Any, ...]
    values: tuple[Any, ...]

    @classmethod
    def of(cls, container: Any) -> Self:
        is_mapping = isinstance(container, Mapping)
        values = container.values() if is_mapping else container
        return cls(tuple(container) if is_mapping else (), tuple(values))

    def same_as(self, other: "_Contents") -> bool:
        pairs = zip(self.values, other.values, strict=False)
        same_length = len(self.values) == len(other.values)
        return same_length and self.keys == other.keys and all(a is b for a, b in pairs)


def _attributes(module: nn.Module) -> Iterator[tuple[str, Any]]:
    """What every module holds under every name, by path."""
    for path, owner in module.named_modules():
        stem = f"{path}." if path else ""
        for name, value in vars(owner).items():
            yield stem + name, _Contents.of(value) if isinstance(value, _CONTAINERS) else value


def _tensors(model: Model) -> Iterator[tuple[str, Tensor]]:
    yield from model.module.named_parameters()
    yield from model.module.named_buffers()
    for path, owner in model.module.named_modules():
        stem = f"{path}." if path else ""
        plain = vars(owner).items()
        yield from ((stem + name, value) for name, value in plain if isinstance(value, Tensor))
    yield from ((f"argument {number}", t) for number, t in enumerate(model.tensors()))

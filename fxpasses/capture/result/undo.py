"""What a graph changes before one of its guards misses, and how it is taken back.

A model in training mode draws random numbers and counts statistics long before it branches on a
size. Where a guard misses behind that, the module's own code would do it all once more. So for
sizes that no call had before, the state is saved first, and put back if the graph does not hold.
"""

from collections.abc import Iterator
from typing import Any, Final, TypeAlias

import torch
from torch import Tensor, nn

from fxpasses.capture.inside import all_modules, attributes_of, buffers_of, is_sealed
from fxpasses.capture.result.forms import tensors_of
from fxpasses.core.randomness import default_generator
from fxpasses.errors import GuardError

Sizes: TypeAlias = tuple[torch.Size, ...]

_MOST: Final = 1024  # of the sizes that are remembered


def sizes_of(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Sizes:
    """What the guards of a graph depend on, beyond what its pattern fixes."""
    return tuple(tensor.shape for tensor in tensors_of((args, kwargs)))


class Undo:
    """The buffers, plain tensors and random states below a module at one moment."""

    def __init__(self, module: nn.Module) -> None:
        held = {id(tensor): tensor for tensor in _held_by(module)}
        self._saved = [(t, t.detach().clone(), t.requires_grad) for t in held.values()]
        self._cpu = default_generator().get_state()
        self._gpus = torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else []

    def take_back(self) -> None:
        """Put back what has changed since.

        Raises:
            GuardError: a tensor with a history of gradients was written.
        """
        for tensor, saved, had_history in self._saved:
            _put_back(tensor, saved, had_history=had_history)
        if not torch.equal(self._cpu, default_generator().get_state()):
            default_generator().set_state(self._cpu)
        if self._gpus:
            torch.cuda.set_rng_state_all(self._gpus)


def _held_by(root: nn.Module) -> Iterator[Tensor]:
    for module in all_modules(root):
        if is_sealed(module):
            continue
        for value in (*buffers_of(module).values(), *attributes_of(module).values()):
            if isinstance(value, Tensor):
                yield value


def _put_back(tensor: Tensor, saved: Tensor, *, had_history: bool) -> None:
    if torch.equal(tensor, saved):
        return
    if had_history:
        raise GuardError(
            "a size differs from what the capture saw, and a tensor that belongs to the gradients "
            "of earlier calls was written before that showed: capture with such an example"
        )
    with torch.no_grad():
        tensor.detach_().copy_(saved)


class Foreseen:
    """The sizes for which every guard of a graph is known to hold."""

    def __init__(self) -> None:
        self._sizes: set[Sizes] = set()

    def __contains__(self, sizes: Sizes) -> bool:
        return sizes in self._sizes

    def add(self, sizes: Sizes) -> None:
        if len(self._sizes) >= _MOST:
            self._sizes.clear()
        self._sizes.add(sizes)

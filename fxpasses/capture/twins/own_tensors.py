"""Copies of what a forward may write, so that a twin can be run."""

import torch
from torch import Tensor, nn

from fxpasses.capture.inside import (
    all_modules,
    attributes_of,
    is_sealed,
    memory_of,
    parameters_of,
)


class OwnTensors:
    """A copy of each tensor that a forward may write: for `twin(..., tensors=OwnTensors(module))`.

    Parameters, tensors that need a gradient, and views of parameters stay the caller's, unless
    `parameters_too`. One tensor has one copy, and tensors over one memory stay so where the first
    of them covers it.

    Attributes:
        pairs: Each tensor that was copied, with its copy.
    """

    def __init__(self, module: nn.Module, *, parameters_too: bool = False) -> None:
        self._parameters_too = parameters_too
        self._parameters: dict[int, tuple[Tensor, Tensor]] = {}
        self._memory: dict[int, Tensor | None] = {}
        """By the memory of a tensor, a copy of all that lies in it; None for a parameter's."""
        self.pairs: list[tuple[Tensor, Tensor]] = []
        for owner in all_modules(module):
            if is_sealed(owner) or parameters_too:
                continue
            for parameter in parameters_of(owner).values():
                memory = None if parameter is None else memory_of(parameter)
                if memory is not None:
                    self._memory[memory] = None

    def __call__(self, tensor: Tensor) -> Tensor:
        if type(tensor) is nn.Parameter or tensor.requires_grad or isinstance(tensor, nn.Parameter):
            return self._parameter(tensor) if self._parameters_too else tensor
        made = self._copy(tensor)
        if made is tensor:
            return tensor
        self.pairs.append((tensor, made))
        attributes_of(made).update(attributes_of(tensor))
        return made

    def _parameter(self, tensor: Tensor) -> Tensor:
        if not (tensor.is_leaf and isinstance(tensor, nn.Parameter)):
            return tensor.detach().clone()
        if id(tensor) not in self._parameters:
            made = nn.Parameter(tensor.detach().clone(), requires_grad=tensor.requires_grad)
            self._parameters[id(tensor)] = (tensor, made)
        return self._parameters[id(tensor)][1]

    def _copy(self, tensor: Tensor) -> Tensor:
        memory = memory_of(tensor)
        if memory is None or tensor.is_quantized or type(tensor) is not Tensor:
            return tensor.detach().clone()
        if memory in self._memory:
            copied = self._memory[memory]
            return tensor if copied is None else _view_of(copied.untyped_storage(), tensor)
        made = tensor.clone()
        storage = tensor.untyped_storage()
        if storage.nbytes() != tensor.nbytes:
            return made
        if made.stride() != tensor.stride():
            made = _view_of(storage.clone(), tensor)
        self._memory[memory] = made
        return made


def _view_of(storage: torch.UntypedStorage, like: Tensor) -> Tensor:
    made = torch.empty(0, dtype=like.dtype, device=like.device)
    return made.set_(storage, like.storage_offset(), like.size(), like.stride())

"""Copies of modules that run compiled code, so that what they write is not the caller's."""

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

# What is made anew out of the rest of a compiled module.
COMPILED_CODE = frozenset(("forward", "_forward"))


def copied_script(module: nn.Module, tensors: Callable[[Tensor], Tensor]) -> nn.Module | None:
    """A copy of a TorchScript module that holds `tensors(x)` in place of each tensor `x`.

    None where it has no buffer: then a call writes nothing, and the module itself will do.
    """
    if not any(True for _ in module.buffers()):
        return None
    with torch.no_grad():  # else the copying of parameters is recorded, and they are no leaves
        made = copy.deepcopy(module)
    for new, old in zip(made.modules(), module.modules(), strict=True):
        for name, tensor in _held_by(old):
            setattr(new, name, tensors(tensor))
    return made


def _held_by(module: nn.Module) -> list[tuple[str, Tensor]]:
    return [*module.named_parameters(recurse=False), *module.named_buffers(recurse=False)]


def initialize_compiled(module: Any) -> None:
    """Let a copy of a `torch.compile`d module compile its own form: the last thing to do to it."""
    module._initialize()  # noqa: SLF001  as its own __setstate__ does


class ScriptBuffers:
    """The buffers of TorchScript modules as they were before the example ran along."""

    def __init__(self) -> None:
        self._saved: list[tuple[Tensor, Tensor]] = []

    def save(self, module: nn.Module) -> list[Tensor]:
        """Remember the buffers of `module` itself; returns them."""
        buffers = [buffer for _, buffer in module.named_buffers(recurse=False)]
        self._saved += [(buffer, buffer.detach().clone()) for buffer in buffers]
        return buffers

    def restore(self) -> None:
        with torch.no_grad():
            for buffer, saved in self._saved:
                buffer.copy_(saved)
        self._saved.clear()

"""The grad mode of runs that nobody asked for a backward of: the caller's, and nothing is kept.

A model may ask autograd for gradients in its forward, or put hooks on values that need one, so it
is run as the caller would run it. Only for models that need them in their forward are the tensors
kept that a backward reads.
"""

from collections.abc import Callable, Generator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, Literal, TypeAlias, TypeVar

import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks

T = TypeVar("T")

Mode: TypeAlias = Literal["flags", "graph", "off"]
"""Autograd records what needs a gradient; also what a backward needs; or nothing."""


class Recording:
    """Finds the mode in which a model can be run, the cheapest first.

    The first run that succeeds settles it, so that all runs of one `Recording` are alike.
    """

    def __init__(self) -> None:
        self._modes: tuple[Mode, ...] = ("off",)
        if torch.is_grad_enabled():
            self._modes = ("flags", "graph", "off")

    @property
    def is_on(self) -> bool:
        """Whether a run told what needs a gradient."""
        return self._modes != ("off",)

    def run(self, function: Callable[[], T]) -> T:
        """Call `function`, which can be called again where it raises.

        Raises:
            What `function` raises in the cheapest mode, where it raises in all.
        """
        first: Exception | None = None
        for mode in self._modes:
            try:
                with _recording(mode):
                    result = function()
            except Exception as error:
                first = first or error
            else:
                self._modes = (mode,)
                return result
        assert first is not None, "there is a mode"
        raise first


def _recording(mode: Mode) -> AbstractContextManager[Any]:
    if mode == "off":
        return torch.no_grad()
    return nullcontext() if mode == "graph" else _flags_alone()


@contextmanager
def _flags_alone() -> Generator[None]:
    with saved_tensors_hooks(_dropped, _missing):
        yield


def _dropped(_: Tensor) -> None:
    """In place of a tensor that a backward would need."""


def _missing(_: None) -> Tensor:
    raise RuntimeError("a backward inside of a forward needs tensors that were not kept")

"""How much of a forward runs from captured graphs."""

import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any, Final

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry

from fxpasses.capture.arguments import Arguments
from fxpasses.capture.twins.own_tensors import OwnTensors
from fxpasses.capture.twins.twin import twin
from fxpasses.core.randomness import own_draws
from fxpasses.core.recording import Recording

# The code that torch generates from graphs. Frames of torch, of this package, and of one whose
# functions are nodes of graphs, pass calls on.
_GENERATED: Final = "<eval_with_key>"
_PASSING_ON: Final = (
    f"{Path(torch.__file__).parent}{'/'}",
    f"{Path(__file__).parent.parent}{'/'}",
)
_EINOPS: Final = f"{os.sep}einops{os.sep}"


@dataclass(frozen=True, slots=True)
class Coverage:
    """Shares, 0 to 1, of one forward that run from captured graphs."""

    calls: float
    """Of the aten operators called."""
    flops: float
    """Of the floating-point operations, by torch's own formulas."""


def measure(root: nn.Module, arguments: Arguments) -> Coverage:
    """Run a copy of `root` once, on copies of `arguments`, and count.

    The copy has parameters of its own, since code that is in no graph may write them. Whatever
    the model raises passes through.
    """
    counter = Recording().run(lambda: _counted(root, arguments))
    calls = _share(counter.calls)
    return Coverage(calls, _share(counter.flops) if counter.flops[0] else calls)


def _counted(root: nn.Module, arguments: Arguments) -> "_Counter":
    running, _ = twin(root, tensors=OwnTensors(root, parameters_too=True))
    given = arguments.copied()
    with own_draws(), _Counter() as counter:
        running(*given.args, **given.kwargs)
    return counter


def _share(counted: Sequence[int]) -> float:
    total, captured = counted
    return captured / total if total else 1.0


class _Counter(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.calls = [0, 0]
        self.flops = [0, 0]

    def __torch_dispatch__(
        self,
        func: Any,
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        output = func(*args, **(kwargs or {}))
        captured = _runs_from_graph(sys._getframe(1))  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]  the only way to the caller
        self._add(self.calls, 1, captured=captured)
        formula: Callable[..., int] | None = flop_registry.get(func.overloadpacket)
        if formula is not None:
            self._add(
                self.flops, formula(*args, **(kwargs or {}), out_val=output), captured=captured
            )
        return output

    @staticmethod
    def _add(counted: list[int], amount: int, *, captured: bool) -> None:
        counted[0] += amount
        counted[1] += amount if captured else 0


def _runs_from_graph(frame: FrameType | None) -> bool:
    """Whether the nearest code outside of torch and this package is generated from a graph."""
    while frame is not None:
        name = frame.f_code.co_filename
        if name.startswith(_GENERATED):
            return True
        passes_on = name.startswith((*_PASSING_ON, "<")) or _EINOPS in name
        if not passes_on:
            return False
        frame = frame.f_back
    return False

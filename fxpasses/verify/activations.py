"""How many bytes of activations a program holds at a time."""

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor
from torch.fx import Node

from fxpasses.capture import Arguments
from fxpasses.capture.result.guards import GuardMiss
from fxpasses.core import Program
from fxpasses.core.recording import Recording
from fxpasses.verify.raised import ProgramError, raised_by
from fxpasses.verify.runner import Environment, NoVisitor, modules_of, run_program
from fxpasses.verify.state import fresh, randomness_restored, tensors_below, untouched
from fxpasses.verify.structures import tensors_of

Storages = dict[int, int]
"""Sizes in bytes, by address."""


def peak_activations(program: Program, arguments: Arguments) -> int | None:
    """The most bytes that values of the graphs take at a time in one forward, measured.

    None where the program raises: that is for the verifier to judge.

    Arguments and what the model holds do not count, nor what ops use for themselves. Nothing is
    kept for a backward, and nothing of the model is changed.
    """

    def run() -> int:
        args, kwargs = fresh((tuple(arguments.args), dict(arguments.kwargs)))
        roots = modules_of(program)
        with untouched(roots, parameters_too=True), randomness_restored():
            meter = Meter([*tensors_of((args, kwargs)), *tensors_below(roots).values()])
            with raised_by(program):
                run_program(program, args, kwargs, lambda path, module: Frame(meter))  # noqa: ARG005
        return meter.most

    try:
        return Recording().run(run)
    except (ProgramError, GuardMiss):
        return None


class Meter:
    """Adds up what the graphs under way hold: the caller's values live on in a call."""

    def __init__(self, given: Iterable[Tensor]) -> None:
        self.given = storages(given)
        self.frames: list[Storages] = []
        self.most = 0

    def note(self, held: Storages) -> int:
        """How much is held in all, now that the innermost graph holds that."""
        self.frames[-1] = held
        alive: Storages = {}
        for frame in self.frames:
            alive.update(frame)
        total = sum(size for place, size in alive.items() if place not in self.given)
        self.most = max(self.most, total)
        return total


class Frame(NoVisitor):
    """One run of one graph."""

    def __init__(self, meter: Meter) -> None:
        self.meter = meter

    def begins(self) -> None:
        self.meter.frames.append({})

    def around(self, node: Node, values: Environment, run: Callable[[], Any]) -> Any:
        held = storages(tensors_of(list(values.values())))
        self.meter.frames[-1] = held
        result = run()
        made = storages(tensors_of(result))
        total = self.meter.note({**held, **made})
        fresh = {
            place: made[place] for place in made.keys() - held.keys() - self.meter.given.keys()
        }
        self.measured(node, result, sum(fresh.values()), total)
        return result

    def measured(self, node: Node, result: Any, made: int, held: int) -> None:
        """Told of each node how many bytes it has made, and how many are held then."""

    def ends(self, output: Any) -> None:  # noqa: ARG002  the protocol
        self.meter.frames.pop()


def storages(tensors: Iterable[Tensor]) -> Storages:
    strided = (tensor for tensor in tensors if _is_dense(tensor))
    found = (tensor.untyped_storage() for tensor in strided)
    return {storage.data_ptr(): storage.nbytes() for storage in found}


def _is_dense(tensor: Tensor) -> bool:
    return tensor.layout is torch.strided

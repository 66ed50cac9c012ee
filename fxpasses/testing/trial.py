"""One pass on one model: what the rules look at, each made once."""

import warnings
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import TypeAlias

import torch
from torch import nn
from torch.fx import GraphModule

from fxpasses.capture import Capture, capture, fork
from fxpasses.core import ForeignPass, GraphPass, Group, Program, Record
from fxpasses.core.record import META
from fxpasses.errors import FxPassesWarning, VerificationError
from fxpasses.manager import PassManager, PassRun
from fxpasses.registry import Registry
from fxpasses.session import run
from fxpasses.testing.behaviour import randomness_kept
from fxpasses.testing.model import Model
from fxpasses.testing.surroundings import Surroundings

Tried: TypeAlias = GraphPass | ForeignPass


@dataclass(frozen=True, slots=True, eq=False)
class Done:
    """A fork of the captured model after the pass, once or more often in a row."""

    program: Program
    runs: list[PassRun]


@dataclass(frozen=True, slots=True, eq=False)
class Finished:
    """What `run` made of a model."""

    result: GraphModule
    record: Record
    wrong: str | None
    """What the verifier says of it, where it is wrong."""
    changed: list[str]
    """What of the caller's is not as it was."""


class Trial:
    """A pass and a model, which is copied whenever something is done to it.

    Args:
        graph_pass: the pass.
        model: the model.
        verified: whether the verifier looks at results too.
    """

    def __init__(self, graph_pass: Tried, model: Model, *, verified: bool = True) -> None:
        self.graph_pass = graph_pass
        self.model = model
        self.verified = verified

    @cached_property
    def captured(self) -> Capture:
        return _captured(self.model.own())

    @cached_property
    def once(self) -> Done:
        """The pass alone, not verified."""
        return self.passed()

    def passed(self, times: int = 1, seed: int = 0) -> Done:
        """The pass `times` in a row on a fork, with torch's and Python's numbers at some state."""
        program = fork(self.captured.program)
        manager = PassManager(
            Group((self.graph_pass,) * times),
            training=self.model.is_for_training,
            effects=Registry.default().effects,
        )
        with randomness_kept():
            torch.manual_seed(seed)
            return Done(program, manager.run(program))

    @property
    def fires(self) -> bool:
        return self.once.runs[0].changed

    @cached_property
    def finished(self) -> Finished:
        """What a user gets, in `training` or not as the model says."""
        return self.run(training=self.model.is_for_training)

    def run(self, *, training: bool) -> Finished:
        """What `run` makes of a copy of the model, and what it changed of that copy."""
        tried = self.model.own()
        before = Surroundings(tried)
        wrong = None
        try:
            result = quietly_run(tried, [self.graph_pass], training=training, verify=self.verified)
        except VerificationError as error:
            wrong = str(error)
            result = quietly_run(tried, [self.graph_pass], training=training, verify=False)
        record = Record.from_dict(result.meta[META])
        return Finished(result, record, wrong, before.changes())

    def original(self, *, training: bool) -> nn.Module:
        """A copy of the model, in the mode in which a run for this purpose takes it."""
        module = self.model.own().module
        return module if module.training is training else module.train(training)

    def unverified(self, passes: list[Tried]) -> GraphModule:
        """What `run` makes of another copy of the model."""
        tried = self.model.own()
        return quietly_run(tried, passes, training=tried.is_for_training, verify=False)


def _captured(model: Model) -> Capture:
    args, kwargs = model.arguments()
    return capture(model.module, args, kwargs, training=model.is_for_training)


def quietly_run(model: Model, passes: list[Tried], *, training: bool, verify: bool) -> GraphModule:
    """`run` on the model itself; what it warns of is not the pass's fault."""
    with quiet():
        return run(
            model.module,
            passes,
            model.inputs,
            model.kwargs,
            training=training,
            verify=verify,
        )


@contextmanager
def quiet() -> Generator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FxPassesWarning)
        yield

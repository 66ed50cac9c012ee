"""Runs a program node by node, and measures; what the model remembers is put back."""

from collections import Counter
from collections.abc import Callable, Generator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from statistics import median
from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule, Node
from torch.profiler import ProfilerActivity, record_function
from torch.utils.flop_counter import FlopCounterMode

from fxpasses.capture import Arguments
from fxpasses.capture.result.guards import GuardMiss
from fxpasses.core import Program
from fxpasses.core.described import described, full_name
from fxpasses.core.given import Call
from fxpasses.core.randomness import default_generator, own_draws
from fxpasses.core.surroundings import surroundings_kept
from fxpasses.debug.costs import NodeCost, NonFinite
from fxpasses.debug.nodes import facts_of
from fxpasses.debug.spans import Clock, CudaClock, HostClock, Key, Spans, Work
from fxpasses.errors import ArgumentError
from fxpasses.verify.activations import Frame, Meter
from fxpasses.verify.raised import ProgramError, raised_by
from fxpasses.verify.runner import (
    Environment,
    MakeVisitor,
    NoVisitor,
    modules_of,
    no_visitor,
    run_program,
)
from fxpasses.verify.state import fresh, randomness_restored, tensors_below, untouched
from fxpasses.verify.structures import tensors_of


@dataclass(frozen=True, slots=True)
class Subject:
    """A program, and the call that it is measured on."""

    program: Program
    arguments: Arguments

    @property
    def device(self) -> torch.device:
        """The first that is no CPU, of weights and arguments."""
        tensors = [*self.state(), *tensors_of((self.arguments.args, self.arguments.kwargs))]
        devices = [tensor.device for tensor in tensors]
        return next((one for one in devices if one.type != "cpu"), torch.device("cpu"))

    def state(self) -> list[Tensor]:
        return list(tensors_below(modules_of(self.program)).values())

    @contextmanager
    def at_rest(self) -> Generator[None]:
        """Inside, the program can be run: in the end all that it remembers is put back.

        Raises:
            ArgumentError: the program raises, or its graphs do not hold for the call.
        """
        roots = modules_of(self.program)
        try:
            with (
                surroundings_kept(),
                randomness_restored(),
                untouched(roots, parameters_too=True),
                torch.no_grad(),
            ):
                yield
        except GuardMiss as miss:
            raise ArgumentError(f"the graph does not hold for these inputs: {miss}") from miss
        except ProgramError as raised:
            raise ArgumentError(f"on these inputs the model raises {raised}") from raised.error

    def call(self) -> Call:
        """Arguments that the program may write."""
        return fresh((tuple(self.arguments.args), dict(self.arguments.kwargs)))

    def run(self, visitors: MakeVisitor, call: Call | None = None) -> None:
        args, kwargs = call or self.call()
        with raised_by(self.program):
            run_program(self.program, args, kwargs, visitors)


@dataclass(frozen=True, slots=True)
class Measured:
    """What was measured of one program."""

    nodes: tuple[NodeCost, ...]
    held_bytes: int
    """The most that values of the graphs take at a time."""
    nonfinite: tuple[NonFinite, ...]


def measure(subject: Subject, *, repeats: int, finite: bool) -> Measured:
    """One run for memory, work and shapes, which warms up too, and `repeats` for time."""
    with subject.at_rest():
        call = subject.call()
        costs = _Costs(Meter([*tensors_of(call), *subject.state()]), finite)
        with FlopCounterMode(display=False) as counter:
            costs.work = Spans(Work(counter))
            draws = _run_and_see(subject, partial(_CostFrame, costs), call)
        with _draws_of_its_own(draws):
            runs = [_timed(subject) for _ in range(repeats)]
    flops = costs.work.own()
    seconds = {key: median(run[key] for run in runs) for key in costs.calls}
    nodes = tuple(
        NodeCost(
            replace(facts_of(key[0], costs.nodes[key]), value=costs.values[key]),
            costs.calls[key],
            seconds[key],
            int(flops[key]),
            costs.made[key],
            costs.held[key],
        )
        for key in costs.calls
    )
    return Measured(nodes, costs.meter.most, tuple(costs.nonfinite))


def _run_and_see(subject: Subject, visitors: MakeVisitor, call: Call | None = None) -> bool:
    """Run, and tell whether it draws random numbers."""
    with own_draws():
        before = default_generator().get_state()
        subject.run(visitors, call)
        return not torch.equal(before, default_generator().get_state())


def _draws_of_its_own(draws: bool) -> AbstractContextManager[None]:
    # It slows every operation down, and so is left out where nothing is drawn.
    return own_draws() if draws else nullcontext()


def _timed(subject: Subject) -> dict[Key, float]:
    clock: Clock = CudaClock() if subject.device.type == "cuda" else HostClock()
    spans = Spans(clock)
    subject.run(lambda path, module: _Around(path, spans.around))  # noqa: ARG005  a MakeVisitor
    return spans.own()


def trace(subject: Subject, path: str) -> None:
    """Write a trace of one run, in which every node is a range of its name."""
    activities = [ProfilerActivity.CPU]
    if subject.device.type == "cuda":
        activities.append(ProfilerActivity.CUDA)
    with subject.at_rest():
        draws = _run_and_see(subject, no_visitor)
        profiling = torch.profiler.profile(activities=activities, record_shapes=True)
        with _draws_of_its_own(draws), profiling as profiler:
            subject.run(lambda path, module: _Around(path, _labelled))  # noqa: ARG005  a MakeVisitor
    profiler.export_chrome_trace(path)


def _labelled(key: Key, run: Callable[[], Any]) -> Any:
    with record_function(full_name(*key)):
        return run()


class _Around(NoVisitor):
    """Hands every node on to a function of its key and of what runs it."""

    def __init__(self, path: str, around: Callable[[Key, Callable[[], Any]], Any]) -> None:
        self._path = path
        self._around = around

    def around(self, node: Node, values: Environment, run: Callable[[], Any]) -> Any:  # noqa: ARG002  the protocol
        return self._around((self._path, node.name), run)


@dataclass(slots=True)
class _Costs:
    """What is found out in the first run."""

    meter: Meter
    finite: bool
    work: Spans = field(init=False)
    nodes: dict[Key, Node] = field(default_factory=dict[Key, Node])
    calls: Counter[Key] = field(default_factory=Counter[Key])
    values: dict[Key, str] = field(default_factory=dict[Key, str])
    made: Counter[Key] = field(default_factory=Counter[Key])
    held: Counter[Key] = field(default_factory=Counter[Key])
    nonfinite: list[NonFinite] = field(default_factory=list[NonFinite])


class _CostFrame(Frame):
    """One run of one graph."""

    def __init__(self, costs: _Costs, path: str, module: GraphModule) -> None:  # noqa: ARG002  a MakeVisitor
        super().__init__(costs.meter)
        self._costs = costs
        self._path = path
        self._is_finite: dict[Node, bool] = {}

    def around(self, node: Node, values: Environment, run: Callable[[], Any]) -> Any:
        key = self._path, node.name
        # Looked at before it runs: it may write them.
        largest = self._look_at_operands(node, values) if self._costs.finite else None
        result = super().around(node, values, lambda: self._costs.work.around(key, run))
        if self._costs.finite:
            self._look_at(node, result, largest)
        return result

    def measured(self, node: Node, result: Any, made: int, held: int) -> None:
        key, costs = (self._path, node.name), self._costs
        costs.nodes[key] = node
        costs.calls[key] += 1
        costs.values[key] = described(result)
        costs.made[key] += made
        costs.held[key] = max(costs.held[key], held)

    def _look_at_operands(self, node: Node, values: Environment) -> float | None:
        for operand in node.all_input_nodes:
            if operand not in self._is_finite:
                self._look_at(operand, values[operand], None)
        tensors = _floats([values[operand] for operand in node.all_input_nodes])
        return max((_largest(one) for one in tensors if one.numel()), default=None)

    def _look_at(self, node: Node, value: Any, largest: float | None) -> None:
        nan = inf = 0
        for tensor in _floats(value):
            nan += int(torch.isnan(tensor).sum())
            inf += int(torch.isinf(tensor).sum())
        self._is_finite[node] = not (nan or inf)
        makes_it = all(self._is_finite.get(one, True) for one in node.all_input_nodes)
        if (nan or inf) and makes_it:
            facts = replace(facts_of(self._path, node), value=described(value))
            self._costs.nonfinite.append(NonFinite(facts, nan, inf, largest))


def _floats(value: Any) -> list[Tensor]:
    tensors = (one for one in tensors_of(value) if one.layout is torch.strided)
    return [one for one in tensors if one.is_floating_point() or one.is_complex()]


def _largest(tensor: Tensor) -> float:
    return float(tensor.abs().max())

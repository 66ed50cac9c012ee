"""Whole runs of a program, in its own dtype or in float64, each from the same start."""

import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule, Node
from torch.utils._pytree import tree_flatten, tree_leaves, tree_unflatten

from fxpasses.core import STANDS_FOR, Program
from fxpasses.core.recording import Recording
from fxpasses.verify.float64 import Float64, float64
from fxpasses.verify.probes import Probe
from fxpasses.verify.progress import Progress
from fxpasses.verify.raised import raised_by
from fxpasses.verify.runner import (
    Environment,
    MakeVisitor,
    NoVisitor,
    Visitor,
    modules_of,
    roots_of,
    run_program,
)
from fxpasses.verify.state import (
    RandomState,
    randomness_restored,
    shared_memory,
    tensors_below,
    untouched,
)
from fxpasses.verify.structures import mapped, tensors_of
from fxpasses.verify.trail import Follow, Key, Trail
from fxpasses.verify.walk import Walk, Walker

OUTPUTS: Key = ("outputs", 0)


@dataclass(slots=True, eq=False)
class Run:
    """What a run gave and left behind."""

    outputs: Any
    arguments: Any = None
    """As the run left them; None where that is not known."""
    written: dict[str, Tensor] = field(default_factory=dict[str, Tensor])
    """Buffers and other tensors of the model that were written, by path, and their values."""
    random: RandomState | None = None
    shared: set[tuple[str, int, int]] = field(default_factory=set[tuple[str, int, int]])
    trail: Trail = field(default_factory=Trail)
    need_gradients: tuple[bool, ...] = ()
    """Whether each leaf of the outputs needs a gradient; empty where autograd did not record."""
    of_model: bool = False
    """Whether the model itself ran, along with the capture: nothing is known of the way then."""


class Recorder(NoVisitor):
    """Tells the trail where a run is, in the names of the captured nodes."""

    def __init__(self, trail: Trail, path: str, call: int, reads: Callable[[Any], Any]) -> None:
        self.trail = trail
        self.place = (path, call)
        self.reads = reads

    def around(self, node: Node, values: Environment, run: Callable[[], Any]) -> Any:  # noqa: ARG002  the protocol
        with self.trail.at((*self.place, str(node.meta.get(STANDS_FOR, node.name)))):
            return run()

    def ends(self, output: Any) -> None:
        if self.place[0]:
            self.trail.add((*self.place, "output"), tree_leaves(self.reads(output)))


def _same(value: Any) -> Any:
    return value


class Runs:
    """Runs programs from one random state and counts how often."""

    def __init__(
        self, start: RandomState, own: torch.dtype, progress: Progress | None = None
    ) -> None:
        self.start = start
        self.progress = progress or Progress()
        self.own_dtype = own
        self.forwards = 0
        self.seconds = 0.0
        """How long the last run took."""
        self.writes_parameters = False
        self.recording = Recording()

    def own(
        self,
        program: Program,
        probe: Probe,
        *,
        under: Callable[[], AbstractContextManager[Any]] = nullcontext,
    ) -> Run:
        """Run in the model's own dtype, in the caller's grad mode.

        What it may write are stand-ins. No tensor is kept for a backward, unless the model does
        one in its forward, and what comes out has no history.
        """
        return self.recording.run(lambda: self._own(program, probe, under()))

    def _own(self, program: Program, probe: Probe, under: AbstractContextManager[Any]) -> Run:
        args, kwargs = probe.call()
        trail = Trail()
        roots = modules_of(program)
        before = named_tensors(program)
        with (
            untouched(roots, parameters_too=self.writes_parameters),
            randomness_restored(),
            self._counted(),
            under,
            Follow(trail),
        ):
            with raised_by(program):
                outputs = run_program(program, args, kwargs, _recorders(trail, _same))
            random = RandomState.now()
            after = named_tensors(program)
        need = _need_gradients(outputs) if self.recording.is_on else ()
        outputs, args, kwargs, after = _cut((outputs, args, kwargs, after))
        written = {k: v for k, v in after.items() if k in before and _changed(v, before[k])}
        trail.end(OUTPUTS, tree_leaves(outputs))
        shared = shared_memory(outputs, (args, kwargs))
        left = _as_left((args, kwargs), probe)
        return Run(outputs, left, written, random, shared, trail, need)

    def wide(
        self, program: Program, probe: Probe, *, walk: Walk | None = None, noise: float = 0.0
    ) -> Run:
        """Run in float64, folds unrounded; with `walk`, judge its sites on the way."""
        args, kwargs = probe.call()
        trail = Trail()
        roots = modules_of(program)
        before = named_tensors(program)
        protected = [*tensors_below(roots).values(), *tensors_of((args, kwargs))]
        with (
            untouched(roots, clone=False),
            randomness_restored(),
            self._counted(),
            float64(
                program.folds, protected=protected, own=self.own_dtype, noise=noise, trail=trail
            ) as seen,
        ):
            visitors = (
                _recorders(trail, seen.reads) if walk is None else _walkers(walk, seen, trail)
            )
            with raised_by(program):
                outputs = run_program(program, args, kwargs, visitors)
            outputs = seen.reads(outputs)
            arguments = mapped((args, kwargs), lambda t: seen.reads(t) if seen.wrote(t) else t)
            after = {
                name: seen.reads(tensor)
                for name, tensor in named_tensors(program).items()
                if name in before and (seen.wrote(tensor) or tensor is not before[name])
            }
            self._note_parameters(program, seen)
        trail.end(OUTPUTS, tree_leaves(outputs))
        return Run(outputs, _as_left(arguments, probe), after, None, set(), trail)

    def _note_parameters(self, program: Program, seen: Float64) -> None:
        parameters = (p for root in modules_of(program) for p in root.parameters())
        self.writes_parameters |= any(seen.wrote(parameter) for parameter in parameters)

    def _counted(self) -> AbstractContextManager[None]:
        return _Counted(self)


class _Counted:
    """One forward: it starts from the common random state, is counted and timed."""

    def __init__(self, runs: Runs) -> None:
        self.runs = runs

    def __enter__(self) -> None:
        self.runs.forwards += 1
        self.runs.start.restore()
        self.began = time.perf_counter()

    def __exit__(self, *error: object) -> None:
        self.runs.seconds = time.perf_counter() - self.began
        self.runs.progress.step()


def _recorders(trail: Trail, reads: Callable[[Any], Any]) -> MakeVisitor:
    calls: dict[str, int] = {}

    def make(path: str, graph_module: GraphModule) -> Visitor:  # noqa: ARG001  a MakeVisitor
        calls[path] = calls.get(path, 0) + 1
        return Recorder(trail, path, calls[path], reads)

    return make


def _walkers(walk: Walk, seen: Float64, trail: Trail) -> MakeVisitor:
    def make(path: str, graph_module: GraphModule) -> Visitor:
        return Walker(walk, path, graph_module, seen, trail)

    return make


def _as_left(arguments: Any, probe: Probe) -> Any:
    """Arguments after a run, the probe's own wherever the run has not changed them."""
    given, structure = tree_flatten((probe.args, dict(probe.kwargs)))
    left, structure_left = tree_flatten(arguments)
    if structure_left != structure:
        return arguments
    pairs = zip(left, given, strict=True)
    return tree_unflatten([old if _is_equal(new, old) else new for new, old in pairs], structure)


def _is_equal(new: Any, old: Any) -> bool:
    if not isinstance(new, Tensor) or not isinstance(old, Tensor):
        return False
    same = new.dtype == old.dtype and new.layout == old.layout == torch.strided
    return same and torch.equal(new, old)


def named_tensors(program: Program) -> dict[str, Tensor]:
    """Every tensor of a program by its path from the root."""
    found: dict[str, Tensor] = {}
    # What the root itself calls by a name has the last word.
    for path, root in reversed(roots_of(program).items()):
        prefix = f"{path}." if path else ""
        found.update((prefix + name, tensor) for name, tensor in tensors_below([root]).items())
    return found


def _need_gradients(value: Any) -> tuple[bool, ...]:
    return tuple(isinstance(leaf, Tensor) and leaf.requires_grad for leaf in tree_leaves(value))


def _cut(value: Any) -> Any:
    """The value without what autograd knows of it."""
    return mapped(value, lambda t: t.detach() if _has_history(t) else t)


def _has_history(tensor: Tensor) -> bool:
    return tensor.requires_grad and not tensor.is_leaf


def _changed(now: Tensor, before: Tensor) -> bool:
    if now is before:
        return False
    same = now.shape == before.shape and now.dtype == before.dtype
    return not (same and _equal_by_element(now, before))


def _equal_by_element(now: Tensor, before: Tensor) -> bool:
    if now.layout is not torch.strided:
        now, before = now.to_dense(), before.to_dense()
    if not (now.is_floating_point() or now.is_complex()):
        return bool(torch.equal(now, before))
    return bool(torch.equal(now.nan_to_num(), before.nan_to_num()))

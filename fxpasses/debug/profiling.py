"""`profile`: what each node of a model costs."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from os import PathLike, fspath
from typing import Any, Final

from torch import nn
from torch.fx import GraphModule

from fxpasses.capture import (
    Arguments,
    Capture,
    CapturedModule,
    capture,
    entry_of,
    graphs_of,
    infer_arguments,
)
from fxpasses.core import Program, Stage
from fxpasses.core.given import as_call, count_of, flag, instance, shown
from fxpasses.core.randomness import own_generator
from fxpasses.core.surroundings import surroundings_kept
from fxpasses.debug.costs import ModuleCost, NodeCost, NonFinite, module_costs
from fxpasses.debug.measuring import Subject, measure, trace
from fxpasses.debug.profile_page import page_of
from fxpasses.errors import ArgumentError
from fxpasses.page.outline import Page
from fxpasses.page.shown import Shown
from fxpasses.session.arguments import require_module

VERSION: Final = 1
_REPEATS: Final = 5


@dataclass(frozen=True, slots=True)
class Profile(Shown):
    """What each node costs in one forward. Its text is one screen."""

    model: str
    device: str
    repeats: int
    nodes: tuple[NodeCost, ...]
    """In the order of the forward."""
    held_bytes: int
    """The most that values of the graphs take at a time, arguments and weights apart."""
    nonfinite: tuple[NonFinite, ...] | None = None
    """The nodes that make NaN or Inf, in order; None where nobody looked."""
    notes: tuple[str, ...] = ()
    details: bool = field(default=False, kw_only=True)
    """Whether everything is shown, where a method is not told."""
    subject: Subject | None = field(default=None, kw_only=True, repr=False, compare=False)
    """What was measured, for a trace."""

    @property
    def seconds(self) -> Mapping[str, float]:
        """Seconds by the names of nodes, `path/name` in the graph of an inner module.

        Without those of nodes in graphs that a node calls, so that they add up.
        """
        return {one.full_name: one.seconds for one in self.nodes}

    @property
    def flops(self) -> Mapping[str, float]:
        """Floating-point operations by the names of nodes."""
        return {one.full_name: float(one.flops) for one in self.nodes}

    @property
    def output_bytes(self) -> Mapping[str, float]:
        """Bytes that the values of nodes take, by their names."""
        return {one.full_name: float(one.output_bytes) for one in self.nodes}

    @property
    def peak_bytes(self) -> Mapping[str, float]:
        """The most bytes of activations that are held while a node runs, by the names of nodes."""
        return {one.full_name: float(one.held_bytes) for one in self.nodes}

    @property
    def modules(self) -> tuple[ModuleCost, ...]:
        """All nodes inside of each module together."""
        return module_costs(self.nodes)

    @property
    def first_nonfinite(self) -> NonFinite | None:
        """The first node that makes NaN or Inf; None where every value is finite.

        Raises:
            ArgumentError: nobody looked: pass `finite=True` to `profile`.
        """
        if self.nonfinite is None:
            raise ArgumentError("values were not looked at: pass finite=True to fxpasses.profile")
        return next(iter(self.nonfinite), None)

    @property
    def total_seconds(self) -> float:
        return sum(one.seconds for one in self.nodes)

    @property
    def total_flops(self) -> int:
        return sum(one.flops for one in self.nodes)

    def save_trace(self, path: str | PathLike[str]) -> None:
        """Run once more, and write a trace of torch's profiler with ranges named after the nodes.

        For chrome://tracing and Perfetto. What the model remembers is put back.

        Raises:
            ArgumentError: the profile was made from data, or `path` does not end in `.json` or
                `.json.gz`.
        """
        if self.subject is None:
            raise ArgumentError("what was measured is not there any more: profile it again")
        name = fspath(instance(path, "path", (str, PathLike), "the name of a file"))
        if not name.endswith((".json", ".json.gz")):
            raise ArgumentError(f"path={name!r}: end it in .json or .json.gz")
        with own_generator():
            trace(self.subject, name)

    def to_dict(self) -> dict[str, Any]:
        """Plain data; `version` tells its form."""
        found = None if self.nonfinite is None else [asdict(one) for one in self.nonfinite]
        return {
            "version": VERSION,
            "model": self.model,
            "device": self.device,
            "repeats": self.repeats,
            "held_bytes": self.held_bytes,
            "nodes": [asdict(one) for one in self.nodes],
            "modules": [asdict(one) for one in self.modules],
            "nonfinite": found,
            "notes": list(self.notes),
        }

    def to_json(self, *, indent: int | None = 2) -> str:
        return json.dumps(self.to_dict(), indent=indent)

    def page(self, *, details: bool | None = None) -> Page:
        return page_of(self, details=self.details if details is None else flag(details, "details"))


def profile(
    model: nn.Module | Capture | Stage,
    example_inputs: Any = None,
    example_kwargs: Mapping[str, Any] | None = None,
    *,
    repeats: int = _REPEATS,
    finite: bool = False,
) -> Profile:
    """Time, memory and floating-point operations of every node and module in one forward.

    The graphs run node by node, without gradients, on copies of the arguments: once for memory
    and operations, then `repeats` times for the time, of which the median counts. On a GPU time is
    that of the device, by events. What the model remembers (statistics, buffers, random states)
    is put back.

    Args:
        model: A result, a GraphModule, a capture or a stage; any other model is captured for it.
        example_inputs: The positional arguments of the call. For a model that is captured it is
            inferred where that is unambiguous.
        example_kwargs: The keyword arguments of that call.
        repeats: How often time is measured.
        finite: Whether to look for the nodes that make NaN or Inf.

    Raises:
        ArgumentError: an argument is of another kind, the graphs do not hold for the call, or
            the model raises.
        CaptureError: the model cannot be captured.
    """
    if not count_of(repeats, "repeats", "runs"):
        raise ArgumentError(f"repeats={shown(repeats)}: pass 1 or more")
    flag(finite, "finite")
    call = as_call(example_inputs, example_kwargs)
    given = None if call is None else Arguments(*call)
    with surroundings_kept(), own_generator():
        subject = _subject(model, given)
        measured = measure(subject, repeats=repeats, finite=finite)
    return Profile(
        type(subject.program.root).__name__,
        str(subject.device),
        repeats,
        measured.nodes,
        measured.held_bytes,
        measured.nonfinite if finite else None,
        tuple(_notes(subject, repeats)),
        subject=subject,
    )


def _subject(model: object, given: Arguments | None) -> Subject:
    if isinstance(model, Capture):
        return Subject(model.program, _required(given or model.arguments))
    if isinstance(model, Stage):
        return Subject(model.program, _required(given))
    if isinstance(model, GraphModule):
        return Subject(_program_of(model), _required(given))
    found = require_module(model)
    inferred = infer_arguments(found) if given is None else None
    arguments = _required(given if inferred is None else inferred[0])
    captured = capture(found, arguments.args, arguments.kwargs)
    return Subject(captured.program, arguments)


def _program_of(root: GraphModule) -> Program:
    """Where an opaque model runs its own code, that calls the graphs that there are."""
    graphs: dict[str, GraphModule] = {"": root}
    if isinstance(root, CapturedModule):
        graphs.update(graphs_of(root))
        if entry_of(root).pattern is None and len(graphs) > 1:
            del graphs[""]
    return Program(root, graphs)


def _required(given: Arguments | None) -> Arguments:
    if given is None:
        raise ArgumentError("there is nothing to run it on: pass example_inputs=(...) of one call")
    return given


def _notes(subject: Subject, repeats: int) -> Iterator[str]:
    runs = "one run" if repeats == 1 else f"the median of {repeats} runs"
    yield (
        f"nodes one by one, {runs}; FLOPs are those of products, convolutions and attention; what "
        "operations use for themselves is not in the memory"
    )
    if "" not in subject.program.graphs:
        yield "the model runs its own code, and what is in no graph is not measured"

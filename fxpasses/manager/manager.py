"""Runs a pipeline over a program: order, rounds, rollback, and what was done as plain data."""

import time
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Literal

from torch.fx import GraphModule

from fxpasses.analysis.facts import GraphFacts
from fxpasses.core import (
    ForeignPass,
    Gate,
    GraphPass,
    Group,
    Label,
    PassResult,
    Program,
    check_order,
)
from fxpasses.core.given import count_of, flag, instance, one_of
from fxpasses.core.plain import plain
from fxpasses.core.randomness import own_draws
from fxpasses.core.record import PassRecord
from fxpasses.core.surroundings import surroundings_kept
from fxpasses.errors import PassError
from fxpasses.manager.observer import Observer
from fxpasses.manager.records import refusal_records, rewrite_records
from fxpasses.manager.states import States
from fxpasses.manager.transaction import (
    PassRun,
    Settings,
    is_ours,
    named,
    nodes_in,
    run_foreign,
    run_pass,
)


class PassManager:
    """Runs a pipeline; each pass is a transaction over all graphs of the program."""

    def __init__(  # noqa: PLR0913  each is an option by keyword
        self,
        pipeline: Group,
        *,
        training: bool = False,
        gate: Gate | None = None,
        keep_regions: bool = False,
        target: str | None = None,
        on_failure: Literal["raise", "skip"] = "raise",
        node_budget: int | None = None,
        observers: Sequence[Observer] = (),
        effects: Mapping[str, str | tuple[str, ...]] | None = None,
    ) -> None:
        """Prepare to run `pipeline`; nothing is run yet.

        Args:
            pipeline: the passes.
            training: whether the result is to be trained.
            gate: which rewrites may happen; all of them if None.
            keep_regions: whether every rewrite keeps the pieces of graph a verifier compares.
            target: the type of device that the result is for: "cpu", "cuda"; None for any.
            on_failure: whether a pass that fails ends the run, or is left out and reported.
            node_budget: how many nodes one pass may add; by default ten times those it finds,
                and at least 10,000.
            observers: told of every pass.
            effects: declared effects of custom ops and module classes, by qualified name.

        Raises:
            ArgumentError: an argument is of another kind than these.
            PipelineError: a pass stands before one that it has to run after.
        """
        check_order(instance(pipeline, "pipeline", Group, "what Registry.resolve returns"))
        flag(training, "training")
        flag(keep_regions, "keep_regions")
        one_of(target, "target", (None, "cpu", "cuda"))
        one_of(on_failure, "on_failure", ("raise", "skip"))
        count_of(node_budget, "node_budget", "nodes")
        self.pipeline = pipeline
        self.notes: list[str] = []
        """What a person should know of the last run, such as a group that reached its bound."""
        self._settings = Settings(training, keep_regions, target, node_budget, effects or {})
        self._gate = gate or Gate()
        self._on_failure = on_failure
        self._observers = observers
        self._facts: dict[str, GraphFacts] = {}
        self._rounds: dict[int, int] = {}

    def run(self, program: Program) -> list[PassRun]:
        """Run the pipeline on `program`, which is changed, and return what each pass did.

        Raises:
            PassError: a pass raised, broke a graph, grew without end, or two passes undo each
                other for ever. What the pass did is taken back.
        """
        self.notes = []
        self._facts = {}
        self._rounds = {}
        with surroundings_kept():
            return list(self._group(self.pipeline, program, first=1))

    def _group(self, group: Group, program: Program, first: int) -> Iterator[PassRun]:
        """Run a group whose first pass has the position `first`, until nothing changes."""
        states = States(program) if group.repeat > 1 else None
        rounds: list[list[PassRun]] = []
        for _ in range(group.repeat):
            rounds.append([])
            for run in self._once(group, program, first):
                rounds[-1].append(run)
                yield run
            if not any(run.changed for run in rounds[-1]):
                return
            if states is not None and (ago := states.came_back()):
                raise _undone(rounds[-ago:])
        if group.repeat > 1:
            name = group.name or ", ".join(item.name for item in group.passes())
            self.notes.append(f"{name}: still changing after {group.repeat} rounds")

    def _once(self, group: Group, program: Program, first: int) -> Iterator[PassRun]:
        position = first
        for item in group.items:
            if isinstance(item, Group):
                yield from self._group(item, program, position)
                position += sum(1 for _ in item.passes())
            else:
                yield self._pass(item, program, position)
                position += 1

    def _pass(self, item: GraphPass | ForeignPass, program: Program, position: int) -> PassRun:
        self._rounds[position] = self._rounds.get(position, 0) + 1
        label = Label(position, round=self._rounds[position])
        run = _new_run(item, label, program)
        for observer in self._observers:
            observer.started(run.record, program)
        start = time.perf_counter()
        try:
            with _apart(item):
                self._carry_out(item, program, label, run)
        except PassError as error:
            self._failed(run, named(error, item.name), program)
        except BaseException:
            self._facts = {}
            raise
        run.record.seconds = time.perf_counter() - start
        run.record.nodes_after = nodes_in(program)
        if run.record.status != "failed":
            for observer in self._observers:
                observer.finished(run.record, program)
        return run

    def _carry_out(
        self, item: GraphPass | ForeignPass, program: Program, label: Label, run: PassRun
    ) -> None:
        record, folds = run.record, len(program.folds)
        if isinstance(item, ForeignPass):
            changed = run_foreign(item, program, self._settings)
            self._facts = {}
        else:
            run.applied, run.refusals = run_pass(
                item, program, label, self._gate, self._settings, self._facts_of
            )
            changed = bool(run.applied)
        record.status = "changed" if changed else "unchanged"
        record.rewrites = rewrite_records(run.applied)
        record.refusals = refusal_records(run.refusals)
        record.bytes_folded = sum(fold.value.nbytes for fold in program.folds.since(folds))

    def _failed(self, run: PassRun, error: PassError, program: Program) -> None:
        self._facts = {}
        run.record.status = "failed"
        run.record.error = str(error)
        run.record.nodes_after = nodes_in(program)
        for observer in self._observers:
            observer.failed(run.record, error)
        if self._on_failure == "raise":
            raise error

    def _facts_of(self, path: str, module: GraphModule) -> GraphFacts:
        if path not in self._facts:
            self._facts[path] = GraphFacts(
                module,
                training=self._settings.training,
                owns_state=path == "",
                target=self._settings.target,
                declared=self._settings.effects,
            )
        return self._facts[path]


def _apart(item: GraphPass | ForeignPass) -> AbstractContextManager[None]:
    """The package's own passes set and draw nothing, and a mode costs time at every operation."""
    return nullcontext() if is_ours(item) else _put_back()


@contextmanager
def _put_back() -> Generator[None]:
    with surroundings_kept(), own_draws():
        yield


def _new_run(item: GraphPass | ForeignPass, label: Label, program: Program) -> PassRun:
    options = {} if isinstance(item, ForeignPass) else item.options()
    record = PassRecord(
        position=label.position,
        name=item.name,
        options={name: plain(value) for name, value in options.items()},
        numerics=str(item.numerics),
        round=label.round,
        nodes_before=nodes_in(program),
    )
    foreign = isinstance(item, ForeignPass)
    return PassRun(
        record, {}, item.numerics, foreign=foreign, trains=True if foreign else item.trains
    )


def _undone(rounds: Sequence[Sequence[PassRun]]) -> PassError:
    names = dict.fromkeys(run.record.name for runs in rounds for run in runs if run.changed)
    listed = " and ".join(names)
    undo = "undo each other" if len(names) > 1 else "undoes itself"
    again = "every round" if len(rounds) == 1 else f"every {len(rounds)} rounds"
    return PassError(f"{listed} {undo} for ever: {again} the graph is as it was")


def apply(
    graph_pass: GraphPass,
    graph_module: GraphModule,
    *,
    training: bool = False,
    keep_regions: bool = False,
    target: str | None = None,
) -> PassResult:
    """Run one pass on one graph module, which is changed: for tests and for authors of passes.

    Raises:
        ArgumentError: an argument is of another kind than these.
        PassError: the pass raised or broke the graph, which is then as it was.
    """
    instance(graph_pass, "graph_pass", GraphPass, "an instance of a GraphPass")
    instance(graph_module, "graph_module", GraphModule, "a torch.fx.GraphModule")
    program = Program(graph_module, {"": graph_module})
    manager = PassManager(
        Group((graph_pass,)), training=training, keep_regions=keep_regions, target=target
    )
    (run,) = manager.run(program)
    rewrites = tuple(applied for applied in run.applied.get("", []))
    return PassResult(graph_module, rewrites, tuple(run.refusals))

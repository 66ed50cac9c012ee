"""One pass over all graphs of a program: everything it did becomes final, or nothing."""

import sys
from collections.abc import Callable, Generator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import TypeAlias

from torch.fx import GraphModule

from fxpasses.analysis.facts import GraphFacts
from fxpasses.core import (
    Applied,
    Editor,
    ForeignPass,
    Gate,
    GraphPass,
    Label,
    Numerics,
    Program,
    Refusal,
    carry_out,
)
from fxpasses.core.record import PassRecord
from fxpasses.core.rewrite import retold
from fxpasses.errors import BudgetError, PassError
from fxpasses.manager.foreign import Installed, carry_out_foreign
from fxpasses.manager.protection import WeightsProtected

FactsOf: TypeAlias = Callable[[str, GraphModule], GraphFacts]


@dataclass(slots=True)
class PassRun:
    """What one pass did to a program, in one round of its group."""

    record: PassRecord
    applied: dict[str, list[Applied]]
    """The rewrites by the path of their graph, in order; a foreign pass has none."""
    numerics: Numerics
    foreign: bool = False
    """Whether it may have changed anything anywhere, and is known only by its result."""
    refusals: list[Refusal] = field(default_factory=list[Refusal])
    trains: bool = True
    """Whether its result may be trained; of a foreign pass that is expected."""

    @property
    def changed(self) -> bool:
        return self.record.status == "changed"


@dataclass(frozen=True, slots=True)
class Settings:
    """How the passes of a pipeline are run."""

    training: bool = False
    keep_regions: bool = False
    target: str | None = None
    node_budget: int | None = None
    effects: Mapping[str, str | tuple[str, ...]] = field(default_factory=dict[str, str])

    def budget(self, program: Program) -> int:
        """How many nodes one pass may add to the program."""
        if self.node_budget is not None:
            return self.node_budget
        return max(10_000, 10 * nodes_in(program))


def nodes_in(program: Program) -> int:
    return sum(len(module.graph.nodes) for _, module in program)


class Transaction:
    """What is open while one pass runs."""

    def __init__(self, program: Program) -> None:
        self._program = program
        self._folds = len(program.folds)
        self._open: list[Editor | Installed] = []

    @contextmanager
    def all_or_nothing(self) -> Generator[None]:
        """Seal every graph at the end, or put every graph back when an error leaves the block."""
        try:
            yield
            for part in self._open:
                part.seal()
        except BaseException:
            self._rollback()
            raise

    def add(self, part: Editor | Installed) -> None:
        self._open.append(part)

    def _rollback(self) -> None:
        for part in reversed(self._open):
            part.rollback()
        self._program.folds.forget_since(self._folds)


def run_pass(
    graph_pass: GraphPass,
    program: Program,
    label: Label,
    gate: Gate,
    settings: Settings,
    facts_of: FactsOf,
) -> tuple[dict[str, list[Applied]], list[Refusal]]:
    """Run a pass on every graph, and return its rewrites by path and what it refused.

    Raises:
        PassError: the pass raised or broke a graph; all graphs are as they were.
    """
    if settings.training and not graph_pass.trains:
        return {}, [_refused_in_training(graph_pass)]
    applied: dict[str, list[Applied]] = {}
    refusals: list[Refusal] = []
    budget = settings.budget(program)
    transaction = Transaction(program)
    with transaction.all_or_nothing(), _protecting(graph_pass, program):
        for path, module in program:
            facts = facts_of(path, module)
            edit = Editor(
                module,
                graph_pass.name,
                folds=program.folds,
                facts=facts,
                keep_regions=settings.keep_regions,
                node_budget=budget,
            )
            transaction.add(edit)
            at = Label(label.position, path, label.round)
            refusals += carry_out(
                graph_pass,
                facts,
                edit,
                label=at,
                gate=gate,
                most_steps=budget + len(edit.graph.nodes),
            )
            budget -= edit.created
            if edit.applied:
                applied[path] = edit.applied
    return applied, refusals


def _protecting(graph_pass: GraphPass, program: Program) -> AbstractContextManager[None]:
    # The passes of this package are held to it by their tests, and fold faster without.
    return nullcontext() if is_ours(graph_pass) else WeightsProtected(program).around_a_pass()


def is_ours(graph_pass: GraphPass | ForeignPass) -> bool:
    """Whether a pass is one of this package: it has to be there, not only to say so."""
    kind = type(graph_pass)
    home = sys.modules.get(kind.__module__)
    is_here = getattr(home, kind.__qualname__, None) is kind
    return is_here and kind.__module__.startswith("fxpasses.passes.")


def _refused_in_training(graph_pass: GraphPass) -> Refusal:
    reason = f"the result is to be trained, and what {graph_pass.name} makes cannot be"
    remedy = "call model.eval() first, or pass training=False, if the result is not to be trained"
    return Refusal("", "result_is_not_trained", reason, remedy=remedy)


def run_foreign(foreign: ForeignPass, program: Program, settings: Settings) -> bool:
    """Run a foreign pass on every graph, and return whether any of them changed.

    Raises:
        PassError: it raised, or made something that is no graph; all graphs are as they were.
    """
    most = nodes_in(program) + settings.budget(program)
    transaction = Transaction(program)
    with transaction.all_or_nothing():
        changed = False
        for path, _ in program:
            installed = carry_out_foreign(foreign, program, path)
            if installed is not None:
                transaction.add(installed)
                changed = True
            if nodes_in(program) > most:
                raise BudgetError(f"{foreign.name} makes the graph grow to over {most} nodes")
    return changed


def named(error: PassError, name: str) -> PassError:
    """The error itself if it names the pass, else one that does."""
    if name in str(error):
        return error
    renamed = retold(error, f"{name}: {error}")
    renamed.__cause__ = error
    return renamed

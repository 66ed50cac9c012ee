"""Passes on forks of one captured model, again without what the verifier blames."""

import itertools
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from fxpasses.capture import Capture, fork
from fxpasses.core import (
    Facts,
    GraphPass,
    Group,
    History,
    Item,
    Numerics,
    Program,
    Refusal,
    Step,
)
from fxpasses.core.garbage import collections_paused
from fxpasses.core.record import PassRecord
from fxpasses.manager import Observer, PassManager, PassRun
from fxpasses.registry import Registry
from fxpasses.search import first_bad
from fxpasses.session.cuts import Cuts
from fxpasses.session.folded import Folded, folded_in
from fxpasses.session.historian import Historian
from fxpasses.session.measured import Measured
from fxpasses.session.settings import Settings
from fxpasses.verify import Blame, Cut, Verdict, check


@dataclass(frozen=True)
class Attempt:
    """One run of the pipeline on a fork, and what the verifier says of it."""

    program: Program
    runs: Sequence[PassRun]
    folded: Sequence[Folded]
    """The tensors of the result that passes have folded."""
    verdict: Verdict | None = None
    cuts: Sequence[Cut] = ()
    history: History | None = None

    @property
    def failed(self) -> bool:
        return self.verdict is not None and not self.verdict.ok


@dataclass(frozen=True, slots=True)
class Undone:
    """What is left out because the verifier blamed it: rewrites by id, passes by position."""

    rewrites: frozenset[str] = frozenset()
    passes: frozenset[int] = frozenset()

    def __or__(self, other: "Undone") -> "Undone":
        return Undone(self.rewrites | other.rewrites, self.passes | other.passes)

    def __bool__(self) -> bool:
        return bool(self.rewrites or self.passes)


class Attempts:
    """Optimises forks of `captured`, which itself stays as it is: the verifier's reference.

    Where nothing is verified, its graphs become those of the only fork.
    """

    def __init__(
        self, captured: Capture, pipeline: Group, registry: Registry, settings: Settings
    ) -> None:
        self.captured = captured
        self.pipeline = pipeline
        self.registry = registry
        self.settings = settings
        self.seconds = {"passes": 0.0, "verify": 0.0}
        self.undone = Undone()
        self.blames: list[Blame] = []
        self.left_out: list[PassRecord] = []
        self.notes: list[str] = []
        self.proposed: set[str] = set()
        """The ids of all rewrites that passes have proposed, whether they were made or not."""
        self._total = sum(1 for _ in pipeline.passes())

    @property
    def undone_names(self) -> list[str]:
        """Rewrites and whole passes that were left out, for the record."""
        return [*sorted(self.undone.rewrites), *(record.name for record in self.left_out)]

    def plain(self) -> Attempt:
        """One run of the passes, not verified: nothing reads the captured graphs afterwards."""
        return self._optimise(self.undone, move_graphs=True)

    def verified(self) -> Attempt:
        """A run that the verifier agrees with.

        Raises:
            VerificationError: the result is wrong, and `on_failure` is "raise", or leaving out
                everything that is to blame does not help.
        """
        attempt = self._checked()
        while attempt.failed:
            blames, guilty = self._guilty(attempt)
            if self.settings.on_failure == "raise" or not guilty:
                self._raise(attempt, blames)
            self._undo(attempt, blames, guilty)
            attempt = self._checked()
        return attempt

    def _checked(self) -> Attempt:
        """All passes, verified at the end; or after each, up to the first with which it fails."""
        for passes in range(1, self._total) if self.settings.level == "each" else ():
            attempt = self._verify(self._optimise(self.undone, up_to=passes))
            if attempt.failed:
                return attempt
        return self._verify(self._optimise(self.undone))

    def _optimise(
        self, undone: Undone, up_to: int | None = None, *, move_graphs: bool = False
    ) -> Attempt:
        self.settings.tell("passes")
        program = fork(self.captured.program, move_graphs=move_graphs)
        left_out = set(undone.passes)
        if up_to is not None:
            left_out.update(range(up_to + 1, self._total + 1))
        pipeline = without(self.pipeline, left_out)
        cuts = Cuts(pipeline)
        verified = self.settings.level is not None and self.captured.arguments is not None
        gate = self.settings.gate(undone.rewrites)
        historian = self._historian(program, left_out)
        manager = PassManager(
            pipeline,
            training=self.settings.training,
            gate=gate,
            keep_regions=verified,
            target=self.settings.target,
            on_failure=self.settings.on_failure,
            observers=[
                *self._looking_on(pipeline, cuts),
                *([] if historian is None else [historian]),
                *self.settings.observers,
            ],
            effects=self.registry.effects,
        )
        start = time.perf_counter()
        with collections_paused():
            runs = manager.run(program)
        self.seconds["passes"] += time.perf_counter() - start
        self.notes = manager.notes
        self.proposed |= gate.proposed
        kept = [run for run in runs if run.record.position not in left_out]
        history = None if historian is None else historian.history
        return Attempt(program, kept, folded_in(program), cuts=cuts.made, history=history)

    def _historian(self, program: Program, left_out: set[int]) -> Historian | None:
        settings = self.settings
        if not settings.history and settings.dump is None:
            return None
        return Historian(
            program, self.pipeline, left_out, keep=settings.history, dump=settings.dump
        )

    def _looking_on(self, pipeline: Group, cuts: Cuts) -> list[Observer]:
        """An unverified run does not ask for another forward."""
        arguments = self.captured.arguments
        if self.settings.level is None or arguments is None:
            return []
        return [cuts, Measured(pipeline, arguments)]

    def _check(self, attempt: Attempt) -> Verdict:
        return check(
            self.captured.program,
            attempt.program,
            attempt.runs,
            self.captured.arguments,
            self.captured.reference,
            level=self.settings.level or "sites",
            training=self.settings.training,
            cuts=attempt.cuts,
            tell=self.settings.tell_progress,
        )

    def _verify(self, attempt: Attempt) -> Attempt:
        self.settings.tell("verify")
        start = time.perf_counter()
        verdict = self._check(attempt)
        self.seconds["verify"] += time.perf_counter() - start
        return replace(attempt, verdict=verdict)

    def _guilty(self, attempt: Attempt) -> tuple[list[Blame], Undone]:
        """What the verifier blames and is not left out yet; found by bisection if it cannot say."""
        assert attempt.verdict is not None
        blames = list(attempt.verdict.blame)
        known = {
            applied.id for run in attempt.runs for one in run.applied.values() for applied in one
        }
        rewrites = frozenset(blame.id for blame in blames) & known
        names = {blame.pass_name for blame in blames if blame.id not in known}
        positions = frozenset(
            run.record.position for run in attempt.runs if run.record.name in names
        )
        if rewrites or positions:
            return blames, Undone(rewrites, positions)
        return self._bisected(attempt)

    def _bisected(self, attempt: Attempt) -> tuple[list[Blame], Undone]:
        """The first pass with which the result is wrong."""

        def is_bad(passes: int) -> bool:
            return self._verify(self._optimise(self.undone, up_to=passes)).failed

        if self._total == 0 or is_bad(0):
            return [], Undone()
        position = first_bad(self._total, is_bad)
        name = next(run.record.name for run in attempt.runs if run.record.position == position)
        message = "the result is wrong from this pass on"
        return [Blame("", name, "", None, message)], Undone(passes=frozenset({position}))

    def _undo(self, attempt: Attempt, blames: Sequence[Blame], guilty: Undone) -> None:
        self.undone |= guilty
        self.blames += blames
        for run in attempt.runs:
            if run.record.position in guilty.passes and run.record.round == 1:
                self.left_out.append(_undone(run.record, blames))

    def _raise(self, attempt: Attempt, blames: Sequence[Blame]) -> None:
        assert attempt.verdict is not None
        if blames and not attempt.verdict.blame:
            attempt = replace(attempt, verdict=replace(attempt.verdict, blame=list(blames)))
        assert attempt.verdict is not None
        attempt.verdict.raise_if_failed()


def _undone(record: PassRecord, blames: Sequence[Blame]) -> PassRecord:
    reason = next((blame.message for blame in blames if blame.pass_name == record.name), None)
    return replace(record, status="undone", error=reason, rewrites=[], bytes_folded=0)


def without(group: Group, positions: set[int]) -> Group:
    """The group with stand-ins that do nothing at `positions`, so that the others keep theirs."""
    return _without(group, positions, itertools.count(1))


def _without(group: Group, positions: set[int], numbers: Iterator[int]) -> Group:
    def kept(item: Item) -> Item:
        if isinstance(item, Group):
            return _without(item, positions, numbers)
        return _LeftOut() if next(numbers) in positions else item

    return replace(group, items=tuple(kept(item) for item in group.items))


class _LeftOut(GraphPass):
    """Stands where a pass was left out."""

    name = "left_out"
    numerics = Numerics.EXACT
    trains = True

    def steps(self, module: object, facts: Facts) -> Iterator[Step | Refusal]:  # noqa: ARG002  the signature of a pass
        return iter(())

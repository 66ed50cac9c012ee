"""Verify an optimised program: every rewrite at its site, then the whole."""

from collections.abc import Mapping, Sequence
from typing import Any, Literal, Protocol, TypeAlias

from fxpasses.capture.inside import overrides_functions
from fxpasses.core import Program
from fxpasses.core.given import an
from fxpasses.core.randomness import own_draws
from fxpasses.core.record import PieceRecord, VerificationRecord
from fxpasses.verify.change import check_change
from fxpasses.verify.findings import Findings
from fxpasses.verify.pieces import Change, Cut, Piece, pieces
from fxpasses.verify.probes import Probe, example_probe
from fxpasses.verify.progress import Progress, Tell
from fxpasses.verify.question import Question, own_dtype
from fxpasses.verify.runs import Run, Runs, named_tensors
from fxpasses.verify.sites import PassRun
from fxpasses.verify.stages import Verification
from fxpasses.verify.state import RandomState
from fxpasses.verify.structures import tensors_of
from fxpasses.verify.verdict import Blame, Verdict

Level: TypeAlias = Literal["sites", "each", "full"]


class Arguments(Protocol):
    """How a model is called."""

    @property
    def args(self) -> tuple[Any, ...]: ...
    @property
    def kwargs(self) -> Mapping[str, Any]: ...


class Reference(Protocol):
    """What the model itself made of the example."""

    @property
    def outputs(self) -> Any: ...


def check(  # noqa: PLR0913  four are options by keyword
    original: Program,
    optimised: Program,
    runs: Sequence[PassRun],
    arguments: Arguments | None,
    reference: Reference | None,
    *,
    level: Level = "sites",
    training: bool = False,
    cuts: Sequence[Cut] = (),
    tell: Tell | None = None,
) -> Verdict:
    """Whether `optimised` computes what `original` does, and if not, which rewrite is to blame.

    Neither program, nor any random state, is changed.

    Args:
        original: the program as it was captured.
        optimised: a fork of it that passes have changed.
        runs: the passes in order, with the regions that they kept.
        arguments: of the example call; without them nothing can be run.
        reference: the model's own run of the example, if there is one: it is not run again.
        level: "sites" and "each" check every site and the whole once; "full" tries more probes.
        training: whether the result is to be trained: gradients are compared as well.
        cuts: the program around the passes after which nodes stand for themselves. Needed for
            each that has changed the meaning by request.
        tell: told of every step that is done.
    """
    if arguments is None:
        return _not_verified(level, "no example inputs were given, so nothing could be run")
    if kind := _unlike_tensors((arguments.args, dict(arguments.kwargs))):
        return _not_verified(
            level,
            f"not comparable: the example holds {an(kind)}, which does something of its own "
            "where torch's functions are called",
        )
    outputs = None if reference is None else reference.outputs
    example = example_probe(tuple(arguments.args), dict(arguments.kwargs), outputs)
    given = None if reference is None else Run(outputs, of_model=True)
    checking = Checking(example, given, Progress(tell), level=level, training=training)
    with own_draws():
        return checking.verdict(pieces(original, optimised, runs, cuts))


def _not_verified(level: Level, reason: str) -> Verdict:
    return Verdict(True, VerificationRecord(level=level, notes=[reason]))


class Checking:
    """The pieces of one pipeline verified one after the other, up to the first that is wrong."""

    def __init__(
        self,
        example: Probe,
        reference: Run | None,
        progress: Progress,
        *,
        level: Level,
        training: bool,
    ) -> None:
        self.example = example
        self.progress = progress
        self.level: Level = level
        self.training = training
        self.last = reference
        """The run of the example on the program with which the next piece begins."""
        self.forwards = 0 if reference is None else 1
        """What was run before, along with the capture, and is not in any record yet."""
        self.against = ""

    def verdict(self, parts: Sequence[Piece | Change]) -> Verdict:
        first, *others = parts
        verdicts = [self._one(first)]
        for part in others:
            if verdicts[-1].ok:
                verdicts.append(self._one(part))
        return joined(verdicts) if others else verdicts[0]

    def _one(self, part: Piece | Change) -> Verdict:
        names = _names(part.passes)
        told = PieceRecord(names, self.against)
        if isinstance(part, Piece):
            verdict = self._piece(part)
        else:
            verdict, told.difference = self._change(part)
            told.changes_meaning = True
            self.against = f"the graph as {names[0]} left it"
        told.ok, told.forwards = verdict.record.ok, verdict.record.forwards
        verdict.record.pieces.append(told)
        return verdict

    def _findings(self) -> Findings:
        return Findings(VerificationRecord(level=self.level), self.against)

    def _piece(self, piece: Piece) -> Verdict:
        findings = self._findings()
        question = Question(
            piece.start,
            piece.result,
            piece.passes,
            self.example,
            self.last,
            training=self.training,
            rounded_weights=_brings_weights(piece.start, piece.result, piece.passes),
            sections=piece.sections,
            progress=self.progress,
        )
        verification = Verification(question, findings)
        verdict = verification.verdict()
        verdict.record.forwards += self.forwards
        self.last, self.forwards = verification.result, 0
        return verdict

    def _change(self, change: Change) -> tuple[Verdict, float | None]:
        findings = self._findings()
        own = own_dtype(change.before, self.example)
        runs = Runs(RandomState.now(), own, self.progress)
        self.last, difference = check_change(findings, runs, change, self.example, self.last)
        record = findings.record
        record.forwards, record.ok = runs.forwards, not findings.failed
        return Verdict(not findings.failed, record, _blames(change, record)), difference


def joined(verdicts: Sequence[Verdict]) -> Verdict:
    """One verdict of those on the pieces of a pipeline."""
    records = [verdict.record for verdict in verdicts]
    answers = [record.ok for record in records]
    made = VerificationRecord(
        level=records[0].level,
        ok=False if False in answers else None if None in answers else True,
        rule=records[0].rule,
        checks=[check for record in records for check in record.checks],
        forwards=sum(record.forwards for record in records),
        own_error=records[0].own_error,
        unverified=[name for record in records for name in record.unverified],
        pieces=[piece for record in records for piece in record.pieces],
        notes=list(dict.fromkeys(note for record in records for note in record.notes)),
    )
    blame = [one for verdict in verdicts for one in verdict.blame]
    return Verdict(all(verdict.ok for verdict in verdicts), made, blame)


def _names(passes: Sequence[PassRun]) -> list[str]:
    """The passes that changed something, as a report calls them."""
    changed = (run.record for run in passes if run.record.status == "changed")
    return [
        f"{one.position} {one.name}" + (f" (round {one.round})" if one.round > 1 else "")
        for one in changed
    ]


def _blames(change: Change, record: VerificationRecord) -> list[Blame]:
    """The pass itself, or its only rewrite, for all that is wrong with a change of meaning."""
    failures = [check for check in record.checks if not check.ok]
    if not failures:
        return []
    made = [applied for several in change.run.applied.values() for applied in several]
    name, message = change.run.record.name, failures[0].message
    if len(made) != 1:
        return [Blame("", name, "", None, message)]
    return [Blame(made[0].id, name, made[0].node, made[0].source, message)]


def _unlike_tensors(values: Any) -> type | None:
    """The class of a tensor that takes no part in runs in float64 as tensors do."""
    kinds = (type(tensor) for tensor in tensors_of(values))
    return next((kind for kind in kinds if overrides_functions(kind)), None)


def _brings_weights(original: Program, optimised: Program, runs: Sequence[PassRun]) -> bool:
    """Whether a foreign pass made weights by formulas that nobody knows, so rounded them."""
    if not any(run.foreign and run.record.status == "changed" for run in runs):
        return False
    known = {id(tensor) for tensor in named_tensors(original).values()}
    return any(
        tensor.is_floating_point() and id(tensor) not in known and not optimised.folds.find(tensor)
        for tensor in named_tensors(optimised).values()
    )

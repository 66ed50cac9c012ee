"""One run, stage by stage; each fills its part of the record."""

import time
from dataclasses import dataclass

import torch
from torch import nn
from torch.fx import GraphModule

from fxpasses.capture import (
    Capture,
    capture,
    entry_of,
    finish,
    infer_arguments,
    pickle_fallback,
)
from fxpasses.core import Group, Program, Record
from fxpasses.core.given import Call
from fxpasses.core.nearest import did_you_mean
from fxpasses.core.record import META, CaptureRecord, NoteRecord, OpaqueRecord
from fxpasses.errors import ArgumentError, FxPassesWarning, TrainingModeWarning, UnverifiedWarning
from fxpasses.registry import Registry
from fxpasses.session.attempts import Attempt, Attempts
from fxpasses.session.folded import bytes_of, mode_reasons, sources_of
from fxpasses.session.placement import detached, lives_on, moved
from fxpasses.session.settings import Settings

# The conditions that do not hold where a model is in training mode.
_REFUSED_IN_TRAINING = frozenset(
    ("norm_uses_running_statistics", "no_parameter_is_trained", "result_is_not_trained")
)


@dataclass(frozen=True, slots=True)
class Request:
    """What was asked for, checked."""

    model: nn.Module
    registry: Registry
    call: Call | None
    settings: Settings


class Session:
    """A run under way."""

    def __init__(self, request: Request, pipeline: Group) -> None:
        self.request = request
        self.pipeline = pipeline
        self.model = request.model
        self.call = request.call
        self.warnings: list[FxPassesWarning] = []
        self.record = Record(
            model=type(request.model).__name__,
            pipeline=request.registry.to_text(pipeline),
            torch=str(torch.__version__),
            training=request.settings.training,
        )

    def place(self, device: torch.device | None, *, copy: bool) -> None:
        """Work on a copy where the model is to move, or to keep its weights to itself."""
        if device is not None:
            self.record.target = str(device)
            if self.call is not None:
                self.call = moved(self.call, device)
        away = device is not None and not lives_on(self.model, device)
        if away or copy:
            self.model = detached(self.model, device)

    def capture(self) -> Capture:
        """The model as graphs, with the run of the example that comes along."""
        self.request.settings.tell("capture")
        start = time.perf_counter()
        how = "none" if self.call is None else "given"
        if self.call is None and self.request.settings.level is not None:
            how = self._infer_call()
        args, kwargs = self.call or (None, None)
        settings = self.request.settings
        captured = capture(self.model, args, kwargs, training=settings.training)
        self.record.capture = capture_record(captured, how)
        # An unverified run does not ask for another forward.
        if settings.level is not None or not captured.opaque:
            note_coverage(self.record.capture, captured)
        self.record.seconds["capture"] = time.perf_counter() - start
        return captured

    def _infer_call(self) -> str:
        inferred = infer_arguments(self.model)
        if inferred is None:
            self._unverified("no example inputs were given, and none could be inferred")
            return "none"
        arguments, text = inferred
        self.call = (arguments.args, arguments.kwargs)
        return f"inferred: {text}"

    def optimise(self, captured: Capture) -> Attempt:
        """The passes on a fork of what was captured, verified where that is asked for."""
        settings = self.request.settings
        attempts = Attempts(captured, self.pipeline, self.request.registry, settings)
        unchecked = settings.level is None or captured.arguments is None
        attempt = attempts.plain() if unchecked else attempts.verified()
        self.record.seconds.update(attempts.seconds)
        self._check_identifiers(attempts.proposed)
        self._note(attempts, attempt)
        self._look_for_trouble(attempt)
        return attempt

    def _check_identifiers(self, proposed: set[str]) -> None:
        """Refuse ids of rewrites that no pass has proposed: nothing would be left out by them.

        Raises:
            ArgumentError: there is one; the message names the nearest that there is.
        """
        settings = self.request.settings
        for argument, given in (("skip", settings.skip), ("only", settings.only or ())):
            for identifier in sorted(set(given) - proposed):
                raise ArgumentError(
                    f"{argument}: no pass proposes the rewrite {identifier!r}"
                    f"{did_you_mean(identifier, proposed)}. The report on a run lists all ids"
                )

    def finished(self, attempt: Attempt, captured: Capture, *, guard_weights: bool) -> GraphModule:
        """What the user gets, with its record."""
        holders = (self.model, captured.program.root)
        watches, weights = sources_of(attempt.folded, attempt.program, *holders)
        result = finish(
            attempt.program,
            captured.program,
            watches,
            mode_reasons(attempt.runs, training=self.request.settings.training),
            weights,
        )
        entry_of(result).guard_weights = guard_weights
        entry_of(result).history = attempt.history
        if self.request.settings.training:
            # Whoever trains a model evaluates it in between, which its own code does.
            pickle_fallback(result)
        result.meta[META] = self.record.as_dict()
        return result

    def _note(self, attempts: Attempts, attempt: Attempt) -> None:
        record = self.record
        made = [run.record for run in attempt.runs]
        record.passes = sorted(
            [*made, *attempts.left_out], key=lambda one: (one.round, one.position)
        )
        record.nodes_before = sum(record.capture.graphs.values())
        record.nodes_after = _nodes(attempt.program)
        record.bytes_rewritten = bytes_of([one.tensor for one in attempt.folded])
        if attempt.verdict is not None:
            record.verification = attempt.verdict.record
        record.verification.undone = attempts.undone_names
        record.notes += attempts.notes
        record.notes += [f"undone: {blame}" for blame in attempts.blames]

    def _look_for_trouble(self, attempt: Attempt) -> None:
        verdict = attempt.verdict
        if verdict is not None and verdict.record.ok is None:
            self._unverified("; ".join(verdict.record.notes) or "the result is not comparable", "")
        refusals = [refusal for run in attempt.runs for refusal in run.record.refusals]
        because = [one for one in refusals if one.condition in _REFUSED_IN_TRAINING]
        if self.model.training and because:
            text = (
                f"the model is in training mode; left as they are for that: {len(because)} of the "
                "places that match. Call model.eval() first, unless the result is to be trained"
            )
            self.warnings.append(TrainingModeWarning(text))

    def _unverified(
        self, reason: str, remedy: str = ". Pass example_inputs=(...) of one call"
    ) -> None:
        self.warnings.append(UnverifiedWarning(f"the result is not verified: {reason}{remedy}"))


def _nodes(program: Program) -> int:
    return sum(len(graph_module.graph.nodes) for _, graph_module in program)


def capture_record(captured: Capture, how: str) -> CaptureRecord:
    """What a capture is, as data; `how` says where its example is from."""
    return CaptureRecord(
        sizes=captured.sizes,
        example=how,
        graphs={path: len(one.graph.nodes) for path, one in captured.program},
        opaque=[
            OpaqueRecord(
                leaf.path, leaf.type, str(leaf.kind), leaf.reason, _text(leaf.source), leaf.remedy
            )
            for leaf in captured.opaque
        ],
        guards=captured.guards,
        traces=captured.traces,
        notes=[NoteRecord(str(one.kind), one.text, one.remedy) for one in captured.notes],
    )


def note_coverage(record: CaptureRecord, captured: Capture) -> None:
    """Put down how much runs from graphs, or why that is not known.

    Costs a forward where anything is opaque.
    """
    try:
        covered = captured.coverage()
    except Exception as error:  # whatever a model raises when it is run again
        text = f"coverage is not known: the model raises {type(error).__name__}"
        record.notes.append(NoteRecord("coverage", text))
        return
    if covered is not None:
        record.calls_covered = covered.calls
        record.flops_covered = covered.flops


def _text(source: object) -> str | None:
    return None if source is None else str(source)

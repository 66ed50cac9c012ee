"""One verification, stage by stage."""

import math
from collections.abc import Callable
from typing import Any

import torch

from fxpasses.capture.result.guards import GuardMiss
from fxpasses.core import Numerics
from fxpasses.verify.blame import blames_of, fill_record, unverified
from fxpasses.verify.compare import differences, worst
from fxpasses.verify.dtypes import check_dtypes
from fxpasses.verify.findings import Findings
from fxpasses.verify.folded import check_folded
from fxpasses.verify.gradients import check_gradients
from fxpasses.verify.losses import FACTOR
from fxpasses.verify.meaning import check_meaning, error_in_own_dtype
from fxpasses.verify.needs import check_needs
from fxpasses.verify.neutral import SHARES
from fxpasses.verify.pieces import Section
from fxpasses.verify.precision import Precision
from fxpasses.verify.probes import Probe, composite_probes, has_floats, single_probes
from fxpasses.verify.progress import FORWARDS
from fxpasses.verify.question import Hike, Question, cast_to, own_dtype
from fxpasses.verify.raised import ProgramError, broken_off, typed
from fxpasses.verify.runner import roots_of
from fxpasses.verify.runs import Run, Runs
from fxpasses.verify.state import RandomState
from fxpasses.verify.structures import tensors_of
from fxpasses.verify.told import told_by_sites
from fxpasses.verify.unavailable import is_unavailable
from fxpasses.verify.verdict import Verdict
from fxpasses.verify.whole import check_effects, check_form, check_written, meaning_bound

PATIENCE = 60.0
"""Seconds that all further probes may be expected to take before they are dropped."""

_ROUNDED_WEIGHTS = 2
"""Weights rounded ahead of time move float64 results by up to 0.9 of the original's own error."""

_WHOLE = "not comparable: the original differs from itself under equal random states"


class Verification:
    """Runs original and result side by side and keeps what is found."""

    def __init__(self, question: Question, findings: Findings) -> None:
        self.question = question
        self.original, self.optimised = question.original, question.optimised
        self.passes = question.passes
        self.example, self.reference = question.example, question.reference
        self.training = question.training
        self.findings = findings
        self.thorough = findings.record.level == "full"
        self.own = own_dtype(self.original, self.example)
        self.runs = Runs(RandomState.now(), self.own, question.progress)
        sections = question.sections or [Section(self.original, list(self.passes))]
        self.hikes = [Hike.over(section, question, self.own) for section in sections]
        self.sites = [site for hike in self.hikes for site in hike.sites]
        question.progress.expects(FORWARDS + len(self.sites))
        self.comparable = True
        self.result: Run | None = None
        """The run of the result on the example, once it has been made."""
        self.raised: ProgramError | None = None
        """What the result raised first."""

    def verdict(self) -> Verdict:
        """The whole verification.

        Raises:
            VerificationError: the original itself raises, or a program does only sometimes.
        """
        with typed():
            return self._verdict()

    def _verdict(self) -> Verdict:
        changed = [one for one in self.passes if one.record.status != "unchanged"]
        numerics = {one.numerics for one in changed} if self.passes else {Numerics.ROUNDING}
        self._note_hooks()
        self._note_autocast()
        for hike in self.hikes:
            if hike.sites:
                hike.walk.kinds.prepare()
        check_folded(self.findings, self.optimised, self.sites, training=self.training)
        truth = self._walk(self.example)
        for hike in self.hikes:
            for note in check_dtypes(hike.sites, hike.walk.kinds):
                self.findings.note(note)
        self._check_whole(truth, numerics)
        return self._concluded()

    def _note_hooks(self) -> None:
        """What hooks write outside of the model cannot be taken back."""
        hooked = [
            f"{path}.{name}" if path and name else path or name or "the model"
            for path, root in roots_of(self.original).items()
            for name, module in root.named_modules()
            if vars(module)["_forward_hooks"] or vars(module)["_forward_pre_hooks"]
        ]
        if hooked:
            names = ", ".join(dict.fromkeys(hooked))
            self.findings.note(f"hooks run with every forward of the verification: {names}")

    def _note_autocast(self) -> None:
        """The own runs are under autocast where the capture was, as the calls will be."""
        parameters = self.original.root.parameters()
        if any(cast_to(parameter) is not parameter.dtype for parameter in parameters):
            self.findings.note(f"under autocast to {self.own}, and in float64 without it")

    # -- float64

    def _walk(self, probe: Probe) -> Run | None:
        """The original in float64, all sites judged on the way; None if it cannot be run so."""
        first, *later = self.hikes
        truth = self._walk_over(first, probe)
        if truth is not None:
            for hike in later:
                if hike.sites:
                    self._walk_over(hike, probe)
        return truth

    def _walk_over(self, hike: "Hike", probe: Probe) -> Run | None:
        hike.walk.next_probe(probe.name)
        try:
            return self.runs.wide(hike.program, probe, walk=hike.walk)
        except GuardMiss:
            return None
        except ProgramError as raised:
            if hike.walk.broken:
                raise raised.error from None
            if probe is not self.example:
                self.findings.note(f"the original does not take the probe {probe.name!r}: {raised}")
                return None
            if not is_unavailable(raised.error):
                self._look_again(raised, lambda: self.runs.wide(hike.program, probe))
            self.findings.note(f"the original cannot be run in float64: {raised}")
            return None

    def _check_meaning(self, probe: Probe, truth: Run, precision: Precision) -> None:
        """The result against the original on the same probe: in float64 where need be."""
        own_error = precision.own_error
        if not self.thorough and precision.is_fine and self._is_told_by_sites():
            bound = precision.factor * precision.yardstick
            args = self.findings, self.runs, self.optimised, probe, truth
            error = error_in_own_dtype(*args, bound)
            if error <= bound:
                return
            # A fault is as large in float64, where roundings shrink by more than `MEANING`.
            own_error = max(own_error, error) if math.isfinite(error) else own_error
        try:
            result = self.runs.wide(self.optimised, probe)
        except GuardMiss:
            self.findings.note(f"on the probe {probe.name!r} the module's own code runs")
            return
        except ProgramError as raised:
            if is_unavailable(raised.error):
                self.findings.note(f"the result cannot be run in float64: {raised}")
                return
            self._look_again(raised, lambda: self.runs.wide(self.optimised, probe))
            self._add_raised("meaning", probe, raised)
            return
        bound = meaning_bound(own_error, self.own)
        if self.question.rounded_weights:
            bound = max(bound, _ROUNDED_WEIGHTS * own_error)
        bound = check_meaning(self.findings, self.runs, self.original, probe, result, truth, bound)
        check_written(self.findings, result, truth, probe, bound)

    def _is_told_by_sites(self) -> bool:
        programs = [hike.program for hike in self.hikes]
        is_known = not self.question.rounded_weights
        return is_known and told_by_sites(self.passes, self.sites, programs)

    def _look_again(self, raised: ProgramError, again: Callable[[], Run]) -> None:
        """Return if the original itself runs, and if what raised raises again and again.

        Raises:
            ProgramError: the original raises, too.
            VerificationError: what raised does so only sometimes.
        """
        self.runs.own(self.original, self.example)
        for _ in range(2):  # What raises at every second run does so at one of two.
            try:
                again()
            except (ProgramError, GuardMiss):
                continue
            what = f"the model raises {raised} only sometimes, this time"
            raise broken_off(what) from raised.error

    def _add_raised(self, name: str, probe: Probe, raised: ProgramError | GuardMiss) -> None:
        self.findings.add(name, probe.name, message=f"the result raises {raised}")
        if isinstance(raised, ProgramError):
            self.raised = self.raised or raised

    def _check_probes(self, precision: Precision, known: Run) -> None:
        """Meaning on further inputs: one composite batch, or one by one where that is refused."""
        expected = 2 * self.runs.seconds
        if expected > PATIENCE and not self.thorough:
            self.findings.note(f"further probes are left out: they would take {expected:.0f} s")
            return
        if not self._check_composite(precision, known) or self.thorough:
            self._check_single_probes(precision)

    def _check_composite(self, precision: Precision, known: Run) -> bool:
        """Whether a batch of further inputs could be compared."""
        probes = composite_probes(self.example)
        while probes:
            probe, *probes = probes
            truth = self._walk(probe)
            if truth is None:
                return False
            # What is no number says little: then there are tamer values.
            if not (probes and _has_nan(truth.outputs) and not _has_nan(known.outputs)):
                self._check_meaning(probe, truth, precision)
                return True
        return False

    def _check_single_probes(self, precision: Precision) -> None:
        probes = list(single_probes(self.example))
        if not has_floats(self.example):
            # Integers can only be drawn anew.
            probes = probes[:1]
        checked = 0
        for probe in probes:
            truth = self._walk(probe)
            if truth is not None:
                self._check_meaning(probe, truth, precision)
                checked += 1
            if checked and not self.thorough:
                return
        if not checked:
            self.findings.note("the original takes no inputs but the example")

    # -- the whole

    def _check_whole(self, truth: Run | None, numerics: set[Numerics]) -> None:
        seconds_wide = self.runs.seconds
        precision = Precision(
            self.findings, self.runs, self.original, self.optimised, self.example, numerics
        )
        model = self.reference or self.runs.own(self.original, self.example)
        reference, neutral = self._own_runs(precision, model, truth)
        result = self.result = self._own_result()
        if result is not None:
            form = check_form(
                self.findings,
                result,
                model,
                self.example,
                dtypes=Numerics.PRECISION not in numerics,
            )
            check_effects(self.findings, result, neutral[0], self.example)
            if form:
                precision.check(result, reference, neutral, truth)
                if model.of_model and truth is not None:
                    precision.check_capture(model, reference, truth)
            check_needs(
                self.findings,
                self.passes,
                (self.original, self.optimised),
                (neutral[0], result),
                self.example,
            )
        self.runs.seconds = seconds_wide
        if truth is None:
            self.findings.note("meaning is not checked, for lack of a run in float64")
        elif self.thorough:
            self._check_meaning(self.example, truth, precision)
        if truth is not None:
            self._check_probes(precision, truth)
        if result is not None and self._gradients_are_asked_for:
            check_gradients(
                self.findings,
                self.runs,
                self.original,
                self.optimised,
                self.example,
                steps=3 if self.training and self.thorough else 1,
                training=self.training,
            )
        self._look_at_itself()

    @property
    def _gradients_are_asked_for(self) -> bool:
        """Of what is not for training only where the passes say what became of the weights."""
        changed = (one for one in self.passes if one.record.status != "unchanged")
        told = all(one.trains for one in changed) and not self.question.rounded_weights
        return self.training or (self.thorough and told)

    def _own_result(self) -> Run | None:
        def run() -> Run:
            return self.runs.own(self.optimised, self.example)

        try:
            return run()
        except (GuardMiss, ProgramError) as raised:
            if isinstance(raised, ProgramError):
                self._look_again(raised, run)
            self._add_raised("precision", self.example, raised)
            return None

    def _own_runs(
        self, precision: Precision, model: Run, truth: Run | None
    ) -> tuple[Run, list[Run]]:
        """The original as it is, and with its sums in other orders.

        Of the model's own run only the outputs are known: where ops jump on the way there, the
        graph runs in its place, and in that of a neutral run.
        """
        if not (model.of_model and truth is not None and truth.trail.jumped):
            return model, self._neutral_runs(precision, most=len(SHARES))
        graph = self.runs.own(self.original, self.example)
        return graph, self._neutral_runs(precision, most=len(SHARES) - 1)

    def _neutral_runs(self, precision: Precision, *, most: int) -> list[Run]:
        try:
            return precision.neutral_runs(most=most)
        except ProgramError as raised:
            plain = self.runs.own(self.original, self.example)
            self.findings.note(f"without neutral runs, in which the original raises {raised}")
            return [plain]

    def _look_at_itself(self) -> None:
        """After a failure: is the original the same from run to run?"""
        failed = [check for check in self.findings.record.checks if not check.ok]
        wholes = [check for check in failed if check.name not in ("fold", "site")]
        if not wholes:
            return
        again = self.runs.own(self.original, self.example)
        once_more = self.runs.own(self.original, self.example)
        found = worst(differences(again.outputs, once_more.outputs))
        smallest = min((check.error or 1.0 for check in wholes), default=1.0)
        noise = 64 * torch.finfo(self.own).eps
        if found.error > noise and found.error >= min(smallest, 1.0) / 4:
            self.comparable = False
            self.findings.note(_WHOLE)
            checks = self.findings.record.checks
            checks[:] = [check for check in checks if check not in wholes]

    # -- the end

    def _concluded(self) -> Verdict:
        findings, record = self.findings, self.findings.record
        for site in self.sites:
            findings.add(
                "site",
                site.failed_on or "all",
                error=site.error,
                bound=site.bound,
                where=f"{site.applied.id} {site.replacement.old}",
                message=site.failure,
            )
        for hike in self.hikes:
            for identifier, reason in hike.walk.not_compared.items():
                findings.note(f"{identifier} is compared in float64 alone: {reason}")
        record.forwards = self.runs.forwards
        record.unverified = unverified(self.sites)
        factor = 3 if self.own in (torch.float16, torch.bfloat16) else 4
        record.rule = (
            "sites: 1e-12 of the value's size in float64, and in the model's dtypes "
            f"{FACTOR} x the original's own error there; folded tensors: 0.5 ulp; whole: "
            "16 x E0 x eps64/eps in float64 on both sides, and in the model's dtype "
            f"{factor} x the largest error of three neutral runs"
        )
        failed = findings.failed
        record.ok = False if failed else (True if self.comparable else None)
        fill_record(self.passes, self.sites)
        blames = blames_of(
            self.passes,
            self.sites,
            programs=[hike.program for hike in self.hikes],
            whole_failed=findings.passes_failed,
            raised=self.raised,
        )
        return Verdict(not failed, record, blames)


def _has_nan(value: Any) -> bool:
    """Whether a probe was outside of what the model computes with."""
    return any(bool(torch.isnan(t).any()) for t in tensors_of(value) if t.is_floating_point())

"""Precision as a whole: the result in the model's dtype, against neutral runs of the original."""

import math
from collections.abc import Sequence
from functools import partial
from statistics import median

import torch
from torch.utils._pytree import tree_leaves

from fxpasses.core import Numerics, Program
from fxpasses.verify.compare import bit_equal, differences, worst
from fxpasses.verify.findings import Findings, where
from fxpasses.verify.meaning import rounding_bounds
from fxpasses.verify.neutral import SHARES, other_sums
from fxpasses.verify.probes import Probe, reseeded_probe
from fxpasses.verify.raised import ProgramError
from fxpasses.verify.runs import OUTPUTS, Run, Runs
from fxpasses.verify.trail import Key
from fxpasses.verify.whole import Comparison, distance, note_stop, outputs_error

ILL_CONDITIONED = 1e-4
"""A float32 model whose own error is above this can hardly be checked in float32."""

CLEAR = 16
"""An alarm that many times the bound's yardstick needs no second opinion."""

WORSE_THAN_AUTOCAST = 1.5


class Precision:
    """Judges one result in the model's own dtype."""

    def __init__(
        self,
        findings: Findings,
        runs: Runs,
        original: Program,
        optimised: Program,
        example: Probe,
        numerics: set[Numerics],
    ) -> None:
        self.findings = findings
        self.runs = runs
        self.original = original
        self.optimised = optimised
        self.example = example
        self.numerics = numerics
        self.eps = torch.finfo(runs.own_dtype).eps
        half = runs.own_dtype in (torch.float16, torch.bfloat16)
        self.factor = 3 if half else 4
        self.own_error = 0.0
        self.yardstick = self.eps
        """The error of the neutral runs at the outputs."""
        self._by_conditioning: dict[Key, float] = {}

    @property
    def is_fine(self) -> bool:
        """Whether the model's own dtype shows all but small faults."""
        is_wide = self.runs.own_dtype in (torch.float32, torch.float64)
        return is_wide and self.yardstick <= ILL_CONDITIONED

    def neutral_runs(self, probe: Probe | None = None, *, most: int = len(SHARES)) -> list[Run]:
        """The original with its sums in other orders."""
        probe, shares = probe or self.example, SHARES[:most]
        return [
            self.runs.own(self.original, probe, under=partial(other_sums, share))
            for share in shares
        ]

    def check(self, result: Run, reference: Run, neutral: Sequence[Run], truth: Run | None) -> None:
        """Judge the result of the example; `truth` is the original in float64."""
        if self.numerics <= {Numerics.EXACT}:
            self._check_exact(result, reference)
        if truth is None:
            self._check_without_truth(result, reference, neutral)
            return
        if reference.of_model:
            reference.trail.end(OUTPUTS, tree_leaves(reference.outputs))
        own = [distance(run, truth, rows=self.example.rows) for run in (reference, *neutral)]
        self._note_own_error(own)
        self.yardstick = self._yardstick(own[1:], OUTPUTS) or self.eps
        if Numerics.PRECISION in self.numerics:
            self._check_against_autocast(result, truth)
            return
        comparison = distance(result, truth, rows=self.example.rows)
        note_stop(self.findings, comparison)
        for key, found in comparison.found.items():
            yardstick = self._yardstick(own, key)
            if yardstick is None:
                self.findings.note(
                    f"at {where(key)} the original itself is no number in its own dtype: "
                    "compared in float64 alone"
                )
                continue
            bound = self.factor * yardstick
            if not found.error <= bound and not found.in_kind:
                bound = self._wider_bound(key, found.error, yardstick, truth)
            self.findings.judge("precision", self.example.name, key, found, bound, "relative error")

    def _wider_bound(self, key: Key, error: float, yardstick: float, truth: Run) -> float:
        """What is allowed after an alarm, which may be bad luck."""
        bound = self.factor * yardstick
        if self.runs.own_dtype is torch.float64:
            # The truth is no finer than the model: it says little about the model's own error.
            args = self.findings, self.runs, self.original, self.example, truth
            self._by_conditioning = self._by_conditioning or rounding_bounds(*args)
            return max(bound, self._by_conditioning.get(key, math.inf))
        is_luck = error < CLEAR * yardstick and self._second_opinion(key)
        return error if is_luck else bound

    def _check_exact(self, result: Run, reference: Run) -> None:
        found = bit_equal(result.outputs, reference.outputs)
        if found.error:
            # The model itself may take other kernels than its graph does.
            graph = self.runs.own(self.original, self.example)
            found = bit_equal(result.outputs, graph.outputs)
        place = "outputs" + found.where
        self.findings.add(
            "exact", self.example.name, error=found.error, where=place, message=found.message
        )

    def _yardstick(self, own: Sequence[Comparison], key: Key) -> float | None:
        """The largest error of the neutral runs at a place; None where they say nothing."""
        found = [run.found[key] for run in own if key in run.found]
        if not found or any(one.in_kind for one in found):
            return None
        return max(self.eps, *(one.error for one in found))

    def _note_own_error(self, own: Sequence[Comparison]) -> None:
        """E0: the original's own error, at its outputs or, where ops jump, on the way."""
        reached = [one.found.values() for one in own]
        fallback = max((d.error for ds in reached for d in ds if not d.in_kind), default=self.eps)
        error = outputs_error(own[0])
        self.own_error = fallback if error is None else error
        self.findings.record.own_error = self.own_error
        if self.runs.own_dtype is torch.float32 and self.own_error > ILL_CONDITIONED:
            self.findings.note(
                f"the model is ill-conditioned: its own rounding error is {self.own_error:.1e}, "
                "so the check in float32 is weak"
            )

    def check_capture(self, model: Run, reference: Run, truth: Run) -> None:
        """Whether the captured graph computes what the model itself made of the example.

        On the kernels of the model, what rounding decides the graph decides alike: `reference` is
        such a run, or the model's own, which is then compared with float64 first.
        """
        bound = 4 * CLEAR * self.yardstick
        graph = truth if reference is model else reference
        found = worst(differences(graph.outputs, model.outputs))
        if reference is model and not found.error <= bound:
            graph = self.runs.own(self.original, self.example)
            found = worst(differences(graph.outputs, model.outputs))
        reason = found.message or f"off by {found.error:.1e}"
        self.findings.add(
            "capture",
            self.example.name,
            error=found.error,
            bound=bound,
            where="outputs" + found.where,
            message=""
            if found.error <= bound
            else f"the captured graph is not the model: {reason}",
        )

    def _second_opinion(self, key: Key) -> bool:
        """Whether two more sets of inputs show that the first alarm was bad luck."""
        try:
            return self._is_bad_luck(key)
        except ProgramError:  # Inputs that one of the two does not take say nothing.
            return False

    def _is_bad_luck(self, key: Key) -> bool:
        ratios: list[float] = []
        for seed in (2, 3):
            probe = reseeded_probe(self.example, seed)
            truth = self.runs.wide(self.original, probe)
            runs = [self.runs.own(self.original, probe), *self.neutral_runs(probe)]
            yardstick = self._yardstick(
                [distance(run, truth, rows=probe.rows) for run in runs], key
            )
            result = self.runs.own(self.optimised, probe)
            found = distance(result, truth, rows=probe.rows).found.get(key)
            if yardstick is None or found is None:
                return False
            ratios.append(found.error / yardstick)
        # With the first alarm, the median of three is that of the smaller two's larger.
        return median([*ratios, float("inf")]) <= self.factor

    def _check_against_autocast(self, result: Run, truth: Run) -> None:
        """Lower precision by request: not much worse than torch's own way to lower it."""
        device = next(iter(self.original.root.parameters()), torch.empty(0)).device.type
        dtype = torch.float16 if device == "cuda" else torch.bfloat16
        run = self.runs.own(
            self.original, self.example, under=partial(torch.autocast, device, dtype)
        )
        theirs = distance(run, truth, rows=self.example.rows)
        ours = distance(result, truth, rows=self.example.rows)
        for key, found in ours.found.items():
            yardstick = theirs.found.get(key)
            if yardstick is None or yardstick.in_kind:
                continue
            bound = WORSE_THAN_AUTOCAST * max(yardstick.error, self.eps)
            self.findings.judge("precision", self.example.name, key, found, bound, "relative error")

    def _check_without_truth(self, result: Run, reference: Run, neutral: Sequence[Run]) -> None:
        """Without float64: no further from the reference than the neutral runs are."""
        spread = [worst(differences(run.outputs, reference.outputs)).error for run in neutral]
        bound = self.factor * max(8 * self.eps, *spread)
        found = worst(differences(result.outputs, reference.outputs, rows=self.example.rows))
        self.findings.judge("precision", self.example.name, OUTPUTS, found, bound, "difference")

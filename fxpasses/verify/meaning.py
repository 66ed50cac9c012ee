"""Meaning as a whole: original and result in float64."""

import math
from typing import Any

from torch.utils._pytree import tree_leaves

from fxpasses.capture.result.guards import GuardMiss
from fxpasses.core import Program
from fxpasses.verify.findings import Findings
from fxpasses.verify.probes import Probe
from fxpasses.verify.raised import ProgramError
from fxpasses.verify.runs import Run, Runs
from fxpasses.verify.trail import Key
from fxpasses.verify.walk import NOISE, ROUNDINGS
from fxpasses.verify.whole import distance, note_stop


def check_meaning(
    findings: Findings,
    runs: Runs,
    original: Program,
    probe: Probe,
    result: Run,
    truth: Run,
    bound: float,
) -> float:
    """Compare every place on the way, up to the first that rounding decides.

    Returns the bound, which is made wider where `probe` turns out to be worse conditioned than
    the example was.
    """
    comparison = distance(result, truth, rows=probe.rows)
    note_stop(findings, comparison)
    found, bounds = comparison.found, dict.fromkeys(comparison.found, bound)
    if any(not d.in_kind and d.error > bound for d in found.values()):
        widest = rounding_bounds(findings, runs, original, probe, truth)
        # Behind a decision that the least disturbance turns round nothing is judged.
        bounds = {key: max(bound, widest[key]) for key in found if key in widest}
    for key, one in bounds.items():
        findings.judge("meaning", probe.name, key, found[key], one, "relative error")
    return max(bounds.values(), default=bound)


def error_in_own_dtype(
    findings: Findings, runs: Runs, optimised: Program, probe: Probe, truth: Run, bound: float
) -> float:
    """How far a run of the result in the model's own dtype is from float64; noted if in `bound`.

    It costs a fraction of a run in float64, and is enough where every rewrite has been compared in
    float64 at its site. An error beyond `bound` settles nothing: a probe may be worse conditioned
    than the example that the bound comes from. Infinite where the run says nothing.
    """
    if truth.written or truth.trail.jumped or not _as_given(truth.arguments, probe):
        return math.inf  # What is written has to be compared, and what rounding decides.
    try:
        result = runs.own(optimised, probe)
    except (ProgramError, GuardMiss):
        return math.inf
    found = distance(result, truth, rows=probe.rows).found
    is_alike = not result.written and _as_given(result.arguments, probe)
    if not found or not is_alike or any(one.in_kind for one in found.values()):
        return math.inf
    error = max(one.error for one in found.values())
    if error <= bound:
        for key, one in found.items():
            findings.judge("precision", probe.name, key, one, bound, "relative error")
    return error


def _as_given(arguments: Any, probe: Probe) -> bool:
    pairs = zip(tree_leaves(arguments), tree_leaves((probe.args, dict(probe.kwargs))), strict=False)
    return all(left is given for left, given in pairs)


def rounding_bounds(
    findings: Findings, runs: Runs, original: Program, probe: Probe, truth: Run
) -> dict[Key, float]:
    """What rounding in float64 may do at each place, by how the original enlarges disturbances.

    Places that the least disturbance throws about are left out.
    """
    try:
        noisy = runs.wide(original, probe, noise=NOISE)
    except ProgramError:  # The disturbed values are outside of what an op takes.
        noisy = truth
    moved = distance(noisy, truth, rows=probe.rows)
    note_stop(findings, moved)
    return {
        key: ROUNDINGS * one.error / NOISE for key, one in moved.found.items() if not one.in_kind
    }

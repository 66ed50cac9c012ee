"""Meaning as a whole: original and result in float64."""

from fxpasses.core import Program
from fxpasses.verify.findings import Findings
from fxpasses.verify.probes import Probe
from fxpasses.verify.raised import ProgramError
from fxpasses.verify.runs import Run, Runs
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
        try:
            noisy = runs.wide(original, probe, noise=NOISE)
        except ProgramError:  # The disturbed values are outside of what an op takes.
            noisy = truth
        moved = distance(noisy, truth, rows=probe.rows)
        note_stop(findings, moved)
        for key in found:
            if key in moved.found and not moved.found[key].in_kind:
                amplified = moved.found[key].error / NOISE
                bounds[key] = max(bound, ROUNDINGS * amplified)
            else:
                # Behind a decision that the least disturbance turns round.
                del bounds[key]
    for key, widest in bounds.items():
        findings.judge("meaning", probe.name, key, found[key], widest, "relative error")
    return max(bounds.values(), default=bound)

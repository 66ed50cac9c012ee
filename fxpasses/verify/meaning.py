"""Meaning as a whole: original and result in float64."""

from fxpasses.core import Program
from fxpasses.verify.findings import Findings
from fxpasses.verify.probes import Probe
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
    over = any(not d.in_kind and d.error > bound for d in comparison.found.values())
    if over:
        noisy = runs.wide(original, probe, noise=NOISE)
        moved = distance(noisy, truth, rows=probe.rows)
        errors = [d.error for d in moved.found.values() if not d.in_kind]
        bound = max(bound, ROUNDINGS * max(errors, default=0.0) / NOISE)
    for key, found in comparison.found.items():
        findings.judge("meaning", probe.name, key, found, bound, "relative error")
    return bound

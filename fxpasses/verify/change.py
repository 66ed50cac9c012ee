"""A pass that changes the meaning by request: what it may change, and by how much it did."""

from fxpasses.verify.compare import differences, worst
from fxpasses.verify.findings import Findings
from fxpasses.verify.pieces import Change
from fxpasses.verify.probes import Probe
from fxpasses.verify.raised import ProgramError, typed
from fxpasses.verify.runs import Run, Runs
from fxpasses.verify.untouched import check_untouched
from fxpasses.verify.whole import check_form


def check_change(
    findings: Findings, runs: Runs, change: Change, example: Probe, before: Run | None
) -> tuple[Run | None, float | None]:
    """Check that nothing upstream of the rewrites was touched, and the form of the outputs.

    Returns the run of the changed program, and the relative L2 by which the outputs differ; None
    where it raises, and where they differ in more than numbers. `before` is the run of the program
    as the pass found it; without it that is run as well.
    """
    if not change.run.foreign:
        check_untouched(findings, change.before, change.after, change.run)
    with typed():
        old = before or runs.own(change.before, example)
    try:
        new = runs.own(change.after, example)
    except ProgramError as raised:
        findings.add("structure", example.name, message=f"the result raises {raised}")
        return None, None
    check_form(findings, new, old, example)
    found = worst(differences(new.outputs, old.outputs))
    return new, None if found.in_kind else found.error

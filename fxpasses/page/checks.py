"""What a report says of the verification."""

from collections.abc import Iterator, Sequence
from typing import Final

from fxpasses.core import Record
from fxpasses.core.record import CheckRecord, PieceRecord, VerificationRecord
from fxpasses.page.cut import cut, grouped, names
from fxpasses.page.numbers import count, small
from fxpasses.page.outline import Block, Column, Line, Row, Table, Tone

_NOTES_SHOWN: Final = 6
_COLUMNS: Final = (
    Column("check"),
    Column("passed", is_number=True),
    Column("worst error", is_number=True),
    Column("allowed", is_number=True),
)


def verification_of(record: Record, *, details: bool) -> Iterator[Block]:
    verification = record.verification
    yield _outcome(verification, dry_run=record.dry_run)
    if verification.rule and not record.dry_run:
        yield Line(verification.rule, tone=Tone.QUIET)
    if verification.own_error is not None:
        own = small(verification.own_error)
        yield Line(f"the original's own error against float64: {own}", tone=Tone.QUIET)
    if len(verification.pieces) > 1:
        yield from map(_piece, verification.pieces)
    groups = grouped((check.name, check) for check in verification.checks)
    if groups:
        yield Table(_COLUMNS, tuple(_row(*group) for group in groups.items())).used()
    yield from (_check(check) for check in verification.checks if details or not check.ok)
    yield from _unproved(verification, details=details)
    notes, _ = cut(verification.notes, _NOTES_SHOWN, details=details)
    yield from map(Line, notes)


def _outcome(verification: VerificationRecord, *, dry_run: bool) -> Line:
    if dry_run:
        return Line("no: a plan")
    if verification.level == "off":
        return Line("no: switched off", tone=Tone.NOTED)
    outcome, tone = {
        True: ("yes", Tone.GOOD),
        False: ("NO", Tone.BAD),
        None: ("no", Tone.NOTED),
    }[verification.ok]
    forwards = f", {count(verification.forwards, 'forward')}" if verification.forwards else ""
    return Line(f"{outcome} (level {verification.level}{forwards})", tone=tone)


def _piece(piece: PieceRecord) -> Line:
    passes = ", ".join(piece.passes) or "the capture"
    against = piece.against or "the original"
    if not piece.changes_meaning:
        outcome = {True: "verified", False: "WRONG", None: "not verified"}[piece.ok]
        return Line(f"{passes}: {outcome} against {against}")
    changed = f"the outputs differ from those of {against}"
    by = "" if piece.difference is None else f" by {small(piece.difference)}"
    return Line(f"{passes}: changes the meaning by request: {changed}{by}", tone=Tone.NOTED)


def _row(name: str, checks: Sequence[CheckRecord]) -> Row:
    passed = sum(check.ok for check in checks)
    measured = [check for check in checks if check.error is not None and check.bound is not None]
    worst = max(measured, key=_tightness, default=None)
    numbers = ("", "") if worst is None else (small(worst.error), small(worst.bound))
    failed = passed < len(checks)
    verdict = f"{passed} of {len(checks)}{' FAILED' if failed else ''}"
    return Row((name, verdict, *numbers), Tone.BAD if failed else Tone.PLAIN)


def _tightness(check: CheckRecord) -> float:
    error, bound = check.error or 0.0, check.bound or 0.0
    if bound == 0:
        return float("inf") if error else 0.0
    return error / bound


def _check(check: CheckRecord) -> Line:
    where = f" at {check.where}" if check.where else ""
    value = f" {small(check.error)} against {small(check.bound)}" if check.error is not None else ""
    state, tone = ("ok", Tone.QUIET) if check.ok else ("FAILED", Tone.BAD)
    message = f": {check.message}" if check.message else ""
    against = f" (against {check.against})" if check.against else ""
    said = f"{check.name} {state} on {check.probe or '-'}{where}{value}{message}{against}"
    return Line(said, tone=tone)


def _unproved(verification: VerificationRecord, *, details: bool) -> Iterator[Line]:
    if undone := verification.undone:
        yield Line(f"undone: {names(undone, details=details)}", tone=Tone.NOTED)
    if unverified := verification.unverified:
        reached = f"no probe reaches {count(len(unverified), 'rewrite')}"
        yield Line(f"{reached}: {names(unverified, details=details)}", tone=Tone.NOTED)

"""A record as plain text: one screen by default, everything with `details`."""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from textwrap import wrap
from typing import Any, TypeVar

from fxpasses.core import Record
from fxpasses.core.record import (
    CaptureRecord,
    CheckRecord,
    OpaqueRecord,
    PassRecord,
    PieceRecord,
    RefusalRecord,
    VerificationRecord,
)
from fxpasses.page.numbers import count, place, seconds, share, size, small

_LABEL = 11
_WIDTH = 120
_OPAQUE_SHOWN = 10
_REFUSALS_SHOWN = 4
_NAMES_SHOWN = 3
_NOTES_SHOWN = 6

Item = TypeVar("Item")


def as_text(record: Record, calls: Mapping[str, Any] | None, *, details: bool = False) -> str:
    """The sections of a report, top to bottom."""
    lines = [
        *_head(record),
        *_capture(record.capture, details=details),
        *_passes(record, details=details),
        *_verification(record, details=details),
        *_calls(calls),
        *_notes(record.notes, details=details),
    ]
    return "\n".join(lines)


def _section(label: str, lines: Sequence[str]) -> Iterator[str]:
    for number, line in enumerate(lines):
        indent = len(line) - len(line.lstrip())
        wrapped = wrap(
            line,
            _WIDTH - _LABEL,
            subsequent_indent=" " * (indent + 2),
            drop_whitespace=True,
            break_long_words=False,
            break_on_hyphens=False,
        )
        for part, text in enumerate(wrapped):
            first = label if number == part == 0 else ""
            yield f"{first:<{_LABEL}}{text}".rstrip()


def _head(record: Record) -> Iterator[str]:
    mode = "training" if record.training else "eval"
    target = f", target {record.target}" if record.target else ""
    plan = "  (a plan: nothing was changed)" if record.dry_run else ""
    yield f"{record.model}, {mode} mode{target}, torch {record.torch}{plan}"
    yield from _section("pipeline", [record.pipeline or "(no passes)"])
    nodes = f"{record.nodes_before:,} -> {record.nodes_after:,} nodes"
    yield from _section("result", [f"{nodes}, {size(record.bytes_rewritten)} of weights rewritten"])
    stages = ", ".join(f"{name} {seconds(value)}" for name, value in record.seconds.items())
    yield from _section("time", [stages or "not measured"])


def _capture(capture: CaptureRecord, *, details: bool) -> Iterator[str]:
    graphs = count(len(capture.graphs), "graph")
    covered = f"{share(capture.calls_covered)} of calls, {share(capture.flops_covered)} of FLOPs"
    how = f"example {capture.example}; sizes={capture.sizes}, {count(capture.guards, 'guard')}"
    lines = [f"{graphs}; covered: {covered}", f"{how}, {count(capture.traces, 'trace')}"]
    yield from _section("captured", lines)
    if details:
        named = [f"{path or '(the model)'}: {nodes}" for path, nodes in capture.graphs.items()]
        yield from _section("nodes of", named)
    yield from _section("opaque", list(_opaque(capture.opaque, details=details)) or ["none"])
    yield from _section("", capture.notes if details else capture.notes[:_NOTES_SHOWN])


def _opaque(leaves: Sequence[OpaqueRecord], *, details: bool) -> Iterator[str]:
    """Modules of one class that are opaque for one reason share a line."""
    groups: dict[tuple[str, str, str, str], list[str]] = defaultdict(list)
    for leaf in leaves:
        groups[leaf.type, leaf.kind, leaf.reason, place(leaf.source)].append(leaf.path)
    shown, rest = _cut(list(groups.items()), _OPAQUE_SHOWN, details=details)
    for (kind_of_module, kind, reason, line), paths in shown:
        names = _names([path or "(the model)" for path in paths], details=details)
        yield f"{names} ({kind_of_module}), {kind}: {reason} [{line}]"
    yield from _more(rest)


def _passes(record: Record, *, details: bool) -> Iterator[str]:
    for run in record.passes:
        yield from _section("pass" if run is record.passes[0] else "", [_one_pass(run)])
        if run.error:
            yield from _section("", [f"  {run.status}: {run.error}"])
        yield from _section("", [f"  {line}" for line in _refusals(run.refusals, details=details)])
        if details:
            yield from _section("", [f"  {line}" for line in _rewrites(run)])


def _one_pass(run: PassRecord) -> str:
    options = "".join(f" {name}={value!r}" for name, value in run.options.items())
    again = f" (round {run.round})" if run.round > 1 else ""
    folded = f", {size(run.bytes_folded)} folded" if run.bytes_folded else ""
    done = count(len(run.rewrites), "rewrite")
    left = f", {count(len(run.refusals), 'refusal')}" if run.refusals else ""
    nodes = f"{run.nodes_before:,} -> {run.nodes_after:,} nodes"
    facts = f"{done}{left}, {nodes}{folded}, {run.numerics}, {seconds(run.seconds)}"
    return f"{run.position} {run.name}{again}{options} {run.status}: {facts}"


def _rewrites(run: PassRecord) -> Iterator[str]:
    for rewrite in run.rewrites:
        checked = f"verified: {rewrite.verified}"
        if rewrite.error is not None:
            checked = f"{checked} {small(rewrite.error)} <= {small(rewrite.bound)}"
        yield f"{rewrite.id}: {rewrite.why} [{place(rewrite.source)}] {checked}"


def _refusals(refusals: Sequence[RefusalRecord], *, details: bool) -> Iterator[str]:
    """Grouped by reason, the most frequent first."""
    groups: dict[tuple[str, str], list[RefusalRecord]] = defaultdict(list)
    for refusal in refusals:
        groups[refusal.condition, refusal.reason].append(refusal)
    ranked = sorted(groups.items(), key=lambda group: -len(group[1]))
    shown, rest = _cut(ranked, _REFUSALS_SHOWN, details=details)
    for (condition, reason), members in shown:
        worth = " (right, but not worth it)" if members[0].legal else ""
        yield f"not at {count(len(members), 'site')}: {reason}{worth} [{condition}]"
        yield f"  {_places(members, details=details)}"
    yield from _more(rest, "reasons")


def _places(refusals: Sequence[RefusalRecord], *, details: bool) -> str:
    by_line: dict[str, list[str]] = defaultdict(list)
    for refusal in refusals:
        node = f"{refusal.path}/{refusal.node}" if refusal.path else refusal.node
        by_line[place(refusal.source)].append(node)
    shown, rest = _cut(list(by_line.items()), _NAMES_SHOWN, details=details)
    places = [f"{line}: {_names(nodes, details=details)}" for line, nodes in shown]
    return "; ".join([*places, *_more(rest)])


def _names(names: Sequence[str], *, details: bool) -> str:
    shown, rest = _cut(names, _NAMES_SHOWN, details=details)
    return ", ".join([*shown, *_more(rest)])


def _verification(record: Record, *, details: bool) -> Iterator[str]:
    verification = record.verification
    lines = [_outcome(verification, dry_run=record.dry_run)]
    if verification.own_error is not None:
        lines.append(f"the original's own error against float64: {small(verification.own_error)}")
    cut = len(verification.pieces) > 1
    lines += [_piece(piece) for piece in verification.pieces] if cut else []
    lines += [_check_group(name, checks) for name, checks in _by_name(verification).items()]
    bad = [check for check in verification.checks if details or not check.ok]
    lines += [f"  {_check(check)}" for check in bad]
    if undone := verification.undone:
        lines.append(f"undone: {_names(undone, details=details)}")
    if unverified := verification.unverified:
        names = _names(unverified, details=details)
        lines.append(f"no probe reaches {count(len(unverified), 'rewrite')}: {names}")
    notes, _ = _cut(verification.notes, _NOTES_SHOWN, details=details)
    yield from _section("verified", [*lines, *notes])


def _outcome(verification: VerificationRecord, *, dry_run: bool) -> str:
    if dry_run:
        return "no: a plan"
    if verification.level == "off":
        return "no: switched off"
    outcome = {True: "yes", False: "NO", None: "no"}[verification.ok]
    forwards = f", {count(verification.forwards, 'forward')}" if verification.forwards else ""
    rule = f": {verification.rule}" if verification.rule else ""
    return f"{outcome}{rule} (level {verification.level}{forwards})"


def _piece(piece: PieceRecord) -> str:
    names = ", ".join(piece.passes) or "the capture"
    against = piece.against or "the original"
    if not piece.changes_meaning:
        outcome = {True: "verified", False: "WRONG", None: "not verified"}[piece.ok]
        return f"{names}: {outcome} against {against}"
    changed = f"the outputs differ from those of {against}"
    if piece.difference is None:
        return f"{names}: changes the meaning by request: {changed}"
    return f"{names}: changes the meaning by request: {changed} by {small(piece.difference)}"


def _by_name(verification: VerificationRecord) -> dict[str, list[CheckRecord]]:
    groups: dict[str, list[CheckRecord]] = defaultdict(list)
    for check in verification.checks:
        groups[check.name].append(check)
    return groups


def _check_group(name: str, checks: Sequence[CheckRecord]) -> str:
    failed = sum(not check.ok for check in checks)
    verdict = (
        f"{failed} of {len(checks)} FAILED" if failed else f"{len(checks)} of {len(checks)} ok"
    )
    measured = [check for check in checks if check.error is not None and check.bound is not None]
    if not measured:
        return f"{name}: {verdict}"
    worst = max(measured, key=_tightness)
    return f"{name}: {verdict}, worst error {small(worst.error)} against {small(worst.bound)}"


def _tightness(check: CheckRecord) -> float:
    error, bound = check.error or 0.0, check.bound or 0.0
    if bound == 0:
        return float("inf") if error else 0.0
    return error / bound


def _check(check: CheckRecord) -> str:
    where = f" at {check.where}" if check.where else ""
    value = f" {small(check.error)} against {small(check.bound)}" if check.error is not None else ""
    state = "ok" if check.ok else "FAILED"
    message = f": {check.message}" if check.message else ""
    against = f" (against {check.against})" if check.against else ""
    return f"{check.name} {state} on {check.probe or '-'}{where}{value}{message}{against}"


def _calls(calls: Mapping[str, Any] | None) -> Iterator[str]:
    if calls is None:
        return
    own = f"{calls['fallback']:,} by the module's own code"
    lines = [f"{calls['graph']:,} by the graph, {own}"]
    lines += [f"  {number:,}: {reason}" for reason, number in calls.get("reasons", {}).items()]
    yield from _section("calls", lines)


def _notes(notes: Sequence[str], *, details: bool) -> Iterator[str]:
    shown, rest = _cut(notes, _NOTES_SHOWN, details=details)
    yield from _section("notes", [*shown, *_more(rest)])


def _cut(items: Sequence[Item], limit: int, *, details: bool) -> tuple[Sequence[Item], int]:
    """The items to show, and how many are left out."""
    if details or len(items) <= limit:
        return items, 0
    return items[:limit], len(items) - limit


def _more(rest: int, noun: str = "") -> list[str]:
    return [f"and {rest} more {noun}".rstrip()] if rest else []

"""What a report says of a record: one screen of it by default, everything with `details`."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from fxpasses.core import Record
from fxpasses.core.record import CaptureRecord, OpaqueRecord, PassRecord
from fxpasses.page.checks import verification_of
from fxpasses.page.cut import cut, grouped, more, names
from fxpasses.page.numbers import count, place, seconds, share, size, small
from fxpasses.page.outline import Block, Column, Line, Page, Row, Section, Table, Tone, advice
from fxpasses.page.refusals import refusals_of

_OPAQUE_SHOWN: Final = 8
_NOTES_SHOWN: Final = 6
_OPTIONS_WIDTH: Final = 40
_THE_MODEL: Final = "(the model)"
_TONES: Final = {
    "changed": Tone.PLAIN,
    "unchanged": Tone.QUIET,
    "failed": Tone.BAD,
    "undone": Tone.NOTED,
}


def page_of(record: Record, calls: Mapping[str, Any] | None, *, details: bool = False) -> Page:
    """The sections of a report, top to bottom."""
    sections = [
        Section("pipeline", (Line(record.pipeline or "(no passes)"),)),
        Section("result", (_result(record),)),
        Section("time", (_time(record),)),
        *capture_sections(record.capture, details=details),
        Section("passes", tuple(_passes(record.passes, details=details))),
        Section("refused", tuple(refusals_of(record.passes, details=details))),
        Section("verified", tuple(verification_of(record, details=details))),
        Section("calls", tuple(_calls(calls))),
        Section("notes", tuple(_notes(record.notes, details=details))),
    ]
    return Page.of(_title(record), sections)


def capture_sections(capture: CaptureRecord, *, details: bool = False) -> list[Section]:
    """What became a graph, and what did not."""
    return [
        Section("captured", tuple(_capture(capture, details=details))),
        Section("opaque", tuple(_opaque(capture.opaque, details=details))),
    ]


def _title(record: Record) -> str:
    mode = "training" if record.training else "eval"
    target = f", target {record.target}" if record.target else ""
    plan = "  (a plan: nothing was changed)" if record.dry_run else ""
    return f"{record.model}, {mode} mode{target}, torch {record.torch}{plan}"


def _result(record: Record) -> Line:
    nodes = f"{record.nodes_before:,} -> {record.nodes_after:,} nodes"
    return Line(f"{nodes}, {size(record.bytes_rewritten)} of weights rewritten")


def _time(record: Record) -> Line:
    stages = ", ".join(f"{name} {seconds(value)}" for name, value in record.seconds.items())
    return Line(stages or "not measured")


def _capture(capture: CaptureRecord, *, details: bool) -> Iterator[Line]:
    covered = f"{share(capture.calls_covered)} of calls, {share(capture.flops_covered)} of FLOPs"
    yield Line(f"{count(len(capture.graphs), 'graph')}; covered: {covered}")
    how = f"example {capture.example}; sizes={capture.sizes}, {count(capture.guards, 'guard')}"
    remedy = "pass example_inputs=(...): without an example, more of a model is opaque"
    lost = capture.example == "none" and bool(capture.opaque)
    yield Line(f"{how}, {count(capture.traces, 'trace')}", advice(remedy if lost else ""))
    if details:
        of = [f"{nodes} in {path or _THE_MODEL}" for path, nodes in capture.graphs.items()]
        yield Line(f"nodes: {', '.join(of)}")
    shown, rest = cut(capture.notes, _NOTES_SHOWN, details=details)
    yield from (Line(note.text, advice(note.remedy)) for note in shown)
    yield from map(Line, more(rest))


def _opaque(leaves: Sequence[OpaqueRecord], *, details: bool) -> Iterator[Line]:
    """Modules that are opaque for one kind of reason stand together, with what to do about it."""
    if not leaves:
        yield Line("none", tone=Tone.QUIET)
    kinds = grouped(((leaf.kind, leaf.remedy), leaf) for leaf in leaves)
    left = _OPAQUE_SHOWN
    for (kind, remedy), members in kinds.items():
        reasons = grouped(((one.type, one.reason, place(one.source)), one) for one in members)
        shown, rest = cut(list(reasons.items()), max(left, 1), details=details)
        left -= len(shown)
        modules = [
            Line(
                f"{names([leaf.path or _THE_MODEL for leaf in alike], details=details)} "
                f"({type_name}): {reason} [{line}]"
            )
            for (type_name, reason, line), alike in shown
        ]
        modules += map(Line, more(rest))
        kept = f"{kind}: {count(len(members), 'module')} run{'s' * (len(members) == 1)} as written"
        yield Line(kept, (*modules, *advice(remedy)), Tone.NOTED)


def _passes(passes: Sequence[PassRecord], *, details: bool) -> Iterator[Block]:
    """A round in which a pass changes nothing is not shown, nor what it refuses once more."""
    shown = [one for one in passes if details or one.round == 1 or one.status != "unchanged"]
    if shown:
        rows = tuple(_row(one, details=details) for one in shown)
        yield Table(_COLUMNS, rows).used()
    if rest := len(passes) - len(shown):
        yield Line(
            f"{count(rest, 'pass', 'passes')} changed nothing in later rounds", tone=Tone.QUIET
        )
    for one in passes:
        if one.error:
            said = f"{one.position} {one.name} {one.status}: {one.error}"
            yield Line(said, tone=_TONES.get(one.status, Tone.PLAIN))
    if details:
        yield from (Line(said) for one in passes for said in _rewrites(one))


_COLUMNS: Final = (
    Column("#", is_number=True),
    Column("pass"),
    Column("outcome"),
    Column("rewrites", is_number=True),
    Column("refused", is_number=True),
    Column("nodes", is_number=True),
    Column("folded", is_number=True, spared=1),
    Column("saved", is_number=True, spared=1),
    Column("numerics", spared=2),
    Column("time", is_number=True, spared=3),
)


def _row(run: PassRecord, *, details: bool) -> Row:
    options = "".join(f" {name}={value!r}" for name, value in run.options.items())
    if len(options) > _OPTIONS_WIDTH and not details:
        options = f"{options[:_OPTIONS_WIDTH]}..."
    again = f" (round {run.round})" if run.round > 1 else ""
    moved = run.nodes_after != run.nodes_before
    return Row(
        (
            str(run.position),
            f"{run.name}{again}{options}",
            run.status,
            f"{len(run.rewrites):,}",
            f"{len(run.refusals):,}" if run.refusals else "",
            f"{run.nodes_before:,} -> {run.nodes_after:,}" if moved else f"{run.nodes_before:,}",
            size(run.bytes_folded) if run.bytes_folded else "",
            "" if run.bytes_saved is None else size(run.bytes_saved),
            run.numerics,
            seconds(run.seconds),
        ),
        _TONES.get(run.status, Tone.PLAIN),
    )


def _rewrites(run: PassRecord) -> Iterator[str]:
    for rewrite in run.rewrites:
        checked = f"verified: {rewrite.verified}"
        if rewrite.error is not None:
            checked = f"{checked} {small(rewrite.error)} <= {small(rewrite.bound)}"
        yield f"{rewrite.id}: {rewrite.why} [{place(rewrite.source)}] {checked}"


def _calls(calls: Mapping[str, Any] | None) -> Iterator[Line]:
    if calls is None:
        return
    own = f"{calls['fallback']:,} by the module's own code"
    reasons = calls.get("reasons", {}).items()
    below = tuple(Line(f"{number:,}: {reason}") for reason, number in reasons)
    yield Line(f"{calls['graph']:,} by the graph, {own}", below)


def _notes(notes: Sequence[str], *, details: bool) -> Iterator[Line]:
    shown, rest = cut(notes, _NOTES_SHOWN, details=details)
    yield from map(Line, [*shown, *more(rest)])

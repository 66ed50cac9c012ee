"""What the record of a result says of single nodes."""

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from fxpasses.core.described import full_name
from fxpasses.core.record import META, PassRecord, Record, RewriteRecord

_REWRITE_ID: Final = re.compile(r"\d+:[^@]+@(?P<name>.*?)(#\d+)?")
_UNDONE: Final = "undone: "

Notes = Mapping[str, tuple[str, ...]]
"""What is said of nodes, by their full names."""


@dataclass(frozen=True, slots=True)
class Findings:
    """By full names of nodes, before or after, as passes and verifier knew them."""

    refused: Notes = field(default_factory=dict[str, tuple[str, ...]])
    """Why a pass left a node as it is."""
    failed: Notes = field(default_factory=dict[str, tuple[str, ...]])
    """Why a rewrite of a node was undone."""
    rewritten: Notes = field(default_factory=dict[str, tuple[str, ...]])
    """Which rewrites replaced, erased or made a node, and why."""
    errors: Mapping[str, float] = field(default_factory=dict[str, float])
    """The error of the rewrite that made a node, where it was verified at its site."""
    bound: float | None = None
    """The most that such an error may be."""


def findings_of(meta: Mapping[str, Any]) -> Findings:
    """What is known of the nodes of a result, given its `meta`; nothing of any other graph."""
    data = meta.get(META)
    if not isinstance(data, dict):
        return Findings()
    record = Record.from_dict(data)
    rewrites = [rewrite for one in record.passes for rewrite in one.rewrites]
    errors = {name: error for one in rewrites for name, error in _errors(one)}
    bounds = [one.bound for one in rewrites if one.bound is not None]
    return Findings(
        refused=_collected(_refusals(record.passes)),
        failed=_collected(_undone(record)),
        rewritten=_collected(_told(record.passes)),
        errors=errors,
        bound=max(bounds, default=None),
    )


def _refusals(passes: Iterable[PassRecord]) -> Iterator[tuple[str, str]]:
    """Of the last round of each pass: what it refused before, it has been asked again."""
    last = {one.position: one for one in passes}
    for one in last.values():
        for refusal in one.refusals:
            worth = "; right, but not worth it" if refusal.legal else ""
            told = f"{one.name}: {refusal.reason} [{refusal.condition}{worth}]"
            yield full_name(refusal.path, refusal.node), told


def _told(passes: Iterable[PassRecord]) -> Iterator[tuple[str, str]]:
    for one in passes:
        for rewrite in one.rewrites:
            names = dict.fromkeys((*rewrite.replaced, *rewrite.created, *rewrite.erased))
            for name in names:
                yield full_name(rewrite.path, name), f"{one.name}: {rewrite.why} [{rewrite.id}]"


def _undone(record: Record) -> Iterator[tuple[str, str]]:
    """Each rewrite that was undone, with what was said of it."""
    said = [note.removeprefix(_UNDONE) for note in record.notes if note.startswith(_UNDONE)]
    for identifier in record.verification.undone:
        found = _REWRITE_ID.fullmatch(identifier)
        if found:
            # A blame reads `PASS in ID at NODE (SOURCE): WHAT IS WRONG`.
            about = [note.partition(f" in {identifier} at ")[2] for note in said]
            wrong = "; ".join(text.partition(": ")[2] for text in about if text)
            yield (
                found["name"].removeprefix("/"),
                f"{wrong or 'found wrong'} [undone: {identifier}]",
            )


def _errors(rewrite: RewriteRecord) -> Iterator[tuple[str, float]]:
    if rewrite.error is not None:
        for name in rewrite.created:
            yield full_name(rewrite.path, name), rewrite.error


def _collected(pairs: Iterable[tuple[str, str]]) -> Notes:
    found: defaultdict[str, dict[str, None]] = defaultdict(dict)
    for name, text in pairs:
        found[name][text] = None
    return {name: tuple(texts) for name, texts in found.items()}

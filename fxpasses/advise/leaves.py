"""Modules that run their own code."""

from collections.abc import Iterator

from fxpasses.advise.advice import Finding, Kind
from fxpasses.advise.subject import Subject
from fxpasses.capture import OpaqueKind


def opaque_leaves(subject: Subject) -> Iterator[Finding]:
    for leaf in subject.captured.opaque:
        kind = Kind.BRANCH if leaf.kind is OpaqueKind.CONTROL_FLOW else Kind.OPAQUE
        source = None if leaf.source is None else str(leaf.source)
        message = leaf.reason if kind is Kind.BRANCH else f"{leaf.kind}: {leaf.reason}"
        yield Finding(kind, leaf.path, "", message, source, leaf.remedy)

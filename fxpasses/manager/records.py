"""What passes did, as the plain data of a record."""

from collections.abc import Iterable, Mapping, Sequence

from fxpasses.core import Applied, Refusal
from fxpasses.core.record import RefusalRecord, RewriteRecord


def rewrite_records(applied: Mapping[str, Sequence[Applied]]) -> list[RewriteRecord]:
    """The rewrites of all graphs, by the path of their graph."""
    return [
        RewriteRecord(
            id=one.id,
            path=path,
            node=one.node,
            why=one.why,
            source=one.source,
            replaced=list(dict.fromkeys([*(r.old for r in one.replacements), *one.absorbed])),
            created=list(one.created),
            erased=list(one.erased),
        )
        for path, rewrites in applied.items()
        for one in rewrites
    ]


def refusal_records(refusals: Iterable[Refusal]) -> list[RefusalRecord]:
    return [
        RefusalRecord(
            path=refusal.path,
            node=refusal.node,
            condition=refusal.condition,
            reason=refusal.reason,
            legal=refusal.legal,
            source=refusal.source,
            remedy=refusal.remedy,
        )
        for refusal in refusals
    ]

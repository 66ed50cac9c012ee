"""What a report says of the sites that passes left as they are."""

from collections.abc import Iterator, Sequence
from typing import Final

from fxpasses.core.record import PassRecord, RefusalRecord
from fxpasses.page.cut import NAMES_SHOWN, cut, grouped, more, names
from fxpasses.page.numbers import count, place
from fxpasses.page.outline import Line, Tone, advice

_REASONS_SHOWN: Final = 6


def refusals_of(passes: Sequence[PassRecord], *, details: bool) -> Iterator[Line]:
    """Grouped by pass and reason, the most frequent first, each with what to do about it."""
    groups = grouped(
        ((one.name, refusal.condition, refusal.reason), refusal)
        for one in _last_rounds(passes)
        for refusal in one.refusals
    )
    ranked = sorted(groups.items(), key=lambda group: -len(group[1]))
    shown, rest = cut(ranked, _REASONS_SHOWN, details=details)
    for (pass_name, condition, reason), members in shown:
        worth = " (right, but not worth it)" if members[0].legal else ""
        sites = f"{pass_name}, {count(len(members), 'site')}"
        below = (Line(_places(members, details=details)), *advice(members[0].remedy))
        yield Line(f"{sites}: {reason}{worth} [{condition}]", below, Tone.NOTED)
    yield from (Line(text, tone=Tone.QUIET) for text in more(rest, "reasons"))


def _last_rounds(passes: Sequence[PassRecord]) -> Sequence[PassRecord]:
    """What a pass refused in an earlier round, it has been asked again."""
    last = {one.position: one.round for one in passes}
    return [one for one in passes if one.round == last[one.position]]


def _places(refusals: Sequence[RefusalRecord], *, details: bool) -> str:
    by_line = grouped((place(refusal.source), _node(refusal)) for refusal in refusals)
    shown, rest = cut(list(by_line.items()), NAMES_SHOWN, details=details)
    places = [f"{line}: {names(nodes, details=details)}" for line, nodes in shown]
    return "; ".join([*places, *more(rest)])


def _node(refusal: RefusalRecord) -> str:
    return f"{refusal.path}/{refusal.node}" if refusal.path else refusal.node or "(the model)"

"""What a registry holds: passes, pipelines, declared effects, and what is broken."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

from fxpasses.core.given import flag
from fxpasses.page.outline import Column, Line, Page, Row, Section, Table, Tone
from fxpasses.page.shown import Shown
from fxpasses.registry import Listing
from fxpasses.registry.listing import ListedPass, ListedPipeline

_PASSES: Final = tuple(map(Column, ("name", "numerics", "does", "options", "from")))
_PIPELINES: Final = tuple(map(Column, ("name", "does", "is", "from")))


@dataclass(frozen=True, slots=True)
class ListingReport(Shown):
    """The listing of a registry, to be read."""

    listing: Listing
    details: bool = False
    """Whether everything is shown, where a method is not told."""

    def page(self, *, details: bool | None = None) -> Page:
        shown = self.details if details is None else flag(details, "details")
        listing = self.listing
        passes = tuple(_pass(one) for one in listing.passes)
        pipelines = tuple(_pipeline(one) for one in listing.pipelines)
        sections = [
            Section("passes", (Table(_PASSES, passes).used(),) if passes else ()),
            Section("pipelines", (Table(_PIPELINES, pipelines).used(),) if pipelines else ()),
            Section("more", tuple(_more(listing)) if shown else ()),
            Section("effects", tuple(_effects(listing)) if shown else ()),
            Section("broken", tuple(_broken(listing))),
        ]
        return Page.of("Passes and pipelines by name", sections)

    def to_json(self) -> str:
        return json.dumps(self.listing.to_dict(), indent=2)


def _pass(one: ListedPass) -> Row:
    options = (f"{o.name}={o.default or f'({o.takes})'}" for o in one.options)
    tone = Tone.BAD if one.problem else Tone.PLAIN
    return Row((one.name, one.numerics, one.summary, ", ".join(options), one.origin), tone)


def _pipeline(one: ListedPipeline) -> Row:
    tone = Tone.BAD if one.problem else Tone.PLAIN
    return Row((one.name, one.summary, one.text, one.origin), tone)


def _more(listing: Listing) -> Iterator[Line]:
    """What a table has no room for."""
    for one in listing.passes:
        facts = [f"at {one.location}"]
        facts += ["its result can be trained"] if one.trains else []
        facts += [f"runs after {', '.join(one.runs_after)}"] if one.runs_after else []
        options = tuple(Line(f"{o.name} takes {o.takes}") for o in one.options)
        yield Line(f"{one.name}: {', '.join(facts)}", options)


def _effects(listing: Listing) -> Iterator[Line]:
    for entry in listing.effects:
        yield Line(f"{entry.name}: {_words(entry.effect)}, says {entry.origin}")


def _words(effect: Any) -> str:
    return effect if isinstance(effect, str) else f"writes {', '.join(effect) or 'nothing'}"


def _broken(listing: Listing) -> Iterator[Line]:
    """Each in one line: a pass, a pipeline, a plugin, a name that two sides claim."""
    named = (*listing.passes, *listing.pipelines)
    reasons = [f"{one.name}: {one.problem}" for one in named if one.problem]
    for reason in (*reasons, *map(str, listing.problems)):
        yield Line(reason, tone=Tone.BAD)

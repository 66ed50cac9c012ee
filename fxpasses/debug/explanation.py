"""What is known of every place that passes looked at, as data and as a page."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from enum import StrEnum, auto
from typing import Any, Final

from fxpasses.core.described import full_name
from fxpasses.core.given import flag
from fxpasses.debug.nodes import NodeFacts
from fxpasses.page.cut import cut, grouped, more, names
from fxpasses.page.numbers import count, place
from fxpasses.page.outline import Line, Page, Section, Tone, advice
from fxpasses.page.shown import Shown

VERSION: Final = 1
_SITES_SHOWN: Final = 8


class Outcome(StrEnum):
    """What became of a site."""

    REWRITTEN = auto()
    REFUSED = auto()
    """A condition does not hold."""
    LEFT_OUT = auto()
    """Its rewrite was not to happen, by `skip` or `only`."""
    ADMITTED = auto()
    """The conditions that were asked hold, and the pass did nothing at that place alone."""


_TONES: Final[Mapping[Outcome, Tone]] = {
    Outcome.REWRITTEN: Tone.GOOD,
    Outcome.REFUSED: Tone.NOTED,
    Outcome.LEFT_OUT: Tone.QUIET,
    Outcome.ADMITTED: Tone.PLAIN,
}


@dataclass(frozen=True, slots=True)
class Answer:
    """What one condition says of a site."""

    condition: str
    holds: bool | None
    """None: it cannot be told, since it rests on another condition that does not hold."""
    reason: str = ""
    """Why it does not hold."""
    about_cost: bool = False
    """Whether without it the result would be right, only slower or bigger."""
    remedy: str = ""


@dataclass(frozen=True, slots=True)
class Site:
    """A place where a pass found its pattern."""

    pass_name: str
    position: int
    round: int
    path: str
    """The module whose graph it is in; "" is the whole model."""
    node: str
    nodes: tuple[str, ...]
    """All that belong to the place, as far as the pass tells."""
    outcome: Outcome = Outcome.ADMITTED
    answers: tuple[Answer, ...] = ()
    why: str = ""
    """What the rewrite gains, or the reason against it."""
    rewrite: str = ""
    """Its id; "" where none was proposed."""
    source: str | None = None

    @property
    def failed(self) -> tuple[Answer, ...]:
        return tuple(answer for answer in self.answers if answer.holds is False)


@dataclass(frozen=True, slots=True)
class NearMiss:
    """A place where a pass found some of its pattern."""

    pass_name: str
    path: str
    node: str
    matched: tuple[str, ...]
    """What was as the pattern has it: `bn1 is a BatchNorm`."""
    missing: str
    """What was not: `relu is no Conv or Linear, it computes relu`."""
    nodes: tuple[str, ...]
    source: str | None = None


@dataclass(frozen=True, slots=True)
class Explanation(Shown):
    """What passes made of a model, or of one node of it."""

    model: str
    pipeline: str
    passes: tuple[str, ...]
    """The passes that are explained."""
    node: NodeFacts | None
    """The node that is explained; None: all of them."""
    sites: tuple[Site, ...]
    near: tuple[NearMiss, ...]
    notes: tuple[str, ...] = ()
    details: bool = field(default=False, kw_only=True)
    """Whether everything is shown, where a method is not told."""

    def of(self, pass_name: str) -> tuple[Site, ...]:
        """The sites of one pass."""
        return tuple(site for site in self.sites if site.pass_name == pass_name)

    def to_dict(self) -> dict[str, Any]:
        """Plain data; `version` tells its form."""
        data = asdict(self)
        del data["details"]
        return {"version": VERSION, **data}

    def to_json(self, *, indent: int | None = 2) -> str:
        return json.dumps(self.to_dict(), indent=indent)

    def page(self, *, details: bool | None = None) -> Page:
        everything = self.details if details is None else flag(details, "details")
        about = "" if self.node is None else f", node {full_name(self.node.path, self.node.name)}"
        sections = [
            Section("node", () if self.node is None else tuple(_node(self.node))),
            Section("passes", tuple(self._of_passes(details=everything))),
            Section("notes", tuple(map(Line, self._notes()))),
        ]
        return Page.of(f"{self.model}: what {self.pipeline or 'no pass'} saw{about}", sections)

    def _of_passes(self, *, details: bool) -> Iterator[Line]:
        of_one = self.node is not None
        for name in self.passes:
            sites = sorted(self.of(name), key=lambda site: site.outcome is not Outcome.REFUSED)
            shown, rest = cut(sites, _SITES_SHOWN, details=details)
            near = [miss for miss in self.near if miss.pass_name == name]
            missed, missed_rest = cut(near, _SITES_SHOWN, details=details)
            below = [_site(site, details=details or of_one) for site in shown]
            below += [Line(text, tone=Tone.QUIET) for text in more(rest, "sites")]
            below += [_near(miss) for miss in missed]
            below += [Line(text, tone=Tone.QUIET) for text in more(missed_rest, "near misses")]
            if below:
                yield Line(name, tuple(below))

    def _notes(self) -> Iterator[str]:
        told = {one.pass_name for one in (*self.sites, *self.near)}
        if silent := [name for name in self.passes if name not in told]:
            yield f"found nothing of what they look for here: {', '.join(silent)}"
        yield from self.notes


def _node(node: NodeFacts) -> Iterator[Line]:
    value = f", {node.value}" if node.value else ""
    yield Line(f"{full_name(node.path, node.name)} computes {node.computes}{value}")
    yield Line(f"{node.module or '(the model)'} [{place(node.source)}]")
    yield Line(f"reads {', '.join(node.operands) or 'nothing'}")
    readers = f", {len(node.readers)} nodes" if len(node.readers) > 1 else ""
    yield Line(f"read by {', '.join(node.readers) or 'nothing'}{readers}")
    yield from (Line(f"became {heir}") for heir in node.became)


def _site(site: Site, *, details: bool) -> Line:
    again = f" in round {site.round}" if site.round > 1 else ""
    others = [name for name in site.nodes if name != site.node]
    along = f" with {names(others, details=details)}" if others else ""
    what = f"{full_name(site.path, site.node)}{along}: {_outcome(site)}{again}"
    where = "" if site.source is None else f" [{place(site.source)}]"
    below = tuple(_answers(site.answers, details=details))
    return Line(f"{what}{where}", below, _TONES[site.outcome])


def _outcome(site: Site) -> str:
    match site.outcome:
        case Outcome.REWRITTEN:
            return f"rewritten, {site.why} ({site.rewrite})"
        case Outcome.LEFT_OUT:
            return f"left out as asked for ({site.rewrite})"
        case Outcome.REFUSED:
            return f"refused, {site.why}"
        case Outcome.ADMITTED:
            return "admitted, and nothing was done at it alone"


def _answers(answers: Sequence[Answer], *, details: bool) -> Iterator[Line]:
    by_answer = grouped((answer.holds, answer) for answer in answers)
    for answer in by_answer.get(False, []):
        worth = " (right, but not worth it)" if answer.about_cost else ""
        text = f"does not hold: {answer.condition}: {answer.reason}{worth}"
        yield Line(text, advice(answer.remedy), Tone.NOTED)
    held, unknown = by_answer.get(True, []), by_answer.get(None, [])
    if held:
        listed = ", ".join(answer.condition for answer in held)
        text = f"holds: {listed}" if details else f"{count(len(held), 'condition')} met"
        yield Line(text, tone=Tone.QUIET)
    if unknown and details:
        listed = ", ".join(answer.condition for answer in unknown)
        yield Line(f"cannot be told then: {listed}", tone=Tone.QUIET)


def _near(miss: NearMiss) -> Line:
    matched = ", ".join(miss.matched)
    where = "" if miss.source is None else f" [{place(miss.source)}]"
    return Line(f"near miss at {full_name(miss.path, miss.node)}: {matched}; {miss.missing}{where}")

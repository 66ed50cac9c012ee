"""What was found, as data and as a page."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from enum import StrEnum, auto
from typing import Any, Final

from fxpasses.core.given import flag
from fxpasses.page.cut import cut, grouped, more
from fxpasses.page.numbers import count, place
from fxpasses.page.outline import Line, Page, Section, Tone, advice
from fxpasses.page.shown import Shown

VERSION: Final = 1
_PLACES_SHOWN: Final = 5


class Kind(StrEnum):
    """What costs speed."""

    SYNC = auto()
    """The host waits for the device."""
    COPY = auto()
    """Something is copied to the device in every call."""
    BRANCH = auto()
    """Python decides on data."""
    OPAQUE = auto()
    """A module runs its own code, so that no pass sees it."""
    CHANNELS = auto()
    """Channels that do not fill the units that compute them."""
    FLOAT64 = auto()
    """Computed in double precision."""
    BIAS_BEFORE_NORM = auto()
    """A bias that the norm behind it takes away again."""
    LARGE_CONSTANT = auto()
    """Much memory for what never changes."""
    LAYOUT = auto()
    """Channels-last is lost between convolutions."""


TITLES: Final[Mapping[Kind, str]] = {
    Kind.SYNC: "the host waits for the device",
    Kind.COPY: "copied to the device in every call",
    Kind.BRANCH: "Python decides on data, which waits for the device and ends the graph",
    Kind.OPAQUE: "runs as written: no pass sees it",
    Kind.CHANNELS: "channels that are no multiple of 8 leave tensor cores and vectors half empty",
    Kind.FLOAT64: "computed in double precision, at a fraction of the speed",
    Kind.BIAS_BEFORE_NORM: "a bias that the batch norm behind it takes away again",
    Kind.LARGE_CONSTANT: "much memory for what is the same in every call",
    Kind.LAYOUT: "channels-last is lost between convolutions, which then copy",
}


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that costs speed, where it is, and what to do about it."""

    kind: Kind
    path: str
    """The module; "" is the model itself."""
    node: str
    """The node in its graph; "" where it is in code that is in no graph."""
    message: str
    source: str | None
    """`file:line` of the model's code."""
    remedy: str


@dataclass(frozen=True, slots=True)
class Advice(Shown):
    """Findings, the costliest kinds first. Its text is one screen."""

    model: str
    example: str
    """`given`, `inferred: 1x3x224x224:float32`, or `none`."""
    findings: tuple[Finding, ...]
    notes: tuple[str, ...] = ()
    details: bool = field(default=False, kw_only=True)
    """Whether everything is shown, where a method is not told."""

    def __iter__(self) -> Iterator[Finding]:
        return iter(self.findings)

    def __len__(self) -> int:
        return len(self.findings)

    def of(self, kind: Kind | str) -> tuple[Finding, ...]:
        """The findings of one kind."""
        return tuple(finding for finding in self.findings if finding.kind == kind)

    def to_dict(self) -> dict[str, Any]:
        """Plain data; `version` tells its form."""
        return {
            "version": VERSION,
            "model": self.model,
            "example": self.example,
            "findings": [{**asdict(one), "kind": str(one.kind)} for one in self.findings],
            "notes": list(self.notes),
        }

    def to_json(self, *, indent: int | None = 2) -> str:
        return json.dumps(self.to_dict(), indent=indent)

    def page(self, *, details: bool | None = None) -> Page:
        everything = self.details if details is None else flag(details, "details")
        found = count(len(self.findings), "finding")
        kinds = grouped((finding.kind, finding) for finding in self.findings)
        sections = [
            Section(_label(kind), tuple(_of_kind(kind, members, details=everything)))
            for kind, members in kinds.items()
        ]
        notes = Section("notes", tuple(map(Line, self.notes)))
        return Page.of(f"{self.model}: {found}, example {self.example}", [*sections, notes])


def _label(kind: Kind) -> str:
    return kind.split("_", maxsplit=1)[0]


def _of_kind(kind: Kind, findings: Sequence[Finding], *, details: bool) -> Iterator[Line]:
    """Findings that have one remedy stand together."""
    yield Line(f"{TITLES[kind]} ({len(findings)})", tone=Tone.NOTED)
    for remedy, members in grouped((one.remedy, one) for one in findings).items():
        shown, rest = cut(members, _PLACES_SHOWN, details=details)
        for number, one in enumerate(shown):
            last = number == len(shown) - 1 and not rest
            yield Line(_told(one), advice(remedy) if last else ())
        for text in more(rest):
            yield Line(text, advice(remedy))


def _told(finding: Finding) -> str:
    where = finding.path or "(the model)"
    return f"{where}: {finding.message} [{place(finding.source)}]"

"""The report on a capture alone."""

import json
from dataclasses import asdict, dataclass

from fxpasses.core.given import flag
from fxpasses.core.record import CaptureRecord
from fxpasses.page.contents import capture_sections
from fxpasses.page.outline import Page
from fxpasses.page.shown import Shown


@dataclass(frozen=True, slots=True)
class CaptureReport(Shown):
    """How much of a model became graphs, and what runs its own code."""

    title: str
    record: CaptureRecord
    details: bool = False
    """Whether everything is shown, where a method is not told."""

    def page(self, *, details: bool | None = None) -> Page:
        shown = self.details if details is None else flag(details, "details")
        return Page.of(self.title, capture_sections(self.record, details=shown))

    def to_json(self) -> str:
        return json.dumps({"model": self.title, **asdict(self.record)}, indent=2, default=str)

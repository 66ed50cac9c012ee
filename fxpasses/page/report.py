"""The report on a result, and the plan of a run that is not made."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import nn

from fxpasses import session
from fxpasses.capture import CapturedModule, calls_of, entry_of
from fxpasses.core import History, Record
from fxpasses.core.given import flag
from fxpasses.core.record import META
from fxpasses.errors import ResultError
from fxpasses.page.contents import page_of
from fxpasses.page.outline import Page
from fxpasses.page.shown import Shown
from fxpasses.registry import Registry


@dataclass(frozen=True, slots=True)
class Report(Shown):
    """What was done, refused, checked and timed. `str()` of it is one screen."""

    record: Record
    calls: Mapping[str, Any] | None = None
    """Calls of the result so far: `graph`, `fallback`, and `reasons` of the latter."""
    details: bool = False
    """Whether everything is shown, where a method is not told."""
    stages: History | None = field(default=None, repr=False, compare=False)
    """See `history`."""

    @property
    def history(self) -> History:
        """The graphs as every pass left them.

        Raises:
            ResultError: they were not kept, or the result is a copy.
        """
        if self.stages is None:
            raise ResultError(
                "no history was kept: pass history=True to fxpasses.run. Pickles and deep copies "
                "of a result are without"
            )
        return self.stages

    @property
    def dry_run(self) -> bool:
        return self.record.dry_run

    def page(self, *, details: bool | None = None) -> Page:
        shown = self.details if details is None else flag(details, "details")
        return page_of(self.record, self.calls, details=shown)

    def to_dict(self) -> dict[str, Any]:
        """Plain data; `version` tells its form."""
        calls = None if self.calls is None else dict(self.calls)
        return {**self.record.as_dict(), "calls": calls}

    def to_json(self, *, indent: int | None = 2) -> str:
        return json.dumps(self.to_dict(), indent=indent, default=str)


def report(result: nn.Module, *, details: bool = False) -> Report:
    """The report on what `run` returned, with its calls so far.

    Raises:
        ArgumentError: `details` is neither True nor False.
        ResultError: `result` carries no record of a run, or one of another version.
    """
    meta = getattr(result, "meta", None)
    if not isinstance(meta, dict) or META not in meta:
        kind = type(result).__name__
        raise ResultError(f"a report needs a result of fxpasses.run; this {kind} has no record")
    try:
        record = Record.from_dict(meta[META])
    except ValueError as error:
        raise ResultError(f"the result's record cannot be read: {error}") from error
    flag(details, "details")
    if not isinstance(result, CapturedModule):
        return Report(record, None, details)
    return Report(record, calls_of(result), details, entry_of(result).history)


def plan(  # noqa: PLR0913  the options of `run` that a plan can have
    model: nn.Module,
    passes: Any,
    example_inputs: Any = None,
    example_kwargs: Any = None,
    *,
    target: str | None = None,
    training: bool | None = None,
    registry: Registry | None = None,
    skip: Iterable[str] = (),
    only: Iterable[str] | None = None,
) -> Report:
    """What `run` would rewrite and what it would refuse. Nothing is changed or verified."""
    record = session.plan(
        model,
        passes,
        example_inputs,
        example_kwargs,
        target=target,
        training=training,
        registry=registry,
        skip=skip,
        only=only,
    )
    return Report(record)

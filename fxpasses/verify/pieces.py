"""A pipeline in pieces: what is compared with what, where a pass changes more than roundings.

A pass that changes the meaning by request cuts the pipeline: what comes before it is compared with
the original, and what comes after it with the program as that pass left it. A foreign pass may
have moved any value on the way, though not the outputs: rewrites that come after it are compared
with the program as it left it, and the whole still with what the whole was before.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from fxpasses.core import Numerics, Program
from fxpasses.core.record import PassRecord
from fxpasses.verify.sites import PassRun


@dataclass(frozen=True, slots=True, eq=False)
class Cut:
    """The program around one pass, which has changed it in a way that no site can tell."""

    record: PassRecord
    before: Program | None
    """As the pass found it; needed where the pass changes the meaning."""
    after: Program
    """As it left it, every node standing for itself."""


@dataclass(frozen=True, slots=True, eq=False)
class Section:
    """Passes whose rewrites are compared, at their sites, with one program."""

    reference: Program
    passes: list[PassRun]


@dataclass(frozen=True, slots=True, eq=False)
class Piece:
    """Passes after which the program must compute what it computed before the first of them."""

    sections: list[Section]
    result: Program

    @property
    def start(self) -> Program:
        return self.sections[0].reference

    @property
    def passes(self) -> list[PassRun]:
        return [one for section in self.sections for one in section.passes]


@dataclass(frozen=True, slots=True, eq=False)
class Change:
    """A pass that changed the meaning by request."""

    run: PassRun
    before: Program
    after: Program

    @property
    def passes(self) -> list[PassRun]:
        return [self.run]


def pieces(
    original: Program, optimised: Program, runs: Sequence[PassRun], cuts: Sequence[Cut]
) -> list[Piece | Change]:
    """The pieces of a pipeline in order; the first may have no pass and then tells of the capture.

    Raises:
        ValueError: a pass has changed the meaning, and no cut was kept of it.
    """
    known = {id(cut.record): cut for cut in cuts}
    sections = [Section(original, [])]
    found: list[Piece | Change] = []
    for run in runs:
        cut = known.get(id(run.record))
        if run.numerics is Numerics.MEANING and run.record.status == "changed":
            if cut is None or cut.before is None:
                raise ValueError(f"{run.record.name} changes the meaning, and no cut was kept")
            found += [Piece(sections, cut.before), Change(run, cut.before, cut.after)]
            sections = [Section(cut.after, [])]
            continue
        sections[-1].passes.append(run)
        if cut is not None:
            sections.append(Section(cut.after, []))
    found.append(Piece(sections, optimised))
    return [one for one in found if one is found[0] or _did_something(one)]


def _did_something(piece: Piece | Change) -> bool:
    return any(run.record.status == "changed" for run in piece.passes)

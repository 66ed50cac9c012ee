"""What a page says, before it is text, a terminal, Markdown or HTML: sections of lines and tables.

Everything that is shown comes from a model, so every text is made printable here, once.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum, auto
from typing import TypeAlias

from fxpasses.core.plain import printable


class Tone(StrEnum):
    """What kind of thing a line or a row tells."""

    PLAIN = auto()
    QUIET = auto()
    GOOD = auto()
    NOTED = auto()
    BAD = auto()
    ADVICE = auto()


@dataclass(frozen=True, slots=True)
class Line:
    """One statement, and those that say more of it."""

    text: str
    below: tuple["Line", ...] = ()
    tone: Tone = Tone.PLAIN

    def __post_init__(self) -> None:
        object.__setattr__(self, "text", printable(self.text))


@dataclass(frozen=True, slots=True)
class Column:
    name: str
    is_number: bool = False
    spared: int = 0
    """Where there is no room, columns with the highest numbers go first; those with 0 never do."""


@dataclass(frozen=True, slots=True)
class Row:
    cells: tuple[str, ...]
    tone: Tone = Tone.PLAIN

    def __post_init__(self) -> None:
        object.__setattr__(self, "cells", tuple(map(printable, self.cells)))


@dataclass(frozen=True, slots=True)
class Table:
    columns: tuple[Column, ...]
    rows: tuple[Row, ...]

    def used(self) -> "Table":
        """The same without the columns in which no row says anything."""
        kept = [n for n in range(len(self.columns)) if any(row.cells[n] for row in self.rows)]
        return self._of(kept)

    def narrower(self) -> "Table | None":
        """The same without the column that can be spared first, if one can."""
        last = max(column.spared for column in self.columns)
        kept = [n for n, column in enumerate(self.columns) if column.spared < last]
        return self._of(kept) if last else None

    def _of(self, kept: Sequence[int]) -> "Table":
        rows = tuple(Row(tuple(row.cells[n] for n in kept), row.tone) for row in self.rows)
        return Table(tuple(self.columns[n] for n in kept), rows)


Block: TypeAlias = Line | Table


@dataclass(frozen=True, slots=True)
class Section:
    label: str
    blocks: tuple[Block, ...]


@dataclass(frozen=True, slots=True)
class Page:
    title: Line
    sections: tuple[Section, ...]

    @classmethod
    def of(cls, title: str, sections: Sequence[Section]) -> "Page":
        """Sections that say nothing are left out."""
        return cls(Line(title), tuple(section for section in sections if section.blocks))


def advice(text: str) -> tuple[Line, ...]:
    """What to do about the line above; nothing where there is no `text`."""
    return (Line(f"what to do: {text}", tone=Tone.ADVICE),) if text else ()

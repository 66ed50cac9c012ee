"""A page as Markdown: tables as GitHub reads them, everything else as lists."""

import re
from collections.abc import Iterator, Sequence
from typing import Final

from fxpasses.page.outline import Block, Line, Page, Table, Tone

# What Markdown or HTML would read as something else. An underscore inside of a word is none.
_SPECIAL: Final = re.compile(r"[\\`*\[\]|~$]|(?<![0-9A-Za-z])_|_(?![0-9A-Za-z])")
_AT_THE_START: Final = re.compile(r"^(\d*)([-+#>.)])(?=\s|$)")
_MARKS: Final[dict[Tone, str]] = {Tone.BAD: "**", Tone.ADVICE: "*"}


def as_markdown(page: Page) -> str:
    parts = [f"## {_escaped(page.title.text)}"]
    for section in page.sections:
        label = f"**{_escaped(section.label)}**"
        match section.blocks:
            case [Line(text, below=(), tone=tone)]:
                parts.append(f"{label}: {_marked(text, tone)}")
            case blocks:
                parts += [label, *_blocks(blocks)]
    return "\n\n".join(parts) + "\n"


def _blocks(blocks: Sequence[Block]) -> Iterator[str]:
    """Lines that follow each other are one list."""
    listed: list[str] = []
    for block in blocks:
        if isinstance(block, Line):
            listed += _line(block, 0)
            continue
        if listed:
            yield "\n".join(listed)
            listed = []
        yield "\n".join(_table(block))
    if listed:
        yield "\n".join(listed)


def _line(line: Line, depth: int) -> Iterator[str]:
    yield f"{'  ' * depth}- {_marked(line.text, line.tone)}"
    for more in line.below:
        yield from _line(more, depth + 1)


def _table(table: Table) -> Iterator[str]:
    yield _row([column.name for column in table.columns])
    yield _row(["---:" if column.is_number else "---" for column in table.columns], raw=True)
    for row in table.rows:
        yield _row(row.cells)


def _row(cells: Sequence[str], *, raw: bool = False) -> str:
    return f"| {' | '.join(cells if raw else map(_escaped, cells))} |"


def _marked(text: str, tone: Tone) -> str:
    mark = _MARKS.get(tone, "")
    return f"{mark}{_escaped(text)}{mark}"


def _escaped(text: str) -> str:
    text = text.strip().replace("&", "&amp;").replace("<", "&lt;")
    return _AT_THE_START.sub(r"\1\\\2", _SPECIAL.sub(r"\\\g<0>", text))

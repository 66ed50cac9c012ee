"""A page as plain text, 120 characters wide."""

from collections.abc import Iterator
from textwrap import wrap

from fxpasses.page.outline import Block, Line, Page, Table

_LABEL = 11
_WIDTH = 120
_GAP = "  "


def as_text(page: Page) -> str:
    lines = [page.title.text]
    for section in page.sections:
        label = section.label
        for text in (text for block in section.blocks for text in _block(block)):
            lines.append(f"{label:<{_LABEL}}{text}".rstrip())
            label = ""
    return "\n".join(lines)


def _block(block: Block) -> Iterator[str]:
    return _table(block) if isinstance(block, Table) else _line(block, depth=0)


def _line(line: Line, depth: int) -> Iterator[str]:
    indent = "  " * depth
    yield from wrap(
        line.text,
        _WIDTH - _LABEL,
        initial_indent=indent,
        subsequent_indent=f"{indent}  ",
        break_long_words=False,
        break_on_hyphens=False,
    )
    for more in line.below:
        yield from _line(more, depth + 1)


def _table(table: Table) -> Iterator[str]:
    names = tuple(column.name for column in table.columns)
    rows = [names, *(row.cells for row in table.rows)]
    widths = [max(len(row[n]) for row in rows) for n in range(len(names))]
    for row in rows:
        cells = (
            cell.rjust(width) if column.is_number else cell.ljust(width)
            for cell, width, column in zip(row, widths, table.columns, strict=True)
        )
        yield _GAP.join(cells)

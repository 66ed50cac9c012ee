"""A page on a terminal, by rich. No text is read as markup."""

from typing import TYPE_CHECKING, Final

from fxpasses.page.outline import Block, Line, Page, Table, Tone

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rich.console import Console, ConsoleOptions, RenderableType

_STYLES: Final[dict[Tone, str]] = {
    Tone.PLAIN: "",
    Tone.QUIET: "dim",
    Tone.GOOD: "green",
    Tone.NOTED: "yellow",
    Tone.BAD: "bold red",
    Tone.ADVICE: "cyan",
}

_ROOMY: Final = 10_000
"""Columns of a terminal on which everything fits."""


def as_renderable(page: Page) -> "RenderableType":
    """What `rich` prints: the title, and the sections beside their labels."""
    from rich.console import Group  # noqa: PLC0415  loaded only where something is printed
    from rich.table import Table as Grid  # noqa: PLC0415
    from rich.text import Text  # noqa: PLC0415

    grid = Grid.grid(padding=(0, 2, 0, 0))
    grid.add_column(style="bold", no_wrap=True)
    grid.add_column()
    for section in page.sections:
        parts = [part for block in section.blocks for part in _block(block)]
        grid.add_row(Text(section.label), Group(*parts))
    return Group(Text(page.title.text, style="bold"), grid)


def _block(block: Block) -> "Iterator[RenderableType]":
    if isinstance(block, Table):
        yield _table(block)
    else:
        yield from _line(block, 0)


def _line(line: Line, depth: int) -> "Iterator[RenderableType]":
    from rich.padding import Padding  # noqa: PLC0415
    from rich.text import Text  # noqa: PLC0415

    yield Padding(Text(line.text, style=_STYLES[line.tone]), (0, 0, 0, 2 * depth))
    for more in line.below:
        yield from _line(more, depth + 1)


def _table(table: Table) -> "RenderableType":
    return _Fitting(table)


class _Fitting:
    """A table with as many columns as there is room for: no word is broken where that can help."""

    def __init__(self, table: Table) -> None:
        self._table = table

    def __rich_console__(
        self, console: "Console", options: "ConsoleOptions"
    ) -> "Iterator[RenderableType]":
        from rich.measure import Measurement  # noqa: PLC0415
        from rich.text import Text  # noqa: PLC0415

        table, left_out = self._table, list[str]()
        roomy = options.update(width=_ROOMY)
        while Measurement.get(console, roomy, _grid(table)).minimum > options.max_width:
            narrower = table.narrower()
            if narrower is None:
                break
            kept = {column.name for column in narrower.columns}
            left_out += [column.name for column in table.columns if column.name not in kept]
            table = narrower
        yield _grid(table)
        if left_out:
            yield Text(f"left out, for lack of room: {', '.join(left_out)}", style="dim")


def _grid(table: Table) -> "RenderableType":
    from rich.box import SIMPLE_HEAD  # noqa: PLC0415
    from rich.table import Table as Grid  # noqa: PLC0415
    from rich.text import Text  # noqa: PLC0415

    grid = Grid(box=SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0), show_edge=False)
    for n, column in enumerate(table.columns):
        if column.is_number:
            width = max((len(row.cells[n]) for row in table.rows), default=1)
            grid.add_column(column.name, justify="right", min_width=width, overflow="fold")
        else:
            grid.add_column(column.name, overflow="fold")
    for row in table.rows:
        grid.add_row(*(Text(cell) for cell in row.cells), style=_STYLES[row.tone])
    return grid

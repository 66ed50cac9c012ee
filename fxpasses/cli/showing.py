"""Reports on the standard output: in colour where somebody looks at a terminal, else as text."""

import typer
from rich.console import Console

from fxpasses.cli.choices import Showing
from fxpasses.cli.files import write_report
from fxpasses.page.shown import Shown
from fxpasses.page.terminal import as_renderable


def show(report: Shown, showing: Showing) -> None:
    """Print the report, and write it where that is asked for."""
    console = Console()
    if showing.json:
        typer.echo(report.to_json())
    elif _is_rich(console):
        console.print(as_renderable(report.page(details=showing.details)))
    else:
        typer.echo(report.text(details=showing.details))
    write_report(report, showing.report)


def _is_rich(console: Console) -> bool:
    # Without colour (NO_COLOR) somebody has asked for plain text.
    return console.is_terminal and not console.is_dumb_terminal and not console.no_color

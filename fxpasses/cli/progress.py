"""A bar beside the output, where a command takes long and somebody is looking."""

import time
from collections.abc import Iterable
from typing import Final

from rich.console import Console, RenderableType
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from fxpasses.core import Group, Program
from fxpasses.core.record import PassRecord
from fxpasses.manager import Observer

_PATIENCE: Final = 2.0
"""Seconds that nothing is shown for."""
_STAGES: Final = {"capture": "capturing", "passes": "optimising", "verify": "verifying"}


class _Late(Progress):
    """Shows nothing at first."""

    def __init__(self, console: Console, patience: float) -> None:
        self._from = time.monotonic() + patience
        columns = (
            SpinnerColumn(),
            TextColumn("{task.description}"),
            BarColumn(),
            TimeElapsedColumn(),
        )
        super().__init__(
            *columns,
            console=console,
            transient=True,
            disable=not console.is_terminal or console.is_dumb_terminal,
        )

    def get_renderables(self) -> Iterable[RenderableType]:
        if time.monotonic() >= self._from:
            yield from super().get_renderables()


class Bar(Observer):
    """What a command is at; gone when the block ends. Without a terminal it is never there."""

    def __init__(
        self,
        doing: str,
        pipeline: Group | None = None,
        *,
        console: Console | None = None,
        patience: float = _PATIENCE,
    ) -> None:
        self._progress = _Late(console or Console(stderr=True), patience)
        self._task = self._progress.add_task(doing, total=None)
        self._total = 0 if pipeline is None else sum(1 for _ in pipeline.passes())

    def __enter__(self) -> "Bar":
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def stage(self, name: str) -> None:
        total = self._total if name == "passes" else None
        self._progress.update(self._task, description=_STAGES[name], total=total, completed=0)

    def progress(self, done: int, known: int) -> None:
        self._progress.update(self._task, completed=done, total=known)

    def started(self, record: PassRecord, program: Program) -> None:  # noqa: ARG002  an observer
        again = f", round {record.round}" if record.round > 1 else ""
        self._progress.update(
            self._task, description=f"{record.name}{again}", completed=record.position - 1
        )

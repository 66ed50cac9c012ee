"""Keeps and writes the stages of a run as they come."""

from collections.abc import Collection

from fxpasses.capture import entry_of, fork
from fxpasses.core import Group, History, Program, Stage
from fxpasses.core.history import CAPTURED
from fxpasses.core.record import PassRecord
from fxpasses.errors import PassError
from fxpasses.manager import Observer
from fxpasses.session.dump import Dump


class Historian(Observer):
    """Looks on from before the first pass: `program` is what was captured.

    Args:
        program: What passes are about to change.
        pipeline: The passes.
        left_out: The positions of those that stand there and do nothing.
        keep: Whether the stages are kept; else only the last one is.
        dump: Where they are written.
    """

    def __init__(
        self,
        program: Program,
        pipeline: Group,
        left_out: Collection[int],
        *,
        keep: bool,
        dump: Dump | None,
    ) -> None:
        self._left_out = left_out
        self._keep = keep
        self._dump = dump
        self._digits = max(2, len(str(_most_runs(pipeline))))
        self._stages: list[Stage] = []
        if dump is not None:
            dump.clear()
        self._add(Stage(0, CAPTURED, _copied(program)))

    @property
    def history(self) -> History | None:
        return History(self._stages) if self._keep else None

    def finished(self, record: PassRecord, program: Program) -> None:
        if record.position not in self._left_out:
            last = self._stages[-1]
            changed = record.status == "changed"
            self._add(_next(last, record, _copied(program) if changed else last.program))

    def failed(self, record: PassRecord, error: PassError) -> None:  # noqa: ARG002  an observer
        last = self._stages[-1]
        self._add(_next(last, record, last.program))

    def _add(self, stage: Stage) -> None:
        self._stages = [*self._stages, stage] if self._keep else [stage]
        if self._dump is not None:
            self._dump.write(stage, self._digits)


def _next(last: Stage, record: PassRecord, program: Program) -> Stage:
    return Stage(last.number + 1, record.name, program, record)


def _copied(program: Program) -> Program:
    copied = fork(program)
    # Nobody asks which modules it was made of, and they need not live on.
    entry_of(copied.root).lineage = None
    return copied


def _most_runs(group: Group) -> int:
    runs = (_most_runs(item) if isinstance(item, Group) else 1 for item in group.items)
    return group.repeat * sum(runs)

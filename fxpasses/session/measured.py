"""Measures what passes save that are there to save memory."""

from fxpasses.capture import Arguments
from fxpasses.core import GraphPass, Group, Program
from fxpasses.core.record import PassRecord
from fxpasses.manager import Observer
from fxpasses.verify import peak_activations


class Measured(Observer):
    """Puts down by how many bytes less a forward of the example holds after such a pass."""

    def __init__(self, pipeline: Group, arguments: Arguments) -> None:
        self._arguments = arguments
        passes = pipeline.passes()
        self._names = {p.name for p in passes if isinstance(p, GraphPass) and p.saves_memory}
        self._before: int | None = None

    def started(self, record: PassRecord, program: Program) -> None:
        if record.name in self._names:
            self._before = peak_activations(program, self._arguments)

    def finished(self, record: PassRecord, program: Program) -> None:
        before, self._before = self._before, None
        if before is None or record.status != "changed":
            return
        after = peak_activations(program, self._arguments)
        record.bytes_saved = None if after is None else before - after

"""Keeps the program around passes after which captured values are no measure any more."""

from torch.fx import Graph

from fxpasses.capture import kept, milestone
from fxpasses.core import ForeignPass, Group, Numerics, Program
from fxpasses.core.record import PassRecord
from fxpasses.errors import PassError
from fxpasses.manager import Observer
from fxpasses.verify import Cut


class Cuts(Observer):
    """Cuts a pipeline at passes that change the meaning by request, and at foreign ones."""

    def __init__(self, pipeline: Group) -> None:
        self.made: list[Cut] = []
        self._passes = list(pipeline.passes())
        self._before: Program | None = None
        self._graphs = dict[str, Graph]()

    def started(self, record: PassRecord, program: Program) -> None:
        changes_meaning = self._passes[record.position - 1].numerics is Numerics.MEANING
        self._before = kept(program) if changes_meaning else None
        self._graphs = {path: module.graph for path, module in program}

    def finished(self, record: PassRecord, program: Program) -> None:
        before, self._before = self._before, None
        is_foreign = isinstance(self._passes[record.position - 1], ForeignPass)
        if record.status == "changed" and (before is not None or is_foreign):
            # Only a foreign pass puts another graph in the place of one.
            others = [path for path, one in program if one.graph is not self._graphs[path]]
            self.made.append(Cut(record, before, milestone(program, others)))

    def failed(self, record: PassRecord, error: PassError) -> None:  # noqa: ARG002  an observer
        self._before = None

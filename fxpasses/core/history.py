"""The stages of a run: the graphs as every pass left them."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import cast

from torch.fx import GraphModule

from fxpasses.core.code import readable_code
from fxpasses.core.given import shown
from fxpasses.core.program import Program
from fxpasses.core.record import PassRecord
from fxpasses.errors import ArgumentError

CAPTURED = "captured"
"""The name of the stage that no pass has touched."""


@dataclass(frozen=True, slots=True, eq=False)
class Stage:
    """The graphs as one pass left them. `str()` of it is their code.

    It holds graphs and modules of its own over the tensors of the result: it can be called, drawn
    and compared (`fxpasses.draw`, `diff`), and what is written into a tensor shows in all stages.
    """

    number: int
    """0 is what was captured, n what the n-th pass that ran has left."""
    name: str
    """Of the pass; `captured` for the first."""
    program: Program
    record: PassRecord | None = None
    """What the pass did, as the report has it."""

    @property
    def graph_module(self) -> GraphModule:
        """What is called in place of the model."""
        return cast("GraphModule", self.program.root)

    @property
    def status(self) -> str:
        """`changed`, `unchanged`, `failed`, or `captured`."""
        return CAPTURED if self.record is None else self.record.status

    @property
    def code(self) -> str:
        """The code of all graphs, each line with its value and source."""
        return readable_code(self.program.graphs)

    @property
    def nodes(self) -> int:
        return sum(len(module.graph.nodes) for _, module in self.program)

    def title(self) -> str:
        """One line."""
        round_of = 1 if self.record is None else self.record.round
        again = f" (round {round_of})" if round_of > 1 else ""
        made = 0 if self.record is None else len(self.record.rewrites)
        rewrites = f", {made} rewrites" if made > 1 else ", 1 rewrite" if made else ""
        status = "" if self.record is None else f": {self.status}{rewrites}"
        return f"{self.number} {self.name}{again}{status}, {self.nodes:,} nodes"

    def __str__(self) -> str:
        return f"# {self.title()}\n{self.code}"

    def __repr__(self) -> str:
        return f"<stage {self.title()}>"


class History:
    """The stages of one run, in order. `str()` of it is their list."""

    def __init__(self, stages: Sequence[Stage]) -> None:
        self._stages = tuple(stages)

    def at(self, which: str | int, occurrence: int = 1) -> Stage:
        """The stage that a pass left.

        Args:
            which: The name of the pass, or `captured`; or the number of the stage.
            occurrence: Where a pass of that name ran several times: 1 is the first time, -1 the
                last.

        Raises:
            ArgumentError: there is no such stage.
        """
        if type(which) is int:
            return self._numbered(which)
        found = [stage for stage in self._stages if stage.name == which]
        if not found:
            names = ", ".join(dict.fromkeys(stage.name for stage in self._stages))
            raise ArgumentError(f"no stage {shown(which)}: there is {names}")
        if type(occurrence) is not int or not 1 <= abs(occurrence) <= len(found):
            raise ArgumentError(
                f"occurrence={shown(occurrence)}: {which} ran {len(found)} times; pass 1 to "
                f"{len(found)}, or -1 for the last"
            )
        return found[occurrence - 1 if occurrence > 0 else occurrence]

    def before(self, which: str | int, occurrence: int = 1) -> Stage:
        """The stage that a pass found; arguments and errors are those of `at`."""
        number = self.at(which, occurrence).number
        if number == 0:
            raise ArgumentError("nothing comes before what was captured")
        return self._stages[number - 1]

    def _numbered(self, number: int) -> Stage:
        if -len(self) <= number < len(self):
            return self._stages[number]
        raise ArgumentError(f"no stage {number}: there are 0 to {len(self) - 1}")

    def __len__(self) -> int:
        return len(self._stages)

    def __iter__(self) -> Iterator[Stage]:
        return iter(self._stages)

    def __str__(self) -> str:
        return "\n".join(stage.title() for stage in self._stages)

"""What `check_pass` raises: which rule a pass breaks, on which model, and how."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum, auto

from fxpasses.errors import FxPassesError


class Rule(StrEnum):
    """What every pass is held to."""

    RUNS = auto()
    """It raises nothing on a model that can be captured."""
    FIRES = auto()
    """It rewrites something: on a model where it does nothing, no rule can fail."""
    NUMERICS = auto()
    """The result computes what the class of the pass promises, on calls of other sizes too."""
    GRADIENTS = auto()
    """A pass whose result may be trained leaves the gradients of what it keeps as they are."""
    UNTOUCHED = auto()
    """The model, the example and everything global stay as they are, bit by bit."""
    METADATA = auto()
    """Nodes know where they come from and what value they have."""
    REFUSALS = auto()
    """What is left as it was has a reason, and the line of the model that it is about."""
    CONDITIONS = auto()
    """Each condition of legality is needed: without it alone a rewrite goes wrong."""
    IDEMPOTENT = auto()
    """A second run right after the first changes nothing."""
    DETERMINISTIC = auto()
    """The same ids, refusals, code and weights each time."""
    COPIES = auto()
    """A copied and a pickled result are what the result is."""
    STATE_DICT = auto()
    """Weights that are not rewritten keep their names, and no new one takes the name of an old."""
    HOSTILE = auto()
    """The model is still right where it is used in unusual ways."""


@dataclass(frozen=True, slots=True)
class Failure:
    """One rule that a pass breaks."""

    rule: Rule
    model: str
    """The name of the model; "" where it is about the pass alone."""
    message: str

    def __str__(self) -> str:
        where = f" on {self.model}" if self.model else ""
        return f"{self.rule}{where}: {self.message}"


class NotConformant(FxPassesError, AssertionError):  # noqa: N818  it reads as what is asserted
    """A pass breaks rules. `failures` holds all that was found."""

    def __init__(self, pass_name: str, failures: Sequence[Failure]) -> None:
        self.pass_name = pass_name
        self.failures = tuple(failures)
        count = "1 rule" if len(self.rules) == 1 else f"{len(self.rules)} rules"
        lines = "\n".join(f"  {failure}" for failure in self.failures)
        super().__init__(f"{pass_name} breaks {count} of a pass\n{lines}")

    @property
    def rules(self) -> frozenset[Rule]:
        """The rules that are broken."""
        return frozenset(failure.rule for failure in self.failures)

"""Being told of passes as they run: for progress, timing and history."""

from fxpasses.core import Program
from fxpasses.core.record import PassRecord
from fxpasses.errors import PassError


class Observer:
    """Override what is of interest. An error in an observer is an error of the run."""

    def stage(self, name: str) -> None:
        """A stage of a run begins: `capture`, `passes` or `verify`.

        The last two come again where something is undone, or each pass is verified.
        """

    def progress(self, done: int, known: int) -> None:
        """Of the verification under way `done` steps are done, of `known`, which may become more.

        A step is a forward of the model, or a rewrite that is looked at.
        """

    def started(self, record: PassRecord, program: Program) -> None:
        """A pass is about to run."""

    def finished(self, record: PassRecord, program: Program) -> None:
        """A pass has run, and what it did is final."""

    def failed(self, record: PassRecord, error: PassError) -> None:
        """A pass has failed, and what it did is taken back."""

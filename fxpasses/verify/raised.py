"""What a program raises while it is verified: kept apart from what goes wrong in verifying."""

from collections.abc import Generator
from contextlib import contextmanager

from torch.fx import Node

from fxpasses.capture.result.guards import GuardMiss
from fxpasses.core import Program, source_of
from fxpasses.errors import VerificationError
from fxpasses.verify.runner import Runner
from fxpasses.verify.unavailable import first_line


class ProgramError(Exception):
    """A program raised `error` in a run of it, at `node` if one of its graphs did."""

    def __init__(self, program: Program, error: Exception) -> None:
        self.program = program
        self.error = error
        self.node = _node_of(error)
        super().__init__(f"{type(error).__name__}: {first_line(error)}{self._place()}")

    @property
    def path(self) -> str | None:
        """The path of the graph that raised."""
        graph = None if self.node is None else self.node.graph
        return next((path for path, module in self.program if module.graph is graph), None)

    def _place(self) -> str:
        if self.node is None:
            return ""
        source = source_of(self.node)
        return f" at {self.node.name}" + (f" ({source})" if source else "")


@contextmanager
def raised_by(program: Program) -> Generator[None]:
    """Whatever a run of `program` in the block raises is told as that.

    Raises:
        ProgramError: chained from the error.
        GuardMiss: a graph does not hold for the call, for which the module's own code is there.
    """
    try:
        yield
    except GuardMiss:
        raise
    except Exception as error:  # whatever a model raises
        raise ProgramError(program, error) from error


@contextmanager
def typed() -> Generator[None]:
    """What the original raises in the block ends the verification, and is nobody's fault.

    Raises:
        VerificationError: chained from the error.
    """
    try:
        yield
    except ProgramError as raised:
        raise broken_off(f"the original itself raises {raised}") from raised.error


def broken_off(what: str) -> VerificationError:
    """The error for what no verdict can be given on."""
    return VerificationError(
        f"{what} in a forward of the verification, so that nothing can be compared: use "
        "verify=False for a result that is not checked"
    )


def _node_of(error: Exception) -> Node | None:
    """The node that was running in the innermost of the graphs that an error came through."""
    found: Node | None = None
    trace = error.__traceback__
    while trace is not None:
        if trace.tb_frame.f_code is Runner.run.__code__:
            found = trace.tb_frame.f_locals.get("node")
        trace = trace.tb_next
    return found

"""One trace of a module, and another where the first has shown what was not known before it."""

from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from fxpasses.capture.arguments import Arguments
from fxpasses.capture.inside import all_modules
from fxpasses.capture.tracing.tracer import (
    Opaque,
    OpaqueKind,
    Outside,
    Refused,
    Trace,
    Untraceable,
)
from fxpasses.capture.twins.own_tensors import OwnTensors
from fxpasses.capture.twins.twin import Twin, twin


@dataclass(slots=True)
class Known:
    """What earlier traces of a root have shown."""

    root: nn.Module
    strict: bool = False
    places: tuple[str, ...] = ()
    live: frozenset[str] = frozenset()
    opaque: dict[str, Opaque] = field(default_factory=dict[str, Opaque])

    def learn(self, refused: Refused) -> None:
        """What the next trace has to know.

        Raises:
            Untraceable: no other trace would do better.
        """
        if isinstance(refused, Untraceable):
            if not refused.left_traces or "" in self.opaque:
                raise refused
            # Its own code came upon what the trace has left behind: run it on a new twin.
            kind = type(self.root).__name__
            self.opaque = {"": Opaque("", kind, refused.kind, refused.reason, refused.source)}
        elif self.strict:
            raise Untraceable(OpaqueKind.PYTHON_STATE, str(refused)) from refused
        elif isinstance(refused, Outside):
            self.strict, self.places = True, refused.places

    def covers(self, made: Trace) -> bool:
        """Whether a trace has found no state to change that was not known before."""
        if made.changing <= self.live:
            return True
        self.live |= made.changing
        self.opaque = {leaf.path: leaf for leaf in made.opaque}
        return False


def scratch_of(
    module: nn.Module, example: Arguments | None
) -> tuple[nn.Module, Twin, list[tuple[Tensor, Tensor]]]:
    """A twin to be traced, and the tensors that it has copies of, since the example runs along."""
    if example is None:
        return *twin(module), []
    own = OwnTensors(module)
    # What TorchScript modules write is put back instead: a copy may run otherwise.
    scripts = [m for m in all_modules(module) if isinstance(m, torch.jit.ScriptModule)]
    return *twin(module, share=scripts, tensors=own), own.pairs

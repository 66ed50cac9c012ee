"""What a capture is: a program of graphs, and what runs its own code."""

from dataclasses import dataclass, field
from typing import Any, Final

from torch import Tensor

from fxpasses.capture.arguments import Arguments
from fxpasses.capture.coverage import Coverage, measure
from fxpasses.capture.tracing.request import Note, Opaque, Sizes
from fxpasses.core import Program
from fxpasses.core.surroundings import surroundings_kept, tensors_kept

_OPAQUE_SHOWN: Final = 12


@dataclass(frozen=True, slots=True, eq=False)
class Reference:
    """What the model itself made of the example.

    The run goes along with the trace, on copies and without gradients. What it leaves behind
    besides its outputs is not kept.
    """

    outputs: Any


@dataclass(slots=True, eq=False, repr=False)
class Capture:
    """A captured model. `program` must not be changed: passes work on a `fork` of it."""

    program: Program
    opaque: tuple[Opaque, ...]
    arguments: Arguments | None
    reference: Reference | None
    sizes: Sizes
    traces: int
    guards: int
    notes: tuple[Note, ...] = ()
    outside: tuple[Tensor, ...] = ()
    """What the model's own code has written that is not the model's: it was put back."""
    _coverage: Coverage | None = field(default=None, repr=False)

    def __repr__(self) -> str:
        graphs = self.program.graphs.values()
        nodes = sum(len(module.graph.nodes) for module in graphs)
        parts = [_counted(len(graphs), "graph"), _counted(nodes, "node")]
        parts += [_counted(self.guards, "guard")] if self.guards else []
        if (found := self._coverage) is not None:
            parts.append(f"{found.calls:.0%} of the calls and {found.flops:.0%} of the FLOPs")
        parts.append(_counted(len(self.opaque), "opaque module"))
        lines = [f"  {_described(leaf)}" for leaf in self.opaque[:_OPAQUE_SHOWN]]
        if len(self.opaque) > _OPAQUE_SHOWN:
            lines.append(f"  and {len(self.opaque) - _OPAQUE_SHOWN} more")
        return "\n".join((f"<capture: {', '.join(parts)}>", *lines))

    def coverage(self) -> Coverage | None:
        """The share of one forward that runs from graphs; None without an example.

        Runs the program once on copies where anything is opaque.
        """
        if self._coverage is None:
            if not self.opaque:
                self._coverage = Coverage(1.0, 1.0)
            elif self.arguments is not None:
                with surroundings_kept(), tensors_kept(self.outside):
                    self._coverage = measure(self.program.root, self.arguments)
        return self._coverage


def _counted(count: int, what: str) -> str:
    return f"{count} {what}" if count == 1 else f"{count} {what}s"


def _described(leaf: Opaque) -> str:
    where = "" if leaf.source is None else f" ({leaf.source})"
    return f"{leaf.path or 'the model itself'} [{leaf.type}] {leaf.kind}: {leaf.reason}{where}"

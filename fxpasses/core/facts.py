"""What a pass may ask about a graph. The answers are computed by `fxpasses.analysis`."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor
from torch.fx import GraphModule, Node


@dataclass(frozen=True, slots=True)
class Effects:
    """What running a node does besides computing its value."""

    writes: tuple[Node, ...] = ()
    """Operands whose tensors (or containers) are written in place."""
    writes_state: bool = False
    """Buffers or other state that no operand names are written: statistics, Python attributes."""
    random: bool = False
    """Random numbers are drawn."""
    raises: bool = False
    """Made to raise on some values: asserts, guards."""
    unknown: bool = False
    """Nothing is known of the callee, so anything may happen."""

    @property
    def none(self) -> bool:
        """Whether the node does nothing but compute its value."""
        return not (self.writes or self.writes_state or self.random or self.raises or self.unknown)

    @property
    def told(self) -> str | None:
        """What keeps a node from being run another number of times, in words; None if nothing."""
        if self.random:
            return "it draws random numbers"
        if self.writes or self.writes_state:
            return "it writes"
        if self.unknown:
            return "nothing is known of what it does"
        return "it checks something" if self.raises else None


class Facts(Protocol):
    """Facts about one graph, computed when asked for and kept until an edit makes them stale.

    Legality may rest on `effects`, `rank`, `dtype`, `device`, aliasing and order, which hold for
    every call that the graph accepts. `example_shape` is the example's and serves cost alone.
    """

    @property
    def module(self) -> GraphModule: ...
    @property
    def training(self) -> bool:
        """Whether the result is to be trained: weights that require gradients are not constants."""
        ...

    @property
    def owns_state(self) -> bool:
        """Whether this graph alone reads what the module holds.

        Not so where the graph stands in for the `forward` of a module inside a model.
        """
        ...

    @property
    def target(self) -> str | None:
        """The type of device that the result is for; None where it is for any."""
        ...

    def effects(self, node: Node) -> Effects: ...
    def may_alias(self, a: Node, b: Node) -> bool:
        """Whether `a` and `b` may share memory."""
        ...

    def written_between(self, first: Node, last: Node, value: Node) -> Node | None:
        """A node strictly between two others that may write the memory of `value`, if any."""
        ...

    def is_written(self, tensor: Tensor) -> bool:
        """Whether any node may write the memory of a parameter, buffer or other attribute."""
        ...

    def rank(self, node: Node) -> int | None: ...
    def dtype(self, node: Node) -> torch.dtype | None: ...
    def device(self, node: Node) -> torch.device | None: ...
    def example_shape(self, node: Node) -> tuple[int, ...] | None: ...
    def readers(self, node: Node) -> Sequence[Node]:
        """The nodes that read the value of `node`; readers of its size, rank or dtype are not."""
        ...

    def changed(self, nodes: Sequence[Node]) -> None:
        """Told by the editor: these nodes are new, or their operands or readers have changed."""
        ...

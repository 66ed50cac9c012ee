"""What each node and each module costs, as data."""

from collections.abc import Iterable
from dataclasses import dataclass

from fxpasses.core.described import full_name
from fxpasses.debug.nodes import NodeFacts


@dataclass(frozen=True, slots=True)
class NodeCost:
    """One node in one forward; of a graph that is called several times, all calls together."""

    node: NodeFacts
    calls: int
    seconds: float
    """Of its own: without the nodes of graphs that it calls."""
    flops: int
    """Of its own, in products, convolutions and attention."""
    output_bytes: int
    """Memory that its value takes; none of a view, or where it is written in place."""
    held_bytes: int
    """The most that values of all graphs take while it runs, its own among them."""

    @property
    def full_name(self) -> str:
        return full_name(self.node.path, self.node.name)


@dataclass(frozen=True, slots=True)
class ModuleCost:
    """All nodes inside of one module together."""

    path: str
    nodes: int
    seconds: float
    flops: int
    output_bytes: int
    held_bytes: int


@dataclass(frozen=True, slots=True)
class NonFinite:
    """A node whose value holds NaN or Inf, though nothing that it reads does."""

    node: NodeFacts
    nan: int
    inf: int
    """How many elements are that."""
    largest_operand: float | None
    """The largest magnitude in what it reads; None where it reads no floats."""

    @property
    def full_name(self) -> str:
        return full_name(self.node.path, self.node.name)


def module_costs(nodes: Iterable[NodeCost]) -> tuple[ModuleCost, ...]:
    """Of every module that nodes lie in, in the order of the forward; the model itself is left."""
    inside: dict[str, list[NodeCost]] = {}
    for cost in nodes:
        parts = cost.node.module.split(".") if cost.node.module else []
        for depth in range(1, len(parts) + 1):
            inside.setdefault(".".join(parts[:depth]), []).append(cost)
    return tuple(
        ModuleCost(
            path,
            len(costs),
            sum(one.seconds for one in costs),
            sum(one.flops for one in costs),
            sum(one.output_bytes for one in costs),
            max(one.held_bytes for one in costs),
        )
        for path, costs in inside.items()
    )

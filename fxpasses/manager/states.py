"""Graphs as they stood after a round: to see a group of passes come back to one of them."""

from dataclasses import dataclass
from typing import Any

from torch.fx import GraphModule, Node
from torch.fx.node import map_arg

from fxpasses.core import Program, attribute
from fxpasses.manager.sameness import same


@dataclass(frozen=True, slots=True)
class _At:
    """A node by its position, since names differ from round to round."""

    index: int


@dataclass(frozen=True, slots=True, eq=False)
class GraphState:
    """What a graph computes, names apart.

    `shape` is hashable and leaves out what the targets of `get_attr` and `call_module` mean;
    `attributes` holds that, in the order of the nodes.
    """

    shape: tuple[Any, ...]
    attributes: tuple[Any, ...]
    held: int
    """How many modules and tensors the module holds, whether a node names them or not."""

    @classmethod
    def of(cls, module: GraphModule) -> "GraphState":
        positions: dict[Node, _At] = {}
        shape: list[Any] = []
        attributes: list[Any] = []
        for index, node in enumerate(module.graph.nodes):
            positions[node] = _At(index)
            # Passing through repr makes lists, dicts and NaN comparable.
            operands = repr(
                (
                    map_arg(node.args, positions.__getitem__),  # pyright: ignore[reportArgumentType]  a position in place of a node
                    map_arg(node.kwargs, positions.__getitem__),  # pyright: ignore[reportArgumentType]  a position in place of a node
                )
            )
            if node.op in ("get_attr", "call_module"):
                attributes.append(attribute(module, str(node.target)))
                shape.append((node.op, operands))
            else:
                shape.append((node.op, node.target, operands))
        held = sum(
            1 for each in (module.modules, module.parameters, module.buffers) for _ in each()
        )
        return cls(tuple(shape), tuple(attributes), held)

    def same_as(self, other: "GraphState") -> bool:
        return self.shape == other.shape and all(
            same(a, b) for a, b in zip(self.attributes, other.attributes, strict=True)
        )

    def came_back_to(self, earlier: "GraphState") -> bool:
        """Whether the graph is as it was, and the module holds no less than it did then."""
        return self.held >= earlier.held and self.same_as(earlier)


class States:
    """The states that a program went through."""

    def __init__(self, program: Program) -> None:
        self._program = program
        self._seen: list[dict[str, GraphState]] = [self._now()]

    def came_back(self) -> int | None:
        """How many rounds ago the program was as it is now; else None, and it is remembered."""
        now = self._now()
        for ago, earlier in enumerate(reversed(self._seen), start=1):
            if all(state.came_back_to(earlier[path]) for path, state in now.items()):
                return ago
        self._seen.append(now)
        return None

    def _now(self) -> dict[str, GraphState]:
        return {path: GraphState.of(module) for path, module in self._program}

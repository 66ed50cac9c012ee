"""What one rewrite did, and the pieces of graph that tell the old values from the new."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch.fx import Graph, GraphModule, Node
from torch.fx.node import map_arg

from fxpasses.core.nodes import add_node
from fxpasses.core.values import STANDS_FOR
from fxpasses.ops import attribute

Operands = tuple[tuple[Any, ...], Mapping[str, Any]]


@dataclass(frozen=True, slots=True, eq=False)
class Region:
    """A piece of a graph, cut out as it stood: how some values follow from others.

    The placeholders of `graph` take the values of the captured nodes named by `inputs`, in that
    order; its output is the tuple of the region's results. `attributes` holds what its
    `get_attr` and `call_module` targets meant.
    """

    graph: Graph
    inputs: tuple[str, ...]
    attributes: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Replacement:
    """One value that is computed in another way: `new` is read wherever `old` was."""

    old: str
    new: str
    stands_for: str | None
    """The captured node whose value both have, or None where no captured node has it."""


@dataclass(slots=True, eq=False)
class Applied:
    """One numbered rewrite, as it was carried out."""

    id: str
    node: str
    why: str
    source: str | None
    replacements: list[Replacement] = field(default_factory=list[Replacement])
    created: list[str] = field(default_factory=list[str])
    absorbed: list[str] = field(default_factory=list[str])
    erased: list[str] = field(default_factory=list[str])
    after: Region | None = None
    """Computes each replacement's new value, in order. None where regions are not kept."""
    before: Region | None = None
    """Computes the old values of the replacements that stand for no captured node."""


def cut_region(
    module: GraphModule,
    outputs: Sequence[Node],
    inside: Collection[Node] = (),
    operands: Mapping[Node, Operands] | None = None,
) -> Region:
    """Copy what computes `outputs`, back to the nodes that stand for captured ones.

    Args:
        module: what the targets of the nodes are looked up in.
        outputs: the nodes whose values the region gives.
        inside: nodes that belong to the region even where they stand for a captured node, and
            even where only what they do, and not their value, matters to the outputs.
        operands: positional and keyword operands that some nodes had before they were rewired.
    """
    return _Cut(module, frozenset(inside), operands or {}).region(outputs)


class _Cut:
    def __init__(
        self, module: GraphModule, inside: frozenset[Node], operands: Mapping[Node, Operands]
    ) -> None:
        self.module = module
        self.inside = inside
        self.operands = operands

    def region(self, outputs: Sequence[Node]) -> Region:
        graph, copies = Graph(), dict[Node, Node]()
        inputs: list[str] = []
        attributes: dict[str, Any] = {}
        for node in self._order(outputs):
            if self._is_border(node):
                copies[node] = graph.placeholder(f"input_{len(inputs)}")
                inputs.append(str(node.meta.get(STANDS_FOR, node.name)))
                continue
            copies[node] = self._copy(node, graph, copies.__getitem__)
            if node.op in ("get_attr", "call_module"):
                attributes[str(node.target)] = attribute(self.module, str(node.target))
        graph.output(tuple(copies[node] for node in outputs))
        return Region(graph, tuple(inputs), attributes)

    def _copy(self, node: Node, graph: Graph, copied: Callable[[Node], Node]) -> Node:
        args, kwargs = self._operands(node)
        args, kwargs = map_arg(args, copied), map_arg(dict(kwargs), copied)
        copy = add_node(graph, node.op, node.target, args, kwargs, node.name)
        copy.meta = dict(node.meta)
        return copy

    def _operands(self, node: Node) -> Operands:
        return self.operands.get(node) or (node.args, node.kwargs)

    def _is_border(self, node: Node) -> bool:
        stands = STANDS_FOR in node.meta and node not in self.inside
        return node.op == "placeholder" or stands

    def _order(self, outputs: Sequence[Node]) -> list[Node]:
        found: dict[Node, None] = {}
        stack = [*outputs, *self.inside]
        while stack:
            node = stack.pop()
            if node in found:
                continue
            found[node] = None
            if not self._is_border(node):
                map_arg(self._operands(node), lambda n: (stack.append(n), n)[1])
        return sorted(sorted(found), key=lambda node: not self._is_border(node))

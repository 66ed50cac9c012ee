"""The facts about one graph, put together: computed when asked for, kept until an edit."""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor
from torch.fx import GraphModule, Node

from fxpasses.analysis.aliasing import Aliasing, Writers, is_erased
from fxpasses.analysis.effects import effects_of
from fxpasses.analysis.liveness import readers_of
from fxpasses.analysis.shapes import Shapes
from fxpasses.core import Effects, Known, is_replaced


class GraphFacts:
    """Implements `core.Facts` for one graph.

    `visits` counts the nodes that something was computed for: the cost of all questions so far.
    """

    def __init__(
        self,
        module: GraphModule,
        *,
        training: bool = False,
        owns_state: bool = True,
        target: str | None = None,
        declared: Mapping[str, str | tuple[str, ...]] | None = None,
    ) -> None:
        """Facts of the graph as it is now; `changed` has to be told of edits.

        Args:
            module: the graph, and what its targets name.
            training: whether the result is to be trained.
            owns_state: whether this graph alone reads what the module holds.
            target: the type of device that the result is for; None for any.
            declared: effects of custom ops and module classes, by qualified name.
        """
        self.visits = 0
        self._module = module
        self._training = training
        self._owns_state = owns_state
        self._target = target
        self._declared = {} if declared is None else declared
        self._effects: dict[Node, tuple[object, object, Effects]] = {}
        """With the operands that they are the effects of."""
        self._replaced: set[Node] = set()
        self._aliasing = Aliasing(module, self.effects, self._visit)
        self._writers = Writers(module, self.effects, self._aliasing)
        self._shapes = Shapes(module, self.effects, self._visit)

    @property
    def module(self) -> GraphModule:
        return self._module

    @property
    def training(self) -> bool:
        return self._training

    @property
    def owns_state(self) -> bool:
        return self._owns_state

    @property
    def target(self) -> str | None:
        return self._target

    def effects(self, node: Node) -> Effects:
        known = self._effects.get(node)
        if known is not None:
            return known[2]
        self._visit()
        effects = effects_of(node, self._declared)
        self._effects[node] = (node.args, node.kwargs, effects)
        return effects

    def may_alias(self, a: Node, b: Node) -> bool:
        return self._aliasing.may_alias(a, b)

    def written_between(self, first: Node, last: Node, value: Node) -> Node | None:
        return self._writers.between(first, last, value)

    def is_written(self, tensor: Tensor) -> bool:
        return self._writers.writes_into(tensor)

    def known(self, node: Node) -> Known:
        """What is known of the value: a TensorInfo, a structure of them, or None."""
        return self._shapes.known(node)

    def rank(self, node: Node) -> int | None:
        info = self._shapes.tensor(node)
        return None if info is None else info.rank

    def dtype(self, node: Node) -> torch.dtype | None:
        info = self._shapes.tensor(node)
        return None if info is None else info.dtype

    def device(self, node: Node) -> torch.device | None:
        info = self._shapes.tensor(node)
        return None if info is None else info.device

    def example_shape(self, node: Node) -> tuple[int, ...] | None:
        info = self._shapes.tensor(node)
        return None if info is None else info.example_shape

    def readers(self, node: Node) -> Sequence[Node]:
        return readers_of(node)

    def changed(self, nodes: Sequence[Node]) -> None:
        changed = [node for node in nodes if self._is_changed(node)]
        for node in changed:
            self._effects.pop(node, None)
        forgotten = self._aliasing.changed(changed)
        self._writers.changed(changed, forgotten)
        self._shapes.changed(changed)

    def _is_changed(self, node: Node) -> bool:
        """Whether more of a node has changed than who reads it: then it does what it did."""
        known, was_replaced = self._effects.get(node), node in self._replaced
        if is_replaced(node):
            self._replaced.add(node)
        else:
            self._replaced.discard(node)
        same = known is not None and known[0] is node.args and known[1] is node.kwargs
        return not same or was_replaced or is_replaced(node) or is_erased(node)

    def _visit(self) -> None:
        self.visits += 1

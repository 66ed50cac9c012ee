"""Which values may share memory, and who may write it.

Every value has *roots*: the pieces of memory it may lie in. A call that makes a new tensor is its
own root, a view has the roots of what it looks at, and a call of unknown code may return anything
that it was given or can get at. Two values may alias if they have a root in common.
"""

from bisect import bisect_left, bisect_right, insort
from collections.abc import Callable, Iterable
from enum import Enum, auto
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn
from torch.fx import GraphModule, Node

from fxpasses.analysis.reach import tensors_within_reach
from fxpasses.analysis.sharing import Sharing, sharing_of
from fxpasses.core import Effects, attribute, is_replaced


class Place(Enum):
    """Memory that is no single node's."""

    STATE = auto()
    """Whatever the module holds."""
    HIDDEN = auto()
    """What code that nothing is known of keeps to itself."""
    ANYWHERE = auto()
    """Any memory at all."""


Root: TypeAlias = "Node | int | Place"  # a number is a storage that an attribute lies in

_MOST_ROOTS = 64  # more than this and a value may lie anywhere, which keeps chains of them linear


class Aliasing:
    """The roots of every value of a graph, computed when asked for."""

    def __init__(
        self,
        module: GraphModule,
        effects: Callable[[Node], Effects],
        visit: Callable[[], None] = lambda: None,
    ) -> None:
        self._module = module
        self._effects = effects
        self._visit = visit
        self._roots: dict[Node, frozenset[Root]] = {}
        self._within_reach: dict[int, tuple[Any, frozenset[Root]]] = {}

    def may_alias(self, a: Node, b: Node) -> bool:
        return _meet(self.roots(a), self.roots(b))

    def may_write(self, node: Node, value: Node) -> bool:
        """Whether running `node` may write the memory of `value`."""
        return self.may_write_into(node, self.roots(value))

    def may_write_into(self, node: Node, wanted: frozenset[Root]) -> bool:
        """Whether running `node` may write memory that `wanted` lies in."""
        effects = self._effects(node)
        if effects.unknown and _meet(self._reached(node), wanted):
            return True
        if effects.writes_state and _meet(self._own_state(node), wanted):
            return True
        return any(_meet(self.roots(operand), wanted) for operand in effects.writes)

    def roots(self, node: Node) -> frozenset[Root]:
        """Where the value of `node` may lie. Empty for what is no tensor, such as a size."""
        stack = [node]
        while stack:
            top = stack[-1]
            if top in self._roots:
                stack.pop()
                continue
            sharing = self._sharing(top)
            missing = [n for n in sharing.operands if n not in self._roots]
            if missing:
                stack.extend(missing)
                continue
            self._roots[top] = self._computed(top, sharing)
            stack.pop()
        return self._roots[node]

    def changed(self, nodes: Iterable[Node]) -> None:
        """Forget the roots of `nodes`, and of the known values that look into their memory."""
        stack = list(nodes)
        while stack:
            node = stack.pop()
            roots = self._roots.pop(node, None)
            if roots is not None:
                stack.extend(u for u in node.users if self._roots.get(u, {u}) != {u})

    def _sharing(self, node: Node) -> Sharing:
        return sharing_of(node, self._effects(node))

    def _computed(self, node: Node, sharing: Sharing) -> frozenset[Root]:
        self._visit()
        if node.op == "get_attr":
            return places_of(attribute(self._module, str(node.target)))
        found: set[Root] = set(self._callee(node)) if sharing.callee else set()
        for operand in sharing.operands:
            found |= self._roots[operand]
        if sharing.is_memory and not found:
            found.add(node)
        return frozenset(found) if len(found) <= _MOST_ROOTS else frozenset({Place.ANYWHERE})

    def _reached(self, node: Node) -> frozenset[Root]:
        return self._callee(node).union(*(self.roots(n) for n in node.all_input_nodes))

    def _callee(self, node: Node) -> frozenset[Root]:
        """What the code that `node` calls can get at without being given it."""
        callee: Any = node.target
        if node.op == "call_module":
            callee = attribute(self._module, str(node.target))
        if id(callee) not in self._within_reach:
            tensors = tensors_within_reach(callee)
            held = {Place.STATE} if tensors is None else set(map(storage_key, tensors))
            # Kept together with the callee, whose number could else be given to another.
            self._within_reach[id(callee)] = callee, frozenset({Place.HIDDEN, *held})
        return self._within_reach[id(callee)][1]

    def _own_state(self, node: Node) -> frozenset[Root]:
        if node.op == "call_module" and not self._effects(node).unknown:
            return places_of(attribute(self._module, str(node.target)))
        return frozenset({Place.STATE})


def _meet(a: frozenset[Root], b: frozenset[Root]) -> bool:
    if not a or not b:
        return False
    if Place.ANYWHERE in a or Place.ANYWHERE in b or not a.isdisjoint(b):
        return True
    return (Place.STATE in a and _holds_state(b)) or (Place.STATE in b and _holds_state(a))


def _holds_state(roots: frozenset[Root]) -> bool:
    return any(isinstance(root, int | Place) for root in roots)


def places_of(value: object) -> frozenset[Root]:
    if isinstance(value, Tensor):
        return frozenset({storage_key(value)})
    if isinstance(value, nn.Module):
        return frozenset(storage_key(t) for t in (*value.parameters(), *value.buffers()))
    return frozenset({Place.STATE})


def storage_key(tensor: Tensor) -> int:
    """The same number for tensors that lie in the same storage, wherever in it they lie."""
    if tensor.layout is not torch.strided:
        return id(tensor)
    storage = tensor.untyped_storage()
    # Fake and meta tensors have no address, but one storage object each.
    return storage.data_ptr() if _has_address(tensor) else id(storage)


def _has_address(tensor: Tensor) -> bool:
    try:
        return not tensor.is_meta and tensor.data_ptr() != 0
    except RuntimeError:  # fake tensors
        return False


class Writers:
    """The nodes of a graph that may write something, in order."""

    def __init__(
        self, module: GraphModule, effects: Callable[[Node], Effects], aliasing: Aliasing
    ) -> None:
        self._module = module
        self._effects = effects
        self._aliasing = aliasing
        self._nodes: list[Node] | None = None
        self._stale: dict[Node, None] = {}

    def between(self, first: Node, last: Node, value: Node) -> Node | None:
        """The first node strictly between two others that may write the memory of `value`."""
        nodes = self._current()
        for node in nodes[bisect_right(nodes, first) : bisect_left(nodes, last)]:
            if self._aliasing.may_write(node, value):
                return node
        return None

    def writes_into(self, tensor: Tensor) -> bool:
        """Whether any node may write the memory of `tensor`."""
        wanted = places_of(tensor)
        return any(self._aliasing.may_write_into(node, wanted) for node in self._current())

    def changed(self, nodes: Iterable[Node]) -> None:
        self._stale.update(dict.fromkeys(nodes))

    def _current(self) -> list[Node]:
        if self._nodes is None:
            self._nodes = [node for node in self._module.graph.nodes if self._writes(node)]
            self._stale.clear()
        for node in self._stale:
            self._refresh(self._nodes, node)
        self._stale.clear()
        return self._nodes

    def _refresh(self, nodes: list[Node], node: Node) -> None:
        at = bisect_left(nodes, node)
        listed = at < len(nodes) and nodes[at] is node
        belongs = not is_erased(node) and self._writes(node)
        if listed and not belongs:
            del nodes[at]
        elif belongs and not listed:
            insort(nodes, node)

    def _writes(self, node: Node) -> bool:
        if is_replaced(node) and all(is_replaced(user) for user in node.users):
            return False  # it only waits for the commit
        effects = self._effects(node)
        return bool(effects.writes or effects.writes_state or effects.unknown)


def is_erased(node: Node) -> bool:
    return node._erased  # noqa: SLF001  torch has no public name

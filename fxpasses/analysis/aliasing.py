"""Which values may share memory, and who may write it.

Every value has *roots*: the pieces of memory it may lie in. A call that makes a new tensor is its
own root, a view has the roots of what it looks at, and a call of unknown code may return anything
that it was given or can get at. Two values may alias if they have a root in common.
"""

from bisect import bisect_left, bisect_right, insort
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any, ClassVar, Final, TypeAlias

import torch
from torch import Tensor, nn
from torch.fx import GraphModule, Node

from fxpasses.analysis.reach import tensors_within_reach
from fxpasses.analysis.sharing import Sharing, sharing_of
from fxpasses.core import Effects, attribute, is_replaced


class Place:
    """Memory that is no single node's. Each is itself alone, and quick to look up."""

    STATE: ClassVar["Place"]
    """Whatever the module holds."""
    HIDDEN: ClassVar["Place"]
    """What code that nothing is known of keeps to itself."""
    ANYWHERE: ClassVar["Place"]
    """Any memory at all."""


Place.STATE, Place.HIDDEN, Place.ANYWHERE = Place(), Place(), Place()

Root: TypeAlias = "Node | int | Place"  # a number is a storage that an attribute lies in

_NOWHERE: Final = frozenset[Root]()
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

    def written_by(self, node: Node) -> frozenset[Root]:
        """The memory that running `node` may write."""
        effects = self._effects(node)
        found = _NOWHERE.union(*map(self.roots, effects.writes))
        if effects.unknown:
            found |= self._reached(node)
        if effects.writes_state:
            found |= self._own_state(node)
        return found

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

    def changed(self, nodes: Iterable[Node]) -> list[Node]:
        """Forget the roots of `nodes`, and of the known values that look into their memory.

        Returns all whose roots are forgotten.
        """
        stack, forgotten = list(nodes), list[Node]()
        while stack:
            node = stack.pop()
            roots = self._roots.pop(node, None)
            if roots is not None:
                forgotten.append(node)
                stack.extend(u for u in node.users if self._roots.get(u, {u}) != {u})
        return forgotten

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
    """The nodes of a graph that may write something, in order, and where they write."""

    def __init__(
        self, module: GraphModule, effects: Callable[[Node], Effects], aliasing: Aliasing
    ) -> None:
        self._module = module
        self._effects = effects
        self._aliasing = aliasing
        self._nodes: list[Node] | None = None
        self._written: dict[Node, frozenset[Root]] = {}
        self._state: Counter[Root] = Counter()
        """How many nodes write each place that is no node's own memory."""
        self._stale: dict[Node, None] = {}

    def between(self, first: Node, last: Node, value: Node) -> Node | None:
        """The first node strictly between two others that may write the memory of `value`."""
        nodes = self._current()
        for node in nodes[bisect_right(nodes, first) : bisect_left(nodes, last)]:
            if _meet(self._written[node], self._aliasing.roots(value)):
                return node
        return None

    def writes_into(self, tensor: Tensor) -> bool:
        """Whether any node may write the memory of `tensor`."""
        self._current()
        if not self._state:
            return False
        return any(self._state[p] for p in (*places_of(tensor), Place.STATE, Place.ANYWHERE))

    def changed(self, nodes: Iterable[Node], forgotten: Iterable[Node]) -> None:
        """Look again at `nodes`, and at what writes into values whose roots are forgotten."""
        self._stale.update(dict.fromkeys(nodes))
        for node in forgotten:
            self._stale.update((user, None) for user in node.users if user in self._written)

    def _current(self) -> list[Node]:
        if self._nodes is None:
            self._nodes = []
            self._stale = dict.fromkeys(self._module.graph.nodes)
        if self._stale:
            stale, self._stale = self._stale, {}
            for node in stale:
                self._refresh(self._nodes, node)
        return self._nodes

    def _refresh(self, nodes: list[Node], node: Node) -> None:
        if node in self._written:
            self._forget(_of_no_node(self._written.pop(node)))
            del nodes[bisect_left(nodes, node)]
        if not is_erased(node) and self._writes(node):
            self._written[node] = written = self._aliasing.written_by(node)
            if places := _of_no_node(written):
                self._state.update(places)
            insort(nodes, node)

    def _forget(self, places: Iterable[Root]) -> None:
        for place in places:
            self._state[place] -= 1
            if not self._state[place]:
                del self._state[place]

    def _writes(self, node: Node) -> bool:
        if is_replaced(node) and all(is_replaced(user) for user in node.users):
            return False  # it only waits for the commit
        effects = self._effects(node)
        return bool(effects.writes or effects.writes_state or effects.unknown)


def _of_no_node(roots: frozenset[Root]) -> list[Root]:
    return [root for root in roots if not isinstance(root, Node)]


def is_erased(node: Node) -> bool:
    return node._erased  # noqa: SLF001  torch has no public name

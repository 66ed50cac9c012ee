"""Which node after is which node before."""

from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator
from typing import Any

from torch.fx import Graph, Node

from fxpasses.core import STANDS_FOR
from fxpasses.core.described import value_of
from fxpasses.ops import module_of


class Matching:
    """The nodes of two graphs, told apart: `before_of` has those after that are still there.

    A node is the same where name and target are. What was only given another name is known by
    what it computes of the same operands.
    """

    def __init__(self, before: Graph, after: Graph) -> None:
        self.before_of: dict[Node, Node] = {}
        self._named = {node.name: node for node in before.nodes}
        self._by_name(after)
        self._by_operands(before, after)
        self.after_of = {old: new for new, old in self.before_of.items()}
        self._values = {**{old: old for old in before.nodes}, **dict(self._stood_for(after))}

    def changed(self, new: Node) -> bool:
        """Whether a node that is still there computes otherwise, or of other values."""
        old = self.before_of[new]
        mine, theirs = (self._shape(node, self._value) for node in (new, old))
        return mine != theirs or value_of(new) != value_of(old) or _settings(new) != _settings(old)

    def _by_name(self, after: Graph) -> None:
        for new in after.nodes:
            old = self._named.get(new.name)
            if old is not None and (old.op, old.target) == (new.op, new.target):
                self.before_of[new] = old

    def _by_operands(self, before: Graph, after: Graph) -> None:
        taken = set(self.before_of.values())
        free: defaultdict[Hashable, list[Node]] = defaultdict(list)
        for old in before.nodes:
            if old not in taken:
                free[self._shape(old, lambda node: node)].append(old)
        for new in after.nodes if free else ():
            if new not in self.before_of:
                same = free.get(self._shape(new, lambda node: self.before_of.get(node, node)))
                if same:
                    self.before_of[new] = same.pop(0)

    def _stood_for(self, after: Graph) -> Iterator[tuple[Node, Node]]:
        """Each node after, and the one before that has the same value."""
        for new in after.nodes:
            same = self._named.get(new.meta.get(STANDS_FOR, ""))
            old = self.before_of.get(new) or same
            if old is not None:
                yield new, old

    def _value(self, node: Node) -> Node:
        return self._values.get(node, node)

    @staticmethod
    def _shape(node: Node, of: Callable[[Node], Node]) -> Hashable:
        target = node.target if isinstance(node.target, str) else id(node.target)
        return node.op, target, _frozen(node.args, of), _frozen(node.kwargs, of)


def merged(before: Iterable[Node], after: Iterable[Node], matching: Matching) -> Iterator[Node]:
    """All nodes, in an order near to both: what is gone comes ahead of what is in its place.

    A node that is still there is given once, as it is after.
    """
    gone = iter(before)
    waiting: list[Node] = []
    told: set[Node] = set()
    for new in after:
        old = matching.before_of.get(new)
        if old is None:
            waiting.append(new)
            continue
        while old not in told:
            passed = next(gone)
            told.add(passed)
            if passed not in matching.after_of:
                yield passed
        yield from waiting
        waiting = []
        yield new
    yield from (node for node in gone if node not in matching.after_of)
    yield from waiting


def _settings(node: Node) -> str:
    """Class and settings of the module that is called, its weights left aside."""
    if node.op != "call_module":
        return ""
    try:
        module = module_of(node)
    except (AttributeError, AssertionError):
        return "missing"
    return f"{type(module).__qualname__}({module.extra_repr()})"


def _frozen(value: Any, of: Callable[[Node], Node]) -> Hashable:
    if isinstance(value, Node):
        return id(of(value))
    if isinstance(value, tuple | list):
        return (type(value).__name__, *(_frozen(item, of) for item in value))
    if isinstance(value, dict):
        return tuple((key, _frozen(item, of)) for key, item in value.items())
    if isinstance(value, slice):
        return ("slice", *(_frozen(item, of) for item in (value.start, value.stop, value.step)))
    return (type(value).__name__, repr(value))

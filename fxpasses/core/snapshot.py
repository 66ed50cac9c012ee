"""A graph module as it was: to tell what changed, and to put it back."""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from operator import is_
from types import MappingProxyType
from typing import Any, Final

import torch
from torch import nn
from torch.fx import Graph, GraphModule, Node
from torch.fx.node import map_arg

_DICTS: Final = ("_modules", "_parameters", "_buffers")
# What belongs to the graph and the code made of it, which are looked after apart.
_OF_THE_GRAPH: Final = frozenset({"_graph", "_code", "_lineno_map", "_prologue_start"})
_MISSING: Final = object()
_EMPTY: Final[Mapping[str, Any]] = MappingProxyType({})


@dataclass(slots=True)
class _NodeState:
    node: Node
    name: str
    op: str
    target: Any
    args: Any
    kwargs: Any
    type: Any
    meta: dict[str, Any]

    @classmethod
    def of(cls, node: Node) -> "_NodeState":
        return cls(
            node,
            node.name,
            node.op,
            node.target,
            node.args,
            node.kwargs,
            node.type,
            dict(node.meta),
        )

    def is_kept(self) -> bool:
        """Whether the node still is what it was, metadata apart."""
        node = self.node
        same = node.name == self.name and node.op == self.op and node.target is self.target
        return same and _equal(node.args, self.args) and _equal(node.kwargs, self.kwargs)

    def restore(self) -> None:
        node = self.node
        if not self.is_kept():
            node.name, node.op, node.target = self.name, self.op, self.target
            node.args, node.kwargs = self.args, self.kwargs
        node.type = self.type
        node.meta = dict(self.meta)


def _equal(a: Any, b: Any) -> bool:
    return a is b or repr(a) == repr(b)


class Snapshot:
    """The nodes of a graph with their operands and metadata, and the module's attributes.

    Tensors and submodules are held as they are, not copied: what is written *into* a tensor is
    not seen. Graph modules below the module are left to their own snapshots.
    """

    def __init__(self, module: GraphModule) -> None:
        self._module = module
        self._graph = module.graph
        self._states = [_NodeState.of(node) for node in module.graph.nodes]
        self._names = _namespace(module.graph)
        self._holders = [_Holder(m) for m in _own_modules(module)]

    def difference(
        self,
        created: Collection[Node],
        rewired: Collection[Node],
        attributes: Collection[str],
    ) -> str | None:
        """What is not as it was, apart from what the caller knows of; None if nothing.

        Args:
            created: nodes that are new.
            rewired: nodes whose operands have changed.
            attributes: names that were put on the module itself.
        """
        if self._module.graph is not self._graph:
            return "the module has another graph"
        nodes = iter([node for node in self._graph.nodes if node not in created])
        for state in self._states:
            if next(nodes, None) is not state.node:
                return f"{state.name} is not where it was"
            if state.node not in rewired and not state.is_kept():
                return f"{state.name} is changed"
        if (stranger := next(nodes, None)) is not None:
            return f"{stranger.name} is new"
        for holder in self._holders:
            own = attributes if holder.module is self._module else ()
            if name := holder.difference(own):
                return f"the attribute {name} of {type(holder.module).__name__} is changed"
        return None

    def restore(self) -> None:
        """Put everything back, whatever was done to the graph and the attributes since."""
        for holder in self._holders:
            holder.restore()
        if not self._restore_nodes():
            self._graph = self._rebuilt()
        else:
            _set_namespace(self._graph, self._names)
        self._module.graph = self._graph

    def _restore_nodes(self) -> bool:
        """Put the nodes back in place; False where they are no longer the same in that order."""
        mine = {state.node: None for state in self._states}
        kept = [node for node in self._graph.nodes if node in mine]
        if len(kept) != len(mine) or any(a is not b for a, b in zip(kept, mine, strict=True)):
            return False
        for state in self._states:
            state.restore()
        strangers = [node for node in self._graph.nodes if node not in mine]
        for node in strangers:
            node.args, node.kwargs = (), {}
        for node in strangers:
            if node.users:
                return False
            self._graph.erase_node(node)
        return True

    def _rebuilt(self) -> Graph:
        graph = Graph(tracer_cls=self._graph._tracer_cls)  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]  torch has no public name
        graph.set_codegen(self._graph._codegen)  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]  torch has no public name
        copies: dict[Node, Node] = {}
        for state in self._states:
            copies[state.node] = copy = graph.create_node(
                state.op,
                state.target,
                map_arg(state.args, copies.__getitem__),
                map_arg(state.kwargs, copies.__getitem__),
                state.name,
                state.type,
            )
            copy.name, copy.meta = state.name, dict(state.meta)
        _set_namespace(graph, self._names)
        return graph


class _Holder:
    """What one module holds, by name."""

    __slots__ = ("_held", "_own", "module")

    def __init__(self, module: nn.Module) -> None:
        self.module = module
        self._own = own = module.__dict__.copy()
        # Most modules are layers, and hold nothing in most of these.
        modules, parameters, buffers = own["_modules"], own["_parameters"], own["_buffers"]
        self._held = (
            modules.copy() if modules else _EMPTY,
            parameters.copy() if parameters else _EMPTY,
            buffers.copy() if buffers else _EMPTY,
        )

    def difference(self, own: Collection[str]) -> str | None:
        """The first name that means something else than it did, `own` apart."""
        if self._is_kept():
            return None
        for before, now in self._pairs():
            if name := next((n for n in _changed(before, now) if n not in own), None):
                return name
        return None

    def _is_kept(self) -> bool:
        """Whether everything is the same at a glance; it may be even where this is False."""
        now = self.module.__dict__
        if not _is_kept(self._own, now):
            return False
        # Most modules are layers, which hold nothing in most of these.
        for before, name in zip(self._held, _DICTS, strict=True):
            after = now[name]
            if (before or after) and not _is_kept(before, after):
                return False
        return True

    def restore(self) -> None:
        for before, now in self._pairs():
            _put_back(before, now)

    def _pairs(self) -> Iterator[tuple[Mapping[str, Any], dict[str, Any]]]:
        now = vars(self.module)
        yield self._own, now
        for name, held in zip(_DICTS, self._held, strict=True):
            yield held, now[name]


def _is_kept(before: Mapping[str, Any], now: Mapping[str, Any]) -> bool:
    if len(before) != len(now):
        return False
    return all(map(is_, before.values(), now.values())) and list(before) == list(now)


def _changed(before: Mapping[str, Any], now: Mapping[str, Any]) -> Iterator[str]:
    for name in (*before, *(name for name in now if name not in before)):
        if name not in _OF_THE_GRAPH and before.get(name, _MISSING) is not now.get(name, _MISSING):
            yield name


def _put_back(before: Mapping[str, Any], now: dict[str, Any]) -> None:
    """In place, since others may hold the dictionary, and in the old order."""
    if not list(_changed(before, now)):
        return
    graph = {name: now[name] for name in _OF_THE_GRAPH & now.keys()}
    now.clear()
    now.update(before)
    now.update(graph)


def _own_modules(module: GraphModule) -> Iterator[nn.Module]:
    seen: set[int] = set()
    stack: list[nn.Module] = [module]
    while stack:
        top = stack.pop()
        if id(top) in seen or (isinstance(top, GraphModule) and top is not module):
            continue
        # TorchScript keeps its state elsewhere, out of reach of Python.
        if isinstance(top, torch.jit.ScriptModule):
            continue
        seen.add(id(top))
        yield top
        children = vars(top)["_modules"]
        if children:
            stack.extend(child for child in children.values() if child is not None)


def _namespace(graph: Graph) -> tuple[dict[Any, str], set[str], dict[str, int]]:
    names = graph._graph_namespace  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]  torch has no public name
    return dict(names._obj_to_name), set(names._used_names), dict(names._base_count)  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]  torch has no public name


def _set_namespace(graph: Graph, state: tuple[dict[Any, str], set[str], dict[str, int]]) -> None:
    """So that a pass that is tried again after a rollback makes the same names again."""
    names = graph._graph_namespace  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]  torch has no public name
    by_object, used, counts = state
    known = {node: node.name for node in graph.nodes}
    names._obj_to_name = {k: v for k, v in by_object.items() if not isinstance(k, Node)} | known  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]  torch has no public name
    names._used_names, names._base_count = set(used), dict(counts)  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]  torch has no public name

"""Copies of graphs that keep every name and all metadata, in memory and as plain data.

Torch's own copies rename nodes, and its pickles trace the generated code again, which fails on
functions it cannot trace and loses in-place operators.
"""

import copy
import pickle
from collections.abc import Callable
from dataclasses import dataclass
from types import FunctionType
from typing import Any, Final, TypeAlias

import torch
from torch import fx
from torch._ops import OpOverload, OpOverloadPacket
from torch.fx import Graph, Node
from torch.nn import functional

from fxpasses.core import MODULE_STACK, ORIGIN, SOURCE, STANDS_FOR, VALUE, add_node

_KEPT_META: Final = (VALUE, SOURCE, ORIGIN, STANDS_FOR, "stack_trace")


def copy_graph(graph: Graph) -> Graph:
    """The same nodes under the same names, in a graph of their own, with copies of the metadata."""
    made, copies = Graph(), dict[Node, Node]()
    made.set_codegen(copy.deepcopy(graph._codegen))  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]  how the calling convention is kept
    for node in graph.nodes:
        args = fx.map_arg(node.args, copies.__getitem__)
        kwargs = fx.map_arg(node.kwargs, copies.__getitem__)
        new = add_node(made, node.op, node.target, args, kwargs, node.name)
        new.type = node.type
        new.meta = dict(node.meta)
        copies[node] = new
    return made


# -- as plain data


@dataclass(frozen=True, slots=True)
class _NodeAt:
    """A node of the graph, by its position."""

    index: int


@dataclass(frozen=True, slots=True)
class _Operator:
    """An operator of torch's dispatcher, by its name: the objects cannot be pickled."""

    name: str
    overload: str | None


@dataclass(frozen=True, slots=True)
class _Functional:
    """A function of `torch.nn.functional` that torch makes inside another: pickle finds no name."""

    name: str


_MADE_INSIDE: Final = {
    function: name
    for name, function in vars(functional).items()
    if isinstance(function, FunctionType) and "<locals>" in function.__qualname__
}

FrozenGraph: TypeAlias = "tuple[tuple[Any, ...], ...]"


def freeze(graph: Graph) -> FrozenGraph:
    """The graph as a flat tuple of plain data, which pickles without recursion."""
    positions = {node: index for index, node in enumerate(graph.nodes)}

    def plain(value: Any) -> Any:
        if isinstance(value, Node):
            return _NodeAt(positions[value])
        return _operator_name(value)

    return tuple(
        (
            node.op,
            node.name,
            _operator_name(node.target),
            _mapped(node.args, plain),
            _mapped(node.kwargs, plain),
            _frozen_meta(node.meta),
        )
        for node in graph.nodes
    )


def thaw(frozen: FrozenGraph) -> Graph:
    """The graph that `freeze` made `frozen` of."""
    graph = Graph()
    nodes: list[Node] = []

    def live(value: Any) -> Any:
        return nodes[value.index] if isinstance(value, _NodeAt) else _operator(value)

    for op, name, target, args, kwargs, meta in frozen:
        operands = (_mapped(args, live), _mapped(kwargs, live))
        node = graph.create_node(op, _operator(target), *operands, name)
        node.meta.update(meta)
        nodes.append(node)
    return graph


def _mapped(value: Any, leaf: Callable[[Any], Any]) -> Any:
    """The structure of node arguments again, in ordinary containers."""
    if isinstance(value, tuple):
        items = [_mapped(item, leaf) for item in value]
        named = hasattr(value, "_fields")
        return type(value)(*items) if named else tuple(items)
    if isinstance(value, list):
        return [_mapped(item, leaf) for item in value]
    if isinstance(value, dict):
        return {key: _mapped(item, leaf) for key, item in value.items()}
    if isinstance(value, slice):
        parts = (value.start, value.stop, value.step)
        return slice(*(_mapped(part, leaf) for part in parts))
    return leaf(value)


def _operator_name(value: Any) -> Any:
    if isinstance(value, OpOverload):
        schema = value._schema  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]  no public name
        return _Operator(schema.name, schema.overload_name)
    if isinstance(value, OpOverloadPacket):
        return _Operator(value._qualified_op_name, None)  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]  no public name
    if isinstance(value, FunctionType) and value in _MADE_INSIDE:
        return _Functional(_MADE_INSIDE[value])
    return value


def _operator(value: Any) -> Any:
    if isinstance(value, _Functional):
        return getattr(functional, value.name)
    if not isinstance(value, _Operator):
        return value
    namespace, _, name = value.name.partition("::")
    packet = getattr(getattr(torch.ops, namespace), name)
    return packet if value.overload is None else getattr(packet, value.overload or "default")


def _frozen_meta(meta: dict[str, Any]) -> dict[str, Any]:
    kept = {key: meta[key] for key in _KEPT_META if key in meta}
    if MODULE_STACK in meta:
        stack = meta[MODULE_STACK]
        # Torch allows names in place of classes, and names can always be pickled.
        kept[MODULE_STACK] = {key: (path, _class_name(kind)) for key, (path, kind) in stack.items()}
    for key in meta.keys() - kept.keys():
        if _is_plain(meta[key]):
            kept[key] = meta[key]
    return kept


def _class_name(kind: Any) -> str:
    return f"{kind.__module__}.{kind.__qualname__}" if isinstance(kind, type) else str(kind)


def _is_plain(value: Any) -> bool:
    if isinstance(value, (tuple, list)):
        return all(_is_plain(item) for item in value)
    if isinstance(value, dict):
        return all(_is_plain(item) for item in (*value.keys(), *value.values()))
    return value is None or isinstance(value, (bool, int, float, str, bytes, torch.dtype))


def is_picklable(value: Any) -> bool:
    """Whether `value` can be pickled by name, such as a class or a function."""
    try:
        pickle.dumps(value)
    except (pickle.PicklingError, AttributeError, TypeError):
        return False
    return True

"""What is known of nodes without running them: bytes, from the shapes of the example."""

import math
from collections.abc import Iterator, Mapping
from typing import Any

from torch.fx import GraphModule, Node

from fxpasses.core import VALUE, TensorInfo
from fxpasses.core.described import full_name
from fxpasses.ops import OPERANDS_NOT_SAVED, RESULT_SAVED, VIEWS, op_of


def bytes_of_results(graphs: Mapping[str, GraphModule]) -> dict[str, float]:
    """What the result of each node takes, by full names; a view takes nothing of its own."""
    return {
        full_name(path, node.name): 0.0 if _is_view(node) else size
        for path, node, size in _sized(graphs)
    }


def bytes_saved(graphs: Mapping[str, GraphModule]) -> dict[str, float]:
    """What of the result of each node autograd keeps for a backward, at most.

    Told at the node that computes the values, not at the views of them. Nodes of which nobody
    knows what they keep, and values that only those read, are left out.
    """
    return {
        full_name(path, node.name): size if kept else 0.0
        for path, node, size in _sized(graphs)
        if (kept := _is_saved(node)) is not None
    }


def _is_saved(node: Node) -> bool | None:
    """Whether a backward reads the result; None where nobody knows."""
    if _is_view(node):
        return False
    if _op(node) in RESULT_SAVED:
        return True
    said = [_reader_saves(reader) for reader in _readers(node)]
    if True in said:
        return True
    is_open = None in said or (_op(node) is None and node.op != "placeholder")
    return None if is_open else False


def _reader_saves(reader: Node) -> bool | None:
    if reader.op == "output":
        return False
    op = _op(reader)
    return None if op is None else op not in OPERANDS_NOT_SAVED


def _readers(node: Node) -> Iterator[Node]:
    """Who reads the result, or a view of it."""
    waiting, seen = [node], {node}
    while waiting:
        for user in waiting.pop().users:
            if not _is_view(user):
                yield user
            elif user not in seen:
                seen.add(user)
                waiting.append(user)


def _is_view(node: Node) -> bool:
    return _op(node) in VIEWS


def _op(node: Node) -> object:
    try:
        return op_of(node)
    except (AttributeError, AssertionError):  # a graph that is broken can be drawn, too
        return None


def _sized(graphs: Mapping[str, GraphModule]) -> Iterator[tuple[str, Node, float]]:
    """Nodes whose results are tensors of a known size, with their paths and bytes."""
    for path, module in graphs.items():
        for node in module.graph.nodes:
            size = _bytes(node.meta.get(VALUE))
            if size is not None and node.op not in ("get_attr", "output"):
                yield path, node, size


def _bytes(known: Any) -> float | None:
    if isinstance(known, TensorInfo):
        return float(math.prod(known.example_shape) * known.dtype.itemsize)
    if isinstance(known, dict):
        known = list(known.values())
    if not isinstance(known, tuple | list):
        return None
    sizes = [size for item in known if (size := _bytes(item)) is not None]
    return sum(sizes) if sizes else None

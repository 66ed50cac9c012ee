"""Weights and other constants, which have no boxes: how they are told where they are read."""

from collections.abc import Iterable, Iterator, Sequence
from functools import reduce
from typing import Any

from torch import Tensor
from torch.fx import Node

from fxpasses.core.plain import printable
from fxpasses.diagram.scale import count_text
from fxpasses.ops import module_of

_WIDTH = 24


def badge_of(node: Node) -> str:
    """A constant by its name, the end of it where that is long."""
    name = printable(str(node.target)).rpartition(".")[2]
    return name if len(name) <= _WIDTH else f"...{name[-_WIDTH + 3 :]}"


def own_constants(node: Node, read: Sequence[Node]) -> str:
    """How many numbers a node reads that nobody computes, as in `9.4K`; or their names."""
    tensors = dict(_constants(node, read))
    count = sum(one.numel() for one in tensors.values() if isinstance(one, Tensor))
    if count:
        return count_text(count)
    return ", ".join(map(badge_of, read[:2])) + (", ..." if len(read) > 2 else "")


def constants_told(node: Node, read: Iterable[Node]) -> Iterator[str]:
    """What a node reads, one by one: `weight 64x3x7x7`."""
    for name, tensor in _constants(node, read):
        shape = "x".join(map(str, tensor.shape)) if isinstance(tensor, Tensor) else ""
        yield f"reads {name} {shape}".rstrip()


def _constants(node: Node, read: Iterable[Node]) -> Iterator[tuple[str, Any]]:
    if node.op == "call_module":
        try:
            yield from module_of(node).named_parameters()
        except (AttributeError, AssertionError):  # a graph that is broken can be drawn, too
            return
    for one in read:
        yield str(one.target), _attribute(one)


def _attribute(node: Node) -> object:
    owner = node.graph.owning_module
    return reduce(lambda at, part: getattr(at, part, None), str(node.target).split("."), owner)

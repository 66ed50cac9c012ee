"""What is known of a node, as plain data."""

from dataclasses import dataclass
from typing import Final

from torch.fx import Node

from fxpasses.core import MODULE_STACK, source_of
from fxpasses.core.described import value_of
from fxpasses.ops import label_of

BORDERS: Final = {"placeholder": "an input", "output": "the output", "get_attr": "a constant"}


@dataclass(frozen=True, slots=True)
class NodeFacts:
    """What is known of one node of a graph."""

    path: str
    name: str
    computes: str
    value: str
    """Its shape and dtype on the example."""
    module: str
    source: str | None
    operands: tuple[str, ...]
    readers: tuple[str, ...]
    became: tuple[str, ...] = ()
    """What has come in its place: `conv_1, by fuse_conv_bn`."""


def facts_of(path: str, node: Node) -> NodeFacts:
    stack: dict[str, tuple[str, object]] = node.meta.get(MODULE_STACK) or {}
    inner = list(stack.values())[-1][0] if stack else ""
    return NodeFacts(
        path,
        node.name,
        _computes(node),
        value_of(node),
        ".".join(part for part in (path, inner) if part),
        place_of(node),
        tuple(one.name for one in node.all_input_nodes),
        tuple(one.name for one in node.users),
    )


def _computes(node: Node) -> str:
    if node.op in BORDERS:
        return BORDERS[node.op]
    called = str(getattr(node.target, "__name__", node.target))
    return label_of(node) or called


def place_of(node: Node) -> str | None:
    source = source_of(node)
    return None if source is None else str(source)

"""What the checks look at."""

from collections.abc import Iterator
from dataclasses import dataclass

from torch import nn
from torch.fx import GraphModule, Node

from fxpasses.advise.advice import Finding, Kind
from fxpasses.capture import Capture
from fxpasses.core import MODULE_STACK, VALUE, TensorInfo, source_of


@dataclass(frozen=True, slots=True)
class Subject:
    """A model and its capture. Nothing of either is to be changed."""

    model: nn.Module
    captured: Capture

    def graphs(self) -> Iterator["Captured"]:
        for path, module in self.captured.program:
            yield Captured(path, module)


@dataclass(frozen=True, slots=True)
class Captured:
    """One graph, and the path of the module whose forward it is."""

    path: str
    module: GraphModule

    @property
    def nodes(self) -> list[Node]:
        return list(self.module.graph.nodes)

    def finding(self, kind: Kind, node: Node, message: str, remedy: str) -> Finding:
        source = source_of(node)
        where = None if source is None else str(source)
        return Finding(kind, self._path_of(node), node.name, message, where, remedy)

    def _path_of(self, node: Node) -> str:
        """The innermost module that the node is part of, seen from the whole model."""
        stack: dict[str, tuple[str, object]] = node.meta.get(MODULE_STACK) or {}
        inner = list(stack.values())[-1][0] if stack else ""
        if not stack and node.op == "call_module":
            inner = str(node.target)
        return ".".join(part for part in (self.path, inner) if part)


def tensor_at(node: object) -> TensorInfo | None:
    """What the capture saw of the value of `node`, where that is one tensor."""
    known = node.meta.get(VALUE) if isinstance(node, Node) else None
    return known if isinstance(known, TensorInfo) else None

"""Where double precision comes in."""

from collections.abc import Iterator
from typing import Final

import torch
from torch import Tensor
from torch.fx import Node

from fxpasses.advise.advice import Finding, Kind
from fxpasses.advise.subject import Captured, Subject, tensor_at
from fxpasses.core import attribute

_REMEDY: Final = "name the dtype where it is made (dtype=x.dtype), or cast it once, outside"
_GIVEN: Final = "pass it in single precision"


def double_precision(subject: Subject) -> Iterator[Finding]:
    """Only where it comes in: what is computed from it is wide, too."""
    for graph in subject.graphs():
        for node in graph.nodes:
            if not _is_wide(graph, node) or any(_is_wide(graph, n) for n in node.all_input_nodes):
                continue
            if node.op == "placeholder":
                message, remedy = f"the argument {node.target} is float64", _GIVEN
            elif node.op == "get_attr":
                message, remedy = f"{node.target} is kept in float64", _REMEDY
            else:
                message, remedy = f"{node.name} makes float64 of other dtypes", _REMEDY
            yield graph.finding(Kind.FLOAT64, node, message, remedy)


def _is_wide(graph: Captured, node: Node) -> bool:
    known = tensor_at(node)
    if known is not None:
        return known.dtype is torch.float64
    if node.op != "get_attr":
        return False
    value = attribute(graph.module, str(node.target))
    return isinstance(value, Tensor) and value.dtype is torch.float64

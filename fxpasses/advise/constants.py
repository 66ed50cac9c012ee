"""Memory for what is the same in every call."""

from collections.abc import Iterator
from math import prod
from typing import Final

from torch import Tensor, nn
from torch.fx import Node

from fxpasses.advise.advice import Finding, Kind
from fxpasses.advise.subject import Captured, Subject, tensor_at
from fxpasses.core import attribute
from fxpasses.ops import FACTORIES, op_of
from fxpasses.page.numbers import size

LARGE: Final = 1 << 20
"""Bytes from which on a constant is worth a word."""

_MADE: Final = "make it once, in __init__, as a buffer (persistent=False), or run constant_fold"
_HELD: Final = (
    "keep it in a smaller dtype, expand what repeats instead of storing it, or compute it from "
    "less (is_causal=True needs no mask)"
)
_PLAIN: Final = "register it as a buffer (persistent=False), so that it moves with the model"


def large_constants(subject: Subject) -> Iterator[Finding]:
    for graph in subject.graphs():
        for node in graph.nodes:
            if op_of(node) in FACTORIES:
                yield from _made(graph, node)
            elif node.op == "get_attr":
                yield from _held(graph, node)


def _made(graph: Captured, node: Node) -> Iterator[Finding]:
    known = tensor_at(node)
    taken = 0 if known is None else prod(known.example_shape) * known.dtype.itemsize
    if taken >= LARGE:
        message = f"{size(taken)} are made anew in every call"
        yield graph.finding(Kind.LARGE_CONSTANT, node, message, _MADE)


def _held(graph: Captured, node: Node) -> Iterator[Finding]:
    value = attribute(graph.module, str(node.target))
    if not isinstance(value, Tensor) or isinstance(value, nn.Parameter) or value.nbytes < LARGE:
        return
    registered = any(buffer is value for buffer in graph.module.buffers())
    dtype = str(value.dtype).removeprefix("torch.")
    message = f"{node.target} holds {size(value.nbytes)} of {dtype}"
    remedy = _HELD if registered else f"{_PLAIN}; {_HELD}"
    yield graph.finding(Kind.LARGE_CONSTANT, node, message, remedy)

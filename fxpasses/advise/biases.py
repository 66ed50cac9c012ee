"""Biases that a batch norm takes away again."""

from collections.abc import Iterator
from typing import Final

from fxpasses.advise.advice import Finding, Kind
from fxpasses.advise.subject import Subject
from fxpasses.views import BatchNorm, Conv, Linear, seen_through

_REMEDY: Final = "give the layer bias=False: the norm has a bias of its own"


def biases_before_norms(subject: Subject) -> Iterator[Finding]:
    for graph in subject.graphs():
        for node in graph.nodes:
            norm = BatchNorm.at(node)
            layer = None if norm is None else seen_through(norm.input, Conv, Linear)[0]
            if layer is not None and layer.has_bias:
                message = f"its bias is taken away by {node.name}"
                yield graph.finding(Kind.BIAS_BEFORE_NORM, layer.node, message, _REMEDY)

"""Layers whose channels are no multiple of 8."""

from collections.abc import Iterator
from typing import Final

from torch.fx import Node

from fxpasses.advise.advice import Finding, Kind
from fxpasses.advise.subject import Subject
from fxpasses.views import Conv, Weighted, first_layer_at

_UNIT: Final = 8
_REMEDY: Final = f"round up to a multiple of {_UNIT}, or pad the weights with zeros"


def odd_channels(subject: Subject) -> Iterator[Finding]:
    for graph in subject.graphs():
        for node in graph.nodes:
            layer = first_layer_at(node)
            odd = {} if layer is None else _odd(layer)
            if odd:
                told = " and ".join(
                    f"{number:,} {side} channels (next: {_rounded(number):,})"
                    for side, number in odd.items()
                )
                yield graph.finding(Kind.CHANNELS, node, told, _REMEDY)


def _odd(layer: Weighted) -> dict[str, int]:
    """The sides that miss; what the model is given it cannot choose."""
    weight = layer.tensor("weight")
    if weight is None:
        return {}
    groups = layer.groups if isinstance(layer, Conv) else 1
    outputs, inputs = weight.shape[0], weight.shape[1] * groups
    if isinstance(layer, Conv) and layer.is_transposed:
        outputs, inputs = weight.shape[1] * groups, weight.shape[0]
    given = isinstance(layer.input, Node) and layer.input.op == "placeholder"
    sides = {"output": outputs} if given else {"input": inputs, "output": outputs}
    return {side: number for side, number in sides.items() if number % _UNIT}


def _rounded(number: int) -> int:
    return -(-number // _UNIT) * _UNIT

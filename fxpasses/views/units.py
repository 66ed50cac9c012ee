"""Units made of the calls of a graph: a layer, maybe a sum, and an activation."""

from collections.abc import Mapping
from typing import Any

from torch.fx import Node

from fxpasses import nn
from fxpasses.core import Editor, Facts
from fxpasses.views.elementwise import Activation
from fxpasses.views.layers import Conv, Weighted


def options_of_unit(activation: Activation) -> dict[str, Any] | None:
    """What a unit's activation takes; None where a unit cannot have it."""
    names = nn.ACTIVATIONS.get(activation.op)
    if names is None:
        return None
    options = {name: activation.operand(name) for name in names}
    others = (activation.operand(name, 1) for name in ("scale", "input_scale"))
    is_plain = all(isinstance(value, int | float | str) for value in options.values())
    return options if is_plain and all(other == 1 for other in others) else None


def may_start_a_unit(layer: Weighted, facts: Facts) -> bool:
    """Whether a unit can be called in the place of the layer."""
    if layer.module is None:
        parameters = layer.operand("weight"), layer.operand("bias")
        if not isinstance(parameters[0], Node) or not isinstance(parameters[1], Node | None):
            return False
    elif layer.tensor("weight") is None or layer.operand("output_size") is not None:
        return False
    return not isinstance(layer, Conv) or _has_known_settings(layer, facts)


def _has_known_settings(conv: Conv, facts: Facts) -> bool:
    weight, operand = conv.tensor("weight"), conv.operand("weight")
    rank = facts.rank(operand) if isinstance(operand, Node) else None
    if (rank if weight is None else weight.dim()) != conv.spatial_rank + 2:
        return False
    padding = () if isinstance(conv.padding, str) else conv.padding
    settings = (*conv.stride, *padding, *conv.dilation, *conv.output_padding, conv.groups)
    return all(isinstance(number, int) for number in settings)


def unit_of(
    layer: Weighted,
    activation: Activation,
    options: Mapping[str, Any],
    *,
    adds: bool,
    holds: bool,
) -> nn.Unit:
    """The unit that a layer, maybe a sum, and an activation make.

    It has the parameters of the layer where it `holds` them, and none where it is given them.
    """
    own: tuple[Any, ...] = (layer.tensor("weight"), layer.tensor("bias")) if holds else ()
    following: dict[str, Any] = {
        "adds": adds,
        "activation": str(activation.op),
        "options": options,
    }
    if not isinstance(layer, Conv):
        return nn.LinearUnit(*own, **following)
    return nn.ConvUnit(
        *own,
        stride=layer.stride,
        padding=layer.padding,
        dilation=layer.dilation,
        groups=layer.groups,
        padding_mode=layer.padding_mode,
        transposed=layer.is_transposed,
        output_padding=layer.output_padding,
        **following,
    )


def parameters_in_place(layer: Weighted, edit: Editor) -> dict[str, Node]:
    """The parameters as they are read where they are."""
    given: dict[str, Any] = {name: layer.operand(name) for name in ("weight", "bias")}
    if layer.module is not None and layer.arguments.get("weight") is None:
        given = {
            name: edit.get_attr(f"{layer.node.target}.{name}")
            for name in ("weight", "bias")
            if layer.tensor(name) is not None
        }
    return {name: node for name, node in given.items() if isinstance(node, Node)}

"""Fold constant factors and summands into the convolution or linear layer next to them.

    conv(x, W, b) * 2 + c  ->  conv(x, 2 W, 2 b + c)
    conv(x / 255, W, b)    ->  conv(x, W / 255, b)

The new weights are computed in float64 and rounded once, so the outputs move by rounding only. The
layer may be transposed, grouped or linear.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from torch.fx import GraphModule, Node

from fxpasses.core import (
    Condition,
    Editor,
    Facts,
    GraphPass,
    Numerics,
    Refusal,
    Step,
    is_replaced,
)
from fxpasses.folding import affine
from fxpasses.folding.affine import Site
from fxpasses.folding.arithmetic import CALLS, Arithmetic, axes_behind, is_finite, little_cancels
from fxpasses.views import Conv, Linear, first_layer_at, seen_through, view_at


@dataclass(frozen=True)
class ScaleSite(Site):
    """Arithmetic with a constant and the layer next to it."""

    affine: Arithmetic


# -- what must hold


def constant_is_no_dividend(site: ScaleSite, _: Facts) -> str | None:
    value = site.affine.value.name
    return f"it divides the constant by {value}" if site.affine.divides else None


def constant_is_finite(site: ScaleSite, _: Facts) -> str | None:
    given = "it divides by zero, or the constant is not finite"
    return None if is_finite(site.affine) else given


def constant_is_one_number_a_channel(site: ScaleSite, facts: Facts) -> str | None:
    """The layer's output may lack a batch."""
    behind = axes_behind(site.layer)
    sure = behind + 1 if isinstance(site.layer, Conv) else 1
    most = max(sure, facts.rank(site.affine.value) or 0)
    return site.affine.mismatch(site.channels, behind, most)


def dtype_is_known_to_stay(site: ScaleSite, facts: Facts) -> str | None:
    """A number may be made of an integer; layers take none."""
    before, after = facts.dtype(site.affine.value), facts.dtype(site.affine.node)
    if before is None or after is None:
        return "the dtype is not known"
    return None if before is after else f"it turns {before} into {after}"


def no_write_is_seen(site: ScaleSite, facts: Facts) -> str | None:
    """An in-place call leaves its result where others may look for it."""
    written = facts.effects(site.affine.node).writes
    if not written:
        return None
    if site.is_in_front or any(node not in site.between for node in written):
        return f"it leaves its result in {written[0].name}"
    reason = affine.nothing_else_reads_between(site, facts)
    return reason and f"{reason}, which is written"


class FoldScale(GraphPass):
    """Fold constant factors and summands into the layers before or behind them.

    Numbers, and tensors with one number for each channel: products, quotients, sums, differences
    and negations, in chains too. In front of a layer that pads with zeros only factors can be
    folded. Parameters that are to be trained stay.
    """

    name = "fold_scale"
    numerics = Numerics.ROUNDING
    trains = True
    legal_if: ClassVar[tuple[Condition[Any], ...]] = (
        constant_is_no_dividend,
        constant_is_finite,
        affine.parameters_are_constant,
        affine.parameters_are_plain_tensors,
        affine.nothing_writes_the_parameters,
        affine.constants_stay_inside,
        affine.no_parameter_is_trained,
        constant_is_one_number_a_channel,
        dtype_is_known_to_stay,
        no_write_is_seen,
        affine.nothing_writes_between,
        affine.padding_is_not_shifted,
        little_cancels,
        affine.weights_fit_their_dtype,
    )
    worthwhile_if: ClassVar[tuple[Condition[Any], ...]] = (affine.nothing_else_reads_between,)
    remedies: ClassVar[Mapping[Condition[Any], str]] = {
        **affine.remedies_of((*legal_if, *worthwhile_if)),
        constant_is_no_dividend: "nothing: the quotient is not linear",
        constant_is_finite: "look at the constant",
        constant_is_one_number_a_channel: "give the constant the shape [channels, 1, 1], or pass "
        "example_inputs so that the rank is known",
        dtype_is_known_to_stay: "keep the constant in the dtype of the layer, or pass "
        "example_inputs so that the dtypes are known",
        no_write_is_seen: "replace the in-place call by the plain one",
        little_cancels: "centre the values before they reach the model",
    }

    def steps(self, module: GraphModule, facts: Facts) -> Iterator[Step | Refusal]:
        """First what lies behind layers, which is never inexact, then what is left in front."""
        refused: dict[Node, Refusal] = {}
        for node in _left(module):
            if (site := _behind_a_layer(node)) is not None:
                refusal = self.refusal(node, site, facts)
                if refusal is None:
                    yield _step(site, [])
                else:
                    refused[node] = refusal
        for node in _left(module):
            layer: Node | None = node
            while layer is not None and (site := _in_front_of(layer)) is not None:
                made: list[Node] = []
                refusal = self.refusal(site.affine.node, site, facts)
                if refusal is None:
                    refused.pop(site.affine.node, None)
                    yield _step(site, made)
                else:
                    refused.setdefault(site.affine.node, refusal)
                layer = made[0] if made else None
        yield from refused.values()


def _left(module: GraphModule) -> Iterator[Node]:
    """The nodes that there are now, but for those that are replaced on the way."""
    return (node for node in list(module.graph.nodes) if not is_replaced(node))


def _step(site: ScaleSite, made: list[Node]) -> Step:
    """Once it is done, `made` holds the new layer."""
    why = f"{site.affine.node.name} is one affine map with {site.layer.node.name}"

    def do(edit: Editor) -> None:
        made.append(affine.fold(site, edit))

    return Step(site.affine.node, why, do)


def _behind_a_layer(node: Node) -> ScaleSite | None:
    found = view_at(node, *CALLS)
    call = None if found is None else Arithmetic.of(found)
    layer, passing = (None, ()) if call is None else seen_through(call.value, Conv, Linear)
    return None if call is None or layer is None else ScaleSite(layer, call, passing=passing)


def _in_front_of(node: Node) -> ScaleSite | None:
    layer = first_layer_at(node)
    found, passing = (None, ()) if layer is None else seen_through(layer.input, *CALLS)
    call = None if found is None else Arithmetic.of(found)
    if layer is None or call is None:
        return None
    return ScaleSite(layer, call, is_in_front=True, passing=passing)

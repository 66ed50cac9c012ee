"""Fold constant factors and summands into the convolution or linear layer next to them.

    conv(x, W, b) * 2 + c  ->  conv(x, 2 W, 2 b + c)
    conv(x / 255, W, b)    ->  conv(x, W / 255, b)

The new weights are computed in float64 and rounded once, so the outputs move by rounding only. The
layer may be transposed, grouped or linear.
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Final, TypeAlias

import torch
from torch import Tensor
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
    widened,
)
from fxpasses.folding import affine
from fxpasses.folding.affine import Affine, Site, Values
from fxpasses.ops import Op
from fxpasses.views import (
    Binary,
    Conv,
    Linear,
    Negation,
    constant,
    first_layer_at,
    seen_through,
    view_at,
)

MOST_TAKEN: Final = 4.0
"""What a summand in front may add to the layer's output, where that is of the size of one: as many
standard deviations as a norm in front may take away."""

Number: TypeAlias = bool | int | float
_OPS: Final = frozenset({Op.ADD, Op.SUB, Op.MUL, Op.DIV})
_KINDS: Final[tuple[type[Binary | Negation], ...]] = (Binary, Negation)


@dataclass(frozen=True)
class Arithmetic(Affine):
    """A sum, difference, product or quotient of a value and a constant, or a negation."""

    noun: ClassVar[str] = "the constant"
    call: Binary | Negation
    value: Node
    constant: Number | Tensor | None = None
    """None in a negation."""
    is_first: bool = False
    """Whether the constant is the left operand."""
    alpha: Number = 1
    """What the right operand of a sum or difference is multiplied with."""

    @property
    def node(self) -> Node:
        return self.call.node

    @property
    def input(self) -> Node:
        return self.value

    @property
    def tensors(self) -> dict[str, Tensor]:
        return {"constant": self.constant} if isinstance(self.constant, Tensor) else {}

    @property
    def shifts(self) -> bool:
        return self.call.op in (Op.ADD, Op.SUB)

    def scale(self, values: Values) -> Tensor:
        op = self.call.op
        if op is Op.MUL:
            return self._amount(values)
        if op is Op.DIV:
            return 1 / self._amount(values)
        is_negative = op is Op.NEG or (op is Op.SUB and self.is_first)
        factor = self.alpha if self.shifts and self.is_first else 1
        return _wide(-factor if is_negative else factor)

    def shift(self, values: Values) -> Tensor:
        if not self.shifts:
            return _wide(0)
        amount = self._amount(values)
        if self.is_first:
            return amount
        return amount * (-self.alpha if self.call.op is Op.SUB else self.alpha)

    def _amount(self, values: Values) -> Tensor:
        """The constant: one number, or one for each channel."""
        if isinstance(self.constant, Tensor):
            amount = values["constant"]
            amount = amount if amount.is_complex() else amount.to(torch.float64)
            return amount.reshape(()) if amount.numel() == 1 else amount.flatten()
        assert self.constant is not None, "only a negation has none"
        return _wide(self.constant)

    @property
    def amounts(self) -> Values:
        """What `scale` and `shift` are to be given."""
        return {name: widened(tensor) for name, tensor in self.tensors.items()}

    @property
    def scale_bound(self) -> float:
        scale = self.scale(self.amounts)
        return float(scale.abs().max()) if scale.numel() else 0.0


def _wide(number: Number) -> Tensor:
    return torch.tensor(float(number), dtype=torch.float64)


@dataclass(frozen=True)
class ScaleSite(Site):
    """Arithmetic with a constant and the layer next to it."""

    affine: Arithmetic


# -- what must hold


def constant_is_no_dividend(site: ScaleSite, _: Facts) -> str | None:
    call = site.affine
    is_dividend = call.call.op is Op.DIV and call.is_first
    return f"it divides the constant by {call.value.name}" if is_dividend else None


def constant_is_finite(site: ScaleSite, _: Facts) -> str | None:
    amounts = site.affine.amounts
    parts = site.affine.scale(amounts), site.affine.shift(amounts)
    if all(bool(torch.isfinite(part).all()) for part in parts):
        return None
    return "it divides by zero, or the constant is not finite"


def constant_is_one_number_a_channel(site: ScaleSite, facts: Facts) -> str | None:
    """Broadcasting counts axes from the last one; the layer's output may lack a batch."""
    held = site.affine.constant
    if not isinstance(held, Tensor) or held.dim() == 0:
        return None
    weight = site.known["weight"]
    behind = weight.dim() - 2 if isinstance(site.layer, Conv) else 0
    most = behind + 1 if isinstance(site.layer, Conv) else 1
    if held.dim() > most and held.dim() > (facts.rank(site.affine.value) or 0):
        return "the constant may have more axes than the value"
    channels = held.shape[-1 - behind] if held.dim() > behind else 1
    if held.numel() != channels or channels not in (1, site.channels):
        return f"the constant has the shape {tuple(held.shape)}, the value {site.channels} channels"
    return None


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


def little_cancels(site: ScaleSite, _: Facts) -> str | None:
    """Folded, the layer adds up what the constant in front of it would have taken away before."""
    if not (site.is_in_front and site.affine.shifts):
        return None
    weight = widened(site.known["weight"])
    shift = site.affine.shift(site.affine.amounts)
    moved = torch.linalg.vector_norm(affine.times(weight, shift, site))
    taken = float(moved) / math.sqrt(max(1, len(weight)))
    if not taken > MOST_TAKEN:
        return None
    return f"the constant moves the layer's output by {taken:.1f}, in front of it"


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
    found = view_at(node, *_KINDS)
    call = None if found is None else _arithmetic(found)
    layer, passing = (None, ()) if call is None else seen_through(call.value, Conv, Linear)
    return None if call is None or layer is None else ScaleSite(layer, call, passing=passing)


def _in_front_of(node: Node) -> ScaleSite | None:
    layer = first_layer_at(node)
    found, passing = (None, ()) if layer is None else seen_through(layer.input, *_KINDS)
    call = None if found is None else _arithmetic(found)
    if layer is None or call is None:
        return None
    return ScaleSite(layer, call, is_in_front=True, passing=passing)


def _arithmetic(call: Binary | Negation) -> Arithmetic | None:
    if isinstance(call, Negation):
        value = call.input
        return Arithmetic(call, value) if isinstance(value, Node) else None
    if call.op not in _OPS or call.rounding_mode is not None or not _is_number(call.alpha):
        return None
    sides = ((call.left, call.right, False), (call.right, call.left, True))
    for value, other, is_first in sides:
        known = other if _is_number(other) else constant(other)
        if isinstance(value, Node) and known is not None and constant(value) is None:
            return Arithmetic(call, value, known, is_first, call.alpha)
    return None


def _is_number(value: object) -> bool:
    return isinstance(value, bool | int | float)

"""Fold the normalisation of an input into the convolution or linear layer behind it.

    conv((x - mean) / std, W, b)  ->  conv(x, W / std, b - W mean / std)

A layer that pads with zeros cannot take up what is added: its zeros lie behind the sum. There the
factors alone go into the weights, and one sum stays in front:

    conv(x * a + b, W, b, padding=1)  ->  conv(x + b / a, W a, b, padding=1)

which is as much as padding with the values that are normalised to zero would cost, or less.
Weights are computed in float64 and rounded once, so the outputs move by rounding only.
"""

import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, ClassVar, Final

import torch
from torch import Tensor
from torch.fx import Node

from fxpasses.core import Condition, Editor, Facts, Numerics, Rewrite
from fxpasses.folding import affine
from fxpasses.folding.affine import Site, Values, largest
from fxpasses.folding.arithmetic import axes_behind, is_finite, little_cancels
from fxpasses.folding.chains import Chain, Joined, arithmetic_of, chain_behind, moves
from fxpasses.views import Conv, first_layer_at

_LARGEST: Final = 1e20
"""What may be added to a value of any dtype with a wide range without leaving it."""


@dataclass(frozen=True)
class InputSite(Site):
    """Arithmetic with constants, in whatever spelling, and the layer behind it."""

    affine: Chain
    is_in_front: bool = True
    given: torch.dtype | None = None
    """The dtype of what is normalised."""

    @property
    def between(self) -> tuple[Node, ...]:
        return self.affine.nodes

    @property
    def steps(self) -> Sequence[tuple[Node, Sequence[Node]]]:
        return [(one.node, self.affine.passing[one.node]) for one in self.affine.maps]

    @property
    def dtype(self) -> torch.dtype:
        return self.known["weight"].dtype

    @cached_property
    def keeps_sum(self) -> bool:
        """Whether what is added stays in front of the layer."""
        reasons = affine.padding_is_not_shifted(self), little_cancels(self)
        return self.affine.shifts and any(reason is not None for reason in reasons)

    def offset(self, values: Values) -> Tensor:
        """What is to be added in front, in a shape that says which axis the channels lie on."""
        amount = self.affine.offset(values).to(self.known["weight"].device)
        return amount.reshape(-1, *[1] * axes_behind(self.layer)) if amount.dim() else amount


# -- what must hold


def constants_are_finite(site: InputSite, _: Facts) -> str | None:
    given = "it divides by zero, or a constant is not finite"
    return None if is_finite(site.affine) else given


def constants_are_one_number_a_channel(site: InputSite, facts: Facts) -> str | None:
    """Whether it is told for every call which number belongs to which channel."""
    chain, behind = site.affine, axes_behind(site.layer)
    moving = next((node for node in chain.nodes if moves(node)), None)
    for one in chain.maps:
        joined = len(one.channels) if isinstance(one, Joined) else None
        if joined is not None and (joined != site.channels or moving is not None):
            return f"{joined} channels are joined in front of {site.channels}"
        channels = site.channels if joined is None and moving is None else 1
        sure = behind + 1 if isinstance(site.layer, Conv) and moving is None else 1
        for call in arithmetic_of(one):
            reason = call.mismatch(channels, behind, max(sure, facts.rank(call.value) or 0))
            if reason is not None:
                return reason if moving is None else f"{moving.name} puts its channels elsewhere"
    return None


def dtype_becomes_the_layers(site: InputSite, facts: Facts) -> str | None:
    """Integers may be normalised, not computed with before: they wrap round."""
    chain = site.affine
    computing = [call.node for one in chain.maps for call in arithmetic_of(one)]
    for node in (*computing, *(one.node for one in chain.maps)):
        dtype = facts.dtype(node)
        if dtype is not site.dtype:
            return "the dtype is not known" if dtype is None else f"{node.name} is {dtype}"
    return "the dtype is not known" if site.given is None else None


def no_write_is_seen(site: InputSite, facts: Facts) -> str | None:
    """An in-place call leaves its result where others may look for it."""
    chain = site.affine
    written = [value for node in chain.nodes for value in facts.effects(node).writes]
    for value in written:
        if value not in chain.nodes or facts.may_alias(value, chain.root):
            return f"it leaves its result in {value.name}"
    reason = affine.nothing_else_reads_between(site, facts) if written else None
    return reason and f"{reason}, which is written"


def nothing_writes_between(site: InputSite, facts: Facts) -> str | None:
    chain = site.affine
    own = [value for node in chain.nodes for value in facts.effects(node).writes]
    for value in (chain.root, *chain.nodes):
        if any(facts.may_alias(value, one) for one in own):
            continue  # Nothing else reads it, so nothing else writes it.
        first = chain.nodes[0] if value is chain.root else value
        writer = facts.written_between(first, site.layer.node, value)
        if writer is not None:
            return f"{writer.name} may write {value.name} in between"
    return None


def sum_can_come_first(site: InputSite, _: Facts) -> str | None:
    """What is added after the factor is added before it, divided by the factor."""
    if not site.keeps_sum:
        return None
    if torch.finfo(site.dtype).max < _LARGEST:
        return f"the sum may be too large for {site.dtype}"
    offset = largest(site.affine.offset(site.affine.amounts))
    return None if offset < _LARGEST else "a factor is too small to divide what is added by it"


def calls_are_saved(site: InputSite, _: Facts) -> str | None:
    """To take a value of another dtype is a call of its own, on the CPU."""
    chain = site.affine
    joins = sum(isinstance(one, Joined) for one in chain.maps)
    computing = sum(len(arithmetic_of(one)) for one in chain.maps)
    if len(chain.copies) + joins + computing > site.keeps_sum:
        return None
    return "the sum has to stay in front of the layer, and there is nothing else"


class FoldInputNorm(Rewrite[InputSite]):
    """Fold the normalisation of an input into the convolution or linear layer behind it.

    Chains of sums, differences, products and quotients with constants, one number for all or for
    each channel, also in place on a copy, of integers, or channel by channel as torchvision's
    `transform_input`. What is added stays in front, as one sum, where the layer pads with zeros or
    too many digits would cancel in it. Parameters that are to be trained stay.
    """

    name = "fold_input_norm"
    numerics = Numerics.ROUNDING
    trains = True
    legal_if: ClassVar[tuple[Condition[Any], ...]] = (
        affine.parameters_are_plain_tensors,
        affine.nothing_writes_the_parameters,
        affine.constants_stay_inside,
        affine.no_parameter_is_trained,
        constants_are_finite,
        constants_are_one_number_a_channel,
        dtype_becomes_the_layers,
        no_write_is_seen,
        nothing_writes_between,
        sum_can_come_first,
        affine.weights_fit_their_dtype,
    )
    worthwhile_if: ClassVar[tuple[Condition[Any], ...]] = (
        affine.nothing_else_reads_between,
        calls_are_saved,
    )
    remedies: ClassVar[Mapping[Condition[Any], str]] = {
        **affine.remedies_of((*legal_if, *worthwhile_if)),
        constants_are_finite: "look at the mean and the standard deviation",
        constants_are_one_number_a_channel: "give them the shape [channels, 1, 1], or pass "
        "example_inputs so that the rank is known",
        dtype_becomes_the_layers: "pass example_inputs so that the dtypes are known, and cast to "
        "that of the layer first",
        no_write_is_seen: "replace the in-place call by the plain one",
        nothing_writes_between: "take the in-place call in between away",
        sum_can_come_first: "run the passes in float32, and subtract before you divide",
        calls_are_saved: "nothing: it is one call already",
    }

    def match(self, node: Node, facts: Facts) -> InputSite | None:
        layer = first_layer_at(node)
        if layer is None or not layer.has_constant_parameters:
            return None
        chain = chain_behind(layer.input, axes_behind(layer), facts)
        return None if chain is None else InputSite(layer, chain, given=facts.dtype(chain.root))

    def why(self, site: InputSite) -> str:
        rest = "but for what is added" if site.keeps_sum else "as a whole"
        return f"the normalisation of {site.affine.root.name} goes into its weights, {rest}"

    def rewrite(self, site: InputSite, edit: Editor) -> None:
        with edit.before(site.between[0]):
            entered = _entered(site, edit)
        site = replace(site, affine=site.affine.factors) if site.keeps_sum else site
        affine.fold(site, edit, entered)


def _entered(site: InputSite, edit: Editor) -> Node:
    """What the layer is to be given."""
    value, first = site.affine.root, site.affine.maps[0]
    if isinstance(first, Joined):  # Others than those that are joined count for nothing.
        value = edit.call_method("narrow", value, first.axis, 0, len(first.channels))
    if site.keeps_sum:
        return edit.call_function(operator.add, value, _summand(site, edit))
    return value if site.given is site.dtype else edit.call_method("to", value, site.dtype)


def _summand(site: InputSite, edit: Editor) -> Node | float:
    """A number where nothing else is needed; a tensor turns integers into its own dtype."""
    tensors = site.affine.tensors
    offset = site.offset(site.affine.amounts)
    if not tensors and not offset.dim() and site.given is site.dtype:
        return float(offset)
    fold = edit.fold(
        lambda *values: site.offset(dict(zip(tensors, values, strict=True))).reshape(
            offset.shape or (1,)
        ),
        *tensors.values(),
        dtype=site.dtype,
    )
    return edit.constant(edit.buffer(fold, persistent=bool(tensors)), "offset")

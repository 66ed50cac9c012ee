"""Maps that scale and shift channel by channel, and the layers next to them that can take them up.

    map(layer(x, W, b))  ->  layer(x, W', b')
    layer(map(x), W, b)  ->  layer(x, W', b')

What hands values on as they are (dropout in evaluation, for one) may lie in between, and stays.
The new weights are computed in float64 and rounded once. The layer may be transposed, grouped or
linear, and in front of it the map may meet a unit.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, Final, TypeAlias

import torch
from torch import Tensor
from torch.fx import Node

from fxpasses.analysis.constants import is_ordinary
from fxpasses.core import Condition, Editor, Facts, Fold, widened
from fxpasses.views import ConstantView, Conv, Flatten, Weighted, carried

Values: TypeAlias = Mapping[str, Tensor]
Formula: TypeAlias = "Callable[[Site, Values], Tensor]"


class Affine(ABC):
    """A call that multiplies by constants and adds constants, the same ones all over a channel."""

    noun: ClassVar[str]
    """What it is called in reasons: `the norm`."""

    @property
    @abstractmethod
    def node(self) -> Node: ...

    @property
    @abstractmethod
    def input(self) -> Any: ...

    @property
    @abstractmethod
    def tensors(self) -> Values:
        """The constant tensors that it is made of, by name."""

    @property
    def constants(self) -> Sequence[ConstantView]:
        """The operands of calls that are constant tensors."""
        return ()

    @property
    def is_constant(self) -> bool:
        """Whether all that it is made of is known."""
        return True

    @property
    def is_by_rows(self) -> bool:
        """Whether each row of its tensors, of which there is one a channel, is the channel's."""
        return True

    @property
    def shifts(self) -> bool:
        """Whether it may add anything."""
        return True

    @abstractmethod
    def scale(self, values: Values) -> Tensor:
        """What it multiplies by: one number, or one for each channel; `tensors` in float64."""

    @abstractmethod
    def shift(self, values: Values) -> Tensor:
        """What it adds afterwards, likewise."""

    @property
    def scale_bound(self) -> float:
        """No factor is larger in magnitude; not finite where that cannot be told."""
        return largest(self.scale(self.amounts))

    @property
    def amounts(self) -> Values:
        """What `scale` and `shift` are to be given."""
        return {name: widened(tensor) for name, tensor in self.tensors.items()}


@dataclass(frozen=True)
class Site:
    """A map and the layer next to it."""

    layer: Weighted
    affine: Affine
    is_in_front: bool = False
    """Whether the map comes before the layer."""
    flat: Flatten | None = None
    """What makes rows of a linear layer's output, between the layer and the map."""
    passing: tuple[Node, ...] = ()
    """All that lies between, from the first to the last, and hands on what it is given."""

    @property
    def first(self) -> Node:
        return self.affine.node if self.is_in_front else self.layer.node

    @property
    def last(self) -> Node:
        return self.layer.node if self.is_in_front else self.affine.node

    @property
    def between(self) -> tuple[Node, ...]:
        """What the rewrite makes superfluous, and others may read."""
        return (self.first, *self.passing)

    @property
    def steps(self) -> Sequence[tuple[Node, Sequence[Node]]]:
        """What computes the value in between, and with each what hands on its value."""
        return ((self.first, self.passing),)

    @property
    def is_transposed(self) -> bool:
        return isinstance(self.layer, Conv) and self.layer.is_transposed

    @property
    def groups(self) -> int:
        return self.layer.groups if isinstance(self.layer, Conv) else 1

    @property
    def channel_axis(self) -> int:
        """The axis of the weight that the channels of the map lie on."""
        return 0 if self.is_transposed == self.is_in_front else 1

    @property
    def channels(self) -> int:
        """How many channels the layer has where the map is."""
        inner = 1 if self.channel_axis == 0 else self.groups
        return self.known["weight"].shape[self.channel_axis] * inner

    @property
    def makes_bias(self) -> bool:
        shifts = self.affine.shifts and not (self.is_in_front and self.is_transposed)
        return "bias" in self.known or shifts

    @cached_property
    def known(self) -> dict[str, Tensor]:
        """The constant tensors that the fold is made of."""
        own = {"weight": self.layer.tensor("weight"), "bias": self.layer.bias}
        return {n: t for n, t in {**own, **self.affine.tensors}.items() if t is not None}

    @cached_property
    def scale_bound(self) -> float:
        return self.affine.scale_bound

    @cached_property
    def wide(self) -> Values:
        """What the map is made of, and the layer's bias, in float64."""
        return {name: widened(t) for name, t in self.known.items() if name != "weight"}


# -- what must hold, whatever the map is


def parameters_are_constant(site: Site, _: Facts) -> str | None:
    known = site.layer.has_constant_parameters and site.affine.is_constant
    return None if known else "a weight or a statistic is computed at run time"


def parameters_are_plain_tensors(site: Site, _: Facts) -> str | None:
    odd = (name for name, t in site.known.items() if not is_ordinary(t))
    return next((f"the {name} is a tensor of a special kind" for name in odd), None)


def nothing_writes_the_parameters(site: Site, facts: Facts) -> str | None:
    written = (name for name, t in site.known.items() if facts.is_written(t))
    return next((f"the {name} is written in the graph" for name in written), None)


def constants_stay_inside(site: Site, facts: Facts) -> str | None:
    """Who gets a constant may write it; what is made anew in each call may be written in it."""
    end = site.last.graph.output_node()
    for constant in site.affine.constants:
        seen = constant.seen
        if not isinstance(seen, Node):
            continue
        if constant.is_held:
            if facts.may_alias(end, seen):
                return f"the model returns {seen.name}"
        elif writer := facts.written_between(next(iter(seen.graph.nodes)), site.last, seen):
            return f"{writer.name} may write {seen.name}"
    return None


def no_parameter_is_trained(site: Site, facts: Facts) -> str | None:
    trained = (name for name, t in site.known.items() if facts.training and t.requires_grad)
    return next((f"the {name} is to be trained" for name in trained), None)


def result_keeps_its_dtype(site: Site, facts: Facts) -> str | None:
    before = facts.dtype(site.affine.input)
    after = None if before is None else facts.dtype(site.affine.node)
    if after is None:
        dtypes = {t.dtype for t in site.known.values()}
        given = f"the dtype of {site.affine.noun}'s input is not known"
        return None if len(dtypes) == 1 else given
    return None if before is after else f"{site.affine.noun} turns {before} into {after}"


def nothing_writes_between(site: Site, facts: Facts) -> str | None:
    entered = site.affine.input if site.is_in_front else site.layer.input
    for value in (site.first, entered):
        if isinstance(value, Node):
            writer = facts.written_between(site.first, site.last, value)
            if writer is not None:
                return f"{writer.name} may write {value.name} in between"
    return None


def padding_is_not_shifted(site: Site, _: Facts | None = None) -> str | None:
    """A map in front shifts what a padded convolution sees as zero."""
    if not (site.is_in_front and isinstance(site.layer, Conv) and site.affine.shifts):
        return None
    if bool((site.affine.shift(site.wide) == 0).all()):
        return None
    shift = f"{site.affine.noun}'s shift"
    if site.layer.is_transposed:
        return f"{shift} would reach each output of the transposed convolution anew"
    if site.layer.pads_with_values and site.layer.padding_mode == "zeros":
        return f"the convolution pads with zeros that {shift} does not reach"
    return None


def scale_is_finite(site: Site, _: Facts) -> str | None:
    if math.isfinite(site.scale_bound):
        return None
    infinite = torch.isinf(site.affine.scale(site.wide)).any()
    return f"{site.affine.noun} divides by zero" if bool(infinite) else None


def weights_fit_their_dtype(site: Site, _: Facts) -> str | None:
    """Scaled weights leave the range of float16 soon."""
    dtype = site.known["weight"].dtype
    if torch.finfo(dtype).tiny < 1e-30 and site.scale_bound < 1e20:
        return None
    values = {name: widened(t) for name, t in site.known.items()}
    for formula in (folded_weight, folded_bias):
        exact = formula(site, values)
        rounded = widened(exact.to(dtype))
        lost = torch.linalg.vector_norm((rounded - exact).nan_to_num(0))
        if bool((torch.isinf(rounded) & ~torch.isinf(exact)).any()):
            return f"a folded weight is too large for {dtype}"
        if lost > 2 * torch.finfo(dtype).eps * torch.linalg.vector_norm(exact.nan_to_num(0)):
            return f"folded weights are too small for {dtype}"
    return None


def nothing_else_reads_between(site: Site, facts: Facts) -> str | None:
    replaced = {*site.between, site.last}
    for node in site.between:
        if node.users.keys() <= replaced:
            continue
        for reader in facts.readers(node):
            if reader not in replaced:
                return f"{reader.name} reads {node.name} too"
    return None


REMEDIES: Final[Mapping[Condition[Any], str]] = {
    parameters_are_constant: "keep weights and statistics as parameters and buffers, not as "
    "values computed in forward",
    parameters_are_plain_tensors: "make plain float tensors of them: dequantise, densify, or "
    "take off the tensor subclass",
    nothing_writes_the_parameters: "do not write weights or statistics in forward",
    constants_stay_inside: "return a clone of the constant, and write to none",
    no_parameter_is_trained: "call model.eval() first, or pass training=False, if the result "
    "is not to be trained",
    result_keeps_its_dtype: "keep layer and norm in one dtype, or pass example_inputs so that "
    "the dtypes are known",
    nothing_writes_between: "take the in-place call between the two away",
    padding_is_not_shifted: "nothing: the padding is not what a shift would make of it; behind "
    "the layer it could be folded",
    scale_is_finite: "look at the norm: its running variance and eps are 0 in a channel",
    weights_fit_their_dtype: "run the passes in float32 and convert the result, or use bfloat16",
    nothing_else_reads_between: "nothing: others need the value; let them read what comes "
    "of it, where that is meant",
}
"""What to do where one of these does not hold."""


def remedies_of(conditions: Sequence[Condition[Any]]) -> dict[Condition[Any], str]:
    """What to do about those of the conditions that are told here."""
    return {one: REMEDIES[one] for one in conditions if one in REMEDIES}


# -- the rewrite


def fold(site: Site, edit: Editor, entered: Node | None = None) -> Node:
    """Let the layer take up the map, and return the new layer.

    `entered` is what it is given by a map in front of it, where that is not the map's input.
    """
    weight = _folded(site, edit, folded_weight)
    bias = _folded(site, edit, folded_bias) if site.makes_bias else None
    with edit.before(site.layer.node):
        fused = site.layer.with_parameters(edit, weight, bias)
    result = fused
    if site.is_in_front:
        old, new = site.first, site.affine.input if entered is None else entered
        for first, passing in site.steps:
            old, new = carried(edit, first, passing, new)
        edit.rewire(fused, old, new)
    else:
        _, result = carried(edit, site.first, site.passing, fused)
    edit.replace(site.last, result, absorbing=site.between)
    return fused


def _folded(site: Site, edit: Editor, formula: Formula) -> Fold:
    needs_weight = formula is folded_weight or site.is_in_front or len(site.known) == 1
    sources = {name: t for name, t in site.known.items() if name != "weight" or needs_weight}
    rows = len(site.known["weight"])
    return edit.fold(
        lambda *values: formula(site, dict(zip(sources, values, strict=True))),
        *sources.values(),
        dtype=site.known["weight"].dtype,
        by_rows=formula is folded_weight
        and site.channel_axis == 0
        and site.affine.is_by_rows
        and all(t.dim() and len(t) == rows for t in sources.values()),
    )


def largest(values: Tensor) -> float:
    """The largest magnitude; 0 of nothing."""
    return float(values.abs().max()) if values.numel() else 0.0


def folded_weight(site: Site, values: Values) -> Tensor:
    return times(values["weight"], site.affine.scale(values), site)


def folded_bias(site: Site, values: Values) -> Tensor:
    shift, bias = site.affine.shift(values), values.get("bias", torch.zeros(()))
    if not site.is_in_front:
        folded = bias * site.affine.scale(values) + shift
        return folded.to(site.known["weight"].device).expand(site.channels)
    if site.is_transposed:  # The map then has no shift.
        return bias
    return bias + times(values["weight"], shift, site).flatten(1).sum(1)


def times(weight: Tensor, factor: Tensor, site: Site) -> Tensor:
    """The weight, each channel on `site.channel_axis` multiplied by its factor."""
    if factor.dim() == 0:
        return weight * factor
    factor = factor.to(weight.device)  # which numbers lie on none
    kernel = [1] * (weight.dim() - 2)
    if site.channel_axis == 0:
        return weight * factor.reshape(-1, 1, *kernel)
    # Each group of rows has channels of its own.
    grouped = weight.unflatten(0, (site.groups, -1))
    return (grouped * factor.reshape(site.groups, 1, -1, *kernel)).flatten(0, 1)

"""Fold an inference-time batch norm into the convolution or linear layer next to it.

    batch_norm(conv(x, W, b))             ->  conv(x, W', b')
    conv(batch_norm(x), W, b)             ->  conv(x, W', b')
    batch_norm(flatten(linear(x, W, b)))  ->  flatten(linear(x, W', b'))

Both are affine, channel by channel. What hands values on as they are (dropout in evaluation, for
one) may lie in between, and stays. The new weights are computed in float64 and rounded once, so
the outputs move by rounding only. The layer may be transposed, grouped or linear.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, TypeAlias

import torch
from torch import Tensor
from torch.fx import Node

from fxpasses.analysis.constants import is_ordinary
from fxpasses.core import Condition, Editor, Facts, Fold, Numerics, Rewrite, widened
from fxpasses.views import (
    BatchNorm,
    Conv,
    Flatten,
    Linear,
    Weighted,
    reads_only_metadata,
    seen_through,
    view_at,
)

MOST_DEVIATIONS = 4
"""The mean that a norm in front may take away, over its channels. Results in half precision were
seen to be off by eight times what the original's are from 6 on, those in float32 from 8 on."""

Values: TypeAlias = Mapping[str, Tensor]
Formula: TypeAlias = "Callable[[Site, Values], Tensor]"


@dataclass(frozen=True)
class Site:
    layer: Weighted
    norm: BatchNorm
    norm_is_first: bool = False
    flat: Flatten | None = None
    """What makes rows of a linear layer's output, between the layer and the norm."""
    passing: tuple[Node, ...] = ()
    """All that lies between, from the first to the last, and hands on what it is given."""

    @property
    def first(self) -> Node:
        return self.norm.node if self.norm_is_first else self.layer.node

    @property
    def last(self) -> Node:
        return self.layer.node if self.norm_is_first else self.norm.node

    @property
    def between(self) -> tuple[Node, ...]:
        """What the rewrite makes superfluous, and others may read."""
        return (self.first, *self.passing)

    @property
    def is_transposed(self) -> bool:
        return isinstance(self.layer, Conv) and self.layer.is_transposed

    @property
    def groups(self) -> int:
        return self.layer.groups if isinstance(self.layer, Conv) else 1

    @property
    def channel_axis(self) -> int:
        """The axis of the weight that the norm's channels lie on."""
        return 0 if self.is_transposed == self.norm_is_first else 1

    @property
    def makes_bias(self) -> bool:
        return "bias" in self.known or not (self.norm_is_first and self.is_transposed)

    @cached_property
    def known(self) -> dict[str, Tensor]:
        """The constant tensors that the fold is made of."""
        found = {
            "weight": self.layer.tensor("weight"),
            "bias": self.layer.bias,
            "mean": self.norm.running_mean,
            "var": self.norm.running_var,
            "gamma": self.norm.weight,
            "beta": self.norm.bias,
        }
        return {name: tensor for name, tensor in found.items() if tensor is not None}

    @cached_property
    def wide(self) -> Values:
        """What the norm is made of, and the layer's bias, in float64."""
        return {name: widened(t) for name, t in self.known.items() if name != "weight"}

    @cached_property
    def scale_bound(self) -> float:
        """No factor of the norm is larger in magnitude; not finite where that cannot be told."""
        var, gamma = self.known["var"], self.known.get("gamma")
        if not var.numel():
            return 0.0
        least = float(var.detach().min()) + self.norm.eps
        most = 1.0 if gamma is None else max(map(abs, map(float, gamma.detach().aminmax())))
        return most / math.sqrt(least) if least > 0 else math.inf


def norm_uses_running_statistics(site: Site, _: Facts) -> str | None:
    return None if site.norm.uses_running_statistics else "the norm measures each batch"


def parameters_are_constant(site: Site, _: Facts) -> str | None:
    known = site.layer.has_constant_parameters and site.norm.has_constant_parameters
    return None if known else "a weight or a statistic is computed at run time"


def parameters_are_plain_tensors(site: Site, _: Facts) -> str | None:
    odd = (name for name, t in site.known.items() if not is_ordinary(t))
    return next((f"the {name} is a tensor of a special kind" for name in odd), None)


def nothing_writes_the_parameters(site: Site, facts: Facts) -> str | None:
    written = (name for name, t in site.known.items() if facts.is_written(t))
    return next((f"the {name} is written in the graph" for name in written), None)


def no_parameter_is_trained(site: Site, facts: Facts) -> str | None:
    trained = (name for name, t in site.known.items() if facts.training and t.requires_grad)
    return next((f"the {name} is to be trained" for name in trained), None)


def norm_works_on_the_channels(site: Site, facts: Facts) -> str | None:
    """Axis 1 is the layer's channels only where there is a batch and, for linear, no more."""
    weight, var = site.known["weight"], site.known["var"]
    if site.flat and not _leaves_the_last_axis(site.flat, facts.rank(site.layer.node)):
        return "the layer's channels are flattened too, or its rank is not known"
    if not site.norm.accepts_only_rank(weight.dim()):
        rank = facts.rank(site.norm.input)
        if rank is None:
            return "the rank of the norm's input is not known"
        if rank != weight.dim():
            return f"the norm's input has rank {rank}, and its axis 1 is not the layer's channels"
    channels = weight.shape[site.channel_axis] * (1 if site.channel_axis == 0 else site.groups)
    if var.numel() != channels:
        return f"the norm has {var.numel()} channels, the layer {channels}"
    return None


def result_keeps_its_dtype(site: Site, facts: Facts) -> str | None:
    before = facts.dtype(site.norm.input)
    after = None if before is None else facts.dtype(site.norm.node)
    if after is None:
        dtypes = {t.dtype for t in site.known.values()}
        return None if len(dtypes) == 1 else "the dtype of the norm's input is not known"
    return None if before is after else f"the norm turns {before} into {after}"


def nothing_writes_between(site: Site, facts: Facts) -> str | None:
    entered = site.norm.input if site.norm_is_first else site.layer.input
    for value in (site.first, entered):
        if isinstance(value, Node):
            writer = facts.written_between(site.first, site.last, value)
            if writer is not None:
                return f"{writer.name} may write {value.name} in between"
    return None


def padding_is_not_shifted(site: Site, _: Facts) -> str | None:
    """A norm in front shifts what a padded convolution sees as zero."""
    if not (site.norm_is_first and isinstance(site.layer, Conv)):
        return None
    shift = _shift(site.wide, site.norm.eps)
    if bool((shift == 0).all()):
        return None
    if site.layer.is_transposed:
        return "the norm's shift would reach each output of the transposed convolution anew"
    if site.layer.pads_with_values and site.layer.padding_mode == "zeros":
        return "the convolution pads with zeros that the norm's shift does not reach"
    return None


def scale_is_finite(site: Site, _: Facts) -> str | None:
    if math.isfinite(site.scale_bound):
        return None
    infinite = torch.isinf(_scale(site.wide, site.norm.eps)).any()
    return "the norm divides by zero" if bool(infinite) else None


def little_cancels(site: Site, _: Facts) -> str | None:
    """Folded, the layer adds up what a norm in front of it would have taken away before."""
    if not site.norm_is_first:
        return None
    values = site.wide
    kept = values.get("gamma", torch.ones_like(values["mean"]))
    taken = kept * values["mean"] * torch.rsqrt(values["var"] + site.norm.eps)
    deviations = float(torch.linalg.vector_norm(taken) / torch.linalg.vector_norm(kept))
    if not deviations > MOST_DEVIATIONS:
        return None
    return f"the norm takes away a mean of {deviations:.1f} standard deviations"


def weights_fit_their_dtype(site: Site, _: Facts) -> str | None:
    """Scaled weights leave the range of float16 soon."""
    dtype = site.known["weight"].dtype
    if torch.finfo(dtype).tiny < 1e-30 and site.scale_bound < 1e20:
        return None
    values = {name: widened(t) for name, t in site.known.items()}
    for formula in (_folded_weight, _folded_bias):
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


class FuseConvBn(Rewrite[Site]):
    """Fold batch norms into the convolutions and linear layers next to them.

    A norm behind a layer always can be folded. One in front of it only where the layer adds
    nothing at the borders that the norm does not see: no zero padding, or a norm without a shift.
    Folded parameters have the layer's dtype and no gradient history. Norms that measure their
    batch stay, and so do parameters that are to be trained.
    """

    name = "fuse_conv_bn"
    numerics = Numerics.ROUNDING
    trains = True
    legal_if = (
        norm_uses_running_statistics,
        parameters_are_constant,
        parameters_are_plain_tensors,
        nothing_writes_the_parameters,
        no_parameter_is_trained,
        norm_works_on_the_channels,
        result_keeps_its_dtype,
        nothing_writes_between,
        padding_is_not_shifted,
        scale_is_finite,
        little_cancels,
        weights_fit_their_dtype,
    )
    worthwhile_if = (nothing_else_reads_between,)
    remedies: ClassVar[Mapping[Condition[Any], str]] = {
        norm_uses_running_statistics: "call model.eval() first; norms without running statistics "
        "(track_running_stats=False) cannot be folded",
        parameters_are_constant: "keep weights and statistics as parameters and buffers, not as "
        "values computed in forward",
        parameters_are_plain_tensors: "make plain float tensors of them: dequantise, densify, or "
        "take off the tensor subclass",
        nothing_writes_the_parameters: "do not write weights or statistics in forward",
        no_parameter_is_trained: "call model.eval() first, or pass training=False, if the result "
        "is not to be trained",
        norm_works_on_the_channels: "pass example_inputs, so that the rank is known; a norm over "
        "another axis cannot be folded",
        result_keeps_its_dtype: "keep layer and norm in one dtype, or pass example_inputs so that "
        "the dtypes are known",
        nothing_writes_between: "take the in-place call between the layer and the norm away",
        padding_is_not_shifted: "nothing: the padding is not what the norm would make of it; a "
        "norm behind the layer could be folded",
        scale_is_finite: "look at the norm: its running variance and eps are 0 in a channel",
        little_cancels: "centre the values before they reach the norm, or put a norm behind the "
        "layer",
        weights_fit_their_dtype: "run the passes in float32 and convert the result, or use "
        "bfloat16",
        nothing_else_reads_between: "nothing: others need the value; let them read the norm's "
        "output, where that is meant",
    }

    def match(self, node: Node, facts: Facts) -> Site | None:  # noqa: ARG002  the pattern alone
        found = view_at(node, BatchNorm, Conv, Linear)
        if isinstance(found, BatchNorm):
            return _site_before(found)
        return _site_behind(found) if found else None

    def why(self, site: Site) -> str:
        return f"{site.norm.node.name} is one affine map with {site.layer.node.name}"

    def rewrite(self, site: Site, edit: Editor) -> None:
        weight = _fold(site, edit, _folded_weight)
        bias = _fold(site, edit, _folded_bias) if site.makes_bias else None
        with edit.before(site.layer.node):
            fused = site.layer.with_parameters(edit, weight, bias)
        result = fused
        if site.norm_is_first:
            old, new = _carried(edit, site, site.norm.input)
            edit.rewire(fused, old, new)
        else:
            _, result = _carried(edit, site, fused)
        edit.replace(site.last, result, absorbing=site.between)


def _site_before(norm: BatchNorm) -> Site | None:
    found, passing = seen_through(norm.input, Conv, Linear, Flatten)
    if not isinstance(found, Flatten):
        return Site(found, norm, passing=passing) if found else None
    layer, before = seen_through(found.input, Linear)
    passing = (*before, found.node, *passing)
    return Site(layer, norm, flat=found, passing=passing) if layer else None


def _site_behind(layer: Weighted) -> Site | None:
    norm, passing = seen_through(layer.input, BatchNorm)
    return Site(layer, norm, norm_is_first=True, passing=passing) if norm else None


def _carried(edit: Editor, site: Site, new: Node) -> tuple[Node, Node]:
    """Copies of what lies between, that read `new`; the last of the old ones, and of the copies."""
    old = site.first
    _repoint(edit, old, new)
    for node in site.passing:
        with edit.before(node):
            made = edit.copy(node)
        edit.rewire(made, old, new)
        _repoint(edit, node, made)
        old, new = node, made
    return old, new


def _repoint(edit: Editor, old: Node, new: Node) -> None:
    """Let who asks for the size of `old`, and the like, ask `new`, which has the same."""
    for reader in list(old.users):
        if reads_only_metadata(reader, old):
            edit.rewire(reader, old, new)


def _leaves_the_last_axis(flat: Flatten, rank: int | None) -> bool:
    if rank is None:
        return False
    return flat.start_dim % rank == 0 and flat.end_dim % rank == rank - 2


def _fold(site: Site, edit: Editor, formula: Formula) -> Fold:
    needs_weight = formula is _folded_weight or site.norm_is_first
    sources = {name: t for name, t in site.known.items() if name != "weight" or needs_weight}
    return edit.fold(
        lambda *values: formula(site, dict(zip(sources, values, strict=True))),
        *sources.values(),
        dtype=site.known["weight"].dtype,
        by_rows=formula is _folded_weight and site.channel_axis == 0,
    )


def _folded_weight(site: Site, values: Values) -> Tensor:
    return _times(values["weight"], _scale(values, site.norm.eps), site)


def _folded_bias(site: Site, values: Values) -> Tensor:
    shift, bias = _shift(values, site.norm.eps), values.get("bias", torch.zeros(()))
    if not site.norm_is_first:
        return bias * _scale(values, site.norm.eps) + shift
    if site.is_transposed:  # The norm then has no shift.
        return bias
    return bias + _times(values["weight"], shift, site).flatten(1).sum(1)


def _scale(values: Values, eps: float) -> Tensor:
    scale = torch.rsqrt(values["var"] + eps)
    return scale * values["gamma"] if "gamma" in values else scale


def _shift(values: Values, eps: float) -> Tensor:
    shift = -values["mean"] * _scale(values, eps)
    return shift + values["beta"] if "beta" in values else shift


def _times(weight: Tensor, factor: Tensor, site: Site) -> Tensor:
    """The weight, each channel on `site.channel_axis` multiplied by its factor."""
    kernel = [1] * (weight.dim() - 2)
    if site.channel_axis == 0:
        return weight * factor.reshape(-1, 1, *kernel)
    # Each group of rows has channels of its own.
    grouped = weight.unflatten(0, (site.groups, -1))
    return (grouped * factor.reshape(site.groups, 1, -1, *kernel)).flatten(0, 1)

"""Inference-time batch norms as maps, and their fold into the layer next to them."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Final

import torch
from torch import Tensor
from torch.fx import Node

from fxpasses.core import Condition, Editor, Facts
from fxpasses.folding import affine
from fxpasses.folding.affine import Affine, Site, Values
from fxpasses.views import (
    STARTS,
    BatchNorm,
    Conv,
    Flatten,
    Linear,
    Weighted,
    seen_through,
    view_at,
)

MOST_DEVIATIONS: Final = 4
"""The mean that a norm in front may take away, over its channels. Results in half precision were
seen to be off by eight times what the original's are from 6 on, those in float32 from 8 on."""


@dataclass(frozen=True)
class NormMap(Affine):
    """`input * gamma / sqrt(var + eps) + (beta - mean * gamma / sqrt(var + eps))`."""

    noun: ClassVar[str] = "the norm"
    norm: BatchNorm

    @property
    def node(self) -> Node:
        return self.norm.node

    @property
    def input(self) -> Any:
        return self.norm.input

    @property
    def tensors(self) -> dict[str, Tensor]:
        found = {
            "mean": self.norm.running_mean,
            "var": self.norm.running_var,
            "gamma": self.norm.weight,
            "beta": self.norm.bias,
        }
        return {name: tensor for name, tensor in found.items() if tensor is not None}

    @property
    def is_constant(self) -> bool:
        return self.norm.has_constant_parameters

    def scale(self, values: Values) -> Tensor:
        scale = torch.rsqrt(values["var"] + self.norm.eps)
        return scale * values["gamma"] if "gamma" in values else scale

    def shift(self, values: Values) -> Tensor:
        shift = -values["mean"] * self.scale(values)
        return shift + values["beta"] if "beta" in values else shift

    @property
    def scale_bound(self) -> float:
        tensors = self.tensors
        var, gamma = tensors["var"], tensors.get("gamma")
        if not var.numel():
            return 0.0
        least = float(var.detach().min()) + self.norm.eps
        most = 1.0 if gamma is None else max(map(abs, map(float, gamma.detach().aminmax())))
        return most / math.sqrt(least) if least > 0 else math.inf


@dataclass(frozen=True)
class NormSite(Site):
    """A norm and the layer next to it."""

    affine: NormMap

    @property
    def norm(self) -> BatchNorm:
        return self.affine.norm


def norm_uses_running_statistics(site: NormSite, _: Facts) -> str | None:
    return None if site.norm.uses_running_statistics else "the norm measures each batch"


def norm_works_on_the_channels(site: NormSite, facts: Facts) -> str | None:
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
    if var.numel() != site.channels:
        return f"the norm has {var.numel()} channels, the layer {site.channels}"
    return None


def _leaves_the_last_axis(flat: Flatten, rank: int | None) -> bool:
    if rank is None:
        return False
    return flat.start_dim % rank == 0 and flat.end_dim % rank == rank - 2


def little_cancels(site: NormSite, _: Facts) -> str | None:
    """Folded, the layer adds up what a norm in front of it would have taken away before."""
    if not site.is_in_front:
        return None
    values = site.wide
    kept = values.get("gamma", torch.ones_like(values["mean"]))
    taken = kept * values["mean"] * torch.rsqrt(values["var"] + site.norm.eps)
    deviations = float(torch.linalg.vector_norm(taken) / torch.linalg.vector_norm(kept))
    if not deviations > MOST_DEVIATIONS:
        return None
    return f"the norm takes away a mean of {deviations:.1f} standard deviations"


LEGAL_IF: Final[tuple[Condition[NormSite], ...]] = (
    norm_uses_running_statistics,
    affine.parameters_are_constant,
    affine.parameters_are_plain_tensors,
    affine.nothing_writes_the_parameters,
    affine.no_parameter_is_trained,
    norm_works_on_the_channels,
    affine.result_keeps_its_dtype,
    affine.nothing_writes_between,
    affine.padding_is_not_shifted,
    affine.scale_is_finite,
    little_cancels,
    affine.weights_fit_their_dtype,
)
WORTHWHILE_IF: Final[tuple[Condition[NormSite], ...]] = (affine.nothing_else_reads_between,)
REMEDIES: Final[Mapping[Condition[Any], str]] = {
    norm_uses_running_statistics: "call model.eval() first; norms without running statistics "
    "(track_running_stats=False) cannot be folded",
    norm_works_on_the_channels: "pass example_inputs, so that the rank is known; a norm over "
    "another axis cannot be folded",
    little_cancels: "centre the values before they reach the norm, or put a norm behind the layer",
    **affine.remedies_of((*LEGAL_IF, *WORTHWHILE_IF)),
}


def norm_site_at(node: Node) -> NormSite | None:
    """The norm that `node` is, with the layer before it, or the layer with the norm before it."""
    found = view_at(node, BatchNorm, *STARTS)
    if isinstance(found, BatchNorm):
        return _site_before(found)
    return _site_behind(found) if found else None


def fold_norm(site: NormSite, edit: Editor) -> None:
    affine.fold(site, edit)


def why_fold(site: NormSite) -> str:
    return f"{site.norm.node.name} is one affine map with {site.layer.node.name}"


def _site_before(norm: BatchNorm) -> NormSite | None:
    found, passing = seen_through(norm.input, Conv, Linear, Flatten)
    if not isinstance(found, Flatten):
        return NormSite(found, NormMap(norm), passing=passing) if found else None
    layer, before = seen_through(found.input, Linear)
    passing = (*before, found.node, *passing)
    return NormSite(layer, NormMap(norm), flat=found, passing=passing) if layer else None


def _site_behind(layer: Weighted) -> NormSite | None:
    norm, passing = seen_through(layer.input, BatchNorm)
    return NormSite(layer, NormMap(norm), is_in_front=True, passing=passing) if norm else None

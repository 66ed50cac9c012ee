"""Leave out a bias that a batch norm behind it takes away again.

    batch_norm(conv(x, W, b))  ->  batch_norm(conv(x, W)); running_mean += momentum * b

A norm that measures its batch subtracts the mean, and the bias with it. What it records of the
mean holds the bias, and still does. The outputs move by rounding only.
"""

import operator
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from torch import Tensor
from torch.fx import Node

from fxpasses.core import Condition, Editor, Facts, Numerics, Rewrite
from fxpasses.views import BatchNorm, Conv, Linear, carried, seen_through, view_at


@dataclass(frozen=True, slots=True)
class Site:
    layer: Conv | Linear
    norm: BatchNorm
    passing: tuple[Node, ...]
    """What lies between, and hands on what it is given."""

    @property
    def bias(self) -> Tensor:
        bias = self.layer.bias
        assert bias is not None, "the layer has a bias"
        return bias

    @property
    def records(self) -> bool:
        """Whether the norm keeps the mean that it measures."""
        return self.norm.has("running_mean")

    @property
    def between(self) -> tuple[Node, ...]:
        return (self.layer.node, *self.passing)


def norm_measures_its_batch(site: Site, _: Facts) -> str | None:
    if site.norm.is_frozen or (site.records and site.norm.operand("training") is not True):
        return "the norm uses running statistics, or may do so"
    return None


def what_is_recorded_is_known(site: Site, facts: Facts) -> str | None:
    """The mean that is recorded has to be found, and its share of what was there before."""
    if not site.records:
        return None
    if site.norm.path("running_mean") is None or site.layer.path("bias") is None:
        return "the running mean or the bias is no attribute of the model"
    if not isinstance(site.norm.momentum, (int, float)):
        return "the norm averages over all batches (momentum=None)"
    return "the bias is written in the graph" if facts.is_written(site.bias) else None


def norm_works_on_the_channels(site: Site, facts: Facts) -> str | None:
    """Axis 1 is the layer's channels only where there is a batch and, for linear, no more."""
    wanted = site.layer.weight.dim()
    if site.norm.accepts_only_rank(wanted):
        return None
    rank = facts.rank(site.norm.input)
    if rank is None:
        return "the rank of the norm's input is not known"
    return None if rank == wanted else f"axis 1 of rank {rank} is not the layer's channels"


def nothing_writes_between(site: Site, facts: Facts) -> str | None:
    writer = facts.written_between(site.layer.node, site.norm.node, site.layer.node)
    if writer is None and isinstance(site.layer.input, Node):
        writer = facts.written_between(site.layer.node, site.norm.node, site.layer.input)
    return None if writer is None else f"{writer.name} may write in between"


def nothing_else_reads_between(site: Site, facts: Facts) -> str | None:
    replaced = {*site.between, site.norm.node}
    for node in site.between:
        for reader in facts.readers(node):
            if reader not in replaced:
                return f"{reader.name} reads {node.name} too"
    return None


class RemoveBiasBeforeBn(Rewrite[Site]):
    """Leave out biases that a batch norm, which measures its batch, takes away again.

    For training, above all: it saves adding the bias, and the sum over all places that is its
    gradient. That gradient is zero but for rounding; now the bias has none (`grad` is None), so
    that optimizers leave it as it is, and it stays in the `state_dict`. The running mean is that
    of the original, by the momentum that the norm had when the pass ran.
    """

    name = "remove_bias_before_bn"
    numerics = Numerics.ROUNDING
    trains = True
    legal_if = (
        norm_measures_its_batch,
        what_is_recorded_is_known,
        norm_works_on_the_channels,
        nothing_writes_between,
    )
    worthwhile_if = (nothing_else_reads_between,)
    remedies: ClassVar[Mapping[Condition[Any], str]] = {
        norm_measures_its_batch: "call model.train() first; in evaluation fuse_conv_bn folds the "
        "norm, and the bias with it",
        what_is_recorded_is_known: "give the norm a momentum, and keep bias and running mean as "
        "attributes that forward does not write",
        norm_works_on_the_channels: "pass example_inputs, so that the rank is known; a norm over "
        "another axis does not take the bias away",
        nothing_writes_between: "take the in-place call between the layer and the norm away",
        nothing_else_reads_between: "nothing: others need the value with its bias",
    }

    def match(self, node: Node, facts: Facts) -> Site | None:  # noqa: ARG002  the pattern alone
        norm = view_at(node, BatchNorm)
        layer, passing = (None, ()) if norm is None else seen_through(norm.input, Conv, Linear)
        if norm is None or layer is None or layer.bias is None:
            return None
        if isinstance(layer, Conv) and (layer.is_transposed or layer.padding_mode != "zeros"):
            return None
        is_known = layer.has_constant_parameters and layer.path("weight") is not None
        return Site(layer, norm, passing) if is_known else None

    def why(self, site: Site) -> str:
        return f"{site.norm.node.name} takes the bias of {site.layer.node.name} away"

    def rewrite(self, site: Site, edit: Editor) -> None:
        layer, norm = site.layer, site.norm
        path = layer.path("weight")
        assert path is not None, "the site is made of a weight that the model holds"
        with edit.before(layer.node):
            made = layer.with_tensors(edit, edit.get_attr(path), None)
        old, new = carried(edit, layer.node, site.passing, made)
        result = edit.copy(norm.node)
        edit.rewire(result, old, new)
        edit.replace(norm.node, result, absorbing=site.between)
        edit.folds.drop_gradient(site.bias)
        mean, bias = norm.path("running_mean"), layer.path("bias")
        if mean is not None and bias is not None and site.records:
            with edit.after(norm.node):
                shift = edit.call_method("detach", edit.get_attr(bias))
                # Autograd keeps the running mean, and would not stand that others write it.
                written = edit.call_function(getattr, edit.get_attr(mean), "data")
                # Of an empty batch the norm records nothing.
                some = edit.call_function(operator.gt, edit.call_method("numel", made), 0)
                share = edit.call_function(operator.mul, some, norm.momentum)
                edit.call_method("add_", written, shift, alpha=share)

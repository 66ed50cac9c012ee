"""What one verification is asked, and what it goes by: sites, walks, the dtype of the model."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from fxpasses.core import Program
from fxpasses.verify.dtypes import Kinds
from fxpasses.verify.pieces import Section
from fxpasses.verify.probes import Probe
from fxpasses.verify.progress import Progress
from fxpasses.verify.runs import Run, named_tensors
from fxpasses.verify.sites import PassRun, Site, sites_of
from fxpasses.verify.state import Autocast
from fxpasses.verify.walk import Walk


@dataclass(frozen=True, slots=True, eq=False)
class Question:
    """What is to be verified."""

    original: Program
    optimised: Program
    passes: Sequence[PassRun]
    example: Probe
    reference: Run | None = None
    """The model's own run of the example."""
    training: bool = False
    rounded_weights: bool = False
    """Whether weights were folded that nobody knows the formula of any more."""
    sections: Sequence[Section] = ()
    """The passes with what their rewrites are compared with; by default all with `original`."""
    progress: Progress = field(default_factory=Progress)


@dataclass(frozen=True, slots=True, eq=False)
class Hike:
    """The sites of one section, and the walk over the program that they are compared with."""

    program: Program
    sites: list[Site]
    walk: Walk

    @classmethod
    def over(cls, section: Section, question: Question, own: torch.dtype) -> "Hike":
        program = section.reference
        optimised, example, progress = question.optimised, question.example, question.progress
        sites = sites_of(section.passes, list(program.graphs))
        by_path = {path: [site for site in sites if site.path == path] for path in program.graphs}
        given = frozenset(_address(tensor) for tensor in named_tensors(program).values())
        kinds = Kinds(program, example)
        walk = Walk(by_path, optimised.folds, own, given, kinds, Autocast.now(), progress)
        return cls(program, sites, walk)


def own_dtype(program: Program, example: Probe) -> torch.dtype:
    """The float dtype that most of a model's weights have; where it has none, the example's.

    Under autocast it is the dtype that this casts them to.
    """
    weights = [*program.root.parameters()]
    if not weights:
        leaves = tree_leaves((example.args, dict(example.kwargs)))
        weights = [leaf for leaf in leaves if isinstance(leaf, Tensor)]
    counts: dict[torch.dtype, int] = {}
    for weight in weights:
        if weight.is_floating_point():
            dtype = cast_to(weight)
            counts[dtype] = counts.get(dtype, 0) + weight.numel()
    return max(counts, key=counts.__getitem__, default=torch.float32)


def cast_to(weight: Tensor) -> torch.dtype:
    """The dtype that products with `weight` are computed in."""
    device = weight.device.type
    is_cast = weight.dtype is not torch.float64 and torch.amp.is_autocast_available(device)
    if is_cast and torch.is_autocast_enabled(device):
        return torch.get_autocast_dtype(device)
    return weight.dtype


def _address(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr() if tensor.layout is torch.strided else 0

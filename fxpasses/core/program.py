"""A captured model: the unit that passes work on."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from torch import nn
from torch.fx import GraphModule

from fxpasses.core.fold import Folds


@dataclass(slots=True, eq=False)
class Program:
    """The graphs captured out of one model, by module path, innermost first.

    `root` is what is called in place of the model. Where the whole model is one graph, `graphs`
    holds `root` alone, under the path "". Below an opaque module its children have graphs of
    their own, each standing in for the `forward` of the module at its path.
    """

    root: nn.Module
    graphs: Mapping[str, GraphModule]
    folds: Folds = field(default_factory=Folds)

    def __iter__(self) -> Iterator[tuple[str, GraphModule]]:
        return iter(self.graphs.items())

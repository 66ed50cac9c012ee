from collections.abc import Callable
from math import inf
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.fx import Node

from fxpasses.analysis.facts import GraphFacts
from fxpasses.analysis.magnitudes import beginning_of_rows, largest_magnitude
from tests.support import traced

X = torch.ones(2, 4, 4)
LIMIT = torch.finfo(torch.float32).max


class Computing(nn.Module):
    def __init__(self, compute: Callable[..., Any]) -> None:
        super().__init__()
        self.compute = compute
        self.weight = nn.Parameter(torch.tensor([1.0, -3.0, 2.0, 0.5]))
        self.infinite = nn.Parameter(torch.tensor([1.0, -inf, 2.0, 0.5]))
        self.table = nn.Embedding(4, 4)
        nn.init.constant_(self.table.weight, -7.0)

    def forward(self, x: Tensor) -> Any:
        return self.compute(self, x)


def asked(ask: Callable[..., Any], compute: Callable[..., Any]) -> Any:
    module = traced(Computing(compute), X)
    end = module.graph.output_node()
    assert end is not None
    (value,) = end.args
    assert isinstance(value, Node)
    return ask(value, GraphFacts(module), until=end)


BOUNDS: dict[str, tuple[Any, float]] = {
    "an input": (lambda s, x: x * 1, inf),
    "a comparison": (lambda s, x: x > 0, 1),
    "an input of integers": (lambda s, x: x.to(torch.int8) * 2, 128),
    "a weight": (lambda s, x: s.weight[None].expand(2, 4), 3),
    "a weight that is not finite": (lambda s, x: s.infinite * 1, inf),
    "an embedding": (lambda s, x: s.table(x.long()), 7),
    "sums and products": (lambda s, x: torch.sub(s.weight * 2, x.sigmoid(), alpha=-5) / -2, 5.5),
    "what is filled in": (lambda s, x: s.weight.masked_fill(x[0, 0] > 0, -1e4), 1e4),
    "chosen": (lambda s, x: torch.where(x > 0, 0.0, -LIMIT), LIMIT),
    "more than the dtype holds": (lambda s, x: torch.where(x > 0, 0.0, -LIMIT) * 2, inf),
    "filled with infinity": (lambda s, x: torch.full((4, 4), -inf), inf),
    "zeros times what is not known": (lambda s, x: torch.zeros(4) * x, 0),
    "written": (lambda s, x: (y := torch.zeros(4, 4), y.copy_(x[0]), y)[2], inf),
}


@pytest.mark.parametrize(("compute", "bound"), BOUNDS.values(), ids=BOUNDS)
def test_bounds(compute: Any, bound: float) -> None:
    assert asked(largest_magnitude, compute) == pytest.approx(bound)


BEGINNINGS: dict[str, tuple[Any, float | None]] = {
    "not known": (lambda s, x: x * 1, None),
    "below the diagonal": (lambda s, x: torch.ones(4, 4).tril(), 1),
    "below a lower diagonal": (lambda s, x: torch.ones(4, 4).tril(-1), None),
    "above the diagonal": (lambda s, x: torch.full((4, 4), -inf).triu(1), 0),
    "from the diagonal on": (lambda s, x: torch.ones(4, 4).triu(), None),
    "compared": (lambda s, x: torch.ones(4, 4).tril() == 0, 0),
    "negated": (lambda s, x: ~torch.ones(4, 4, dtype=torch.bool).tril(), 0),
    "in a batch": (lambda s, x: torch.ones(4, 4).tril()[None].unsqueeze(0).bool(), None),
    "with axes in front": (lambda s, x: torch.ones(4, 4).tril().unsqueeze(0).expand(2, 4, 4), 1),
    "with an axis behind": (lambda s, x: torch.ones(4, 4).tril().unsqueeze(-1), None),
    "written": (lambda s, x: (y := torch.zeros(4, 4), y.copy_(x[0]), y)[2], None),
}


@pytest.mark.parametrize(("compute", "beginning"), BEGINNINGS.values(), ids=BEGINNINGS)
def test_what_rows_begin_with(compute: Any, beginning: float | None) -> None:
    assert asked(beginning_of_rows, compute) == beginning

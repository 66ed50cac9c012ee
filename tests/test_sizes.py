"""Which values are known to have one shape."""

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fxpasses.analysis.facts import GraphFacts
from fxpasses.views.sizes import Sizes
from tests.support import traced

IMAGE, ROWS = torch.randn(2, 3, 8, 8), torch.randn(2, 5, 4)


class Two(nn.Module):
    """Computes two values that may be of one shape."""

    def __init__(self, compute: Any) -> None:
        super().__init__()
        self.compute = compute
        self.conv, self.wide = nn.Conv2d(3, 3, 3, padding=1), nn.Conv2d(3, 6, 3, 2, 1)
        self.short = nn.Conv2d(3, 6, 1, 2)
        self.same = nn.Conv2d(3, 3, 5, padding="same")
        self.norm, self.linear, self.back = nn.BatchNorm2d(3), nn.Linear(4, 6), nn.Linear(6, 4)

    def forward(self, x: Tensor) -> Any:
        return self.compute(self, x)


def are_alike(compute: Any, example: Tensor) -> bool:
    module = traced(Two(compute).eval(), example)
    nodes = list(module.graph.nodes)
    one, other = module.graph.output_node().args[0]
    return Sizes(nodes, GraphFacts(module)).holds(one, other)


ALIKE: dict[str, tuple[Any, Tensor]] = {
    "padded convolutions": (lambda s, x: (s.conv(x), x), IMAGE),
    "kept by name": (lambda s, x: (s.same(x), s.conv(x)), IMAGE),
    "windows of other sizes": (lambda s, x: (s.wide(x), s.short(x)), IMAGE),
    "element by element": (lambda s, x: (F.relu(s.norm(x)) * 2, x), IMAGE),
    "there and back": (lambda s, x: (s.back(s.linear(x)), x), ROWS),
    "turned twice": (lambda s, x: (x.transpose(0, 1).permute(1, 0, 2), x), ROWS),
    "by sizes": (
        lambda s, x: (x.view(x.size(0), x.shape[1], 2, 2).flatten(2), s.back(s.linear(x))),
        ROWS,
    ),
    "multiplied": (lambda s, x: (x @ x.transpose(1, 2) @ x, x), ROWS),
    "one of a new axis": (lambda s, x: (x.unsqueeze(0)[0], x.unsqueeze(2).unbind(2)[0]), ROWS),
    "joined": (
        lambda s, x: (torch.cat([s.conv(x), s.conv(x)], 1), torch.cat([x, s.conv(x)], 1)),
        IMAGE,
    ),
    "smaller": (lambda s, x: (s.linear(x), s.linear.bias), ROWS),
    "one of each": (lambda s, x: (s.conv(x), F.adaptive_avg_pool2d(s.conv(x), 1)), IMAGE),
    "a number": (lambda s, x: (x, x.sum()), ROWS),
}
OTHERS: dict[str, tuple[Any, Tensor]] = {
    "sums along an axis": (lambda s, x: (x.sum(0, keepdim=True), x), ROWS[:1]),
    "multiplied otherwise": (lambda s, x: (x.transpose(1, 2) @ x, x), ROWS[:, :4]),
    "parts of a split": (lambda s, x: (x.split(2, 1)[0], x), ROWS[:, :2]),
    "other axes": (lambda s, x: (x.transpose(0, 1), x), ROWS[:, :2]),
    "larger": (lambda s, x: (F.adaptive_avg_pool2d(s.conv(x), 1), s.conv(x)), IMAGE),
    "steps": (lambda s, x: (s.wide(x), torch.cat([x, x], 1)), IMAGE[..., :1, :1]),
    "other channels": (lambda s, x: (s.conv(x), s.wide(x)), IMAGE),
    "bounds that are larger": (lambda s, x: (x[:1].clamp(min=x), x[:1]), ROWS[:1]),
    "views of anything": (lambda s, x: (x.view(-1, 4), x.view(4, -1)), ROWS[:1, :4]),
}


@pytest.mark.parametrize("name", ALIKE)
def test_what_is_alike_in_every_call_is_known(name: str) -> None:
    assert are_alike(*ALIKE[name])


@pytest.mark.parametrize("name", OTHERS)
def test_what_is_alike_by_chance_is_not(name: str) -> None:
    compute, example = OTHERS[name]
    assert not are_alike(compute, example)

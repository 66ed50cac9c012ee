"""Coverage says how much of a forward runs from graphs."""

import pytest
import torch
from torch import Tensor, nn

from fxpasses.capture import calls_of, capture

X = torch.randn(4, 8, generator=torch.Generator().manual_seed(0))


class Half(nn.Module):
    """Two equal layers, of which its own code calls one."""

    def __init__(self) -> None:
        super().__init__()
        self.own, self.child = (
            nn.Linear(8, 8, bias=False),
            nn.Sequential(nn.Linear(8, 8, bias=False)),
        )
        self.runs = 0

    def forward(self, x: Tensor) -> Tensor:
        self.runs += 1
        return self.child(self.own(x))


def test_without_opaque_modules_nothing_is_run() -> None:
    model = nn.Sequential(nn.Linear(8, 8), nn.ReLU())
    captured = capture(model)
    assert (captured.coverage().calls, captured.coverage().flops) == (1.0, 1.0)


def test_calls_and_flops_from_graphs_are_counted() -> None:
    captured = capture(Half(), (X,))
    found = captured.coverage()
    assert found.flops == pytest.approx(0.5)
    assert found.calls == pytest.approx(0.5)
    assert captured.coverage() is found


def test_the_run_is_on_copies() -> None:
    model = Half()
    captured = capture(model, (X,))
    captured.coverage()
    assert captured.program.root.runs == 0
    assert calls_of(captured.program.graphs["child"])["graph"] == 0


def test_without_an_example_it_is_not_known() -> None:
    captured = capture(Half())
    assert captured.opaque
    assert captured.coverage() is None

"""Examples are inferred where the first layers say what a model takes, and only there."""

import random
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from fxpasses.capture import infer_arguments


class Only(nn.Module):
    """Takes images of one size only."""

    def __init__(self, side: int) -> None:
        super().__init__()
        self.side, self.conv = side, nn.Conv2d(3, 4, 3)
        self.tries = 0

    def forward(self, x: Tensor) -> Tensor:
        self.tries += 1
        if x.shape[-1] != self.side:
            raise ValueError(f"only {self.side} pixels")
        return self.conv(x)


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.rnn = nn.GRU(5, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.rnn(x)[0]


class Two(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return self.layer(x + y)


class ByName(Two):
    def forward(self, x: Tensor, *, y: Tensor) -> Tensor:
        return self.layer(x + y)


class Optional(Two):
    def forward(self, x: Tensor | None = None, y: Tensor | None = None) -> Tensor:
        return self.layer(x)


class Nothing(Two):
    def forward(self) -> Tensor:
        return self.layer.weight


@pytest.mark.parametrize(
    ("model", "text"),
    [
        (nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU()), "1x3x32x32:float32"),
        (nn.Sequential(nn.Conv1d(2, 4, 3)), "1x2x16:float32"),
        (nn.Sequential(nn.Conv3d(1, 4, 3)), "1x1x8x32x32:float32"),
        (nn.Sequential(nn.ConvTranspose2d(2, 4, 3)), "1x2x32x32:float32"),
        (nn.Sequential(nn.Linear(7, 4)).double(), "1x7:float64"),
        (nn.Sequential(nn.Linear(7, 4), nn.BatchNorm1d(4)), "2x7:float32"),
        (nn.Sequential(nn.Embedding(5, 4), nn.Linear(4, 2)), "1x8:int64"),
        (nn.Sequential(nn.BatchNorm2d(6)), "1x6x32x32:float32"),
        (nn.Sequential(nn.LayerNorm((2, 3))), "1x2x3:float32"),
        (Recurrent(), "4x1x5:float32"),
        (Only(224), "1x3x224x224:float32"),
        (Optional(), "1x4:float32"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_the_first_layer_says_what_the_model_takes(model: nn.Module, text: str) -> None:
    found = infer_arguments(model)
    assert found is not None
    arguments, said = found
    assert said == text
    model(*arguments.args)


@pytest.mark.parametrize("model", [Two(), ByName(), Nothing(), nn.Sequential(nn.ReLU()), Only(31)])
def test_where_it_is_not_clear_nothing_is_guessed(model: nn.Module) -> None:
    assert infer_arguments(model) is None


def test_nothing_of_the_models_is_changed() -> None:
    class Writing(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm, self.runs = nn.BatchNorm2d(3), 0

        def forward(self, x: Any) -> Any:
            self.runs += 1
            random.random()
            return nn.functional.dropout(self.norm(x), training=True)

    model = Writing()
    states = torch.get_rng_state(), random.getstate()
    assert infer_arguments(model) is not None
    assert model.runs == 0
    assert model.norm.num_batches_tracked == 0
    assert torch.equal(torch.get_rng_state(), states[0])
    assert random.getstate() == states[1]


def test_the_number_of_tries_is_bounded() -> None:
    tried: list[int] = []

    class Stubborn(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.ModuleList([nn.Conv2d(3, 4, 3) for _ in range(10)])

        def forward(self, x: Tensor) -> Tensor:
            tried.append(x.shape[-1])
            raise ValueError

    assert infer_arguments(Stubborn()) is None
    assert len(tried) <= 24
    assert tried[:15] == sorted(tried[:15])

"""Float64 without a second copy: the values of `.double()`, and nothing real is written."""

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fxpasses.core import Folds
from fxpasses.verify.float64 import float64
from fxpasses.verify.state import tensors_below


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.attention(x, x, x, need_weights=False)[0]


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(8, 8, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.lstm(x)[0]


class Expanded(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(1, 8, 1))

    def forward(self, x: Tensor) -> Tensor:
        return torch.bmm(x, self.weight.expand(x.shape[0], 8, 3))


class Casts(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(8))

    def forward(self, x: Tensor) -> Tensor:
        y = (x / 3).to(torch.float32) + (x * self.weight).float().sum(
            1, dtype=torch.float32, keepdim=True
        )
        return torch.softmax(y, -1, dtype=torch.float32) + torch.zeros_like(y, dtype=torch.float32)


class Views(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(8, 8))

    def forward(self, x: Tensor) -> Tensor:
        return x @ self.weight[2:, :].t().contiguous() + self.weight[0, ::2].repeat(2)[:6]


NETS: dict[str, Callable[[], tuple[nn.Module, tuple[int, ...]]]] = {
    "conv": lambda: (nn.Conv2d(3, 4, 3), (2, 3, 6, 6)),
    "transposed conv": lambda: (nn.ConvTranspose1d(3, 4, 3), (2, 3, 6)),
    "norms": lambda: (nn.Sequential(nn.LayerNorm(8), nn.Linear(8, 8), nn.GELU()), (2, 8)),
    "attention": lambda: (Attention().train(), (2, 5, 8)),
    "recurrent": lambda: (Recurrent(), (2, 5, 8)),
    "expanded weight": lambda: (Expanded(), (2, 5, 8)),
    "views": lambda: (Views(), (2, 8)),
}


@pytest.mark.parametrize("name", NETS)
def test_gives_what_a_double_copy_gives(name: str) -> None:
    net, shape = NETS[name]()
    x = torch.randn(shape)

    with float64() as seen:
        value = seen.reads(net(x))

    with torch.no_grad():
        expected = copy.deepcopy(net).double()(x.double())
    assert value.dtype is torch.float64
    torch.testing.assert_close(value, expected, rtol=1e-14, atol=1e-15)


def test_casts_to_narrow_floats_do_not_round() -> None:
    net, x = Casts(), torch.randn(2, 8)

    with float64() as seen:
        value = seen.reads(net(x))

    wide, weight = x.double(), net.weight.detach().double()
    expected = torch.softmax(wide / 3 + (wide * weight).sum(1, keepdim=True), -1)
    torch.testing.assert_close(value, expected, rtol=1e-14, atol=1e-15)


@pytest.mark.parametrize("op", [lambda x: x / 255, lambda x: x * 0.1, lambda x: x.sqrt()])
def test_whole_numbers_become_floats_without_rounding(op: Callable[[Tensor], Tensor]) -> None:
    pixels = torch.arange(256, dtype=torch.uint8)

    with float64() as seen:
        value = seen.reads(op(pixels))

    assert torch.equal(value, op(pixels.double()))


def test_an_expanded_weight_is_widened_once() -> None:
    weight = torch.randn(4).expand(1000, 4)

    with float64() as seen:
        value = seen.reads(weight)

    assert value.untyped_storage().nbytes() == 4 * 8
    assert torch.equal(value, weight.double())


class Writes(nn.Module):
    """Writes buffers of two kinds, views of them, statistics, and its argument."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(4)
        self.register_buffer("average", torch.zeros(4))
        self.register_buffer("count", torch.zeros(2, dtype=torch.long))

    def forward(self, x: Tensor) -> Tensor:
        self.count[0] += 1
        self.average.mul_(0.9).add_(x.mean(0) * 0.1)
        self.average[1:].add_(1)
        y = self.norm(x) + self.average + self.count[0]
        x.add_(1)
        return F.dropout(y, 0.5) * x


def test_writes_go_to_stand_ins() -> None:
    net, x = Writes().train(), torch.randn(8, 4)
    wide, given = copy.deepcopy(net).double(), x.double()
    held, before = tensors_below([net]), copy.deepcopy(tensors_below([net]))

    torch.manual_seed(3)
    with float64(protected=held.values()) as seen:
        value = seen.reads(net(x))
        left = {name: seen.reads(tensor) for name, tensor in held.items()}
        argument = seen.reads(x)

    torch.manual_seed(3)
    with torch.no_grad():
        expected = wide(given)
    assert torch.equal(value, expected)
    assert torch.equal(argument, given)
    for name, tensor in tensors_below([wide]).items():
        assert torch.equal(left[name], tensor), name
    assert all(torch.equal(before[name], tensor) for name, tensor in held.items())
    assert seen.wrote(net.count)
    assert not seen.wrote(net.norm.weight)


def test_random_numbers_are_those_of_the_models_dtype() -> None:
    x = torch.zeros(64)

    def draw(like: Tensor) -> Any:
        return torch.rand(64), torch.randn_like(like), like.clone().normal_(), F.dropout(like + 1)

    torch.manual_seed(1)
    expected = draw(x)
    torch.manual_seed(1)
    with float64() as seen:
        drawn = seen.reads(draw(x * 1))

    for value, own in zip(drawn, expected, strict=True):
        assert value.dtype is torch.float64
        torch.testing.assert_close(value, own.double())


def test_folded_tensors_are_read_unrounded_in_every_view() -> None:
    folds, source = Folds(), torch.randn(3, 4)
    fold = folds.fold(lambda w: w / 3, [source], torch.float32)
    held = nn.Parameter(fold.value, requires_grad=False)
    folds.alias(fold, held)
    exact = source.double() / 3

    with float64(folds) as seen:
        whole, product = seen.reads(held), seen.reads(F.linear(torch.eye(4), held))
        part = seen.reads(held.t()[1:, ::2] * 1)

    assert torch.equal(whole, exact)
    torch.testing.assert_close(product, exact.t(), rtol=1e-15, atol=0)
    assert torch.equal(part, exact.t()[1:, ::2])


def test_formulas_are_not_helped_by_the_modes() -> None:
    folds, source = Folds(), torch.randn(8)
    fold = folds.fold(lambda w: (w / 3).float().double(), [source], torch.float32)

    with float64(), float64(folds) as seen:
        value = seen.reads(fold.value)

    assert torch.equal(value, (source.double() / 3).float().double())


def test_noise_moves_every_result_by_its_share() -> None:
    x = torch.rand(1000).double() + 1

    with float64(noise=1e-3) as seen:
        value = seen.reads(x * 1)

    moved = (value / x - 1).abs()
    torch.testing.assert_close(moved, torch.full_like(moved, 1e-3))
    assert 0.4 < (value > x).double().mean() < 0.6


def test_noise_moves_what_ops_are_given_as_well() -> None:
    """What cancels inside of an op does not show in the size of its result."""
    mean, shift, weight = (torch.full((4,), one) for one in (1e6, 1e6, 1.0))

    def norm(noise: float) -> Tensor:
        with float64(noise=noise) as seen:
            arguments = (torch.zeros(8, 4), mean, torch.ones(4), weight, shift)
            return seen.reads(torch.nn.functional.batch_norm(*arguments, eps=0.0))

    moved = (norm(1e-9) - norm(0.0)).abs()
    assert 1e-4 < moved.max() < 1e-2

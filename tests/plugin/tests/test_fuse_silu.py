"""SiLU is found in each spelling, and what is left alone has a reason."""

import pytest
import torch
from torch import Tensor, nn

import fxpasses
from example_passes import fuse_silu as subject
from example_passes.fuse_silu import FuseSilu

X = torch.randn(4, 8, generator=torch.Generator().manual_seed(0))


class ByFunctions(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return torch.mul(x, torch.sigmoid(x))


class ByMethods(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.sigmoid() * x


class ByModule(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gate = nn.Sigmoid()

    def forward(self, x: Tensor) -> Tensor:
        return x * self.gate(x)


class OfIntegers(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        whole = x.int()
        return whole * whole.sigmoid()


class WrittenBetween(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        y = x + 1
        gate = y.sigmoid()
        y.add_(1)
        return y * gate


class ReadTwice(nn.Module):
    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        gate = x.sigmoid()
        return x * gate, gate


REFUSED = {
    subject.input_is_real: OfIntegers,
    subject.nothing_is_written: WrittenBetween,
    subject.product_is_the_only_reader: ReadTwice,
}


def only_pass(result: nn.Module):
    """What the report on a run of one pass says of it."""
    (made,) = fxpasses.report(result).record.passes
    return made


@pytest.mark.parametrize("model", [ByFunctions, ByMethods, ByModule])
def test_fuses(model: type[nn.Module]) -> None:
    fast = fxpasses.run(model().eval(), [FuseSilu()], X)  # verified, or an error

    (rewrite,) = only_pass(fast).rewrites
    assert rewrite.verified == "site"
    assert "silu" in fast.code
    assert "sigmoid" not in fast.code


@pytest.mark.parametrize("condition", REFUSED)
def test_refuses(condition) -> None:
    fast = fxpasses.run(REFUSED[condition]().eval(), [FuseSilu()], X)

    (refusal,) = only_pass(fast).refusals
    assert refusal.condition == condition.__name__
    assert "silu" not in fast.code


def test_every_condition_has_its_refusal() -> None:
    assert (*FuseSilu.legal_if, *FuseSilu.worthwhile_if) == tuple(REFUSED)


@pytest.mark.parametrize("condition", FuseSilu.legal_if)
def test_each_legality_condition_is_needed(condition) -> None:
    class Unchecked(FuseSilu):
        legal_if = tuple(one for one in FuseSilu.legal_if if one is not condition)

    with pytest.raises(fxpasses.errors.FxPassesError):
        fxpasses.run(REFUSED[condition]().eval(), [Unchecked()], X)

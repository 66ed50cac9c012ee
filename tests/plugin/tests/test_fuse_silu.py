"""SiLU is found in each spelling, and what is left alone has a reason."""

import pytest
import torch
from torch import Tensor, nn

import fxpasses
from example_passes import fuse_silu as subject
from example_passes.fuse_silu import FuseSilu
from fxpasses.testing import check_pass

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


def test_keeps_what_every_pass_promises() -> None:
    calls = {condition: (model(), (X,)) for condition, model in REFUSED.items()}
    check_pass(
        FuseSilu,
        models=[(model(), (X,)) for model in (ByFunctions, ByMethods, ByModule)],
        goes_wrong={condition: calls[condition] for condition in FuseSilu.legal_if},
        still_right={condition: calls[condition] for condition in FuseSilu.worthwhile_if},
    )

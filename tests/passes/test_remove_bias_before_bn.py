"""Biases that a norm takes away: left out, and nowhere that it would be wrong."""

import copy
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torchvision.models.vgg import cfgs, make_layers

import fxpasses
from fxpasses.core import Condition
from fxpasses.manager import apply
from fxpasses.ops import Op
from fxpasses.passes import remove_bias_before_bn as subject
from fxpasses.passes.remove_bias_before_bn import RemoveBiasBeforeBn, Site
from fxpasses.testing import check_pass
from fxpasses.views import Conv, Linear, view_at
from tests.support import ops, reasons, traced

IMAGE = torch.randn(3, 4, 6, 6, generator=torch.Generator().manual_seed(0))
ROWS = torch.randn(6, 4, generator=torch.Generator().manual_seed(1))
SERIES = torch.randn(6, 4, 4, generator=torch.Generator().manual_seed(2))


class Net(nn.Module):
    """A layer and a norm behind it, in training."""

    def __init__(self, layer: nn.Module, norm: nn.Module, *between: nn.Module) -> None:
        super().__init__()
        self.layer, self.between, self.norm = layer, nn.Sequential(*between), norm
        if layer.bias is not None:
            nn.init.uniform_(layer.bias, -3, 3, generator=torch.Generator().manual_seed(3))

    def forward(self, x: Tensor) -> Any:
        return self.norm(self.between(self.layer(x)))


class Functional(Net):
    def forward(self, x: Tensor) -> Tensor:
        y = F.conv2d(x, self.layer.weight, self.layer.bias, padding=1)
        norm = self.norm
        return F.batch_norm(y, norm.running_mean, norm.running_var, training=True, momentum=0.3)


class Unrecorded(Net):
    def forward(self, x: Tensor) -> Tensor:
        return F.batch_norm(self.layer(x), None, None, self.norm.weight, training=True)


def conv(**settings: Any) -> nn.Module:
    return nn.Conv2d(4, 4, 3, **settings)


REMOVED: dict[str, tuple[nn.Module, Tensor]] = {
    "convolution": (Net(conv(padding=1), nn.BatchNorm2d(4)), IMAGE),
    "groups": (Net(conv(groups=2, stride=2), nn.BatchNorm2d(4, momentum=0.5)), IMAGE),
    "linear": (Net(nn.Linear(4, 5), nn.BatchNorm1d(5)), ROWS),
    "series": (Net(nn.Conv1d(4, 5, 2), nn.BatchNorm1d(5)), SERIES),
    "functions": (Functional(conv(), nn.BatchNorm2d(4)), IMAGE),
    "nothing recorded": (Net(conv(), nn.BatchNorm2d(4, track_running_stats=False)), IMAGE),
    "nothing to record in": (Unrecorded(conv(), nn.BatchNorm2d(4)), IMAGE),
    "in evaluation": (Net(conv(), nn.BatchNorm2d(4, track_running_stats=False)).eval(), IMAGE),
    "through what hands on": (Net(conv(), nn.BatchNorm2d(4), nn.Identity(), nn.Dropout(0)), IMAGE),
}


@pytest.mark.parametrize(("model", "x"), REMOVED.values(), ids=REMOVED)
def test_leaves_the_bias_out_and_records_the_same(model: nn.Module, x: Tensor) -> None:
    model = copy.deepcopy(model)
    module = traced(copy.deepcopy(model), x)

    assert apply(RemoveBiasBeforeBn(), module, training=model.training).modified

    layers = [view_at(node, Conv, Linear) for node in module.graph.nodes]
    assert not any(layer.has_bias for layer in layers if layer is not None)
    for example in (x, x[1:] * 2, x):
        torch.testing.assert_close(module(example), model(example))
    state, before = module.state_dict(), model.state_dict()
    both = state.keys() & before.keys()
    torch.testing.assert_close({k: state[k] for k in both}, {k: before[k] for k in both})


class ReadTwice(Net):
    def forward(self, x: Tensor) -> Tensor:
        y = self.layer(x)
        return self.norm(y) * y


class WrittenBetween(Net):
    def forward(self, x: Tensor) -> Tensor:
        y = self.layer(x)
        y.mul_(2)
        return self.norm(y)


class BiasWritten(Net):
    def forward(self, x: Tensor) -> Tensor:
        with_bias = self.norm(F.conv2d(x, self.layer.weight, self.shift))
        self.shift.mul_(2)
        return with_bias


def written() -> nn.Module:
    model = BiasWritten(conv(bias=False), nn.BatchNorm2d(4))
    model.register_buffer("shift", torch.ones(4))
    return model


REFUSED: dict[Condition[Site], tuple[nn.Module, Tensor]] = {
    subject.norm_measures_its_batch: (Net(conv(), nn.BatchNorm2d(4)).eval(), IMAGE),
    subject.what_is_recorded_is_known: (Net(conv(), nn.BatchNorm2d(4, momentum=None)), IMAGE),
    subject.norm_works_on_the_channels: (Net(nn.Linear(4, 4), nn.BatchNorm1d(4)), SERIES),
    subject.nothing_writes_between: (WrittenBetween(conv(), nn.BatchNorm2d(4)), IMAGE),
    subject.nothing_else_reads_between: (ReadTwice(conv(), nn.BatchNorm2d(4)), IMAGE),
}
ALSO_REFUSED = [(subject.what_is_recorded_is_known, (written(), IMAGE))]


@pytest.mark.parametrize(
    ("condition", "case"),
    [*REFUSED.items(), *ALSO_REFUSED],
    ids=lambda v: getattr(v, "__name__", ""),
)
def test_refuses(condition: Condition[Site], case: tuple[nn.Module, Tensor]) -> None:
    model, x = copy.deepcopy(case)
    module = traced(model, x)
    before = ops(module)

    result = apply(RemoveBiasBeforeBn(), module, training=model.training)

    assert reasons(result) == [condition.__name__]
    assert all(refusal.remedy for refusal in result.refusals)
    assert ops(module) == before


def test_every_refusal_is_tested_here() -> None:
    conditions = (*RemoveBiasBeforeBn.legal_if, *RemoveBiasBeforeBn.worthwhile_if)
    assert conditions == tuple(REFUSED)
    assert set(RemoveBiasBeforeBn.remedies) == set(conditions)


def test_keeps_the_promises_of_a_pass() -> None:
    check_pass(
        RemoveBiasBeforeBn,
        models=[copy.deepcopy(REMOVED[name]) for name in ("convolution", "linear")],
        goes_wrong={c: copy.deepcopy(REFUSED[c]) for c in RemoveBiasBeforeBn.legal_if},
        still_right={c: copy.deepcopy(REFUSED[c]) for c in RemoveBiasBeforeBn.worthwhile_if},
    )


def test_training_goes_as_it_would_have() -> None:
    model = Net(conv(), nn.BatchNorm2d(4)).train()
    result = fxpasses.run(copy.deepcopy(model), "remove_bias_before_bn,dce", (IMAGE,))
    sides = [(m, torch.optim.SGD(m.parameters(), 0.1, momentum=0.9)) for m in (model, result)]

    for factor in (1, 2, 3):
        for module, optimizer in sides:
            optimizer.zero_grad()
            # Two calls before one backward: what autograd keeps of the first is not written.
            (module(IMAGE * factor).exp().mean() + module(IMAGE).square().mean()).backward()
            optimizer.step()

    assert fxpasses.report(result).record.verification.ok is True
    assert result.get_parameter("layer.bias").grad is None
    torch.testing.assert_close(result.state_dict(), model.state_dict(), rtol=1e-3, atol=1e-4)
    torch.testing.assert_close(result.eval()(IMAGE), model.eval()(IMAGE), rtol=1e-3, atol=1e-3)


def test_a_gradient_of_zeros_is_no_gradient_that_was_lost() -> None:
    """Behind a norm whose scale is zero, as residual networks begin with."""
    model = Net(conv(), nn.BatchNorm2d(4)).train()
    nn.init.zeros_(model.norm.weight)

    result = fxpasses.run(model, "remove_bias_before_bn", (IMAGE,), verify="full")

    assert Op.CONV in ops(result)
    assert fxpasses.report(result).record.verification.ok is True


def vgg11() -> nn.Module:
    """The trunk of torchvision's `vgg11_bn`, whose eight convolutions have biases."""
    trunk = make_layers(cfgs["A"], batch_norm=True)
    return nn.Sequential(trunk, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, 10))


@pytest.mark.slow
def test_the_biases_of_a_real_model() -> None:
    torch.manual_seed(0)
    model, image = vgg11().train(), torch.randn(2, 3, 32, 32)

    result = fxpasses.run(model, "training", image)

    record = fxpasses.report(result).record
    removed = [r for p in record.passes if p.name == "remove_bias_before_bn" for r in p.rewrites]
    assert len(removed) == 8
    assert record.verification.ok is True  # gradients among it

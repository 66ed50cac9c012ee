"""What `run` promises about models that write, ask or check in unusual places."""

import copy
import pickle
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.fx.experimental.optimization import fuse

import fxpasses
from fxpasses.errors import CaptureError, VerificationError

X = torch.tensor([1.0, 2.0, 3.0])


class WritesItsWeight(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(3))

    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            self.weight.mul_(2)
        return x + self.weight


class RenormalisesItsRows(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.rows = nn.Embedding(5, 3, max_norm=0.1)

    def forward(self, x: Tensor) -> Tensor:
        return self.rows(x.long())


class FreezesItsWeight(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 3)

    def forward(self, x: Tensor) -> Tensor:
        self.layer.weight.requires_grad_(False)
        return self.layer(x)


@pytest.mark.parametrize("model", [WritesItsWeight, RenormalisesItsRows, FreezesItsWeight])
def test_the_weights_stay_as_they_are(model: type[nn.Module]) -> None:
    module = model().eval()
    before = {name: tensor.clone() for name, tensor in module.state_dict().items()}
    versions = [(p._version, p.requires_grad) for p in module.parameters()]

    fxpasses.run(module, "inference", (X,))

    assert [(p._version, p.requires_grad) for p in module.parameters()] == versions
    torch.testing.assert_close(module.state_dict(), before, rtol=0, atol=0)


class ReturnsItsWeight(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(3))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return x * 2, self.weight


def test_a_parameter_may_be_returned() -> None:
    model = ReturnsItsWeight().eval()
    assert fxpasses.run(model, "inference", (X,))(X)[1] is model.weight


class AsksForInferenceMode(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x * 2 if torch.is_inference_mode_enabled() else x * 3


def test_inference_mode_is_asked_for_at_each_call() -> None:
    result = fxpasses.run(AsksForInferenceMode().eval(), "inference", (X,))
    with torch.inference_mode():
        inside = result(X)
    torch.testing.assert_close((inside, result(X)), (X * 2, X * 3))


class TellsTheOrder(nn.Module):
    def forward(self, **values: Tensor) -> Tensor:
        return sum(value * (place + 1) for place, value in enumerate(values.values()))


def test_the_order_of_any_keywords_is_part_of_the_pattern() -> None:
    model = TellsTheOrder().eval()
    result = fxpasses.run(model, "inference", example_kwargs={"a": X, "b": X * 10})
    torch.testing.assert_close(result(b=X * 10, a=X), model(b=X * 10, a=X))
    assert fxpasses.report(result).calls["fallback"] == 1


class Asserts(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        torch._assert_async(torch.isfinite(x).all())
        return x * 2


def test_an_assertion_on_data_stays() -> None:
    result = fxpasses.run(Asserts().eval(), "inference", (X,))
    with pytest.raises(RuntimeError):
        result(torch.tensor([float("nan")] * 3))


class CalledInItsOwnWay(nn.Module):
    def __call__(self, x: Tensor) -> Tensor:
        return super().__call__(x) + 100

    def forward(self, x: Tensor) -> Tensor:
        return x * 3


def test_a_model_with_a_call_of_its_own_is_refused() -> None:
    with pytest.raises(CaptureError, match="overrides `__call__`"):
        fxpasses.run(CalledInItsOwnWay().eval(), "inference", (X,))


@pytest.mark.parametrize(
    "moved",
    [copy.deepcopy, lambda result: pickle.loads(pickle.dumps(result))],
    ids=["copy", "pickle"],
)
def test_a_result_for_training_runs_in_both_modes(
    moved: Callable[[nn.Module], nn.Module],
) -> None:
    model = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3)).train()
    x = torch.randn(4, 3)
    result = moved(fxpasses.run(model, ["dce"], (x,)))
    torch.testing.assert_close(result(x), model(x))
    torch.testing.assert_close(result.eval()(x), model.eval()(x))
    torch.testing.assert_close(result.train()(x), model.train()(x))


class Block(nn.Module):
    """Its convolution is called once, or twice with a norm on one of the ways."""

    def __init__(self, *, shared: bool) -> None:
        super().__init__()
        self.shared = shared
        self.conv, self.norm = nn.Conv2d(3, 3, 3, padding=1), nn.BatchNorm2d(3)
        nn.init.normal_(self.norm.running_mean)
        nn.init.uniform_(self.norm.running_var, 0.1, 2.0)

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm(self.conv(x))
        return y + self.conv(x) if self.shared else y


def test_weights_that_a_foreign_pass_rounded_raise_no_alarm() -> None:
    x = torch.randn(2, 3, 8, 8)
    result = fxpasses.run(Block(shared=False).eval(), [fuse], (x,))
    assert fxpasses.report(result).record.verification.ok


def test_a_foreign_pass_that_is_wrong_is_named() -> None:
    x = torch.randn(2, 3, 8, 8)
    with pytest.raises(VerificationError, match="fuse"):
        fxpasses.run(Block(shared=True).eval(), [fuse], (x,))


class RaisesLater(nn.Module):
    """Its hook can be called twice: when it is captured, and once more."""

    def __init__(self) -> None:
        super().__init__()
        calls = iter((None, None))
        self.hooked = nn.Linear(3, 3)
        self.hooked.register_forward_hook(lambda *_: next(calls))

    def forward(self, x: Tensor) -> Tensor:
        return self.hooked(x)


def test_what_a_model_raises_in_verification_is_typed() -> None:
    model = RaisesLater().eval()
    with pytest.raises(fxpasses.errors.FxPassesError):
        fxpasses.run(model, "inference", (X,))

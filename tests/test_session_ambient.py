"""What lies around a run: autocast, and examples that are more than tensors."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import fxpasses
from fxpasses.core import Editor, Fold
from fxpasses.core.record import VerificationRecord
from fxpasses.errors import CaptureError, UnverifiedWarning, VerificationError

IMAGE = torch.randn(2, 3, 8, 8, generator=torch.Generator().manual_seed(0))


def conv_net() -> nn.Module:
    norm = nn.BatchNorm2d(4)
    nn.init.normal_(norm.running_mean)
    nn.init.uniform_(norm.running_var, 0.5, 2.0)
    return nn.Sequential(nn.Conv2d(3, 4, 3), norm, nn.ReLU(), nn.Conv2d(4, 4, 1)).eval()


class Attends(nn.Module):
    """Has a product of constants, which is cast, and a norm and softmax, which are not."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Parameter(torch.randn(8, 8)), nn.Parameter(torch.randn(8, 8))
        self.norm, self.layer = nn.LayerNorm(8), nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm(self.layer(x @ (self.a @ self.b)))
        return torch.softmax(y, -1) @ (torch.softmax(self.a, 0) + torch.exp(self.b))


def verification(result: nn.Module) -> VerificationRecord:
    return fxpasses.report(result).record.verification


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("level", [True, "each", "full"])
@pytest.mark.parametrize(
    ("model", "x"), [(conv_net(), IMAGE), (Attends().eval(), torch.randn(4, 8))]
)
def test_a_run_under_autocast(model: nn.Module, x: Tensor, level: Any, dtype: torch.dtype) -> None:
    with torch.autocast("cpu", dtype=dtype):
        result = fxpasses.run(model, "inference", (x,), verify=level)
        expected, found = model(x), result(x)

    assert verification(result).ok is True
    assert any("autocast" in note for note in verification(result).notes)
    assert found.dtype is expected.dtype is dtype
    torch.testing.assert_close(found, expected, rtol=0.05, atol=0.05)
    assert torch.equal(result(x), model(x))
    calls = fxpasses.report(result).calls
    assert (calls["graph"], calls["reasons"]) == (1, {"autocast for cpu is off": 1})


def test_a_wrong_fold_under_autocast_is_blamed(monkeypatch: pytest.MonkeyPatch) -> None:
    right = Editor.fold

    def fold(self: Editor, *args: Any, **options: Any) -> Fold:
        made = right(self, *args, **options)
        return self.folds.add(Fold(made.value * 1.0001, made.formula, made.sources))

    monkeypatch.setattr(Editor, "fold", fold)
    with torch.autocast("cpu", dtype=torch.bfloat16), pytest.raises(VerificationError) as caught:
        fxpasses.run(conv_net(), "inference", (IMAGE,))
    assert {blame.id for blame in caught.value.blame} == {"6:fuse_conv_bn@/_1"}


def test_what_autocast_keeps_is_not_touched() -> None:
    """The casts of weights that a block of autocast has made serve the calls after the run."""
    model = conv_net()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        before = model(IMAGE)
        assert torch.is_autocast_cache_enabled()
        fxpasses.run(model, "inference", (IMAGE,))
        assert torch.is_autocast_cache_enabled()
        assert torch.equal(model(IMAGE), before)


class Plain(torch.Tensor):
    """Nothing but a name."""


class Louder(torch.Tensor):
    """Adds to every product."""

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = super().__torch_function__(func, types, args, kwargs)
        return made + 100 if getattr(func, "__name__", "") == "mul" else made


class Holds(torch.Tensor):
    """Holds another tensor and does all that is asked for on that one."""

    @staticmethod
    def __new__(cls, inner: Tensor) -> "Holds":
        return torch.Tensor._make_wrapper_subclass(cls, inner.shape, dtype=inner.dtype)

    def __init__(self, inner: Tensor) -> None:
        self.inner = inner

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*[a.inner if isinstance(a, Holds) else a for a in args], **(kwargs or {}))


class Doubles(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(2, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x) * 2


@pytest.mark.parametrize("passes", [[], "inference"])
def test_a_class_of_tensors_that_is_only_a_name(passes: Any) -> None:
    model, x = Doubles().eval(), torch.ones(2).as_subclass(Plain)
    result = fxpasses.run(model, passes, (x,))
    assert verification(result).ok is True
    assert type(result(x)) is Plain
    assert torch.equal(result(x), model(x))


def test_a_class_of_tensors_with_functions_of_its_own_is_named() -> None:
    model, x = Doubles().eval(), torch.ones(2).as_subclass(Louder)
    with pytest.warns(UnverifiedWarning, match="Louder"):
        result = fxpasses.run(model, "inference", (x,))
    assert torch.equal(result(x), model(x))


@pytest.mark.parametrize(
    ("x", "name"),
    [
        (Holds(torch.ones(2)), "Holds"),
        (torch.nested.nested_tensor([torch.ones(2)], layout=torch.jagged), "nested"),
    ],
)
def test_tensors_that_hold_others_are_refused(x: Tensor, name: str) -> None:
    with pytest.raises(CaptureError, match=name):
        fxpasses.run(Doubles().eval(), "inference", (x,))


class Dequantizes(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.dequantize() * 2


@pytest.mark.filterwarnings("ignore:torch.quantize_per_tensor:UserWarning")
@pytest.mark.filterwarnings("ignore:TypedStorage is deprecated:UserWarning")
def test_a_quantized_example() -> None:
    x = torch.quantize_per_tensor(torch.randn(2, 3), 0.1, 0, torch.qint8)
    result = fxpasses.run(Dequantizes().eval(), "inference", (x,))
    assert verification(result).ok is True

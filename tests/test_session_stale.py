"""Writes that a result must notice once it has folded what was written."""

import copy
import gc
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.fx import GraphModule
from torch.optim import optimizer as optim_module

import fxpasses
from fxpasses.capture import fallback_of, pickle_fallback
from fxpasses.errors import StaleWeightsError

ROWS = torch.randn(4, 3, generator=torch.Generator().manual_seed(0))


class Folds(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.ones(3, 3))
        self.eval()

    def forward(self, x: Tensor) -> Tensor:
        return x @ self.w.abs()


def optimised(model: nn.Module, **options: Any) -> GraphModule:
    return fxpasses.run(model, "inference", (ROWS,), **options)


def steps(kind: Any, **options: Any) -> Callable[[nn.Parameter], None]:
    def step(weight: nn.Parameter) -> None:
        weight.grad = torch.ones_like(weight)
        kind([weight], lr=0.1, **options).step()
        weight.grad = None

    return step


def sets_data(weight: nn.Parameter) -> None:
    weight.data = torch.zeros(3, 3)


WRITES: dict[str, Callable[[nn.Parameter], object]] = {
    "in place": lambda w: w.detach().zero_(),
    "data": sets_data,
    "vector": lambda w: nn.utils.vector_to_parameters(torch.zeros(9), [w]),
    "sgd": steps(torch.optim.SGD),
    "fused sgd": steps(torch.optim.SGD, fused=True),
    "fused adam": steps(torch.optim.AdamW, fused=True),
    "foreach adam": steps(torch.optim.Adam, foreach=True),
}


@pytest.mark.parametrize("how", WRITES)
def test_writes_of_a_folded_weight_are_seen(how: str) -> None:
    model = Folds()
    result = optimised(model)
    copied, other = copy.deepcopy(result), Folds()
    WRITES[how](other.w)
    result(ROWS)
    WRITES[how](model.w)
    with pytest.raises(StaleWeightsError, match="w was written"):
        result(ROWS)
    copied(ROWS)


def test_a_step_that_passes_a_weight_over_is_no_write() -> None:
    model = Folds()
    result = optimised(model)
    torch.optim.SGD([model.w], lr=0.1, fused=True).step()
    result(ROWS)


def test_steps_are_counted_as_long_as_a_result_lives() -> None:
    hooks = optim_module._global_optimizer_post_hooks
    gc.collect()
    before = len(hooks)
    result = optimised(Folds())
    copied = copy.deepcopy(result)
    assert len(hooks) == before + 2
    del result, copied
    gc.collect()
    assert len(hooks) == before


class CountsVersioned(nn.Module):
    """What it writes in one call decides the next."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("scale", torch.ones(3))
        self.eval()

    def forward(self, x: Tensor, calibrate: bool = False) -> Tensor:
        if calibrate:
            self.scale.copy_(x.abs().mean(0))
        return x * self.scale.exp()


class CountsUnseen(nn.Module):
    """A batch norm writes its statistics without counting it."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 3)
        self.register_buffer("mean", torch.zeros(3))
        self.register_buffer("var", torch.ones(3))
        self.eval()

    def forward(self, x: Tensor, calibrate: bool = False) -> Tensor:
        return F.batch_norm(self.linear(x), self.mean, self.var, training=calibrate)


@pytest.mark.parametrize("kind", [CountsVersioned, CountsUnseen])
@pytest.mark.parametrize(
    "copied", [lambda r: r, copy.deepcopy, lambda r: pickle.loads(pickle.dumps(r))]
)
def test_buffers_that_the_own_code_writes_are_seen(kind: Any, copied: Any) -> None:
    model = kind()
    result = optimised(model)
    pickle_fallback(result)
    result = copied(result)
    torch.testing.assert_close(result(ROWS), model(ROWS))

    model(ROWS, calibrate=True)
    torch.testing.assert_close(result(ROWS), kind_before(kind, model)(ROWS))
    torch.testing.assert_close(result(ROWS, calibrate=True), model(ROWS, calibrate=True))
    for _ in range(2):
        with pytest.raises(StaleWeightsError, match="was written"):
            result(ROWS)
    with pytest.raises(StaleWeightsError):
        copied(result)(ROWS)


def kind_before(kind: Any, model: nn.Module) -> nn.Module:
    made = kind()
    made.load_state_dict({**made.state_dict(), **dict(model.named_parameters())})
    return made


def test_own_code_that_writes_nothing_is_no_alarm() -> None:
    result = optimised(CountsVersioned())
    result(ROWS, calibrate=0)
    result(ROWS)
    calls = fxpasses.report(result).calls
    assert (calls["graph"], calls["fallback"]) == (1, 1)


def test_a_stale_weight_stays_so_where_only_the_result_holds_it() -> None:
    model = Folds()
    result = optimised(model)
    WRITES["in place"](model.w)
    del model
    result = result.double().float()
    with pytest.raises(StaleWeightsError):
        result(ROWS)


def test_a_weight_is_watched_after_two_conversions() -> None:
    result = optimised(Folds()).double().float()
    result(ROWS)
    WRITES["in place"](fallback_of(result).w)
    with pytest.raises(StaleWeightsError):
        result(ROWS)

"""The passes of the `inference` pipeline together, on captured models."""

import copy
import pickle

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.fx import GraphModule

import fxpasses
from fxpasses.errors import StaleWeightsError, TrainingModeWarning
from fxpasses.ops import Op
from tests.support import ops

X = torch.randn(2, 4, 8, 8, generator=torch.Generator().manual_seed(0))


class Net(nn.Module):
    """A convolution whose weight is standardised in each call, norms, and a table of constants."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(4, 4, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(4)
        self.second = nn.Conv2d(4, 4, 1)
        self.last = nn.BatchNorm2d(4)
        self.table = nn.Parameter(torch.randn(9, 4))
        self.register_buffer("rows", torch.arange(4))
        self.unused = nn.Linear(3, 3)
        for norm in (self.norm, self.last):
            nn.init.uniform_(norm.running_mean, -1, 1)
            nn.init.uniform_(norm.running_var, 0.5, 2)

    def forward(self, x: Tensor) -> Tensor:
        mean = self.first.weight.mean((1, 2, 3), keepdim=True)
        spread = self.first.weight.std((1, 2, 3), keepdim=True)
        x = F.conv2d(x, (self.first.weight - mean) / spread, padding=1)
        x = F.relu(self.norm(x), inplace=True)
        scale = self.table[self.rows].softmax(-1).sum(0).view(-1, 1, 1)
        return self.last(self.second(x)) * scale


def optimised(model: nn.Module, *passes: str) -> GraphModule:
    return fxpasses.run(model, list(passes) or "inference", (X,))


def test_folds_what_was_computed_from_weights_into_norms() -> None:
    model = Net().eval()
    result = optimised(model)

    assert [op for op in ops(result) if op is not Op.RELU] == [Op.CONV, Op.CONV]
    assert fxpasses.report(result).record.verification.ok is True
    torch.testing.assert_close(result(X), model(X))
    torch.testing.assert_close(result(X[:1] * 3), model(X[:1] * 3))


def test_what_is_folded_away_goes_and_the_model_keeps_it() -> None:
    model = Net().eval()
    before = copy.deepcopy(model.state_dict())
    result = optimised(model)

    assert not set(result.state_dict()) & set(before)
    torch.testing.assert_close(model.state_dict(), before, rtol=0, atol=0)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16])
def test_a_cast_result_is_what_a_cast_model_is(dtype: torch.dtype) -> None:
    model = Net().eval()
    result = optimised(model).to(dtype)
    expected = model.to(dtype)(X.to(dtype))

    found = result(X.to(dtype))

    assert found.dtype is dtype
    torch.testing.assert_close(found, expected, rtol=2e-2, atol=2e-2)


def test_copies_and_pickles_compute_the_same() -> None:
    result = optimised(Net().eval())
    expected = result(X)

    for other in (copy.deepcopy(result), pickle.loads(pickle.dumps(result))):
        assert torch.equal(other(X), expected)
        assert list(other.state_dict()) == list(result.state_dict())


def test_its_own_state_loads_into_it() -> None:
    result = optimised(Net().eval())
    other = optimised(Net().eval())

    other.load_state_dict(result.state_dict(), strict=True)

    torch.testing.assert_close(other(X), result(X))


def test_a_source_written_afterwards_is_noticed() -> None:
    model = Net().eval()
    result = optimised(model)

    with torch.no_grad():
        model.table.add_(1)

    with pytest.raises(StaleWeightsError, match="table"):
        result(X)


def test_in_training_nothing_that_is_trained_is_folded() -> None:
    model = Net().train()
    model.last.eval()
    with pytest.warns(TrainingModeWarning):
        result = fxpasses.run(model, "inference", (X,), training=True)

    names = {name for name, _ in result.named_parameters()}
    assert names == {name for name, _ in model.named_parameters()}
    assert ops(result).count(Op.BATCH_NORM) == 2


def test_cleanup_leaves_norms_alone() -> None:
    model = Net().eval()
    result = optimised(model, "cleanup")

    assert ops(result).count(Op.BATCH_NORM) == 2
    assert "unused.weight" not in result.state_dict()
    torch.testing.assert_close(result(X), model(X))

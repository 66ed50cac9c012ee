"""Branches on sizes behind random draws and statistics: what a miss has done is taken back."""

import copy
import pickle

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import fxpasses
from fxpasses.capture import CapturedModule, calls_of, capture, entry_of, finish, fork
from fxpasses.capture.result import entry
from fxpasses.capture.result.undo import Foreseen, Undo
from fxpasses.errors import GuardError


class Windowed(nn.Module):
    """Drops, normalises and counts, and then pads to whole windows of two."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.layer = nn.BatchNorm1d(4), nn.Linear(4, 4)
        self.register_buffer("count", torch.zeros(()))
        self.plain = torch.zeros(3)

    def forward(self, x: Tensor) -> Tensor:
        self.count.add_(1)
        self.plain.add_(2)
        y = F.dropout(self.norm(self.layer(x)), 0.5, self.training)
        if y.shape[0] % 2:
            y = F.pad(y, (0, 0, 0, 1)) * 2
        return F.dropout(y.reshape(-1, 2, 4), 0.25, self.training)


def sample(batch: int) -> Tensor:
    return torch.randn(batch, 4, generator=torch.Generator().manual_seed(batch))


def trained(model: nn.Module, x: Tensor) -> list[Tensor]:
    """What one step of training returns and leaves behind."""
    torch.manual_seed(3)
    model.zero_grad()
    out = model(x)
    out.square().sum().backward()
    state = [tensor.clone() for tensor in (*model.buffers(), model.plain)]
    gradients = [parameter.grad.clone() for parameter in model.parameters()]
    return [out.detach(), *state, *gradients, torch.rand(3)]


def equal(one: list[Tensor], other: list[Tensor]) -> bool:
    return len(one) == len(other) and all(map(torch.equal, one, other))


def captured_for_training() -> tuple[Windowed, CapturedModule]:
    torch.manual_seed(0)
    model = Windowed().train()
    made = capture(model, (sample(6),))
    assert made.opaque == ()
    return copy.deepcopy(model), finish(fork(made.program), made.program)


@pytest.mark.parametrize("batches", [(6, 8, 6, 8), (5, 6, 7, 5), (7, 7)])
def test_training_is_as_in_eager_whatever_the_sizes(batches: tuple[int, ...]) -> None:
    model, result = captured_for_training()
    for batch in batches:
        assert equal(trained(result, sample(batch)), trained(model, sample(batch))), batch
    odd = sum(batch % 2 for batch in batches)
    calls = calls_of(result)
    assert (calls["graph"], calls["fallback"]) == (len(batches) - odd, odd)


def test_nothing_is_saved_for_sizes_that_are_known_to_hold(monkeypatch: pytest.MonkeyPatch) -> None:
    saved: list[nn.Module] = []

    class Counted(Undo):
        def __init__(self, module: nn.Module) -> None:
            saved.append(module)
            super().__init__(module)

    monkeypatch.setattr(entry, "Undo", Counted)
    _, result = captured_for_training()
    for batch in (6, 6, 8, 6, 8):
        trained(result, sample(batch))
    assert len(saved) == 2


def test_without_the_fallback_a_miss_is_an_error() -> None:
    model, _ = captured_for_training()
    result = fxpasses.run(model, [], (sample(6),), fallback=False, verify=False)
    assert equal(trained(result, sample(8)), trained(copy.deepcopy(model), sample(8)))
    with pytest.raises(GuardError, match="a size"):
        result(sample(5))


def test_what_was_known_to_hold_is_known_to_copies() -> None:
    model, result = captured_for_training()
    for made in (copy.deepcopy(result), copy.copy(copy.deepcopy(result))):
        expected = copy.deepcopy(model)
        for batch in (5, 6):
            assert equal(trained(made, sample(batch)), trained(expected, sample(batch)))
    loaded = pickle.loads(pickle.dumps(result))
    assert entry_of(loaded).foreseen is not None


def test_a_result_that_is_captured_again_takes_back_as_well() -> None:
    model, result = captured_for_training()
    again = fxpasses.run(result, [], (sample(6),), verify=False)
    for batch in (6, 5, 8):
        assert equal(trained(again, sample(batch)), trained(model, sample(batch))), batch


def test_a_result_for_training_is_verified() -> None:
    model, _ = captured_for_training()
    result = fxpasses.run(model, "dce", (sample(6),), training=True)
    assert fxpasses.report(result).record.verification.ok is True
    assert fxpasses.report(result).record.capture.opaque == []


def test_a_buffer_with_a_history_of_gradients_is_not_taken_back() -> None:
    class Keeping(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(4, 4)
            self.register_buffer("total", torch.zeros(4))

        def forward(self, x: Tensor) -> Tensor:
            y = self.layer(x)
            self.total.add_(y.mean(0))
            return y * self.total if y.shape[0] % 2 else y

    model = Keeping().train()
    result = fxpasses.run(model, [], (sample(6),), verify=False)
    expected = copy.deepcopy(model)
    assert torch.equal(result(sample(5)), expected(sample(5)))
    assert torch.equal(result.total, expected.total)
    with pytest.raises(GuardError, match="gradients of earlier calls"):
        result(sample(7))


def test_the_sizes_that_are_remembered_are_bounded() -> None:
    foreseen = Foreseen()
    for size in range(3000):
        foreseen.add((torch.Size((size,)),))
    assert (torch.Size((2999,)),) in foreseen
    assert (torch.Size((3,)),) not in foreseen

"""A model is run without a trace."""

import copy
import random
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from fxpasses.verify.state import (
    RandomState,
    flattens,
    fresh,
    randomness_restored,
    shared_memory,
    untouched,
)


class Odd(nn.Module):
    """Remembers what it can, wherever it can."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(4)
        self.calls, self.seen, self.memo = 0, list[float](), {"inner": list[int]()}
        self.register_buffer("average", torch.zeros(4))
        self.generator = torch.Generator()
        self.plain = torch.zeros(4)

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        y = self.norm(x)
        self.seen.append(float(y.detach().mean()))
        self.memo["inner"].append(self.calls)
        self.average = self.average * 0.9 + y.detach().mean(0)
        self.plain.add_(1)
        self.last = y
        noise = torch.randn(1, generator=self.generator) + random.random() + np.random.rand()
        return y + noise + torch.rand(1)


def picture(model: Odd) -> dict[str, Any]:
    tensors = {**model.state_dict(), "plain": model.plain}
    return {
        **{name: tensor.clone() for name, tensor in tensors.items()},
        "generator": model.generator.get_state(),
        "rest": (model.calls, list(model.seen), copy.deepcopy(model.memo), set(vars(model))),
        "identity": [id(value) for value in (model.seen, model.memo, *model.buffers())],
        "versions": [tensor._version for tensor in tensors.values()],
    }


def test_nothing_of_a_model_is_left_changed() -> None:
    model, x = Odd().train(), torch.randn(3, 4)
    model.norm.weight.grad = torch.ones(4)
    before, state = picture(model), RandomState.now()

    with untouched([model]), randomness_restored():
        first = model(x)
    with untouched([model]), randomness_restored():
        second = model(x)

    after = picture(model)
    for name, value in before.items():
        same = (
            torch.equal(after[name], value) if isinstance(value, Tensor) else after[name] == value
        )
        assert same, name
    assert state.same_torch(RandomState.now())
    assert torch.equal(first, second)
    assert torch.equal(model.norm.weight.grad, torch.ones(4))


def test_also_when_the_model_raises() -> None:
    model = Odd().train()
    before = picture(model)

    with pytest.raises(RuntimeError), untouched([model]):
        model(torch.randn(3, 5))

    assert picture(model)["rest"] == before["rest"]


class WritesItsWeight(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(2))

    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            self.weight.mul_(2)
        return x * self.weight


def test_parameters_are_stand_ins_where_asked() -> None:
    model = WritesItsWeight()

    with untouched([model], parameters_too=True):
        value = model(torch.ones(2))

    assert torch.equal(value.detach(), torch.full((2,), 2.0))
    assert torch.equal(model.weight.detach(), torch.ones(2))


def test_copied_arguments_share_memory_as_they_did() -> None:
    base = torch.arange(12.0).reshape(3, 4)
    args = (base, base[1:], {"again": base}, base.t(), torch.ones(2).expand(3, 2))

    copies = fresh(args)

    copies[0].add_(100)
    assert torch.equal(copies[1], copies[0][1:])
    assert torch.equal(copies[3], copies[0].t())
    assert copies[2]["again"] is copies[0]
    assert copies[4].stride() == (0, 1)
    assert torch.equal(base, torch.arange(12.0).reshape(3, 4))


def test_shared_memory_is_seen() -> None:
    x, y = torch.ones(2, 2), torch.ones(2)

    assert shared_memory((x.t(), y + 1), (y, x)) == {("argument", 0, 1)}
    assert shared_memory([y, y[:1]], ()) == {("output", 1, 0)}


def test_what_can_be_viewed() -> None:
    assert flattens(torch.ones(2, 3, 4)) == (True, True)
    assert flattens(torch.ones(2, 3, 4).transpose(1, 2)) == (False, False)
    assert flattens(torch.ones(2, 1, 4)[:, :, :2]) == (True, True)

"""What a graph raises: the model's own code says it, or deals with it."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import fxpasses
from fxpasses.capture import calls_of
from fxpasses.errors import GuardError


class Careful(nn.Module):
    """Takes inputs that its layer does not."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        try:
            return self.layer(x)
        except RuntimeError:
            return x.sum()


class Draws(nn.Module):
    """Draws before it may raise."""

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        try:
            return torch.rand_like(x) @ y
        except RuntimeError:
            return torch.rand_like(y)


class Adds(nn.Module):
    """Writes its input before it may raise."""

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        x.add_(1)
        return x @ y


def result_of(model: nn.Module, *example: Tensor) -> nn.Module:
    return fxpasses.run(model.eval(), "dce", example)


def test_what_the_model_catches_it_catches() -> None:
    model = Careful()
    result = result_of(model, torch.ones(2, 4))
    wrong = torch.ones(2, 5)
    assert torch.equal(result(wrong), model(wrong))
    calls = calls_of(result)
    assert (calls["graph"], calls["fallback"]) == (0, 1)
    assert calls["reasons"] == {"the graph raises RuntimeError": 1}


def test_the_error_is_the_models_own() -> None:
    class Asserts(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            values = x.view(2, -1)
            return values + x.reshape(2, 2)

    result = result_of(Asserts(), torch.ones(4))
    with pytest.raises(RuntimeError) as caught:
        result(torch.ones(5))
    assert caught.traceback[-1].path.name == "test_raising.py"
    assert caught.value.__context__ is None


@pytest.mark.parametrize("make", [Draws, Adds])
def test_what_was_done_is_not_done_twice(make: Callable[[], nn.Module]) -> None:
    result = result_of(make(), torch.ones(2, 3), torch.ones(3, 2))
    x, state = torch.ones(2, 3), torch.get_rng_state()
    with pytest.raises(RuntimeError):
        result(x, torch.ones(2, 2))
    assert calls_of(result)["fallback"] == 0
    if make is Adds:
        assert torch.equal(x, torch.full((2, 3), 2.0))
    else:
        drawn = torch.get_rng_state()
        torch.set_rng_state(state)
        torch.rand(2, 3)
        assert torch.equal(drawn, torch.get_rng_state())


def test_without_its_own_code_the_graphs_error_stays() -> None:
    result = fxpasses.run(Careful().eval(), "dce", (torch.ones(2, 4),), fallback=False)
    with pytest.raises(RuntimeError, match="mat1 and mat2"):
        result(torch.ones(2, 5))
    with pytest.raises(GuardError):
        result(torch.ones(2, 4, 1))


@pytest.mark.parametrize("dynamic", [False, True, None])
def test_a_guard_that_a_compiler_traces(dynamic: bool | None) -> None:
    class Branches(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x * 2 if x.shape[0] > 3 else x + 1

    model = Branches()
    result = result_of(model, torch.ones(5, 2))
    torch.compiler.reset()
    compiled = torch.compile(result, backend="eager", dynamic=dynamic)
    for rows in (5, 6, 2, 3):
        assert torch.equal(compiled(torch.ones(rows, 2)), model(torch.ones(rows, 2)))


def test_a_compiled_result_knows_its_mode() -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4)).eval()
    image = torch.ones(1, 3, 8, 8)
    result = fxpasses.run(model, "fuse_conv_bn", (image,))
    torch.compiler.reset()
    compiled = torch.compile(result, backend="eager")
    with torch.no_grad():
        compiled(image)
        result.train()
        with pytest.raises(fxpasses.errors.ModeError):
            compiled(image)

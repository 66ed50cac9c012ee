"""Models that need gradients in their forward: captured and verified as their caller runs them."""

import weakref
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.fx import GraphModule

import fxpasses
from fxpasses.core.recording import Recording
from fxpasses.errors import VerificationError

ROWS = torch.randn(2, 3, generator=torch.Generator().manual_seed(1))


def optimised(model: nn.Module, **options: Any) -> GraphModule:
    return fxpasses.run(model, "inference", (ROWS,), **options)


class Forces(nn.Module):
    """An energy model: its output is a gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.energy = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1))

    def forward(self, x: Tensor) -> Tensor:
        x = x.detach().requires_grad_()
        return torch.autograd.grad(self.energy(x).sum(), x)[0]


class HooksItsOutput(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.hooked = nn.Linear(3, 3)
        self.hooked.register_forward_hook(lambda *call: call[2].register_hook(lambda g: g) and None)

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.hooked(x))


class Jacobian(nn.Module):
    """torch.func refuses to run where saved tensors are looked at."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 3)

    def forward(self, x: Tensor) -> Tensor:
        return torch.func.vmap(torch.func.jacrev(lambda row: torch.tanh(self.linear(row))))(x)


NEED_GRADIENTS = [Forces, HooksItsOutput, Jacobian]


@pytest.mark.parametrize("kind", NEED_GRADIENTS)
@pytest.mark.parametrize("options", [{}, {"on_failure": "skip"}, {"verify": "full"}])
def test_models_that_need_gradients_in_their_forward_are_verified(
    kind: Any, options: dict[str, Any]
) -> None:
    model = kind().eval()
    result = optimised(model, **options)
    assert fxpasses.report(result).record.verification.ok
    torch.testing.assert_close(result(ROWS), model(ROWS))


def test_a_wrong_result_of_such_a_model_is_found() -> None:
    def doubles(module: GraphModule) -> None:
        for node in list(module.graph.nodes):
            if node.op == "output":
                with module.graph.inserting_before(node):
                    made = module.graph.call_function(torch.mul, (node.args[0], 2))
                node.args = (made,)
        module.recompile()

    with pytest.raises(VerificationError):
        fxpasses.run(HooksItsOutput().eval(), [doubles], (ROWS,))


def test_the_example_of_such_a_model_is_inferred() -> None:
    result = fxpasses.run(Forces().eval(), "inference")
    assert fxpasses.report(result).record.capture.example.startswith("inferred")


def test_recording_keeps_nothing_for_a_backward() -> None:
    weight = nn.Parameter(torch.ones(4))
    seen: list[Any] = []

    def forward() -> Tensor:
        middle = (weight * 2).exp()
        seen.append(weakref.ref(middle.untyped_storage()))
        return (middle * middle).sum()

    kept = forward()
    assert seen.pop()() is not None
    out = Recording().run(forward)
    assert out.requires_grad is kept.requires_grad is True
    assert seen.pop()() is None


def test_without_gradients_of_the_caller_nothing_is_recorded() -> None:
    with torch.no_grad():
        result = fxpasses.run(nn.Linear(3, 3).eval(), "inference", (ROWS,))
    assert fxpasses.report(result).record.verification.ok

"""Modules whose whole forward is without gradients are graphs that run so."""

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import fxpasses
from fxpasses.capture import Capture, CapturedModule, calls_of, capture, entry_of, finish, fork
from tests.capture.tracing import module

X = torch.randn(3, 4, generator=torch.Generator().manual_seed(0))


class Rotary(nn.Module):
    """As the rotary embeddings of language models: computed from sizes, never trained."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.linspace(1, 2, 4))

    @torch.no_grad()
    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        angles = torch.arange(x.shape[0])[:, None] * self.scale
        return angles.cos().chunk(2, -1)


class Rotated(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer, self.rotary = nn.Linear(4, 4), Rotary()

    def forward(self, x: Tensor) -> Tensor:
        left, right = self.rotary(x)
        return self.layer(x) * torch.cat([left, right], -1)


class Deciding(Rotated):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) if x.sum() < 1e9 else x


def result_of(captured: Capture) -> CapturedModule:
    return finish(fork(captured.program), captured.program)


def gradients(model: nn.Module, x: Tensor) -> list[Any]:
    model.zero_grad()
    out = model(x)
    out.sum().backward()
    return [out.detach(), *[parameter.grad for parameter in model.parameters()]]


@pytest.mark.parametrize("kind", [Rotated, Deciding])
def test_it_is_a_graph_that_runs_without_gradients(kind: type[Rotated]) -> None:
    model = kind().eval()
    captured = capture(model, (X,))
    assert "rotary" in captured.program.graphs
    assert [opaque.path for opaque in captured.opaque] == ([""] if kind is Deciding else [])
    result = result_of(captured)
    for x in (X, X[:2]):
        found, expected = gradients(result, x), gradients(copy.deepcopy(model), x)
        for mine, other in zip(found, expected, strict=True):
            assert (mine is None and other is None) or torch.equal(mine, other)
    assert not result.rotary(X)[0].requires_grad
    with torch.no_grad():
        assert torch.equal(result(X), model(X))
    assert calls_of(result)["fallback"] == 0
    covered = captured.coverage()
    assert covered is not None
    assert covered.flops == 1 or kind is Deciding


def test_it_is_served_in_every_mode_of_its_caller() -> None:
    result = result_of(capture(Rotated().eval(), (X,)))
    inner = entry_of(result.rotary.__dict__["forward"].serve)
    for mode in (torch.no_grad, torch.enable_grad, torch.inference_mode):
        with mode():
            result(X)
    assert (inner.calls.graph, inner.calls.fallback) == (3, 0)


def test_a_whole_model_without_gradients_is_a_graph() -> None:
    model = Rotary()
    captured = capture(model, (X,))
    assert captured.opaque == ()
    result = result_of(captured)
    assert torch.equal(result(X[:2])[1], model(X[:2])[1])
    assert not result(X)[0].requires_grad
    assert calls_of(result) == {"graph": 2, "fallback": 0, "reasons": {}}


def test_without_an_example_too() -> None:
    captured = capture(nn.Sequential(module(_whole), nn.ReLU()).eval())
    assert captured.opaque == ()
    assert torch.equal(result_of(captured)(X), (X * 2).relu())


@torch.no_grad()
def _whole(_: Any, x: Tensor) -> Tensor:
    return x * 2


def _inside(s: Any, x: Tensor) -> Tensor:
    with torch.no_grad():
        y = x * s.weight
    return y + 1


def _block(s: Any, x: Tensor) -> Tensor:
    with torch.no_grad():
        return x * s.weight


def _left_off(s: Any, x: Tensor) -> Tensor:
    torch.set_grad_enabled(False)
    return x * s.weight


@pytest.mark.parametrize(
    ("forward", "whole"), [(_block, True), (_inside, False), (_left_off, False)]
)
def test_what_computes_with_gradients_as_well_stays_opaque(forward: Any, whole: bool) -> None:
    model = nn.Sequential(nn.Linear(4, 4), module(forward, weight=nn.Parameter(torch.ones(4))))
    captured = capture(model.eval(), (X,))
    assert [opaque.path for opaque in captured.opaque] == ([] if whole else ["1"])
    with torch.enable_grad():
        assert torch.equal(result_of(captured)(X), model(X))


def test_passes_work_in_it_and_it_is_verified() -> None:
    class Normed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.norm = nn.Conv1d(4, 4, 1), nn.BatchNorm1d(4)

        @torch.no_grad()
        def forward(self, x: Tensor) -> Tensor:
            return self.norm(self.conv(x))

    model = nn.Sequential(Normed(), nn.ReLU()).eval()
    result = fxpasses.run(model, "fuse_conv_bn", (X[:, :, None],))
    record = fxpasses.report(result).record
    assert [len(one.rewrites) for one in record.passes] == [1]
    assert record.verification.ok is True
    again = fxpasses.run(result, "dce", (X[:, :, None],))
    assert fxpasses.report(again).record.verification.ok is True
    assert torch.equal(again(X[:, :, None]), result(X[:, :, None]))

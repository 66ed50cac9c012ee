"""What `sizes=` decides: which sizes a graph holds for, and what of them it computes."""

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fxpasses.capture import Capture, CapturedModule, calls_of, capture, finish, fork
from fxpasses.capture.result.guards import guard
from tests.capture.tracing import module

X = torch.randn(6, 4, generator=torch.Generator().manual_seed(0))


def result_of(captured: Capture) -> CapturedModule:
    return finish(fork(captured.program), captured.program)


def spelled(captured: Capture) -> list[Any]:
    nodes = captured.program.root.graph.nodes
    return [node.target for node in nodes if node.op not in ("placeholder", "output")]


def windows(_: Any, x: Tensor) -> Tensor:
    batch, width = x.shape
    if batch % 4:
        x = F.pad(x, (0, 0, 0, 4 - batch % 4))
    return x.reshape(-1, 4, width) * torch.arange(batch).sum()


def test_a_graph_for_one_shape_computes_no_sizes() -> None:
    captured = capture(module(windows), (X,), sizes="shapes")
    assert (captured.opaque, captured.guards, captured.sizes) == ((), 0, "shapes")
    names = [getattr(target, "__name__", target) for target in spelled(captured)]
    assert names == ["pad", "reshape", "arange", "sum", "mul"]
    (reshaped,) = [n for n in captured.program.root.graph.nodes if n.target == "reshape"]
    assert reshaped.args[1:] == (-1, 4, 4)


def test_every_other_shape_runs_the_modules_own_code() -> None:
    model = module(windows)
    result = result_of(capture(model, (X,), sizes="shapes"))
    for x in (X, torch.randn(6, 4), torch.randn(5, 4), torch.randn(6, 8), torch.randn(4, 6).t()):
        assert torch.equal(result(x), model(x))
    calls = calls_of(result)
    assert (calls["graph"], calls["fallback"]) == (2, 3)
    assert any("has shape torch.Size([5, 4])" in reason for reason in calls["reasons"])
    assert any("has stride (1, 6)" in reason for reason in calls["reasons"])


def test_the_sizes_of_tensors_in_containers_count() -> None:
    model = module(lambda s, xs, scale: xs[0].reshape(xs[0].shape[0], -1) * scale["by"].shape[0])
    call = ([X], {"by": torch.ones(3)})
    result = result_of(capture(model, call, sizes="shapes"))
    assert torch.equal(result(*call), X * 3)
    assert torch.equal(result([X], {"by": torch.ones(2)}), X * 2)
    assert calls_of(result)["fallback"] == 1


def test_how_a_result_lies_in_memory_is_asked_at_each_call() -> None:
    def forward(_: Any, x: Tensor) -> Tensor:
        y = x.t() + 1
        return y * 2 if y.is_contiguous() else y * 3

    captured = capture(module(forward), (X,), sizes="shapes")
    assert captured.guards == 1
    assert guard in spelled(captured)
    assert torch.equal(result_of(captured)(X), (X.t() + 1) * 3)


def test_decisions_on_data_stay_opaque() -> None:
    model = module(lambda s, x: x * 2 if x.sum() > 0 else x)
    (leaf,) = capture(model, (X,), sizes="shapes").opaque
    assert leaf.kind == "control_flow"


@pytest.mark.parametrize("sizes", ["guards", "kinds", "shapes"])
def test_each_kind_is_equal_on_other_sizes(sizes: Any) -> None:
    model = nn.Sequential(nn.Linear(4, 4), module(windows), nn.ReLU()).eval()
    result = result_of(capture(model, (X,), sizes=sizes))
    with torch.no_grad():
        for batch in (6, 3, 8):
            x = torch.randn(batch, 4)
            torch.testing.assert_close(result(x), model(x))

"""Functions that stay one node: those of known packages by default, others by request."""

import sys
import types
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torchvision.ops as vision
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from fxpasses.capture import Capture, CapturedModule, capture, finish, fork

BOXES = torch.tensor([[0.0, 0, 4, 4], [0, 0, 4, 5], [8, 8, 9, 9]])
SCORES, LABELS = torch.tensor([0.5, 0.9, 0.1]), torch.tensor([0, 0, 1])
IMAGE = torch.randn(2, 3, 6, 6, generator=torch.Generator().manual_seed(0))


def functions_in(captured: Capture) -> list[Any]:
    nodes = captured.program.root.graph.nodes
    return [node.target for node in nodes if node.op == "call_function"]


def result_of(captured: Capture) -> CapturedModule:
    return finish(fork(captured.program), captured.program)


class Suppressing(nn.Module):
    def forward(self, boxes: Tensor, scores: Tensor, labels: Tensor) -> Tensor:
        return boxes[vision.batched_nms(boxes, scores, labels, 0.5)] * 2


def test_what_loops_over_data_in_torchvision_is_one_node() -> None:
    captured = capture(Suppressing(), (BOXES, SCORES, LABELS))
    assert captured.opaque == ()
    assert vision.boxes.batched_nms in functions_in(captured)
    result = result_of(captured)
    for scores in (SCORES, SCORES.flip(0)):
        expected = Suppressing()(BOXES, scores, LABELS)
        assert torch.equal(result(BOXES, scores, LABELS), expected)


class Scaled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.conv(sys.modules["timm.models.crossvit"].scale_image(x, (8, 8)))


def test_what_timm_lists_is_one_node_where_no_size_can_be_decided() -> None:
    crossvit = pytest.importorskip("timm.models.crossvit")
    model = Scaled().eval()
    for captured in (capture(model), capture(model, (IMAGE,), sizes="kinds")):
        assert captured.opaque == ()
        assert functions_in(captured) == [crossvit.scale_image]
        result = result_of(captured)
        for image in (IMAGE, torch.randn(1, 3, 8, 8)):
            assert torch.equal(result(image), model(image))
    guarded = capture(model, (IMAGE,))
    assert (guarded.opaque, guarded.guards) == ((), 1)
    assert crossvit.scale_image not in functions_in(guarded)


def _rearranging() -> types.ModuleType:
    """A package as einops: it asks for the class of a tensor and keeps what it has found."""
    package = types.ModuleType("einops")
    source = """
backends = {}

def rearrange(tensor, pattern):
    backend = backends.setdefault(type(tensor), len(backends))
    if not isinstance(backend, int) or type(tensor).__name__ not in ("Tensor", "Parameter"):
        raise RuntimeError(f"Tensor type unknown to einops {type(tensor)}")
    return tensor.flatten(1)
"""
    exec(source, vars(package))
    return package


class Rearranging(nn.Module):
    def __init__(self, call: Callable[..., Any]) -> None:
        super().__init__()
        self.call = call

    def forward(self, x: Tensor) -> Tensor:
        return self.call(x, "b c h w -> b (c h w)") * 2


def by_attribute(x: Tensor, pattern: str) -> Tensor:
    return sys.modules["einops"].rearrange(x, pattern)


@pytest.mark.parametrize("example", [(IMAGE,), None], ids=["example", "names"])
def test_functions_of_einops_are_nodes(
    monkeypatch: pytest.MonkeyPatch, example: tuple[Tensor] | None
) -> None:
    package = _rearranging()
    monkeypatch.setitem(sys.modules, "einops", package)
    model = Rearranging(by_attribute).eval()
    captured = capture(model, example)
    assert captured.opaque == ()
    assert package.rearrange in functions_in(captured)
    assert torch.equal(result_of(captured)(IMAGE), IMAGE.flatten(1) * 2)


def own(x: Tensor) -> Tensor:
    return x * 2 if x.sum() > 0 else x * 3


def test_a_function_of_ones_own_is_a_node_where_it_is_named() -> None:
    class Model(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return own(x) + 1

    (opaque,) = capture(Model(), (IMAGE,)).opaque
    assert opaque.kind == "control_flow"
    captured = capture(Model(), (IMAGE,), leaf_functions=(own,))
    assert captured.opaque == ()
    assert functions_in(captured)[0] is own
    for image in (IMAGE, -IMAGE):
        assert torch.equal(result_of(captured)(image), Model()(image))


class Masked(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return sys.modules["timm.layers.attention"].maybe_add_mask(x, None).relu()


def test_what_timm_also_wraps_is_traced_through_where_none_ness_is_known() -> None:
    attention = pytest.importorskip("timm.layers.attention")
    assert functions_in(capture(Masked(), sizes="kinds")) == [attention.maybe_add_mask]
    guarded = capture(Masked(), (IMAGE,))
    assert attention.maybe_add_mask not in functions_in(guarded)
    assert torch.equal(result_of(guarded)(IMAGE), Masked()(IMAGE))


STEPS = torch.linspace(-1, 1, 3 * 5 * 4).sin().reshape(3, 5, 4)
PACKED = nn.utils.rnn.pack_padded_sequence(STEPS, torch.tensor([5, 4, 2]), batch_first=True)


@pytest.mark.parametrize("given", [STEPS, STEPS[0], PACKED], ids=["batch", "alone", "packed"])
@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN])
@pytest.mark.parametrize("training", [True, False])
def test_a_recurrent_layer_as_the_whole_model_is_as_it_is(
    kind: Any, given: Any, training: bool
) -> None:
    model = kind(4, 6, batch_first=True).train(training)
    captured = capture(model, (given,))
    assert {one.reason for one in captured.opaque} <= {"keeps a weak reference to a tensor"}
    assert same_leaves(result_of(captured)(given), model(given))


@pytest.mark.parametrize("given", [STEPS[0], STEPS[0, 0]], ids=["batch", "alone"])
@pytest.mark.parametrize("kind", [nn.LSTMCell, nn.GRUCell, nn.RNNCell])
def test_a_recurrent_cell_as_the_whole_model_is_a_graph(kind: Any, given: Any) -> None:
    model = kind(4, 6)
    captured = capture(model, (given,))
    assert captured.opaque == ()
    assert same_leaves(result_of(captured)(given), model(given))


class Padding(nn.Module):
    """Packs its input, or is given what is packed."""

    def __init__(self) -> None:
        super().__init__()
        self.steps = nn.GRU(4, 6, batch_first=True)

    def forward(self, x: Any, lengths: Any = None) -> Any:
        if lengths is None:
            return self.steps(x)[0]
        packed = nn.utils.rnn.pack_padded_sequence(x, lengths, batch_first=True)
        return nn.utils.rnn.pad_packed_sequence(self.steps(packed)[0], batch_first=True)


@pytest.mark.parametrize("args", [(PACKED,), (STEPS, torch.tensor([5, 4, 2]))])
def test_packed_sequences_go_through_graphs(args: Any) -> None:
    model = Padding()
    captured = capture(model, args)
    assert captured.opaque == ()
    assert same_leaves(result_of(captured)(*args), model(*args))


def same_leaves(new: Any, old: Any) -> bool:
    pairs = zip(tree_leaves(new), tree_leaves(old), strict=True)
    return type(new) is type(old) and all(a is b or torch.equal(a, b) for a, b in pairs)

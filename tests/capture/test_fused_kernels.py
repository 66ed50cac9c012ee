"""Layers of torch with a kernel for the whole of them, which eager takes where nothing is trained.

The kernel gives other values than the layer's own code where every key of a query is masked, where
a mask of an encoder layer holds other numbers than zeros and infinities, and takes calls that the
code refuses. A result takes it exactly where the model does.
"""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import fxpasses
from fxpasses.capture import calls_of, capture
from fxpasses.capture.tracing.request import OpaqueKind

LENGTH, WIDTH = 4, 8
X = torch.linspace(-1, 1, 2 * LENGTH * WIDTH).sin().reshape(2, LENGTH, WIDTH)
CAUSAL = nn.Transformer.generate_square_subsequent_mask(LENGTH)
ALL_MASKED = torch.zeros(LENGTH, LENGTH, dtype=torch.bool).index_fill_(0, torch.tensor([1]), True)
PADDED = torch.tensor([[False] * LENGTH, [False, False, False, True]])
ONLY_PADDING = torch.tensor([[True] * LENGTH, [False, False, True, False]])

MASKS: dict[str, dict[str, Any]] = {
    "none": {},
    "causal": {"mask": CAUSAL},
    "causal_with_hint": {"mask": CAUSAL, "is_causal": True},
    "hint_alone": {"is_causal": True},
    "all_masked": {"mask": ALL_MASKED},
    "numbers": {"mask": torch.linspace(-1, 1, LENGTH * LENGTH).reshape(LENGTH, LENGTH)},
    "padding": {"padding": PADDED},
    "only_padding": {"padding": ONLY_PADDING},
    "both": {"mask": CAUSAL.isinf(), "padding": PADDED},
}


class Within(nn.Module):
    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.inner(*args, **kwargs)


class Derived(nn.TransformerEncoderLayer):
    def forward(self, src: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        return super().forward(src * 2, *args, **kwargs)


class Attention(nn.MultiheadAttention):
    """Of the sequence to itself, as the layers call it."""

    def forward(self, x: Tensor, **masks: Any) -> Any:
        return super().forward(x, x, x, need_weights=False, **masks)


def attention() -> nn.Module:
    return Attention(WIDTH, 2, batch_first=True)


def layer(kind: type[nn.TransformerEncoderLayer] = nn.TransformerEncoderLayer) -> nn.Module:
    return kind(WIDTH, 2, 16, dropout=0.0, batch_first=True)


MODELS: dict[str, tuple[Callable[[], nn.Module], str, str]] = {
    "attention": (attention, "attn_mask", "key_padding_mask"),
    "layer": (layer, "src_mask", "src_key_padding_mask"),
    "layer_within": (lambda: Within(layer()), "src_mask", "src_key_padding_mask"),
    "derived": (lambda: layer(Derived), "src_mask", "src_key_padding_mask"),
    "derived_within": (lambda: Within(layer(Derived)), "src_mask", "src_key_padding_mask"),
    "encoder": (lambda: nn.TransformerEncoder(layer(), 2), "mask", "src_key_padding_mask"),
}


def made(name: str, masks: str, dtype: torch.dtype = torch.float32) -> tuple[nn.Module, Any, Any]:
    """The model, in eval mode, and the arguments of a call."""
    torch.manual_seed(0)
    make, mask, padding = MODELS[name]
    names = {"mask": mask, "padding": padding}
    kwargs = {
        names.get(key, key): value.to(dtype) if is_floating(value) else value
        for key, value in MASKS[masks].items()
    }
    return make().to(dtype).eval(), (X.to(dtype),), kwargs


def is_floating(value: Any) -> bool:
    return isinstance(value, Tensor) and value.is_floating_point()


def outcome(model: nn.Module, args: Any, kwargs: Any, *, grad: bool) -> Any:
    with torch.set_grad_enabled(grad):
        try:
            out = model(*args, **kwargs)
        except RuntimeError:
            return "raises"
    return out[0] if isinstance(out, tuple) else out


def same(new: Any, old: Any) -> bool:
    if isinstance(old, str) or isinstance(new, str):
        return new is old
    tolerance = {"atol": 1e-6} if old.dtype == torch.float32 else {"atol": 0.05}
    return new.stride() == old.stride() and torch.allclose(new, old, equal_nan=True, **tolerance)


@pytest.mark.filterwarnings("ignore:.*nested tensors.*:UserWarning")
@pytest.mark.parametrize("masks", MASKS)
@pytest.mark.parametrize("name", MODELS)
def test_a_result_is_what_eager_is_in_each_grad_mode(name: str, masks: str) -> None:
    # Where nothing needs a gradient, torch takes the kernel: what is verified is its values.
    model, args, kwargs = made(name, masks)
    with torch.no_grad():
        result = fxpasses.run(model, ["expand_composites"], args, kwargs)
    for grad in (True, False):
        expected = outcome(model, args, kwargs, grad=grad)
        assert same(outcome(result, args, kwargs, grad=grad), expected)


@pytest.mark.parametrize("name", MODELS)
def test_so_it_is_where_it_was_made_with_gradients(name: str) -> None:
    model, args, kwargs = made(name, "all_masked")
    result = fxpasses.run(model, ["expand_composites"], args, kwargs)
    for grad in (True, False):
        expected = outcome(model, args, kwargs, grad=grad)
        assert same(outcome(result, args, kwargs, grad=grad), expected)


@pytest.mark.filterwarnings("ignore:.*nested tensors.*:UserWarning")
@pytest.mark.parametrize("masks", ["all_masked", "numbers"])
@pytest.mark.parametrize("name", ["attention", "encoder"])
def test_half_precision_and_frozen_weights_raise_no_alarm(name: str, masks: str) -> None:
    model, args, kwargs = made(name, masks, torch.bfloat16)
    model.requires_grad_(False)
    result = fxpasses.run(model, "inference", args, kwargs)
    for grad in (True, False):
        expected = outcome(model, args, kwargs, grad=grad)
        assert same(outcome(result, args, kwargs, grad=grad), expected)


@pytest.mark.parametrize("name", ["attention", "layer", "derived"])
@pytest.mark.parametrize("grad", [True, False])
def test_the_graph_of_a_layer_holds_for_one_grad_mode(name: str, grad: bool) -> None:
    model, args, kwargs = made(name, "padding")
    with torch.set_grad_enabled(grad):
        found = capture(model, args, kwargs)
    assert not found.opaque
    targets = {str(node.target) for node in found.program.root.graph.nodes}
    assert any("_native_multi" in t or "encoder_layer_fwd" in t for t in targets) is not grad
    for called_with_grad in (grad, not grad):
        outcome(found.program.root, args, kwargs, grad=called_with_grad)
    counted = calls_of(found.program.root)
    assert (counted["graph"], counted["fallback"]) == (1, 1)


def test_the_fused_kernel_takes_other_batches() -> None:
    model, args, kwargs = made("layer", "both")
    with torch.no_grad():
        root = capture(model, args, kwargs).program.root
        more = (X[:1].repeat(3, 1, 1),), {**kwargs, "src_key_padding_mask": PADDED[[1, 1, 0]]}
        assert same(outcome(root, *more, grad=False), outcome(model, *more, grad=False))
    assert calls_of(root)["graph"] == 1


def test_a_graph_around_such_a_layer_holds_for_both() -> None:
    model, args, kwargs = made("derived_within", "none")
    found = capture(model, args, kwargs)
    assert [(one.path, one.kind) for one in found.opaque] == [("inner", OpaqueKind.FUSED_KERNEL)]
    for grad in (True, False):
        outcome(found.program.root, args, kwargs, grad=grad)
    assert calls_of(found.program.root)["graph"] == 2


def test_a_layer_in_training_has_no_other_kernel() -> None:
    model, args, kwargs = made("derived_within", "causal")
    found = capture(model.train(), args, kwargs)
    assert not found.opaque


def test_a_mode_of_the_callers_keeps_the_kernel_away_as_in_eager() -> None:
    model, args, kwargs = made("layer", "numbers")
    with torch.no_grad(), torch.device("cpu"):
        result = fxpasses.run(model, [], args, kwargs)
        assert same(outcome(result, args, kwargs, grad=False), model(*args, **kwargs))
        assert not model(*args, **kwargs).isnan().any()

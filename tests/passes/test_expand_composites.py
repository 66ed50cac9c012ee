import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize
from torchvision.models import VisionTransformer

import fxpasses
from fxpasses.core import Condition
from fxpasses.core.record import PassRecord
from fxpasses.manager import apply
from fxpasses.ops import composite_of
from fxpasses.passes import expand_composites as subject
from fxpasses.passes.expand_composites import ExpandComposites
from fxpasses.testing import Model, check_pass
from fxpasses.text import graph_text
from fxpasses.views.composites import CompositeCall
from tests.support import reasons


def drawn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


# Batch, length, size.
X, Y = drawn(3, 5, 8), drawn(3, 6, 8, seed=1)
# One of three sequences is padded, so that no row is masked altogether.
PADDED = torch.zeros(3, 5, dtype=torch.bool).index_put(
    (torch.tensor([1]),), torch.tensor([False, False, False, True, True])
)
CAUSAL = torch.ones(5, 5, dtype=torch.bool).triu(1)
CAUSAL_NUMBERS = torch.zeros(5, 5).masked_fill(CAUSAL, -torch.inf)
BY_HEAD = torch.zeros(6, 5, 5, dtype=torch.bool).index_fill(2, torch.tensor([3]), True)


class Subject(nn.Module):
    """Calls a layer in some way."""

    def __init__(self, layer: nn.Module, compute: Callable[..., Any] | None = None) -> None:
        super().__init__()
        self.layer, self.compute = layer, compute or (lambda layer, x: layer(x))
        generator = torch.Generator().manual_seed(0)
        with torch.no_grad():
            for parameter in self.parameters():
                parameter.uniform_(-0.5, 0.5, generator=generator)

    def forward(self, x: Tensor, y: Tensor | None = None, z: Tensor | None = None) -> Any:
        return self.compute(self.layer, *(t for t in (x, y, z) if t is not None))


def attention(compute: Callable[..., Any], **options: Any) -> Subject:
    return Subject(nn.MultiheadAttention(8, 2, **options), compute)


def first(**options: Any) -> Callable[..., Any]:
    return lambda layer, x, y=None: layer(
        x, x if y is None else y, x if y is None else y, **options
    )[0]


def both(layer: Any, *given: Tensor, **options: Any) -> tuple[Any, Any]:
    out, weights = layer(*given, **options)
    return out, weights


def length_first(*tensors: Tensor) -> tuple[Tensor, ...]:
    return tuple(t.transpose(0, 1).contiguous() if t.is_floating_point() else t for t in tensors)


ATTENTIONS: dict[str, tuple[Callable[..., Any], dict[str, Any], tuple[Tensor, ...]]] = {
    "of itself": (lambda a, x: both(a, x, x, x), {}, (X,)),
    "of another": (lambda a, x, y: both(a, x, y, y), {}, (X, Y)),
    "of two others": (lambda a, x, y: both(a, x, y, y * 2), {}, (X, Y)),
    "without weights": (lambda a, x: a(x, x, x, need_weights=False)[0], {}, (X,)),
    "weights that are none": (lambda a, x: both(a, x, x, x, need_weights=False), {}, (X,)),
    "without weights, of another": (first(need_weights=False), {}, (X, Y)),
    "weights by head": (lambda a, x: both(a, x, x, x, average_attn_weights=False), {}, (X,)),
    "padded": (lambda a, x, m: both(a, x, x, x, key_padding_mask=m), {}, (X, PADDED)),
    "padded, in numbers": (
        lambda a, x, m: a(x, x * 2, x, key_padding_mask=m.float(), need_weights=False)[0],
        {},
        (X, PADDED),
    ),
    "masked": (lambda a, x, m: both(a, x, x, x, attn_mask=m), {}, (X, CAUSAL)),
    "masked by head": (
        lambda a, x, m: a(x, x * 2, x, attn_mask=m, need_weights=False)[0],
        {},
        (X, BY_HEAD),
    ),
    "masked twice": (
        lambda a, x, m, n: a(x, x + 1, x, n, attn_mask=m, need_weights=False)[0],
        {},
        (X, CAUSAL, PADDED),
    ),
    "causal": (
        lambda a, x, m: a(x, x + 1, x, attn_mask=m, is_causal=True, need_weights=False)[0],
        {},
        (X, CAUSAL),
    ),
    "causal and padded": (
        lambda a, x, m, n: a(x, x + 1, x, n, attn_mask=m, is_causal=True, need_weights=False)[0],
        {},
        (X, CAUSAL, PADDED),
    ),
    "more keys": (
        lambda a, x, m, n: both(a, x, x, x, n, attn_mask=m),
        {"add_bias_kv": True, "add_zero_attn": True},
        (X, BY_HEAD, PADDED),
    ),
    "other sizes": (
        lambda a, x, y: both(a, x, y[..., :3], y[..., :5]),
        {"kdim": 3, "vdim": 5},
        (X, Y),
    ),
    "without biases": (lambda a, x: both(a, x, x, x), {"bias": False}, (X,)),
    "one sequence": (
        lambda a, x, m, n: both(a, x[0], x[0], x[0], n[1], attn_mask=m),
        {"add_bias_kv": True},
        (X, BY_HEAD[:2], PADDED),
    ),
}


def expanded(model: nn.Module, *example: Tensor, **options: Any) -> tuple[nn.Module, PassRecord]:
    """What `run` makes of the model, and what the pass did."""
    result = fxpasses.run(model, "expand_composites,dce", example, **options)
    return result, fxpasses.report(result).record.passes[0]


def composites(result: Any) -> list[Any]:
    return [composite_of(node) for node in result.graph.nodes if composite_of(node) is not None]


@pytest.mark.parametrize("batch_first", [False, True])
@pytest.mark.parametrize("name", ATTENTIONS)
def test_attention_is_written_out(name: str, batch_first: bool) -> None:
    compute, options, given = ATTENTIONS[name]
    given = given if batch_first or name == "one sequence" else length_first(*given)
    model = attention(compute, batch_first=batch_first, **options).eval()

    result, _ = expanded(model, *given)

    assert composites(result) == []
    # Where gradients are needed torch computes in these very steps.
    torch.testing.assert_close(result(*given), model(*given), rtol=0, atol=0)
    with torch.no_grad():
        torch.testing.assert_close(result(*given), model(*given))


@pytest.mark.parametrize("name", ["of itself", "without weights", "more keys", "of another"])
def test_random_numbers_and_gradients_stay_in_training(name: str) -> None:
    compute, options, given = ATTENTIONS[name]
    model = attention(compute, dropout=0.3, batch_first=True, **options).train()

    result, record = expanded(model, *given, training=True)

    assert record.rewrites
    torch.manual_seed(3)
    wanted = model(*given)
    torch.manual_seed(3)
    torch.testing.assert_close(result(*given), wanted, rtol=0, atol=0)


def test_what_it_is_written_out_in() -> None:
    model = attention(first(need_weights=False), batch_first=True).eval()

    result, _ = expanded(model, X)

    text = """\
%0 = input
%1 = input
%2 = input
%3 = linear(%0)
%4 = chunk(%3)
%5 = getitem(%4)
%6 = getitem(%4)
%7 = getitem(%4)
%8 = unflatten(%5)
%9 = transpose(%8)
%10 = unflatten(%6)
%11 = transpose(%10)
%12 = unflatten(%7)
%13 = transpose(%12)
%14 = sdpa(%9, %11, %13)
%15 = transpose(%14)
%16 = flatten(%15)
%17 = linear(%16)
return %17"""
    assert graph_text(result) == text


@pytest.mark.parametrize("dense", [False, True])
def test_results_lie_in_memory_as_before(dense: bool) -> None:
    """Torch's fused kernel, which cannot attend to another sequence, lays them out densely."""
    model = attention(first(), batch_first=True).eval().requires_grad_(requires_grad=False)
    given = (X,) if dense else (X, Y)

    result, _ = expanded(model, *given)

    assert result(*given).stride() == model(*given).stride()
    assert result(*given).is_contiguous() is dense


SMALL = {"dim_feedforward": 16, "dropout": 0.1}


def encoder_layer(**options: Any) -> nn.Module:
    return nn.TransformerEncoderLayer(8, 2, **SMALL, **options)


def decoder_layer(**options: Any) -> nn.Module:
    return nn.TransformerDecoderLayer(8, 2, **SMALL, **options)


def encoder(**options: Any) -> nn.Module:
    return nn.TransformerEncoder(encoder_layer(**options), 2, nn.LayerNorm(8), False)


def decoder(**options: Any) -> nn.Module:
    return nn.TransformerDecoder(decoder_layer(**options), 1, nn.LayerNorm(8))


def transformer(**options: Any) -> nn.Module:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of nested tensors, which it cannot use
        return nn.Transformer(8, 2, 1, 1, **SMALL, **options)


LAYERS: dict[str, tuple[nn.Module, Callable[..., Any], tuple[Tensor, ...]]] = {
    "encoder layer": (encoder_layer(), lambda a, x: a(x), (X,)),
    "fused encoder layer": (encoder_layer(batch_first=True), lambda a, x: a(x), (X,)),
    "norms first": (encoder_layer(norm_first=True, activation="gelu"), lambda a, x: a(x), (X,)),
    "a module to activate": (
        encoder_layer(activation=nn.GELU("tanh")),
        lambda a, x: a(x),
        (X,),
    ),
    "padded": (
        encoder_layer(),
        lambda a, x, m: a(x, src_key_padding_mask=m),
        (X, PADDED.t()),
    ),
    "causal": (encoder_layer(), lambda a, x, m: a(x, m, is_causal=True), (X, CAUSAL[:3, :3])),
    "decoder layer": (decoder_layer(), lambda a, x, y: a(x, y), (X, Y)),
    "causal decoder layer": (
        decoder_layer(norm_first=True, batch_first=True),
        lambda a, x, y, m: a(x, y, m, tgt_is_causal=True),
        (X, Y, CAUSAL_NUMBERS),
    ),
    "encoder": (encoder(), lambda a, x: a(x), (X,)),
    "encoder that looks at its mask": (encoder(), lambda a, x, m: a(x, m), (X, CAUSAL[:3, :3])),
    "decoder": (decoder(batch_first=True), lambda a, x, y, m: a(x, y, m), (X, Y, CAUSAL_NUMBERS)),
    "transformer": (transformer(batch_first=True), lambda a, x, y: a(y, x), (X, Y)),
    "masked transformer": (
        transformer(),
        lambda a, x, y, m: a(y, x, tgt_mask=m, tgt_is_causal=True),
        (X, Y[:, :5], CAUSAL[:3, :3]),
    ),
}


@pytest.mark.parametrize("name", LAYERS)
def test_transformers_are_written_out(name: str) -> None:
    layer, compute, given = LAYERS[name]
    given = length_first(*given) if name == "decoder layer" else given
    model = Subject(layer, compute).eval()

    result, _ = expanded(model, *given)

    assert composites(result) == []
    torch.testing.assert_close(result(*given), model(*given), rtol=0, atol=0)
    with torch.no_grad():
        torch.testing.assert_close(result(*given), model(*given))


@pytest.mark.parametrize("name", ["fused encoder layer", "causal decoder layer", "encoder"])
def test_transformers_are_trained_as_before(name: str) -> None:
    layer, compute, given = LAYERS[name]
    model = Subject(layer, compute).train()

    result, record = expanded(model, *given, training=True)

    assert record.rewrites
    torch.manual_seed(3)
    wanted = model(*given)
    torch.manual_seed(3)
    torch.testing.assert_close(result(*given), wanted, rtol=0, atol=0)


H, C = drawn(3, 4, seed=2), drawn(3, 4, seed=3)
CELLS: dict[str, tuple[nn.Module, Callable[..., Any], tuple[Tensor, ...]]] = {
    "lstm": (nn.LSTMCell(8, 4), lambda a, x, h, c: both(a, x, (h, c)), (X[:, 0], H, C)),
    "lstm twice": (nn.LSTMCell(8, 4), lambda a, x: a(x, a(x))[1], (X[:, 0],)),
    "lstm of one": (nn.LSTMCell(8, 4, bias=False), both, (X[0, 0],)),
    "gru": (nn.GRUCell(8, 4), lambda a, x, h: a(x, h), (X[:, 0], H)),
    "gru of one": (nn.GRUCell(8, 4, bias=False), lambda a, x, h: a(x, h), (X[0, 0], H[0])),
    "rnn": (nn.RNNCell(8, 4), lambda a, x, h: a(x, h), (X[:, 0], H)),
    "rnn with relu": (nn.RNNCell(8, 4, nonlinearity="relu"), lambda a, x: a(x), (X[:, 0],)),
}


@pytest.mark.parametrize("name", CELLS)
def test_cells_are_written_out(name: str) -> None:
    layer, compute, given = CELLS[name]
    model = Subject(layer, compute)

    result, record = expanded(model.eval(), *given)

    assert record.rewrites
    torch.testing.assert_close(result(*given), model(*given))
    if name != "lstm twice":
        assert composites(result) == []
        expanded(model.train(), *given, training=True)


# -- what stays


def frozen(model: nn.Module) -> nn.Module:
    """Without gradients, where torch computes by its fused kernels."""
    return model.eval().requires_grad_(requires_grad=False)


class LearntMask(Subject):
    def __init__(self) -> None:
        super().__init__(encoder())
        self.mask = nn.Parameter(torch.zeros(3, 3).masked_fill(CAUSAL[:3, :3], -torch.inf))

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x, self.mask)


ALL_PADDED = PADDED.index_fill(0, torch.tensor([1]), True)

REFUSED: dict[Condition[CompositeCall], tuple[nn.Module, tuple[Tensor, ...]]] = {
    subject.number_of_steps_is_fixed: (
        Subject(nn.LSTM(8, 4), lambda a, x: a(x)[0]).eval(),
        (X,),
    ),
    subject.settings_are_known: (
        attention(lambda a, x: both(a, x, x, x, average_attn_weights=x.shape[0] > 9)).eval(),
        (X,),
    ),
    subject.forms_are_known: (
        attention(lambda a, x: both(a, x.squeeze(), x.squeeze(), x.squeeze())).eval(),
        (X,),
    ),
    subject.mask_gets_its_gradient: (LearntMask().train(), (X,)),
    subject.fused_kernel_agrees: (
        frozen(
            attention(
                lambda a, x, m: a(x, x, x, m, need_weights=False)[0],
                batch_first=True,
            )
        ),
        (X, ALL_PADDED),
    ),
}
TUPLE = attention(lambda a, x: a(x, x, x)).eval()


def with_part(name: str, part: nn.Module) -> nn.Module:
    layer = encoder_layer(batch_first=True).eval()
    setattr(layer, name, part)
    return layer


class Doubled(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) * 2


def some_dropout_trains() -> nn.Module:
    model = Subject(encoder_layer(batch_first=True)).eval()
    model.get_submodule("layer.dropout1").train()
    return model


ALSO_REFUSED: dict[str, tuple[str, nn.Module, tuple[Tensor, ...]]] = {
    "a function of the model's own": (
        "no op is known to be",
        Subject(encoder_layer(activation=lambda x: x * 2)).eval(),
        (X,),
    ),
    "a mask in the fused layer": (
        "NaN without gradients",
        Subject(encoder_layer(batch_first=True), lambda a, x, m: a(x, m)).eval(),
        (X, CAUSAL),
    ),
    "nested sequences": (
        "zeros for padding",
        Subject(
            nn.TransformerEncoder(encoder_layer(batch_first=True), 1),
            lambda a, x, m: a(x, src_key_padding_mask=m),
        ).eval(),
        (X, PADDED),
    ),
    "a part that is passed over": (
        "its linear1 is not torch's",
        Subject(with_part("linear1", Doubled(8, 16))).eval(),
        (X,),
    ),
    "dropout in a layer that does not train": (
        "its dropout1 trains",
        some_dropout_trains(),
        (X,),
    ),
    "another gelu": (
        "approximation",
        Subject(encoder_layer(batch_first=True, activation=nn.GELU("tanh"))).eval(),
        (X,),
    ),
}


@pytest.mark.parametrize("condition", REFUSED, ids=lambda condition: condition.__name__)
def test_refuses(condition: Condition[CompositeCall]) -> None:
    model, given = REFUSED[condition]
    result, record = expanded(model, *given, training=model.training, verify=False)
    assert condition.__name__ in [refusal.condition for refusal in record.refusals]
    assert all(refusal.remedy for refusal in record.refusals)
    assert composites(result)


@pytest.mark.parametrize("name", ALSO_REFUSED)
def test_refuses_for_the_reason(name: str) -> None:
    reason, model, given = ALSO_REFUSED[name]
    result, record = expanded(model, *given)
    assert reason in record.refusals[0].reason
    assert not record.rewrites
    assert composites(result)


def test_every_refusal_is_tested_here() -> None:
    assert ExpandComposites.legal_if == tuple(REFUSED)
    assert set(ExpandComposites.remedies) == {
        *ExpandComposites.legal_if,
        *ExpandComposites.worthwhile_if,
    }


def test_keeps_the_promises_of_a_pass() -> None:
    check_pass(
        ExpandComposites,
        models=[
            (attention(lambda a, x: both(a, x, x, x), batch_first=True).eval(), X),
            (Subject(encoder_layer()).eval(), X),
            (Subject(nn.GRUCell(8, 4)).eval(), X[:, 0]),
        ],
        goes_wrong={c: Model(model, given) for c, (model, given) in REFUSED.items()},
        still_right={subject.results_are_taken_apart: (TUPLE, X)},
    )


def test_hooks_and_parametrizations_are_left_alone() -> None:
    class Doubles(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x * 2

    hooked, changed = (attention(first()).eval() for _ in range(2))
    hooked.layer.register_forward_hook(lambda module, args, result: (result[0] * 2, None))
    parametrize.register_parametrization(changed.layer, "in_proj_weight", Doubles())

    for model in (hooked, changed):
        result, record = expanded(model, X)
        assert not record.rewrites
        torch.testing.assert_close(result(X), model(X), rtol=0, atol=0)


def test_hooks_of_parts_still_run() -> None:
    model = Subject(decoder_layer(), lambda layer, x, y: layer(x, y)).eval()
    model.get_submodule("layer.linear1").register_forward_hook(lambda _, args, result: result * 2)
    given = length_first(X, Y)

    result, record = expanded(model, *given)

    assert record.rewrites
    torch.testing.assert_close(result(*given), model(*given), rtol=0, atol=0)


def test_a_causal_hint_without_a_mask_is_left_to_torch() -> None:
    model = attention(lambda a, x: a(x, x, x, is_causal=True)[0]).eval()
    module = fxpasses.capture(model).program.graphs[""]
    result = apply(ExpandComposites(), module)
    assert reasons(result) == ["settings_are_known"]


def test_weights_keep_their_names() -> None:
    model = Subject(encoder(), None).eval()
    result, _ = expanded(model, X)
    assert result.state_dict().keys() == model.state_dict().keys()


def test_other_sizes_fit() -> None:
    model = Subject(transformer(batch_first=True), lambda a, x, y: a(x, y)).eval()
    result, record = expanded(model, X, Y)
    longer, wider = drawn(4, 9, 8), drawn(4, 2, 8)

    torch.testing.assert_close(result(longer, wider), model(longer, wider))
    assert len(record.rewrites) == 8
    assert fxpasses.report(result).record.verification.unverified == []


@pytest.mark.parametrize("training", [False, True])
def test_vision_transformers_are_written_out(training: bool) -> None:
    torch.manual_seed(0)
    model = VisionTransformer(16, 4, 2, 2, 8, 16, dropout=0.1, num_classes=3).train(training)
    images = drawn(2, 3, 16, 16)

    result, record = expanded(model, images, training=training)

    assert composites(result) == []
    assert len(record.rewrites) == 2
    if not training:
        more = drawn(3, 3, 16, 16)
        torch.testing.assert_close(result(more), model(more))
        with torch.no_grad():
            torch.testing.assert_close(result(more), model(more))


def test_masks_follow_the_dtype_of_what_they_mask() -> None:
    compute = LAYERS["padded"][1]
    model = Subject(encoder_layer(), compute).eval().double()
    result, _ = expanded(model, X.double(), PADDED.t())
    torch.testing.assert_close(
        result(X.double(), PADDED.t()), model(X.double(), PADDED.t()), rtol=0, atol=0
    )

"""Attentions counted by hand in small forms of public models, and how many become one call."""

from collections.abc import Callable
from typing import Any

import pytest
import timm
import torch
import transformers
from torch import nn

import fxpasses
from benchmarks.attentions import Attentions, attentions_in

pytestmark = pytest.mark.slow


def _timm(name: str, size: int, **options: Any) -> Callable[[], tuple[nn.Module, Any]]:
    def build() -> tuple[nn.Module, Any]:
        model = timm.create_model(name, pretrained=False, **options).eval()
        image = torch.randn(1, 3, size, size)
        with torch.no_grad():
            model(image)  # fills caches
        return model, {"x": image}

    return build


def _transformer(name: str, **options: Any) -> Callable[[], tuple[nn.Module, Any]]:
    def build() -> tuple[nn.Module, Any]:
        eager = {"attn_implementation": "eager", "use_cache": False, "vocab_size": 99}
        configuration = getattr(transformers, f"{name}Config")(
            **eager, bos_token_id=0, eos_token_id=1, pad_token_id=2, **options
        )
        model = getattr(transformers, f"{name}Model")(configuration).eval()
        tokens = torch.arange(14).reshape(2, 7)
        decoder = {"decoder_input_ids": tokens} if name == "T5" else {}
        return model, {"input_ids": tokens, **decoder}

    return build


_SMALL = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}

COUNTED: dict[str, tuple[Callable[[], tuple[nn.Module, Any]], Attentions]] = {
    "vit": (_timm("vit_tiny_patch16_224", 32, img_size=32, depth=2), Attentions(2, 2)),
    "beit": (
        _timm("beit_base_patch16_224", 32, img_size=32, depth=2, embed_dim=48, num_heads=3),
        Attentions(2, 2),
    ),
    # Every second window is shifted, its scores meet a mask of windows; one window is not shifted.
    "swin": (
        _timm("swin_tiny_patch4_window7_224", 56, img_size=56, depths=(2, 2), num_heads=(3, 6)),
        Attentions(4, 4),
    ),
    # Talking heads in the trunk; two blocks of class attention.
    "cait": (_timm("cait_xxs24_224", 32, img_size=32, depth=2), Attentions(4, 2)),
    # Cross-covariance in the trunk; two blocks of class attention.
    "xcit": (_timm("xcit_nano_12_p16_224", 32, depth=2), Attentions(4, 4)),
    # Softmax of the keys alone: no scores.
    "coat": (_timm("coat_tiny", 32, img_size=32), Attentions(0, 0)),
    "bert": (_transformer("Bert", intermediate_size=37, **_SMALL), Attentions(2, 2)),
    "gpt2": (_transformer("GPT2", n_embd=32, n_layer=2, n_head=4), Attentions(2, 2)),
    "llama": (
        _transformer("Llama", intermediate_size=37, num_key_value_heads=2, **_SMALL),
        Attentions(2, 2),
    ),
    # Two of the encoder, two of the decoder to itself, two to the encoder.
    "t5": (
        _transformer("T5", d_model=32, d_kv=8, d_ff=37, num_layers=2, num_heads=4),
        Attentions(6, 6),
    ),
}


@pytest.mark.parametrize(("build", "expected"), COUNTED.values(), ids=COUNTED)
def test_attentions_are_counted_as_by_hand(
    build: Callable[[], tuple[nn.Module, Any]],
    expected: Attentions,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(timm.layers.config, "_USE_FUSED_ATTN", 0)
    torch.manual_seed(0)
    model, given = build()
    assert attentions_in(fxpasses.capture(model, (), given).program) == expected


def test_calls_that_the_model_makes_itself_are_counted_apart() -> None:
    model, given = COUNTED["vit"][0]()
    assert attentions_in(fxpasses.capture(model, (), given).program) == Attentions(ready=2)


@pytest.mark.parametrize("name", ["vit", "swin", "xcit", "gpt2", "llama"])
def test_the_result_is_verified_and_equal_for_another_batch(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(timm.layers.config, "_USE_FUSED_ATTN", 0)
    torch.manual_seed(0)
    build, counted = COUNTED[name]
    model, given = build()

    result = fxpasses.run(model, "fuse_attention,dce", (), given)

    report = fxpasses.report(result)
    assert report.record.verification.ok is True
    assert len(report.record.passes[0].rewrites) == counted.fused
    more = {key: torch.cat([value, value.flip(-1), value]) for key, value in given.items()}
    with torch.no_grad():
        torch.testing.assert_close(leaf(result(**more)), leaf(model(**more)), rtol=1e-4, atol=1e-4)


def leaf(output: Any) -> torch.Tensor:
    return output if isinstance(output, torch.Tensor) else output.last_hidden_state

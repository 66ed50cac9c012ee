"""The public models of the zoo: how each is built from random weights, and an example call."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch import Tensor, nn

from benchmarks.models import SEED, images

Call = tuple[tuple[Any, ...], dict[str, Any]]


@dataclass(frozen=True)
class Entry:
    """One model. Nothing is built before it is asked for."""

    family: str
    name: str
    factory: Callable[[], nn.Module]
    call: Callable[[int, int], Call]
    """Arguments of one call for a batch size and a seed."""
    note: str = ""
    """What is not the model's default, or is said of it in the table."""

    @property
    def key(self) -> str:
        return f"{self.family}/{self.name}"

    def build(self) -> nn.Module:
        """The model in eval mode, from a fixed seed."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(SEED)
            return self.factory().eval()


def entries() -> Iterator[Entry]:
    """Every model of the zoo, family by family."""
    yield from _torchvision()
    yield from _timm()
    yield from _transformers()


def entry_of(key: str) -> Entry:
    """The entry that is called `key`.

    Raises:
        KeyError: there is none.
    """
    for entry in entries():
        if entry.key == key:
            return entry
    raise KeyError(key)


# -- torchvision

# Smaller than a user's pictures: the models take any size, and a sweep must end.
_SEGMENTED: Final = 224
_DETECTED: Final = (256, 320)
_RESIZED: Final = 320
"""Pixels of the shorter side that detectors scale pictures to; 800 by default, ssd has its own."""
_FLOW: Final = (128, 192)
_FRAMES: Final[Mapping[str, tuple[int, int]]] = {  # frames and pixels of the published weights
    "mvit_v1_b": (16, 224),
    "mvit_v2_s": (16, 224),
    "s3d": (16, 224),
    "swin3d_b": (16, 224),
    "swin3d_s": (16, 224),
    "swin3d_t": (16, 224),
}
_CLIP: Final = (16, 112)
_SIDES: Final[Mapping[str, int]] = {  # pixels, where the architecture does not take 224
    "inception_v3": 299,
    "quantized_inception_v3": 299,
    "swin_v2_t": 256,
    "swin_v2_s": 256,
    "swin_v2_b": 256,
}


def _torchvision() -> Iterator[Entry]:
    from torchvision import models

    families: dict[str, tuple[Any, Callable[[str], Callable[[int, int], Call]]]] = {
        "classification": (models, lambda name: pictures(_SIDES.get(name, 224))),
        "segmentation": (models.segmentation, lambda _: pictures(_SEGMENTED)),
        "detection": (models.detection, lambda _: picture_lists(*_DETECTED)),
        "video": (models.video, lambda name: clips(*_FRAMES.get(name, _CLIP))),
        "flow": (models.optical_flow, lambda _: picture_pairs(*_FLOW)),
        "quantized": (models.quantization, lambda name: pictures(_SIDES.get(name, 224))),
    }
    for family, (module, call) in families.items():
        for name in models.list_models(module=module):
            options: dict[str, Any] = {"quantize": True} if family == "quantized" else {}
            note = ""
            if family == "detection" and not name.startswith("ssd"):
                options["min_size"] = _RESIZED
                note = f"min_size={_RESIZED}"
            yield Entry(family, name, _from_torchvision(name, options), call(name), note)


def _from_torchvision(name: str, options: dict[str, Any]) -> Callable[[], nn.Module]:
    def build() -> nn.Module:
        from torchvision import models

        builder = models.get_model_builder(name)
        parts = dict(options)
        if "weights_backbone" in builder.__annotations__:
            parts["weights_backbone"] = None
        return builder(weights=None, **parts)

    return build


def pictures(side: int) -> Callable[[int, int], Call]:
    """Calls with one tensor of shape [batch, 3, side, side]."""
    return lambda batch, seed: ((images(batch, side, seed),), {})


def picture_lists(height: int, width: int) -> Callable[[int, int], Call]:
    """Calls with a list of pictures of shape [3, height, width] between 0 and 1."""

    def call(batch: int, seed: int) -> Call:
        draw = torch.Generator().manual_seed(seed)
        return ([torch.rand(3, height, width, generator=draw) for _ in range(batch)],), {}

    return call


def picture_pairs(height: int, width: int) -> Callable[[int, int], Call]:
    """Calls with two tensors of shape [batch, 3, height, width]."""

    def call(batch: int, seed: int) -> Call:
        draw = torch.Generator().manual_seed(seed)
        first, second = torch.randn(2, batch, 3, height, width, generator=draw)
        return (first, second), {}

    return call


def clips(frames: int, side: int) -> Callable[[int, int], Call]:
    """Calls with one tensor of shape [batch, 3, frames, side, side]."""

    def call(batch: int, seed: int) -> Call:
        draw = torch.Generator().manual_seed(seed)
        return (torch.randn(batch, 3, frames, side, side, generator=draw),), {}

    return call


# -- timm

# Pixels of models that take any size: a forward at their own (768, 546, 384) takes a minute.
_SMALLER: Final[Mapping[str, int]] = {
    "deepseek_vit": 224,
    "gemma4_vit": 224,
    "naflexvit": 224,
    "qwen3_vit": 224,
}


def _timm() -> Iterator[Entry]:
    import timm

    for module in timm.list_modules():
        name = CHEAPEST.get(module) or timm.list_models(module=module)[0]
        configuration = timm.get_pretrained_cfg(name)
        side = 224 if configuration is None else configuration.input_size[-1]
        side = _SMALLER.get(module, side)
        yield Entry("timm", module, _from_timm(name), pictures(side), name)


def _from_timm(name: str) -> Callable[[], nn.Module]:
    def build() -> nn.Module:
        import timm

        return timm.create_model(name, pretrained=False)

    return build


# -- transformers

_WORDS: Final = 120
_LENGTH: Final = 12


def _transformers() -> Iterator[Entry]:
    for name, (factory, call) in _ARCHITECTURES.items():
        yield Entry("transformers", name, factory, call)


def _words(batch: int, seed: int, length: int = _LENGTH) -> Tensor:
    draw = torch.Generator().manual_seed(seed)
    return torch.randint(0, _WORDS, (batch, length), generator=draw)


def _sentences(**options: Any) -> Callable[[int, int], Call]:
    """Calls with `input_ids` and a mask of their shape."""

    def call(batch: int, seed: int) -> Call:
        words = _words(batch, seed)
        return (), {"input_ids": words, "attention_mask": torch.ones_like(words), **options}

    return call


def _sentences_alone(**options: Any) -> Callable[[int, int], Call]:
    return lambda batch, seed: ((), {"input_ids": _words(batch, seed), **options})


def _translations(**options: Any) -> Callable[[int, int], Call]:
    def call(batch: int, seed: int) -> Call:
        source, target = _words(batch, seed), _words(batch, seed + 1, 5)
        return (), {"input_ids": source, "decoder_input_ids": target, **options}

    return call


def _captions(batch: int, seed: int) -> Call:
    words = _words(batch, seed)
    given = {"input_ids": words, "attention_mask": torch.ones_like(words)}
    return (), {**given, "pixel_values": images(batch, 32, seed)}


def _pixels(batch: int, seed: int) -> Call:
    return (), {"pixel_values": images(batch, 32, seed)}


def _spectra(batch: int, seed: int) -> Call:
    draw = torch.Generator().manual_seed(seed)
    return (torch.randn(batch, 20, 60, generator=draw),), {}


def _of(model: str, configuration: str, **options: Any) -> Callable[[], nn.Module]:
    """Builds a class of transformers from a configuration with `options`."""

    def build() -> nn.Module:
        import transformers

        return getattr(transformers, model)(getattr(transformers, configuration)(**options))

    return build


def _whisper_encoder() -> nn.Module:
    sizes = {"d_model": 32, "encoder_layers": 2, "encoder_attention_heads": 4}
    sizes |= {"decoder_layers": 1, "decoder_attention_heads": 4, "encoder_ffn_dim": 64}
    sizes |= {"num_mel_bins": 20, "max_source_positions": 30, "vocab_size": _WORDS}
    ends = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 1}
    model: Any = _of("WhisperModel", "WhisperConfig", **sizes, **ends)()
    return model.encoder


_BLOCKS: Final = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
_TEXT: Final = {**_BLOCKS, "intermediate_size": 64, "vocab_size": _WORDS}
_IMAGE: Final = {**_BLOCKS, "intermediate_size": 64, "image_size": 32, "patch_size": 8}
_CLIP_TEXT: Final = {**_TEXT, "eos_token_id": 2, "bos_token_id": 1, "pad_token_id": 0}
_GPT2: Final = {"n_embd": 32, "n_layer": 2, "n_head": 4, "vocab_size": _WORDS}
_T5: Final = {"d_model": 32, "d_kv": 8, "d_ff": 64, "num_layers": 2, "num_heads": 4}
_DISTIL: Final = {"dim": 32, "n_layers": 2, "n_heads": 4, "hidden_dim": 64}
_SWIN: Final = {"image_size": 32, "patch_size": 2, "embed_dim": 16, "window_size": 4}
_STAGES: Final = {"depths": [2, 2], "num_heads": [2, 4]}
_MAMBA: Final = {"hidden_size": 32, "num_hidden_layers": 2, "state_size": 8}

_MODELS: Final = {
    "gpt2": _of("GPT2LMHeadModel", "GPT2Config", **_GPT2),
    "llama": _of("LlamaForCausalLM", "LlamaConfig", **_TEXT, num_key_value_heads=2),
    "t5": _of("T5ForConditionalGeneration", "T5Config", **_T5, vocab_size=_WORDS),
    "mamba": _of("MambaForCausalLM", "MambaConfig", **_MAMBA, vocab_size=_WORDS),
}
_ARCHITECTURES: Final[dict[str, tuple[Callable[[], nn.Module], Callable[[int, int], Call]]]] = {
    "bert": (_of("BertModel", "BertConfig", **_TEXT), _sentences()),
    "clip": (
        _of("CLIPModel", "CLIPConfig", text_config=_CLIP_TEXT, vision_config=_IMAGE),
        _captions,
    ),
    "distilbert": (
        _of("DistilBertModel", "DistilBertConfig", **_DISTIL, vocab_size=_WORDS),
        _sentences(),
    ),
    "gpt2": (_MODELS["gpt2"], _sentences(use_cache=False)),
    "gpt2 with its cache": (_MODELS["gpt2"], _sentences(use_cache=True)),
    "llama": (_MODELS["llama"], _sentences(use_cache=False)),
    "llama with its cache": (_MODELS["llama"], _sentences(use_cache=True)),
    "mamba": (_MODELS["mamba"], _sentences_alone(use_cache=False)),
    "mamba with its cache": (_MODELS["mamba"], _sentences_alone(use_cache=True)),
    "swin": (_of("SwinModel", "SwinConfig", **_SWIN, **_STAGES), _pixels),
    "t5": (_MODELS["t5"], _translations(use_cache=False)),
    "t5 with its cache": (_MODELS["t5"], _translations(use_cache=True)),
    "vit": (_of("ViTModel", "ViTConfig", **_IMAGE), _pixels),
    "whisper encoder": (_whisper_encoder, _spectra),
}

# Of each module of timm the model with the fewest parameters times pixels, tests aside.
CHEAPEST: Final[Mapping[str, str]] = {
    "beit": "beit_base_patch16_224",
    "byoanet": "halonet_h1",
    "byobnet": "mobileone_s1",
    "cait": "cait_xxs24_224",
    "coat": "coat_tiny",
    "convit": "convit_tiny",
    "convmixer": "convmixer_768_32",
    "convnext": "convnext_zepto_rms",
    "cpubone": "cpubone_nano",
    "crossvit": "crossvit_tiny_240",
    "csatv2": "csatv2",
    "cspnet": "cs3darknet_focus_s",
    "cspnext": "cspnext_tiny",
    "davit": "davit_tiny",
    "deepseek_vit": "deepseek_vit_412m",
    "deit": "deit_tiny_patch16_224",
    "densenet": "densenet121",
    "dla": "dla46x_c",
    "dpn": "dpn48b",
    "edgenext": "edgenext_xx_small",
    "efficientformer": "efficientformer_l1",
    "efficientformer_v2": "efficientformerv2_s0",
    "efficientnet": "tinynet_e",
    "efficientvim": "efficientvim_m1",
    "efficientvit_mit": "efficientvit_b0",
    "efficientvit_msra": "efficientvit_m0",
    "eva": "eva02_tiny_patch14_224",
    "fasternet": "fasternet_t0",
    "fastvit": "fastvit_t8",
    "focalnet": "focalnet_tiny_srf",
    "gcvit": "gcvit_xxtiny",
    "gemma4_vit": "gemma4_vit_167m",
    "ghostnet": "ghostnet_050",
    "hardcorenas": "hardcorenas_b",
    "hgnet": "hgnetv2_b0",
    "hiera": "hiera_tiny_224",
    "hieradet_sam2": "hieradet_small",
    "hrnet": "hrnet_w18_small",
    "iformer": "iformer_t",
    "inception_next": "inception_next_atto",
    "inception_resnet_v2": "inception_resnet_v2",
    "inception_v3": "inception_v3",
    "inception_v4": "inception_v4",
    "lcnetv2": "lcnetv2_small",
    "levit": "levit_128s",
    "lowformer": "lowformer_b0",
    "mambaout": "mambaout_femto",
    "maxxvit": "maxvit_pico_rw_256",
    "metaformer": "poolformerv2_s12",
    "mlp_mixer": "gmlp_ti16_224",
    "mobilenetv3": "mobilenetv3_small_050",
    "mobilenetv5": "mobilenetv5_base",
    "mobilevit": "mobilevit_xxs",
    "mvitv2": "mvitv2_tiny",
    "naflexvit": "naflexvit_base_patch16_parfac_gap",
    "nasnet": "nasnetalarge",
    "nest": "nest_tiny",
    "nextvit": "nextvit_small",
    "nfnet": "nf_regnet_b0",
    "pit": "pit_ti_224",
    "pnasnet": "pnasnet5large",
    "pvt_v2": "pvt_v2_b0",
    "qwen3_vit": "qwen3_vit_88m",
    "rdnet": "rdnet_tiny",
    "regnet": "regnetx_002",
    "repghost": "repghostnet_050",
    "repvit": "repvit_m1",
    "res2net": "res2next50",
    "resnest": "resnest14d",
    "resnet": "resnet10t",
    "resnetv2": "resnetv2_18",
    "rexnet": "rexnet_100",
    "selecsls": "selecsls42",
    "senet": "legacy_seresnet18",
    "sequencer": "sequencer2d_s",
    "shvit": "shvit_s1",
    "sknet": "skresnet18",
    "starnet": "starnet_s050",
    "swiftformer": "swiftformer_xs",
    "swin_transformer": "swin_tiny_patch4_window7_224",
    "swin_transformer_v2": "swinv2_tiny_window8_256",
    "swin_transformer_v2_cr": "swinv2_cr_tiny_224",
    "tiny_vit": "tiny_vit_5m_224",
    "tnt": "tnt_s_legacy_patch16_224",
    "tresnet": "tresnet_m",
    "twins": "twins_svt_small",
    "vgg": "vgg11",
    "visformer": "visformer_tiny",
    "vision_transformer": "vit_tiny_patch16_224",
    "vision_transformer_hybrid": "vit_tiny_r_s16_p8_224",
    "vision_transformer_relpos": "vit_srelpos_small_patch16_224",
    "vision_transformer_sam": "samvit_base_patch16_224",
    "vitamin": "vitamin_small_224",
    "volo": "volo_d1_224",
    "vovnet": "ese_vovnet19b_slim_dw",
    "xception": "legacy_xception",
    "xception_aligned": "xception41p",
    "xcit": "xcit_nano_12_p8_224",
}

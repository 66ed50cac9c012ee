"""The twelve real models that every change is tried on, with what is known of each by hand."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import timm
from torch import Tensor, nn
from torchvision import models

from benchmarks.models import built, images


@dataclass(frozen=True)
class Subject:
    """A model, calls of it, and what must come out."""

    name: str
    factory: Callable[..., nn.Module]
    options: dict[str, Any] = field(default_factory=dict)
    size: int = 64
    """Pixels a side of the example."""
    other_size: int | None = 96
    """Another image size that the model takes."""
    foldable: int = 0
    """Norms that follow a convolution or a linear layer directly, or stand before one, exactly."""
    calls_covered: float = 1.0
    flops_covered: float = 1.0

    def build(self) -> nn.Module:
        return built(self.factory, *self.example(seed=7), **self.options)

    def example(self, batch: int = 2, size: int | None = None, seed: int = 1) -> tuple[Any, ...]:
        return (images(batch, size or self.size, seed),)

    def others(self) -> dict[str, tuple[Any, ...]]:
        """Calls that differ from the example in their sizes."""
        calls = {"another batch": self.example(batch=3, seed=2)}
        if self.other_size:
            calls["another size"] = self.example(batch=2, size=self.other_size, seed=3)
        return calls


@dataclass(frozen=True)
class Detector(Subject):
    """Takes a list of images of any sizes."""

    def example(self, batch: int = 2, size: int | None = None, seed: int = 1) -> tuple[Any, ...]:
        return (list(images(batch, size or self.size, seed)),)


def _torchvision(name: str, **facts: Any) -> Subject:
    return Subject(name, getattr(models, name), **facts)


def _levit(**options: Any) -> nn.Module:
    return timm.create_model("levit_128s", pretrained=False, **options)


def _segmentation(**options: Any) -> nn.Module:
    return models.segmentation.deeplabv3_resnet50(weights=None, weights_backbone=None, **options)


def _detection(**options: Any) -> nn.Module:
    return models.detection.fasterrcnn_resnet50_fpn(weights=None, weights_backbone=None, **options)


SUBJECTS = (
    # One norm for each of the 49 convolutions on the way, and 4 on the shortcuts.
    _torchvision("resnet50", foldable=53),
    _torchvision("mobilenet_v3_large", foldable=46),
    _torchvision("efficientnet_b0", foldable=49),
    # Of 121 norms 62 read a concatenation: one a dense layer, three transitions, the last.
    _torchvision("densenet121", foldable=59),
    _torchvision("shufflenet_v2_x1_0", foldable=56),
    _torchvision("regnet_y_400mf", foldable=53),
    _torchvision("convnext_tiny"),
    _torchvision("vit_b_16", options={"image_size": 64}, other_size=None),
    _torchvision("swin_t"),
    # 53 in the backbone, 6 in the pyramid, 1 in the head.
    Subject("deeplabv3_resnet50", _segmentation, foldable=60),
    Detector(
        "fasterrcnn_resnet50_fpn",
        _detection,
        options={"min_size": 96, "max_size": 128, "box_detections_per_img": 5},
        size=96,
        other_size=112,
        foldable=53,
        calls_covered=0.2,
        flops_covered=0.97,
    ),
    # The two norms of the heads have a dropout between them and their linear layers.
    Subject("levit_128s", _levit, size=224, other_size=None, foldable=52),
)


def leaves(value: Any) -> list[Tensor]:
    """The tensors of an output, in order."""
    if isinstance(value, Tensor):
        return [value]
    if isinstance(value, dict):
        return [leaf for key in value for leaf in leaves(value[key])]
    if isinstance(value, list | tuple):
        return [leaf for item in value for leaf in leaves(item)]
    return []

"""Typed views: the operands of a call by name, however the model spelled it."""

from fxpasses.ops import reads_only_metadata
from fxpasses.views.base import View, constant
from fxpasses.views.elementwise import Activation, Binary, Dropout, Softmax, handed_on
from fxpasses.views.layers import Conv, Linear, Weighted, layer_at, same_settings
from fxpasses.views.norms import BatchNorm, Norm
from fxpasses.views.pools import Pool
from fxpasses.views.products import Attention, Matmul
from fxpasses.views.shapes import Cast, Cat, Flatten, Permute, Reduce, Reshape, Split

__all__ = [
    "Activation",
    "Attention",
    "BatchNorm",
    "Binary",
    "Cast",
    "Cat",
    "Conv",
    "Dropout",
    "Flatten",
    "Linear",
    "Matmul",
    "Norm",
    "Permute",
    "Pool",
    "Reduce",
    "Reshape",
    "Softmax",
    "Split",
    "View",
    "Weighted",
    "constant",
    "handed_on",
    "layer_at",
    "reads_only_metadata",
    "same_settings",
]

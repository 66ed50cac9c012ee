"""Typed views: the operands of a call by name, however the model spelled it."""

from fxpasses.ops import reads_only_metadata
from fxpasses.views.base import View, constant, view_at
from fxpasses.views.elementwise import Activation, Binary, Dropout, Identity, Softmax, seen_through
from fxpasses.views.layers import Conv, Linear, Weighted, same_settings
from fxpasses.views.local import Window, is_affine, window_of
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
    "Identity",
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
    "Window",
    "constant",
    "is_affine",
    "reads_only_metadata",
    "same_settings",
    "seen_through",
    "view_at",
    "window_of",
]

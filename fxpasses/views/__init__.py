"""Typed views: the operands of a call by name, however the model spelled it."""

from fxpasses.views.base import View, constant
from fxpasses.views.layers import Conv, Linear, Weighted, same_settings
from fxpasses.views.norms import BatchNorm, Norm

__all__ = [
    "BatchNorm",
    "Conv",
    "Linear",
    "Norm",
    "View",
    "Weighted",
    "constant",
    "same_settings",
]

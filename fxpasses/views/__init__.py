"""Typed views: the operands of a call by name, however the model spelled it."""

from fxpasses.ops import reads_only_metadata
from fxpasses.views.base import View, constant, view_at
from fxpasses.views.channels import Picked, puts_axis_back
from fxpasses.views.constant_products import ConstantProduct
from fxpasses.views.constant_views import ConstantView
from fxpasses.views.elementwise import (
    HAND_ON,
    Activation,
    Binary,
    Dropout,
    Identity,
    Negation,
    Softmax,
    carried,
    seen_through,
)
from fxpasses.views.fused_attention import Surroundings, fused
from fxpasses.views.layers import (
    STARTS,
    Conv,
    ConvOfUnit,
    Linear,
    LinearOfUnit,
    Weighted,
    first_layer_at,
    same_settings,
)
from fxpasses.views.local import Window, is_affine, window_of
from fxpasses.views.norms import BatchNorm, Norm
from fxpasses.views.pools import Pool
from fxpasses.views.products import Attention, Matmul
from fxpasses.views.rows import rows_of
from fxpasses.views.score_links import Bias, Factor, Fill, is_alike_for_keys, negated
from fxpasses.views.shapes import Cast, Cat, Clone, Flatten, Permute, Reduce, Reshape, Split
from fxpasses.views.units import (
    may_start_a_unit,
    options_of_unit,
    parameters_in_place,
    unit_of,
)
from fxpasses.views.windows import misfit_of_windows, rejoined
from fxpasses.views.written_attention import WrittenAttention, written_attention

__all__ = [
    "HAND_ON",
    "STARTS",
    "Activation",
    "Attention",
    "BatchNorm",
    "Bias",
    "Binary",
    "Cast",
    "Cat",
    "Clone",
    "ConstantProduct",
    "ConstantView",
    "Conv",
    "ConvOfUnit",
    "Dropout",
    "Factor",
    "Fill",
    "Flatten",
    "Identity",
    "Linear",
    "LinearOfUnit",
    "Matmul",
    "Negation",
    "Norm",
    "Permute",
    "Picked",
    "Pool",
    "Reduce",
    "Reshape",
    "Softmax",
    "Split",
    "Surroundings",
    "View",
    "Weighted",
    "Window",
    "WrittenAttention",
    "carried",
    "constant",
    "first_layer_at",
    "fused",
    "is_affine",
    "is_alike_for_keys",
    "may_start_a_unit",
    "misfit_of_windows",
    "negated",
    "options_of_unit",
    "parameters_in_place",
    "puts_axis_back",
    "reads_only_metadata",
    "rejoined",
    "rows_of",
    "same_settings",
    "seen_through",
    "unit_of",
    "view_at",
    "window_of",
    "written_attention",
]

"""New tensors, and random numbers."""

import torch
from torch import Tensor

from fxpasses.ops.op import Op
from fxpasses.ops.spelling import Spellings, spell

FACTORY_TABLE: dict[Op, Spellings] = {
    Op.ZEROS: spell("zeros"),
    Op.ONES: spell("ones"),
    Op.FULL: spell("full"),
    Op.EMPTY: spell("empty"),
    Op.ARANGE: spell("arange"),
    Op.LINSPACE: spell("linspace"),
    Op.EYE: spell("eye"),
    Op.TENSOR: spell("tensor", "scalar_tensor"),
    Op.AS_TENSOR: spell(functions=(torch.as_tensor,)),
    Op.ZEROS_LIKE: spell("zeros_like"),
    Op.ONES_LIKE: spell("ones_like"),
    Op.FULL_LIKE: spell("full_like"),
    Op.EMPTY_LIKE: spell("empty_like"),
    Op.NEW_ZEROS: spell("new_zeros"),
    Op.NEW_ONES: spell("new_ones"),
    Op.NEW_FULL: spell("new_full"),
    Op.NEW_EMPTY: spell("new_empty"),
    Op.NEW_TENSOR: spell("new_tensor"),
    Op.RAND: spell("rand"),
    Op.RANDN: spell("randn"),
    Op.RANDINT: spell("randint"),
    Op.RANDPERM: spell("randperm"),
    Op.RAND_LIKE: spell("rand_like"),
    Op.RANDN_LIKE: spell("randn_like"),
    Op.RANDINT_LIKE: spell("randint_like"),
    Op.NORMAL: spell("normal"),
    # `bernoulli_` draws with a probability of its own, `bernoulli` with its input for it.
    Op.BERNOULLI: spell(
        functions=(torch.bernoulli, Tensor.bernoulli), methods=("bernoulli",), aten=("bernoulli",)
    ),
    Op.MULTINOMIAL: spell("multinomial"),
    Op.UNIFORM: spell("uniform"),
}

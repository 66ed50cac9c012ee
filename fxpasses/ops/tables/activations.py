"""Activations and softmax."""

import torch
import torch.nn.functional as F
from torch import nn

from fxpasses.ops.op import Op
from fxpasses.ops.spelling import Spellings, spell

ACTIVATION_TABLE: dict[Op, Spellings] = {
    Op.RELU: spell("relu", modules=(nn.ReLU,)),
    Op.RELU6: spell("relu6", modules=(nn.ReLU6,)),
    Op.LEAKY_RELU: spell("leaky_relu", modules=(nn.LeakyReLU,), functions=(F.leaky_relu,)),
    Op.PRELU: spell("prelu", modules=(nn.PReLU,)),
    Op.RRELU: spell("rrelu", modules=(nn.RReLU,), functions=(F.rrelu,)),
    Op.ELU: spell("elu", modules=(nn.ELU,), functions=(F.elu,)),
    Op.CELU: spell("celu", modules=(nn.CELU,), functions=(F.celu,)),
    Op.SELU: spell("selu", modules=(nn.SELU,), functions=(F.selu,)),
    Op.GELU: spell("gelu", modules=(nn.GELU,)),
    Op.SILU: spell("silu", modules=(nn.SiLU,)),
    Op.MISH: spell("mish", modules=(nn.Mish,)),
    Op.GLU: spell("glu", modules=(nn.GLU,), functions=(F.glu,)),
    Op.SIGMOID: spell(
        "sigmoid",
        modules=(nn.Sigmoid,),
        functions=(torch.sigmoid, torch.special.expit),
        aten=("special_expit",),
    ),
    Op.LOG_SIGMOID: spell("logsigmoid", "log_sigmoid", modules=(nn.LogSigmoid,)),
    Op.TANH: spell("tanh", modules=(nn.Tanh,)),
    Op.TANHSHRINK: spell("tanhshrink", modules=(nn.Tanhshrink,)),
    Op.SOFTPLUS: spell("softplus", modules=(nn.Softplus,)),
    Op.SOFTSIGN: spell("softsign", modules=(nn.Softsign,)),
    Op.SOFTSHRINK: spell("softshrink", modules=(nn.Softshrink,)),
    Op.HARDSHRINK: spell("hardshrink", modules=(nn.Hardshrink,)),
    Op.HARDSIGMOID: spell("hardsigmoid", modules=(nn.Hardsigmoid,)),
    Op.HARDSWISH: spell("hardswish", modules=(nn.Hardswish,)),
    Op.HARDTANH: spell("hardtanh", modules=(nn.Hardtanh,), functions=(F.hardtanh,)),
    Op.THRESHOLD: spell("threshold", modules=(nn.Threshold,), functions=(F.threshold,)),
    Op.SOFTMAX: spell(
        "softmax",
        modules=(nn.Softmax, nn.Softmax2d),
        functions=(torch.softmax, torch.special.softmax),
        aten=("_softmax", "special_softmax"),
    ),
    Op.LOG_SOFTMAX: spell(
        "log_softmax",
        modules=(nn.LogSoftmax,),
        functions=(torch.log_softmax, torch.special.log_softmax),
        aten=("_log_softmax", "special_log_softmax"),
    ),
    Op.SOFTMIN: spell("softmin", modules=(nn.Softmin,)),
    Op.GUMBEL_SOFTMAX: spell("gumbel_softmax"),
}

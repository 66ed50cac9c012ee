"""Pooling, padding and resampling."""

import torch
import torch.nn.functional as F
from torch import nn

from fxpasses.ops.op import Op
from fxpasses.ops.spelling import NN_BUILTINS, Spellings, spell

POOLING_TABLE: dict[Op, Spellings] = {
    Op.MAX_POOL: spell(
        *("max_pool1d", "max_pool2d", "max_pool3d"),
        modules=(nn.MaxPool1d, nn.MaxPool2d, nn.MaxPool3d),
    ),
    Op.MAX_POOL_WITH_INDICES: spell(
        "max_pool1d_with_indices", "max_pool2d_with_indices", "max_pool3d_with_indices"
    ),
    Op.AVG_POOL: spell(
        *("avg_pool1d", "avg_pool2d", "avg_pool3d"),
        modules=(nn.AvgPool1d, nn.AvgPool2d, nn.AvgPool3d),
    ),
    Op.LP_POOL: spell(
        *("lp_pool1d", "lp_pool2d", "lp_pool3d"),
        modules=(nn.LPPool1d, nn.LPPool2d, nn.LPPool3d),
    ),
    Op.ADAPTIVE_AVG_POOL: spell(
        *("adaptive_avg_pool1d", "adaptive_avg_pool2d", "adaptive_avg_pool3d"),
        modules=(nn.AdaptiveAvgPool1d, nn.AdaptiveAvgPool2d, nn.AdaptiveAvgPool3d),
        aten=("_adaptive_avg_pool2d", "_adaptive_avg_pool3d"),
    ),
    # The builtins of this name return the indices too, the functions of F do not.
    Op.ADAPTIVE_MAX_POOL: spell(
        functions=(F.adaptive_max_pool1d, F.adaptive_max_pool2d, F.adaptive_max_pool3d),
        modules=(nn.AdaptiveMaxPool1d, nn.AdaptiveMaxPool2d, nn.AdaptiveMaxPool3d),
    ),
    Op.ADAPTIVE_MAX_POOL_WITH_INDICES: spell(
        functions=(
            F.adaptive_max_pool1d_with_indices,
            F.adaptive_max_pool2d_with_indices,
            F.adaptive_max_pool3d_with_indices,
            torch.adaptive_max_pool1d,
            NN_BUILTINS.adaptive_max_pool2d,
            NN_BUILTINS.adaptive_max_pool3d,
        ),
        aten=("adaptive_max_pool1d", "adaptive_max_pool2d", "adaptive_max_pool3d"),
    ),
    Op.FRACTIONAL_MAX_POOL: spell(
        functions=(F.fractional_max_pool2d, F.fractional_max_pool3d),
        modules=(nn.FractionalMaxPool2d, nn.FractionalMaxPool3d),
    ),
    Op.FRACTIONAL_MAX_POOL_WITH_INDICES: spell(
        functions=(F.fractional_max_pool2d_with_indices, F.fractional_max_pool3d_with_indices),
        aten=("fractional_max_pool2d", "fractional_max_pool3d"),
    ),
    Op.MAX_UNPOOL: spell(
        *("max_unpool1d", "max_unpool2d", "max_unpool3d"),
        modules=(nn.MaxUnpool1d, nn.MaxUnpool2d, nn.MaxUnpool3d),
    ),
    Op.PAD: spell(
        "pad",
        modules=(
            *(nn.ConstantPad1d, nn.ConstantPad2d, nn.ConstantPad3d),
            *(nn.ZeroPad1d, nn.ZeroPad2d, nn.ZeroPad3d),
            *(nn.ReflectionPad1d, nn.ReflectionPad2d, nn.ReflectionPad3d),
            *(nn.ReplicationPad1d, nn.ReplicationPad2d, nn.ReplicationPad3d),
            *(nn.CircularPad1d, nn.CircularPad2d, nn.CircularPad3d),
        ),
        functions=(F.pad,),
    ),
    Op.INTERPOLATE: spell(
        "interpolate", modules=(nn.Upsample, nn.UpsamplingNearest2d, nn.UpsamplingBilinear2d)
    ),
    Op.GRID_SAMPLE: spell(functions=(F.grid_sample,)),
    Op.PIXEL_SHUFFLE: spell("pixel_shuffle", modules=(nn.PixelShuffle,)),
    Op.PIXEL_UNSHUFFLE: spell("pixel_unshuffle", modules=(nn.PixelUnshuffle,)),
    Op.CHANNEL_SHUFFLE: spell("channel_shuffle", modules=(nn.ChannelShuffle,)),
}

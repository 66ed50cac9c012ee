"""Layers with weights, norms, dropout and products."""

from typing import Final

import torch
import torch.nn.functional as F
from torch import nn

from fxpasses.ops.op import Op
from fxpasses.ops.spelling import Spellings, spell

# Transformers writes this norm anew for each of its detectors.
_DETECTORS: Final = {
    "conditional_detr": "ConditionalDetr",
    "dab_detr": "DabDetr",
    "deformable_detr": "DeformableDetr",
    "detr": "Detr",
    "grounding_dino": "GroundingDino",
    "rt_detr": "RTDetr",
    "table_transformer": "TableTransformer",
}

FROZEN_BATCH_NORMS: Final = (
    "torchvision.ops.misc.FrozenBatchNorm2d",
    "detectron2.layers.batch_norm.FrozenBatchNorm2d",
    *(
        f"transformers.models.{module}.modeling_{module}.{name}FrozenBatchNorm2d"
        for module, name in _DETECTORS.items()
    ),
)
"""Batch norms that always use their running statistics. Some have no `eps`: it is 1e-5."""

LAYER_TABLE: dict[Op, Spellings] = {
    Op.CONV: spell(
        *("conv1d", "conv2d", "conv3d"),
        modules=(nn.Conv1d, nn.Conv2d, nn.Conv3d),
        functions=(torch.convolution,),
        aten=("convolution",),
    ),
    Op.CONV_TRANSPOSE: spell(
        *("conv_transpose1d", "conv_transpose2d", "conv_transpose3d"),
        modules=(nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d),
    ),
    Op.LINEAR: spell("linear", modules=(nn.Linear,)),
    Op.BILINEAR: spell("bilinear", modules=(nn.Bilinear,)),
    Op.EMBEDDING: spell("embedding", modules=(nn.Embedding,)),
    Op.EMBEDDING_BAG: spell(functions=(F.embedding_bag,), modules=(nn.EmbeddingBag,)),
    # Fused units
    Op.CONV_UNIT: spell(classes=("fxpasses.nn.ConvUnit",)),
    Op.LINEAR_UNIT: spell(classes=("fxpasses.nn.LinearUnit",)),
    # Norms
    Op.BATCH_NORM: spell(
        "batch_norm",
        modules=(nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm),
        classes=FROZEN_BATCH_NORMS,
        functions=(F.batch_norm,),
    ),
    Op.INSTANCE_NORM: spell(
        "instance_norm",
        modules=(nn.InstanceNorm1d, nn.InstanceNorm2d, nn.InstanceNorm3d),
        functions=(F.instance_norm,),
    ),
    Op.LAYER_NORM: spell("layer_norm", modules=(nn.LayerNorm,), functions=(F.layer_norm,)),
    Op.GROUP_NORM: spell("group_norm", modules=(nn.GroupNorm,), functions=(F.group_norm,)),
    Op.RMS_NORM: spell("rms_norm", modules=(nn.RMSNorm,), functions=(F.rms_norm,)),
    Op.LOCAL_RESPONSE_NORM: spell("local_response_norm", modules=(nn.LocalResponseNorm,)),
    Op.NORMALIZE: spell("normalize"),
    # Dropout
    Op.DROPOUT: spell("dropout", modules=(nn.Dropout,), functions=(F.dropout,)),
    Op.FEATURE_DROPOUT: spell(
        *("feature_dropout", "dropout1d", "dropout2d", "dropout3d"),
        modules=(nn.Dropout1d, nn.Dropout2d, nn.Dropout3d),
    ),
    Op.ALPHA_DROPOUT: spell(
        "alpha_dropout", modules=(nn.AlphaDropout,), functions=(F.alpha_dropout,)
    ),
    Op.FEATURE_ALPHA_DROPOUT: spell(
        "feature_alpha_dropout",
        modules=(nn.FeatureAlphaDropout,),
        functions=(F.feature_alpha_dropout,),
    ),
    Op.STOCHASTIC_DEPTH: spell(
        classes=("torchvision.ops.stochastic_depth.StochasticDepth",),
        function_names=("torchvision.ops.stochastic_depth.stochastic_depth",),
    ),
    # Products
    Op.MATMUL: spell("matmul", operators=("matmul",)),
    Op.MM: spell("mm"),
    Op.BMM: spell("bmm"),
    Op.MV: spell("mv"),
    Op.DOT: spell("dot"),
    Op.OUTER: spell("outer", "ger"),
    Op.ADDMM: spell("addmm"),
    Op.BADDBMM: spell("baddbmm"),
    Op.ADDMV: spell("addmv"),
    Op.ADDBMM: spell("addbmm"),
    Op.EINSUM: spell("einsum"),
    Op.SDPA: spell("scaled_dot_product_attention"),
}

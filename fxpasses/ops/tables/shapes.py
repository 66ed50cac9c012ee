"""Views, copies, casts, joining, splitting, indexing."""

import operator

import torch
from torch import Tensor, nn

from fxpasses.ops.op import Op
from fxpasses.ops.spelling import Spellings, spell

SHAPE_TABLE: dict[Op, Spellings] = {
    # Views and copies
    Op.IDENTITY: spell(modules=(nn.Identity,)),
    Op.VIEW: spell("view", aten=("_unsafe_view",)),
    Op.VIEW_AS: spell("view_as"),
    Op.RESHAPE: spell("reshape"),
    Op.RESHAPE_AS: spell("reshape_as"),
    Op.FLATTEN: spell("flatten", modules=(nn.Flatten,)),
    Op.UNFLATTEN: spell("unflatten", modules=(nn.Unflatten,)),
    Op.PERMUTE: spell("permute"),
    Op.TRANSPOSE: spell("transpose", "swapaxes", "swapdims"),
    Op.T: spell("t"),
    Op.MOVEDIM: spell("movedim", "moveaxis"),
    Op.SQUEEZE: spell("squeeze"),
    Op.UNSQUEEZE: spell("unsqueeze"),
    Op.EXPAND: spell("expand"),
    Op.EXPAND_AS: spell("expand_as"),
    Op.BROADCAST_TO: spell("broadcast_to"),
    Op.SELECT: spell("select"),
    Op.NARROW: spell("narrow"),
    Op.SLICE: spell(aten=("slice",)),
    Op.DIAGONAL: spell("diagonal"),
    Op.UNFOLD: spell(
        functions=(Tensor.unfold,), methods=("unfold",), aten=("unfold",)
    ),  # F.unfold is another function
    Op.AS_STRIDED: spell("as_strided"),
    Op.ALIAS: spell(aten=("alias",)),
    Op.DETACH: spell("detach"),
    Op.CONTIGUOUS: spell("contiguous"),
    Op.CLONE: spell("clone"),
    Op.REPEAT: spell("repeat"),
    Op.REPEAT_INTERLEAVE: spell("repeat_interleave"),
    Op.TILE: spell("tile"),
    Op.FLIP: spell("flip"),
    Op.ROLL: spell("roll"),
    # Casts: to another dtype, to another device, or to both
    Op.CAST: spell(
        *("to", "float", "double", "half", "bfloat16", "int", "long", "short", "char", "byte"),
        *("bool", "cfloat", "cdouble", "type", "type_as", "cpu", "cuda"),
        aten=("_to_copy",),
    ),
    # Joining and splitting
    Op.CAT: spell("cat", "concat", "concatenate"),
    Op.STACK: spell("stack"),
    Op.SPLIT: spell("split", "split_with_sizes"),
    Op.CHUNK: spell("chunk"),
    Op.TENSOR_SPLIT: spell("tensor_split"),
    Op.UNBIND: spell("unbind"),
    Op.MESHGRID: spell("meshgrid"),
    # Choosing and indexing
    Op.GETITEM: spell(functions=(operator.getitem, Tensor.__getitem__), methods=("__getitem__",)),
    Op.SETITEM: spell(functions=(operator.setitem, Tensor.__setitem__), methods=("__setitem__",)),
    Op.WHERE: spell("where"),
    Op.NONZERO: spell("nonzero"),
    Op.MASKED_FILL: spell("masked_fill"),
    Op.GATHER: spell("gather"),
    Op.SCATTER: spell("scatter"),
    Op.SCATTER_ADD: spell("scatter_add"),
    Op.INDEX_SELECT: spell("index_select"),
    Op.TRIL: spell("tril"),
    Op.TRIU: spell("triu"),
    Op.ONE_HOT: spell("one_hot"),
    # Writing
    Op.COPY: spell("copy"),
    Op.FILL: spell("fill"),
    Op.ZERO: spell("zero"),
    # Questions about a tensor
    Op.SIZE: spell("size", aten=("sym_size",)),
    Op.RANK: spell("dim", "ndimension"),
    Op.NUMEL: spell("numel", "nelement", aten=("sym_numel",)),
    Op.STRIDE: spell("stride", aten=("sym_stride",)),
    Op.GETATTR: spell(functions=(getattr,)),
    Op.ITEM: spell("item"),
    Op.ASSERT: spell(
        functions=(torch._assert,),  # pyright: ignore[reportPrivateUsage]  # noqa: SLF001  what fx itself records
        aten=("_assert_async", "_assert_scalar", "_assert_tensor_metadata"),
    ),
}

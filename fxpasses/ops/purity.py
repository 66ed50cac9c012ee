"""What is known of callables that have no schema: which of them do nothing but compute."""

import builtins
import math
import operator
from collections.abc import Callable, Mapping
from types import BuiltinFunctionType, FunctionType
from typing import Any, Final, TypeVar

import torch
from torch import nn
from torch._ops import OpOverload, OpOverloadPacket

FunctionT = TypeVar("FunctionT", bound=Callable[..., Any])

RAISES_MARK: Final = "__fxpasses_raises__"
"""Attribute of functions that only check, and raise where something does not hold."""

TRUSTED_NAMESPACES: Final = frozenset(("aten", "prims", "quantized", "torchvision"))
"""Operators of these namespaces do what their schemas say, and nothing else."""

SILENT_WRITERS: Final = frozenset(
    (
        *("native_batch_norm", "cudnn_batch_norm", "miopen_batch_norm", "_batch_norm_impl_index"),
        *("batch_norm_update_stats", "batch_norm_gather_stats"),
        "batch_norm_gather_stats_with_counts",
    )
)
"""Operators of aten that write running statistics, though their schemas do not say so."""

PURE_METHODS: Final = frozenset(
    (
        *("norm", "split", "unflatten", "stft", "istft", "unique", "unique_consecutive", "lu"),
        *("tolist", "numpy", "element_size", "get_device", "data_ptr", "is_shared", "dim_order"),
        *("storage_offset", "untyped_storage", "has_names", "is_contiguous", "to_sparse_coo"),
        *("__len__", "__bool__", "__int__", "__float__", "__index__", "__complex__"),
        *("__contains__", "__iter__", "__reversed__", "__format__", "__repr__", "__hash__"),
        *("__getitem__", "new"),
    )
)
"""Methods of tensors without a schema that only compute."""

_RAISING_OPERATORS: Final = frozenset(
    (
        *("_assert_async", "_assert_scalar", "_assert_tensor_metadata"),
        *("_functional_assert_async", "_functional_assert_scalar"),
        *("sym_constrain_range", "sym_constrain_range_for_size"),
    )
)

KNOWN_FUNCTIONS: Final[Mapping[str, tuple[str, ...]]] = {
    "torchvision.models.swin_transformer._patch_merging_pad": (),
    "torchvision.models.swin_transformer._get_relative_position_bias": (),
    "torchvision.models.swin_transformer.shifted_window_attention": (
        "attention_dropout",
        "dropout",
    ),
    "torch.nn.functional.multi_head_attention_forward": ("dropout_p",),
    "torchvision.ops.drop_block.drop_block2d": ("p",),
    "torchvision.ops.drop_block.drop_block3d": ("p",),
    "torchvision.ops.boxes.batched_nms": (),
    "torchvision.ops.boxes.masks_to_boxes": (),
    "einops.einops.rearrange": (),
    "einops.einops.reduce": (),
    "einops.einops.repeat": (),
    "einops.einops.einsum": (),
    "einops.packing.pack": (),
    "einops.packing.unpack": (),
}
"""Functions of other packages that are traced as one call, and only compute.

In training they draw random numbers where one of the operands that stand here is not zero.
"""

_WRITING_OPERATORS: Final = frozenset(("setitem", "delitem", "call", "methodcaller"))
_PURE_BUILTINS: Final = frozenset(
    (
        *("abs", "all", "any", "bool", "complex", "dict", "divmod", "enumerate", "float"),
        *("getattr", "hasattr", "int", "isinstance", "issubclass", "len", "list", "max", "min"),
        *("pow", "range", "round", "set", "slice", "sorted", "str", "sum", "tuple", "type", "zip"),
    )
)
_PURE_TORCH: Final = frozenset(
    (
        *("is_tensor", "is_storage", "is_complex", "is_floating_point", "is_nonzero", "numel"),
        *("broadcast_shapes", "result_type", "promote_types", "can_cast", "get_default_dtype"),
        *(
            "sym_float",
            "sym_int",
            "sym_max",
            "sym_min",
            "sym_not",
            "sym_ite",
            "sym_sum",
            "sym_sqrt",
        ),
        *(
            "finfo",
            "iinfo",
            "Size",
            "device",
            "dtype",
            "is_grad_enabled",
            "is_inference_mode_enabled",
        ),
    )
)
_RAISING_TORCH: Final = frozenset(
    (
        *("_assert", "_assert_async", "_assert_scalar", "_assert_tensor_metadata"),
        *("_check", "_check_is_size", "_check_value", "_check_index", "_check_type"),
    )
)
_TORCH_PYTHON: Final = frozenset(("torch.functional", "torch.nn.functional"))
_IMPURE_PYTHON: Final = frozenset(("multi_head_attention_forward", "handle_torch_function"))

NN_CLASSES: Final = frozenset(
    cls
    for cls in vars(nn).values()
    if isinstance(cls, type) and issubclass(cls, nn.Module) and cls.forward is not nn.Module.forward
) - {nn.DataParallel, nn.TripletMarginWithDistanceLoss}
"""The layers of torch: they and their children are all that a call runs."""


def qualified_name(thing: Any) -> str:
    """Where a function or class is to be found: `package.module.name`."""
    return f"{getattr(thing, '__module__', '')}.{getattr(thing, '__qualname__', '')}"


def is_pure(function: Callable[..., Any]) -> bool:
    """Whether a function without a schema is known to only compute."""
    name = getattr(function, "__name__", "")
    if isinstance(function, FunctionType) and function.__module__ in _TORCH_PYTHON:
        return not name.startswith("_") and name not in _IMPURE_PYTHON
    if name in _PURE_BUILTINS and getattr(builtins, name) is function:
        return True
    if isinstance(function, BuiltinFunctionType) and getattr(math, name, None) is function:
        return True
    if getattr(operator, name, None) is function:
        return name not in _WRITING_OPERATORS
    return name in _PURE_TORCH and getattr(torch, name, None) is function


def raising(function: FunctionT) -> FunctionT:
    """Mark a function as one that only checks, and raises where something does not hold."""
    setattr(function, RAISES_MARK, True)
    return function


def is_raising(function: Callable[..., Any]) -> bool:
    """Whether a function only checks, and raises where something does not hold."""
    if isinstance(function, (OpOverload, OpOverloadPacket)):
        namespace, name = str(function).split(".")[:2]
        return namespace == "aten" and name in _RAISING_OPERATORS
    if getattr(function, RAISES_MARK, False) is True:
        return True
    name = getattr(function, "__name__", "")
    return name in _RAISING_TORCH and getattr(torch, name, None) is function

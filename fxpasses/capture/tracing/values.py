"""What is known of a traced value, and how far Python may decide on it."""

import operator
from enum import IntEnum
from typing import Final

import torch
from torch import Tensor
from torch.fx import Node

from fxpasses.capture.result.questions import Kept, asked_as
from fxpasses.core.values import Known, TensorInfo


class Taint(IntEnum):
    """What a value depends on, beyond what the call pattern fixes.

    Of a tensor: what its sizes depend on. Taints add up: the higher one holds.
    """

    FIXED = 0  # nothing: weights, constants
    SIZE = 1  # sizes of the inputs
    DATA = 2  # values of the inputs: never decided on


class Unknown:
    """The value of what was not computed: there is no example, or it cannot tell."""

    def __repr__(self) -> str:
        return "?"


UNKNOWN: Final = Unknown()

ANSWERED: Final = asked_as(Kept.BY_EVERY_PATTERN) | asked_as(Kept.WHERE_READ)
SIZE_ATTRIBUTES: Final = frozenset(("nbytes",))
SIZE_METHODS: Final = asked_as(Kept.BY_GUARD) - {"shape", "ndim", "nbytes"}
# What hands out memory or Python state that a graph does not follow.
REFUSED: Final = asked_as(Kept.NOT) | {
    "share_memory_",
    "register_hook",
    "register_post_accumulate_grad_hook",
    "retain_grad",
}
# After them a size that was read before but is used later would be another.
RESHAPES_IN_PLACE = frozenset(
    [
        "unsqueeze_",
        "squeeze_",
        "t_",
        "transpose_",
        "swapaxes_",
        "swapdims_",
        "resize_",
        "resize_as_",
        "set_",
        "as_strided_",
        "sparse_resize_",
        "sparse_resize_and_clear_",
        "apply_",
        "map_",
        "map2_",
    ]
)
LOOSE_RANK = frozenset(("squeeze",))
EXPLICIT_RANK = frozenset(["view", "reshape", "permute"])
# How many values they return depends on sizes.
LOOSE_LENGTH = frozenset(
    [
        "chunk",
        "split",
        "split_with_sizes",
        "tensor_split",
        "unbind",
        "unsafe_chunk",
        "unsafe_split",
        "hsplit",
        "vsplit",
        "dsplit",
    ]
)
_ARITHMETIC = frozenset(
    getattr(operator, name)
    for name in [
        "add",
        "sub",
        "mul",
        "truediv",
        "floordiv",
        "mod",
        "pow",
        "neg",
        "pos",
        "abs",
        "invert",
        "and_",
        "or_",
        "xor",
        "matmul",
        "lshift",
        "rshift",
    ]
)
_NOT_A_TENSOR = SIZE_METHODS | ANSWERED | REFUSED | {"item", "tolist", "equal", "is_same_size"}


def name_of(target: object) -> str:
    """The bare name of a node's target: `squeeze` for the function and for the method."""
    return target if isinstance(target, str) else getattr(target, "__name__", "")


def describe(value: object, *, rank_is_fixed: bool) -> Known:
    """What a node's meta keeps of `value`: infos for tensors in containers, None for the rest."""
    if isinstance(value, Tensor):
        return TensorInfo.of(value, rank_is_fixed=rank_is_fixed)
    if isinstance(value, tuple):
        return tuple(describe(item, rank_is_fixed=rank_is_fixed) for item in value)
    if isinstance(value, list):
        return [describe(item, rank_is_fixed=rank_is_fixed) for item in value]
    if isinstance(value, dict):
        return {k: describe(item, rank_is_fixed=rank_is_fixed) for k, item in value.items()}
    return None


def is_surely_tensor(op: str, target: object, operands: tuple[bool, ...]) -> bool:
    """Whether a node's result is a tensor, judged without an example.

    `operands` tells of each operand that is a traced value whether it surely is a tensor.
    """
    if op == "call_method":
        return operands[:1] == (True,) and target not in _NOT_A_TENSOR
    if op == "call_function":
        return target in _ARITHMETIC and any(operands)
    return op == "get_attr"


_SEVERAL = frozenset((torch.nn.RNNBase, torch.nn.RNNCellBase, torch.nn.MultiheadAttention))


def is_leaf_tensor_module(module: torch.nn.Module) -> bool:
    """Whether a torch layer returns one tensor."""
    # Not by `getattr`, whose answer for what is not there makes an error, layer by layer.
    asked = vars(module).get("return_indices") or getattr(type(module), "return_indices", False)
    return not asked and _SEVERAL.isdisjoint(type(module).__mro__)


def mark_known(node: Node, value: object, *, rank_is_fixed: bool) -> None:
    known = describe(value, rank_is_fixed=rank_is_fixed)
    if known is not None:
        node.meta["value"] = known

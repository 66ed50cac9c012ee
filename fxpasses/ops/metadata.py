"""Which calls read no values, but only sizes, ranks and dtypes."""

from collections.abc import Mapping
from typing import Any, Final

import torch
from torch.fx import Node

from fxpasses.ops.op import Op
from fxpasses.ops.sets import QUESTIONS
from fxpasses.ops.signatures import arguments_of
from fxpasses.ops.vocabulary import op_of

METADATA_ATTRIBUTES: Final = frozenset(
    (
        *("shape", "ndim", "dtype", "device", "layout", "itemsize", "nbytes", "names"),
        *("requires_grad", "is_leaf", "is_cuda", "is_cpu", "is_meta", "is_sparse", "is_quantized"),
    )
)
"""Attributes of a tensor that say nothing of its values."""

_ASKING: Final = frozenset(
    ("is_floating_point", "is_complex", "is_signed", "element_size", "get_device", "__len__")
)
_ASKING_FUNCTIONS: Final = frozenset(
    {len, isinstance, torch.is_tensor, torch.is_floating_point, torch.is_complex}
)
_ALIKE: Final = frozenset(
    {
        *(Op.ZEROS_LIKE, Op.ONES_LIKE, Op.FULL_LIKE, Op.EMPTY_LIKE),
        *(Op.RAND_LIKE, Op.RANDN_LIKE, Op.RANDINT_LIKE),
        *(Op.NEW_ZEROS, Op.NEW_ONES, Op.NEW_FULL, Op.NEW_EMPTY, Op.NEW_TENSOR),
    }
)
PATTERN_OPERAND: Final[Mapping[Op, str]] = {
    **dict.fromkeys((Op.VIEW_AS, Op.RESHAPE_AS, Op.EXPAND_AS, Op.CAST), "other"),
    **dict.fromkeys(_ALIKE, "input"),
}
"""The operand of which only size, dtype and device matter."""


def reads_only_metadata(user: Node, node: Node | None = None) -> bool:
    """Whether `user` reads no values of `node` (by default of its first operand)."""
    if user.op == "call_module":
        return False  # no module is one of the ops below
    op = op_of(user)
    if op is Op.GETATTR:
        return arguments_of(user).get("name") in METADATA_ATTRIBUTES
    if op in QUESTIONS or _asks(user):
        return True
    name = None if op is None else PATTERN_OPERAND.get(op)
    return name is not None and _only_operand(user, name, node)


def _asks(user: Node) -> bool:
    if user.op == "call_method":
        return user.target in _ASKING
    return user.op == "call_function" and user.target in _ASKING_FUNCTIONS


def _only_operand(user: Node, name: str, node: Node | None) -> bool:
    arguments: dict[str, Any] = dict(arguments_of(user))
    pattern = arguments.pop(name, None)
    if node is None:
        return pattern is not None and name == "input"
    return pattern is node and node not in arguments.values()

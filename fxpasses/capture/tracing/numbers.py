"""Which tensors follow from numbers in the code alone, so that Python may decide on them."""

import operator
from typing import Any, Final

import torch
from torch.fx import Node
from torch.utils._pytree import tree_leaves

from fxpasses.capture.tracing.structures import PLAIN

_MAKING: Final = ("tensor", "as_tensor", "scalar_tensor", "zeros", "ones", "full", "arange", "eye")
_COMPARING: Final = ("eq", "ne", "lt", "le", "gt", "ge")
_ASKING: Final = ("any", "all", "isnan", "isinf", "isfinite", "abs", "min", "max", "view")
_METHODS: Final = frozenset((*_COMPARING, *_ASKING))
_FUNCTIONS: Final = frozenset(
    (
        *(getattr(torch, name) for name in (*_MAKING, *_COMPARING, *_ASKING) if name != "view"),
        *(getattr(operator, name) for name in _COMPARING),
    )
)


def follows_from_numbers(node: Node) -> bool:
    """Whether the value of `node` is the same in every call: so are dtypes and devices.

    Nothing else may have got hold of what it is made of, and could have written it.
    """
    found: dict[Node, None] = {}
    stack = [node]
    while stack:
        top = stack.pop()
        if top not in found and not _asks_for_device(top):
            if not _only_computes(top):
                return False
            found[top] = None
            stack.extend(top.all_input_nodes)
    return all(user in found for one in found for user in one.users)


def _asks_for_device(node: Node) -> bool:
    """Whether it tells where a value is to be made, and nothing of the value."""
    return node.target is getattr and node.args[1:] == ("device",)


def _only_computes(node: Node) -> bool:
    known: Any = {"call_function": _FUNCTIONS, "call_method": _METHODS}.get(node.op, ())
    leaves = (leaf for leaf in tree_leaves((node.args, node.kwargs)) if not isinstance(leaf, Node))
    return node.target in known and all(type(leaf) in PLAIN for leaf in leaves)

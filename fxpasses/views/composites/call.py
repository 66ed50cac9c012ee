"""A call of a layer that is made of several ops: its operands by name, and its parts."""

import operator
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self, TypeAlias

import torch
from torch.fx import Node

from fxpasses.core import Editor, Facts, attribute
from fxpasses.ops import (
    Composite,
    Op,
    composite_of,
    forward_arguments,
    module_of,
    op_of,
)

Results: TypeAlias = "tuple[Node | None, ...]"
"""What a layer returns: one node where it is a tensor, more where it is a tuple."""


@dataclass(frozen=True, slots=True, eq=False)
class CompositeCall:
    """A call of a composite whose operands are known by name, with the defaults filled in."""

    node: Node
    kind: Composite
    module: Any
    """Has the settings of the layer, and its parts."""
    arguments: Mapping[str, Any]

    @classmethod
    def at(cls, node: object) -> Self | None:
        """The call at `node`; None where it is another, or its operands cannot be told."""
        if not isinstance(node, Node) or (kind := composite_of(node)) is None:
            return None
        module = module_of(node)
        arguments = forward_arguments(module, node.args, node.kwargs)
        return None if arguments is None else cls(node, kind, module, arguments)

    @property
    def path(self) -> str:
        return str(self.node.target)

    @property
    def returns_several(self) -> bool:
        return self.kind in (Composite.MULTIHEAD_ATTENTION, Composite.LSTM_CELL)

    @property
    def batch_first(self) -> bool:
        """Of attention, and of layers that hold one."""
        attention = getattr(self.module, "self_attn", self.module)
        return bool(attention.batch_first)

    def items(self) -> Mapping[Node, int] | None:
        """The nodes that take one result out of the tuple; None where it is used in other ways."""
        found: dict[Node, int] = {}
        for user in self.node.users:
            index = user.args[1] if len(user.args) == 2 else None
            if op_of(user) is not Op.GETITEM or not isinstance(index, int) or index not in (0, 1):
                return None
            found[user] = index
        return found

    def reads(self, index: int) -> bool:
        """Whether anything reads a result."""
        items = self.items() or {}
        return any(number == index and item.users for item, number in items.items())

    def part(self, edit: Editor, name: str, *args: Any, **kwargs: Any) -> Node:
        """A call of a submodule."""
        return edit.call_submodule(f"{self.path}.{name}", *args, **kwargs)

    def has(self, name: str) -> bool:
        """Whether the layer has such a tensor."""
        return attribute(self.module, name) is not None

    def tensor(self, edit: Editor, name: str) -> Node | None:
        """A read of one of its tensors, None where there is none."""
        return edit.get_attr(f"{self.path}.{name}") if self.has(name) else None


def taken(edit: Editor, value: Any, index: int) -> Any:
    """One part of a tuple, of nodes or at run time."""
    return (
        edit.call_function(operator.getitem, value, index)
        if isinstance(value, Node)
        else value[index]
    )


def parts_of_tensor(edit: Editor, value: Node, number: int, dim: int) -> list[Node]:
    """Equal parts along an axis."""
    whole = edit.call_method("chunk", value, number, dim)
    return [edit.call_function(operator.getitem, whole, index) for index in range(number)]


def additive_mask(edit: Editor, mask: Node | None, facts: Facts, like: Node) -> Node | None:
    """A mask as numbers to add to scores: a boolean one has True where nothing may be seen."""
    if mask is None or facts.dtype(mask) is not torch.bool:
        return mask
    zeros = edit.call_function(torch.zeros_like, mask, dtype=facts.dtype(like))
    return edit.call_method("masked_fill", zeros, mask, float("-inf"))

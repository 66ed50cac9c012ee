"""Who could tell that a value is laid out in another way."""

from typing import Final

from torch.fx import Node

from fxpasses.core import Facts
from fxpasses.ops import Op, op_of

_LEAVES_LAYOUT: Final = frozenset({Op.CONTIGUOUS, Op.LINEAR, Op.SIZE, Op.RANK, Op.NUMEL, Op.ITEM})
"""What they give is laid out the same, whatever the layout of the operand."""
_ASKING: Final = frozenset({Op.VIEW, Op.VIEW_AS, Op.AS_STRIDED, Op.STRIDE, Op.GETATTR})


def reader_of_layout(node: Node, facts: Facts) -> Node | None:
    """A node that may do something else if the strides were others, the output among them."""
    stack, seen = [node], {node}
    while stack:
        for user in stack.pop().users:
            op = op_of(user)
            if user.op == "output" or op in _ASKING or facts.effects(user).unknown:
                return user
            if op not in _LEAVES_LAYOUT and user not in seen:
                seen.add(user)
                stack.append(user)
    return None

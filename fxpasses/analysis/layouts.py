"""Who can tell how a value lies in memory."""

from dataclasses import dataclass
from typing import Final

from torch.fx import Node

from fxpasses.core import Facts, is_replaced
from fxpasses.ops import Op, bind, op_of, reads_only_metadata

_ASKING: Final = frozenset({Op.VIEW_AS, Op.AS_STRIDED, Op.STRIDE, Op.GETATTR})
_LEAVES_LAYOUT: Final = frozenset({Op.CONTIGUOUS, Op.LINEAR, Op.SIZE, Op.RANK, Op.NUMEL, Op.ITEM})
"""What they give is laid out the same, whatever the layout of the operand."""


def reader_of_layout(node: Node, facts: Facts) -> Node | None:
    """A node that may do something else if the strides were others, the output among them."""
    stack, seen = [node], {node}
    while stack:
        for user in stack.pop().users:
            op = op_of(user)
            if _asks(user, op, facts):
                return user
            if op not in _LEAVES_LAYOUT and user not in seen:
                seen.add(user)
                stack.append(user)
    return None


def _asks(user: Node, op: Op | None, facts: Facts) -> bool:
    return user.op == "output" or op is Op.VIEW or op in _ASKING or facts.effects(user).unknown


@dataclass(frozen=True, slots=True)
class Looks:
    """How the readers of a value would take it if it became a slice of a wider one."""

    telling: Node | None
    """A node that may then do something else, or fail: one that writes it, returns it, asks for
    its strides, or that nothing is known of. None: the others never see the difference."""
    views: tuple[Node, ...]
    """The `view` calls that may fail, and that `reshape` has to take the place of, in order."""


def looks_at_slice(value: Node, facts: Facts) -> Looks:
    """Follow a value, and what may lie in its memory, to all that reads it.

    A slice keeps the order of its strides, so what is computed of it is laid out as ever.
    """
    views: list[Node] = []
    stack, seen = [value], {value}
    while stack:
        read = stack.pop()
        for user in (u for u in read.users if u not in seen and not is_replaced(u)):
            op = op_of(user)
            if op is not Op.STRIDE and reads_only_metadata(user, read):
                continue
            if _tells(user, op, read, facts):
                return Looks(user, ())
            if op is Op.VIEW:
                views.append(user)
            if facts.may_alias(user, read):
                seen.add(user)
                stack.append(user)
    return Looks(None, tuple(sorted(views)))


def _tells(user: Node, op: Op | None, read: Node, facts: Facts) -> bool:
    if op is None or op in _ASKING:  # the output is no op
        return True
    if op is Op.VIEW and (bind(user) or {}).get("size") is None:  # as another dtype
        return True
    effects = facts.effects(user)
    return effects.unknown or read in effects.writes

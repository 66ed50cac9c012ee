"""One channel picked out of a value, in the spellings of indexing."""

from dataclasses import dataclass
from typing import Any, Final

from torch.fx import Node

from fxpasses.ops import Op
from fxpasses.views.base import View

_ALL: Final = slice(None)


@dataclass(frozen=True, slots=True)
class Picked:
    """What a call picks out of a value along one axis."""

    value: Node
    number: int
    """Counted from the front."""
    keeps_axis: bool
    """Whether the axis stays, with one channel on it."""

    @classmethod
    def at(cls, node: Node, axis: int, rank: int) -> "Picked | None":
        """The channel that a call picks; None where it does something else.

        Args:
            node: the call.
            axis: that of the channels, counted from the front.
            rank: of the value.
        """
        view = View.at(node)
        index = None if view is None else _index(view, rank)
        value = None if view is None else view.input
        if index is None or not isinstance(value, Node) or index[:axis] != [_ALL] * axis:
            return None
        picked, behind = index[axis : axis + 1], index[axis + 1 :]
        makes_axis = behind[:1] == [None]
        number = _number(picked[0]) if picked else None
        is_kept = bool(picked) and isinstance(picked[0], slice)
        if number is None or (is_kept and makes_axis) or not _is_all(behind[makes_axis:]):
            return None
        return cls(value, number, is_kept or makes_axis)


def puts_axis_back(node: Node, axis: int, rank: int) -> bool:
    """Whether a call gives the channel an axis of its own; `rank` is that of the result."""
    view = View.at(node)
    if view is None:
        return False
    if view.op is Op.UNSQUEEZE:
        dim = view.operand("dim")
        return isinstance(dim, int) and dim % rank == axis
    index = _indices(node) if view.op is Op.GETITEM else []
    return index[: axis + 1] == [*[_ALL] * axis, None] and _is_all(index[axis + 1 :])


def _index(view: View, rank: int) -> list[Any] | None:
    """What the call picks along each axis, as it would be written between brackets."""
    if view.op is Op.GETITEM:
        return _indices(view.node)
    dim = view.operand("dim")
    if not isinstance(dim, int) or not -rank <= dim < rank:
        return None
    before = [_ALL] * (dim % rank)
    if view.op is Op.SELECT:
        return [*before, view.operand("index")]
    start, length = view.operand("start"), view.operand("length")
    if view.op is not Op.NARROW or not isinstance(start, int) or length != 1:
        return None
    return [*before, slice(start, start + 1)]


def _indices(node: Node) -> list[Any]:
    index = node.args[1] if len(node.args) == 2 else ()
    return list(index) if isinstance(index, tuple) else [index]


def _number(picked: Any) -> int | None:
    """The one channel that is picked, if it is told without knowing how many there are."""
    if isinstance(picked, slice):
        start = picked.start or 0
        is_one = isinstance(start, int) and picked.stop == start + 1 and picked.step in (None, 1)
        picked = start if is_one else None
    is_number = isinstance(picked, int) and not isinstance(picked, bool)
    return picked if is_number and picked >= 0 else None


def _is_all(index: list[Any]) -> bool:
    return all(one == _ALL for one in index)

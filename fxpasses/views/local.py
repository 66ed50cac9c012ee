"""Ops that treat every place of a map alike: a piece of it shows what they make of all of it."""

from collections.abc import Collection
from dataclasses import dataclass

from torch.fx import Node

from fxpasses.ops import DROPOUTS, ELEMENTWISE, Op, op_of
from fxpasses.views.base import View, view_at
from fxpasses.views.elementwise import Dropout
from fxpasses.views.layers import Conv, ConvOfUnit
from fxpasses.views.norms import BatchNorm


@dataclass(frozen=True, slots=True)
class Window:
    """What one place of a result follows from, along each of the axes behind batch and channels.

    Attributes:
        reach: over how many places in a row.
        step: how many places further the next result looks.
    """

    reach: tuple[int, ...]
    step: tuple[int, ...]

    @classmethod
    def of_one(cls, rank: int) -> "Window":
        """Of a result that follows from its own place alone."""
        return cls((1,) * rank, (1,) * rank)

    def then(self, following: "Window") -> "Window":
        """The window of what `following` computes of a result with this one."""
        axes = list(zip(self.reach, self.step, following.reach, following.step, strict=True))
        return Window(
            tuple(reach + (wider - 1) * step for reach, step, wider, _ in axes),
            tuple(step * further for _, step, _, further in axes),
        )

    def beside(self, other: "Window") -> "Window | None":
        """The window of what follows from both, place by place; None if their places differ."""
        if self.step != other.step:
            return None
        return Window(tuple(map(max, self.reach, other.reach)), self.step)


def window_of(node: Node, rank: int) -> Window | None:
    """The window of one call, if it computes every place along the last `rank` axes alike.

    Of a unit it is that of its input: a residual is read place by place. Each sample is computed
    by itself, too. What lies around the map counts as zeros. None where
    the call looks at the whole map, at its size, or at what is not known.
    """
    op = op_of(node)
    if op in (Op.CONV, Op.CONV_UNIT):
        return _window_of_conv(view_at(node, Conv, ConvOfUnit), rank)
    if op is Op.BATCH_NORM:
        norm = BatchNorm.at(node)
        alike = norm is not None and norm.uses_running_statistics
    elif op in DROPOUTS:
        dropout = Dropout.at(node)
        alike = dropout is not None and not dropout.is_active
    else:
        alike = op in ELEMENTWISE or op is Op.CONTIGUOUS
    return Window.of_one(rank) if alike else None


_SUMS = frozenset({Op.ADD, Op.SUB, Op.NEG, Op.IDENTITY, Op.CLONE, Op.CONTIGUOUS})
_PRODUCTS = frozenset({Op.MUL, Op.DIV})


def is_affine(node: Node, moving: Collection[Node]) -> bool:
    """Whether a call of which `window_of` knows is an affine function of the nodes in `moving`.

    Then a difference between two of them that shows on some values shows on nearly all.
    """
    op = op_of(node)
    if op in _PRODUCTS:
        view = View.at(node)
        if view is None or view.operand("rounding_mode") is not None:
            return False
        scaled, by = (view.operand(name) in moving for name in ("input", "other"))
        return scaled != by and (scaled or op is Op.MUL)
    return op in _SUMS or op in DROPOUTS or op in (Op.CONV, Op.BATCH_NORM)


def _window_of_conv(conv: Conv | None, rank: int) -> Window | None:
    if conv is None or conv.spatial_rank != rank or conv.padding_mode != "zeros":
        return None
    if conv.is_transposed:
        return None
    sizes = conv.kernel_size
    settings = (*conv.dilation, *conv.stride)
    if sizes is None or not all(isinstance(one, int) for one in settings):
        return None
    reach = (d * (size - 1) + 1 for d, size in zip(conv.dilation, sizes, strict=True))
    return Window(tuple(reach), conv.stride)

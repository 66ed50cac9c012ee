"""Which tensors have the same shape in every call that a graph accepts.

Each axis of each value is a number, or an unknown. Unknowns are the same where the ops say so: a
norm leaves all axes as they are, a convolution that pads as much as it takes away leaves those
behind the channels. What an op demands of its operands counts too: the channels of what a
convolution reads are as many as its weight says.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, TypeAlias

from torch import Tensor
from torch.fx import Node

from fxpasses.core import Facts
from fxpasses.ops import (
    ACTIVATIONS,
    BINARY,
    DROPOUTS,
    NORMS,
    SOFTMAXES,
    UNARY,
    Op,
    op_of,
)
from fxpasses.views.base import View, constant
from fxpasses.views.layers import Conv, Linear
from fxpasses.views.norms import Norm
from fxpasses.views.pools import Pool
from fxpasses.views.products import Matmul
from fxpasses.views.shapes import Cat, Flatten, Permute, Reshape, Split


class _Unknown:
    """A size that is not known, which may turn out to be a number or another unknown."""

    __slots__ = ("same",)

    def __init__(self) -> None:
        self.same: int | _Unknown | None = None


Size: TypeAlias = "int | _Unknown"
Shape: TypeAlias = "tuple[Size, ...] | None"

_ALIKE: Final = (
    (ACTIVATIONS - {Op.GLU, Op.PRELU})
    | (DROPOUTS | NORMS | SOFTMAXES | UNARY)
    | {*(Op.IDENTITY, Op.CONTIGUOUS, Op.CLONE, Op.CAST, Op.DETACH, Op.TRIL, Op.TRIU, Op.CUMSUM)}
)
"""The result has the shape of the input."""


class Sizes:
    """The shapes of the values of one graph as it was when this was made."""

    def __init__(self, nodes: Iterable[Node], facts: Facts) -> None:
        self._facts = facts
        self._shapes: dict[Node, Shape] = {}
        self._windows: dict[tuple[int, int, int], _Unknown] = {}
        self._rules: Mapping[Op, Callable[[Node], Shape]] = {
            Op.CONV: self._conv,
            Op.LINEAR: self._linear,
            Op.EMBEDDING: self._embedding,
            Op.FLATTEN: self._flattened,
            Op.UNFLATTEN: self._unflattened,
            Op.CAT: self._joined_along,
            Op.SDPA: self._attended,
            Op.UNSQUEEZE: self._unsqueezed,
            Op.GETITEM: self._part,
            **dict.fromkeys((Op.MATMUL, Op.BMM), self._multiplied),
            **dict.fromkeys((Op.PERMUTE, Op.TRANSPOSE, Op.T), self._permuted),
            **dict.fromkeys((Op.VIEW, Op.RESHAPE), self._reshaped),
            **dict.fromkeys((Op.MAX_POOL, Op.AVG_POOL, Op.ADAPTIVE_AVG_POOL), self._pool),
            **dict.fromkeys(_ALIKE, self._of_alike),
            **dict.fromkeys((*BINARY, Op.MASKED_FILL, Op.WHERE), self._broadcast),
        }
        for node in nodes:
            self._shapes[node] = self._told(node)

    def holds(self, node: Node, other: Node) -> bool:
        """Whether `other` is sure to be broadcast to the shape of `node`, never beyond it."""
        if self._facts.rank(other) == 0:
            return True
        shape, smaller = self._shape(node), self._shape(other)
        if shape is None or smaller is None or len(smaller) > len(shape):
            return False
        pairs = zip(reversed(shape), reversed(smaller), strict=False)
        return all(b == 1 or a is b or (isinstance(a, int) and a == b) for a, b in pairs)

    def agree(self, node: Node, other: Node, last: int) -> bool:
        """Whether so many of the last axes are sure to be of the same sizes."""
        shape, others = self._shape(node), self._shape(other)
        if shape is None or others is None or min(len(shape), len(others)) < last:
            return False
        pairs = zip(shape[-last:], others[-last:], strict=True)
        return all(a is b or (isinstance(a, int) and a == b) for a, b in pairs)

    def alike(self, new: Node, old: Node) -> None:
        """Note that a new node has the shape of an old one."""
        self._shapes[new] = self._shapes.get(old)

    # -- unknowns

    def _shape(self, node: object) -> Shape:
        shape = self._shapes.get(node) if isinstance(node, Node) else None
        return None if shape is None else tuple(map(_found, shape))

    def _same(self, one: Size, other: Size) -> None:
        one, other = _found(one), _found(other)
        if isinstance(one, int):
            one, other = other, one
        if isinstance(one, _Unknown) and one is not other:
            one.same = other

    def _unknown(self, node: Node) -> Shape:
        rank = self._facts.rank(node)
        return None if rank is None else tuple(_Unknown() for _ in range(rank))

    # -- one node

    def _told(self, node: Node) -> Shape:
        shape = self._of_op(node)
        # A rule that does not fit what is known of the value is no rule for it.
        if shape is None or len(shape) != self._facts.rank(node):
            return self._unknown(node)
        return shape

    def _of_op(self, node: Node) -> Shape:
        if node.op == "get_attr":
            value = constant(node)
            return tuple(value.shape) if isinstance(value, Tensor) else None
        op = op_of(node)
        rule = None if op is None else self._rules.get(op)
        return None if rule is None else rule(node)

    def _of_alike(self, node: Node) -> Shape:
        view = View.at(node)
        shape = None if view is None else self._shape(view.input)
        if view is None or shape is None:
            return None
        if view.op in UNARY and len(node.all_input_nodes) > 1:
            return None  # Bounds that are tensors are broadcast with.
        norm = Norm.at(node)
        if norm is None or norm.weight is None:
            return shape
        if norm.op in (Op.LAYER_NORM, Op.RMS_NORM):
            for one, other in zip(reversed(shape), reversed(norm.weight.shape), strict=False):
                self._same(one, other)
        elif norm.op in (Op.BATCH_NORM, Op.GROUP_NORM) and len(shape) > 1:
            self._same(shape[1], norm.weight.shape[0])
        return tuple(map(_found, shape))

    def _broadcast(self, node: Node) -> Shape:
        view = View.at(node)
        if view is None:
            return None
        operands = [value for value in view.arguments.values() if isinstance(value, Node)]
        shapes = [self._shape(one) for one in operands if self._facts.rank(one) is not None]
        if not shapes or any(shape is None for shape in shapes):
            return None
        rank = max(len(shape or ()) for shape in shapes)
        padded = [(1,) * (rank - len(shape or ())) + (shape or ()) for shape in shapes]
        return tuple(_joined(sizes) for sizes in zip(*padded, strict=True))

    def _conv(self, node: Node) -> Shape:
        conv = Conv.at(node)
        shape = None if conv is None else self._shape(conv.input)
        if conv is None or shape is None or conv.is_transposed:
            return None
        weight, kernel = conv.tensor("weight"), conv.kernel_size
        axes = conv.spatial_rank
        if weight is None or kernel is None or len(shape) <= axes:
            return None
        self._same(shape[-axes - 1], weight.shape[1] * conv.groups)
        padding = conv.padding
        if isinstance(padding, str):
            changes = [0 if padding == "same" else -d * (k - 1) for d, k in _pairs(conv, kernel)]
        else:
            pairs = zip(padding, _pairs(conv, kernel), strict=True)
            changes = [2 * p - d * (k - 1) for p, (d, k) in pairs]
        sizes = zip(shape[-axes:], changes, conv.stride, strict=True)
        behind = [self._slid(*one) for one in sizes]
        return (*shape[: -axes - 1], weight.shape[0], *behind)

    def _pool(self, node: Node) -> Shape:
        pool = Pool.at(node)
        shape = None if pool is None else self._shape(pool.input)
        if pool is None or shape is None or pool.ceil_mode:
            return None
        axes = pool.spatial_rank
        if pool.is_adaptive:
            sizes = pool.output_size
            behind = [s if isinstance(s, int) else old for s, old in _zip(sizes, shape[-axes:])]
            return (*shape[:-axes], *behind)
        settings = zip(pool.kernel_size, pool.padding, pool.dilation, strict=True)
        changes = [2 * p - d * (k - 1) for k, p, d in settings]
        behind = [self._slid(*one) for one in zip(shape[-axes:], changes, pool.stride, strict=True)]
        return (*shape[:-axes], *behind)

    def _slid(self, size: Size, change: int, step: int) -> Size:
        """The size behind a window: as large as it was, or one unknown for all alike."""
        size = _found(size)
        if change == 0 and step == 1:
            return size
        if isinstance(size, int):
            return (size + change - 1) // step + 1
        return self._windows.setdefault((id(size), change, step), _Kept(size))

    def _linear(self, node: Node) -> Shape:
        linear = Linear.at(node)
        shape = None if linear is None else self._shape(linear.input)
        weight = None if linear is None else linear.tensor("weight")
        if shape is None or not shape or weight is None:
            return None
        self._same(shape[-1], weight.shape[1])
        return (*shape[:-1], weight.shape[0])

    def _embedding(self, node: Node) -> Shape:
        view = View.at(node)
        shape = None if view is None else self._shape(view.input)
        weight = None if view is None else view.tensor("weight")
        return None if shape is None or weight is None else (*shape, weight.shape[1])

    def _permuted(self, node: Node) -> Shape:
        view = Permute.at(node)
        shape = None if view is None else self._shape(view.input)
        if view is None or shape is None:
            return None
        return tuple(shape[axis] for axis in view.order(len(shape)))

    def _reshaped(self, node: Node) -> Shape:
        view = Reshape.at(node)
        size = None if view is None else view.size
        return tuple(map(self._given, size)) if isinstance(size, (tuple, list)) else None

    def _given(self, value: Any) -> Size:
        """A size that an op is given: a number, or an axis of a tensor."""
        if isinstance(value, int) and value >= 0:
            return value
        asked, axis = _asked(value)
        shape = self._shape(asked)
        if shape is None or axis is None or not -len(shape) <= axis < len(shape):
            return _Unknown()
        return shape[axis]

    def _flattened(self, node: Node) -> Shape:
        view = Flatten.at(node)
        shape = None if view is None else self._shape(view.input)
        if view is None or not shape:
            return None
        first, last = view.start_dim % len(shape), view.end_dim % len(shape)
        numbers = _numbers(shape[first : last + 1])
        joined = _Unknown() if numbers is None else math.prod(numbers)
        return (*shape[:first], joined, *shape[last + 1 :])

    def _unflattened(self, node: Node) -> Shape:
        view = View.at(node)
        shape = None if view is None else self._shape(view.input)
        sizes = None if view is None else view.operand("sizes", view.operand("unflattened_size"))
        axis = None if view is None else view.operand("dim")
        if not shape or not isinstance(sizes, (tuple, list)) or not isinstance(axis, int):
            return None
        axis %= len(shape)
        return (*shape[:axis], *map(self._given, sizes), *shape[axis + 1 :])

    def _joined_along(self, node: Node) -> Shape:
        view = Cat.at(node)
        tensors = None if view is None else view.tensors
        if view is None or view.op is not Op.CAT or not isinstance(tensors, (tuple, list)):
            return None
        shapes = [self._shape(one) for one in tensors]
        if not all(shapes) or not shapes[0]:
            return None
        axis = view.dim % len(shapes[0])
        numbers = _numbers([shape[axis] for shape in shapes if shape])
        total = _Unknown() if numbers is None else sum(numbers)
        return (*shapes[0][:axis], total, *shapes[0][axis + 1 :])

    def _unsqueezed(self, node: Node) -> Shape:
        view = View.at(node)
        shape = None if view is None else self._shape(view.input)
        axis = None if view is None else view.operand("dim")
        if shape is None or not isinstance(axis, int):
            return None
        axis %= len(shape) + 1
        return (*shape[:axis], 1, *shape[axis:])

    def _part(self, node: Node) -> Shape:
        """Of what is cut along an axis that goes, or of a tensor at one place."""
        view = View.at(node)
        if view is None or not isinstance(node.args[-1], int):
            return None
        cut = Split.at(view.input)
        if cut is not None and cut.op is not Op.UNBIND:
            return None
        shape = self._shape(view.input if cut is None else cut.input)
        axis = 0 if cut is None else cut.dim
        return None if not shape else (*shape[: axis % len(shape)], *shape[axis % len(shape) + 1 :])

    def _multiplied(self, node: Node) -> Shape:
        product = Matmul.at(node)
        left = None if product is None else self._shape(product.left)
        right = None if product is None else self._shape(product.right)
        if not left or not right or len(left) != len(right) or len(left) < 2:
            return None
        batch = tuple(_joined(sizes) for sizes in zip(left[:-2], right[:-2], strict=True))
        return (*batch, left[-2], right[-1])

    def _attended(self, node: Node) -> Shape:
        view = View.at(node)
        query = None if view is None else self._shape(view.operand("query"))
        value = None if view is None else self._shape(view.operand("value"))
        return None if not query or not value else (*query[:-1], value[-1])


class _Kept(_Unknown):
    """An unknown that follows from another, which is kept as long as it: its number is a key."""

    __slots__ = ("of",)

    def __init__(self, of: Size) -> None:
        super().__init__()
        self.of = of


def _found(size: Size) -> Size:
    while isinstance(size, _Unknown) and size.same is not None:
        size = size.same
    return size


def _numbers(sizes: Sequence[Size]) -> list[int] | None:
    found = [size for size in sizes if isinstance(size, int)]
    return found if len(found) == len(sizes) else None


def _asked(value: Any) -> tuple[object, int | None]:
    """The tensor and the axis whose size a node is: `x.size(1)`, `x.size()[1]`, `x.shape[1]`."""
    view = View.at(value)
    if view is None:
        return None, None
    axis = view.operand("index" if view.op is Op.GETITEM else "dim")
    if view.op is Op.GETITEM:
        view = View.at(view.input)
    if view is None or view.op not in (Op.SIZE, Op.GETATTR) or not isinstance(axis, int):
        return None, None
    return view.input, axis


def _joined(sizes: tuple[Size, ...]) -> Size:
    """What sizes of one axis are broadcast to."""
    others = [size for size in sizes if size != 1]
    numbers = [size for size in others if isinstance(size, int)]
    if numbers:
        return numbers[0]
    return others[0] if len(set(map(id, others))) == 1 else _Unknown() if others else 1


def _pairs(conv: Conv, kernel: tuple[int, ...]) -> Iterable[tuple[int, int]]:
    return zip(conv.dilation, kernel, strict=True)


def _zip(one: tuple[Any, ...], other: tuple[Size, ...]) -> Iterable[tuple[Any, Size]]:
    return zip(one, other, strict=True)

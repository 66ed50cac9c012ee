"""Products of two tensors with their axes named, however they are spelled."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, TypeAlias

from torch.fx import Node

from fxpasses.core import Editor
from fxpasses.ops import Op
from fxpasses.views.base import View
from fxpasses.views.products import Matmul
from fxpasses.views.shapes import Permute

Axes: TypeAlias = tuple[str, ...]
Rank: TypeAlias = Callable[[Node], int | None]

_INNER: Final = "inner"
_BATCHED: Final = frozenset({Op.MATMUL, Op.MM, Op.BMM, Op.BADDBMM})


@dataclass(frozen=True, slots=True)
class Operand:
    """A tensor and the names of its axes."""

    node: Node
    axes: Axes

    def before(self, permute: Permute) -> "Operand":
        """What `permute`, which made this one, was given."""
        names = dict(zip(permute.order(len(self.axes)), self.axes, strict=True))
        return Operand(permute.input, tuple(names[place] for place in range(len(names))))

    def laid_out(self, axes: Axes, edit: Editor) -> Node:
        """The tensor with its axes in another order: one that is there already, or a new view."""
        at = self
        while at.axes != axes and (permute := permute_at(at.node)) is not None:
            at = at.before(permute)
        if at.axes == axes:
            return at.node
        order = tuple(self.axes.index(axis) for axis in axes)
        if order == (*range(len(order) - 2), len(order) - 1, len(order) - 2):
            return edit.call_method("transpose", self.node, -2, -1)
        return edit.call_method("permute", self.node, *order)


def permute_at(node: Node) -> Permute | None:
    """The call that put axes in another order, where it is told which."""
    permute = Permute.at(node)
    if permute is None or not isinstance(permute.input, Node):
        return None
    told = (permute.operand(name) for name in ("dims", "dim0", "dim1"))
    parts = (part for one in told for part in (one if isinstance(one, (tuple, list)) else (one,)))
    return None if any(isinstance(part, Node) for part in parts) else permute


@dataclass(frozen=True, slots=True)
class Contraction:
    """`alpha` times a product of two tensors, summed over one axis of both, plus `beta * addend`.

    Each operand has one axis of its own, `row` and `column`; all others go through the product
    side by side.
    """

    node: Node
    left: Operand
    right: Operand
    axes: Axes
    """Of the result."""
    summed: str
    row: str
    """The axis that only `left` has."""
    column: str
    """The axis that only `right` has."""
    alpha: Any = 1
    beta: Any = 1
    addend: Any = None

    def renamed(self, axes: Axes) -> "Contraction":
        """The same with `axes` as the names of the result's, in order.

        The axis that is summed over gets a name that no other has.
        """
        names = {**dict(zip(self.axes, axes, strict=True)), self.summed: _INNER}

        def named(operand: Operand) -> Operand:
            return Operand(operand.node, tuple(names[axis] for axis in operand.axes))

        return replace(
            self,
            left=named(self.left),
            right=named(self.right),
            axes=axes,
            summed=_INNER,
            row=names[self.row],
            column=names[self.column],
        )


def contraction_of(node: Node, rank: Rank) -> Contraction | None:
    """The product that `node` computes, or None where it is none or its axes cannot be told."""
    product = Matmul.at(node)
    if product is not None:
        return _of_matrices(product, rank) if product.op in _BATCHED else None
    view = View.at(node)
    return _of_equation(view) if view is not None and view.op is Op.EINSUM else None


def _of_matrices(product: Matmul, rank: Rank) -> Contraction | None:
    left, right = product.left, product.right
    if not isinstance(left, Node) or not isinstance(right, Node):
        return None
    axes = rank(left)
    if axes is None or axes < 2 or axes != rank(right):
        return None
    batch = tuple(f"batch{number}" for number in range(axes - 2))
    return Contraction(
        product.node,
        Operand(left, (*batch, "row", "summed")),
        Operand(right, (*batch, "summed", "column")),
        (*batch, "row", "column"),
        *("summed", "row", "column"),
        product.alpha,
        product.beta,
        product.addend,
    )


def _of_equation(view: View) -> Contraction | None:
    equation, tensors = view.operand("equation"), view.operand("tensors")
    if not isinstance(equation, str) or not _are_two_nodes(tensors):
        return None
    inputs, arrow, result = equation.replace(" ", "").partition("->")
    terms = [*inputs.split(","), result]
    # Without an arrow, or with dots, the axes follow from the ranks.
    if not arrow or len(terms) != 3 or not all(_is_plain(term) for term in terms):
        return None
    left, right, out = map(set, terms)
    summed, row, column = (left & right) - out, (left & out) - right, (right & out) - left
    others = left & right & out
    if not (len(summed) == len(row) == len(column) == 1):
        return None
    if left | right | out != summed | row | column | others:
        return None
    return Contraction(
        view.node,
        Operand(tensors[0], tuple(terms[0])),
        Operand(tensors[1], tuple(terms[1])),
        tuple(terms[2]),
        *(*summed, *row, *column),
    )


def _are_two_nodes(tensors: Any) -> bool:
    is_list = isinstance(tensors, Sequence) and not isinstance(tensors, str)
    return is_list and len(tensors) == 2 and all(isinstance(one, Node) for one in tensors)


def _is_plain(term: str) -> bool:
    """Whether a term of an equation is nothing but letters, each of them once."""
    return term.isalpha() and len(set(term)) == len(term)

"""Which values have the same sizes along all axes but the last, in every call."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from torch import Tensor
from torch.fx import Node

from fxpasses.ops import DROPOUTS, ELEMENTWISE, SOFTMAXES, Op, op_of
from fxpasses.views.base import View, constant
from fxpasses.views.constant_products import ConstantProduct
from fxpasses.views.shapes import Cat, Split

_FARTHEST: Final = 32
"""Calls that are looked through: what lies farther apart counts as different."""

_BY_INPUT: Final = DROPOUTS | SOFTMAXES | {Op.LAYER_NORM, Op.RMS_NORM, Op.CONTIGUOUS}


def rows_of(value: object, farthest: int = _FARTHEST) -> object:
    """The value whose sizes, but for the last, `value` is sure to have; itself if no other is."""
    while farthest and isinstance(value, Node):
        farthest -= 1
        sources = list(_sources(value))
        if not sources:
            break
        first, *others = [rows_of(s, farthest) for s in sources] if len(sources) > 1 else sources
        if any(other is not first for other in others):
            break
        value = first
    return value


def _sources(node: Node) -> Sequence[Any]:
    """The operands that, if they all agree, have the rows of `node`; none if that is not known."""
    op = op_of(node)
    if op in _BY_INPUT:
        view = View.at(node)
        return [] if view is None else [view.input]
    if op in ELEMENTWISE:
        return [n for n in node.all_input_nodes if not _is_row(constant(n))]
    rule = _RULES.get(op) if op is not None else None
    return [] if rule is None else rule(node)


def _is_row(value: Tensor | None) -> bool:
    return value is not None and value.dim() <= 1


def _of_product(node: Node) -> Sequence[Any]:
    product = ConstantProduct.at(node)
    return [] if product is None else [product.value]


def _of_join(node: Node) -> Sequence[Any]:
    join = Cat.at(node)
    parts = None if join is None or join.dim != -1 else join.tensors
    return list(parts) if isinstance(parts, (list, tuple)) else []


def _of_part(node: Node) -> Sequence[Any]:
    if len(node.args) != 2 or not isinstance(node.args[1], int):
        return []
    split = Split.at(node.args[0])
    return [] if split is None or split.op is Op.UNBIND or split.dim != -1 else [split.input]


_RULES: Final[Mapping[Op, Callable[[Node], Sequence[Any]]]] = {
    **dict.fromkeys((Op.LINEAR, Op.MATMUL, Op.MM, Op.ADDMM), _of_product),
    Op.CAT: _of_join,
    Op.GETITEM: _of_part,
}

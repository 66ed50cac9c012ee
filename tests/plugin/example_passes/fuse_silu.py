"""Compute `x * sigmoid(x)` by one kernel.

    mul(x, sigmoid(x))  ->  silu(x)

The numbers move by rounding only.
"""

from dataclasses import dataclass

import torch.nn.functional as F
from torch.fx import Node

from fxpasses.core import Editor, Facts, Numerics, Rewrite
from fxpasses.ops import Op
from fxpasses.views import Activation, Binary


@dataclass(frozen=True, slots=True)
class Site:
    """A product of `input` and its sigmoid."""

    product: Node
    sigmoid: Node
    input: Node


def input_is_real(site: Site, facts: Facts) -> str | None:
    dtype = facts.dtype(site.input)
    is_real = dtype is not None and dtype.is_floating_point
    return None if is_real else f"the input is {dtype or 'of an unknown dtype'}"


def nothing_is_written(site: Site, facts: Facts) -> str | None:
    for node in (site.sigmoid, site.product):
        if not facts.effects(node).none:
            return f"{node} writes its operand in place"
    for value in (site.input, site.sigmoid):
        if writer := facts.written_between(site.sigmoid, site.product, value):
            return f"{writer} writes {value} before the product is taken"
    return None


def product_is_the_only_reader(site: Site, facts: Facts) -> str | None:
    readers = len(site.sigmoid.users)
    return f"{readers} nodes read the sigmoid" if readers > 1 else None


class FuseSilu(Rewrite[Site]):
    """Compute a value times its own sigmoid as one SiLU."""

    name = "fuse_silu"
    numerics = Numerics.ROUNDING
    trains = True
    legal_if = (input_is_real, nothing_is_written)
    worthwhile_if = (product_is_the_only_reader,)

    def match(self, node: Node, facts: Facts) -> Site | None:
        product = Binary.at(node)
        if product is None or product.op is not Op.MUL:
            return None
        for value, factor in ((product.left, product.right), (product.right, product.left)):
            sigmoid = Activation.at(factor)
            if sigmoid and sigmoid.op is Op.SIGMOID and sigmoid.input is value:
                return Site(node, sigmoid.node, value)
        return None

    def rewrite(self, site: Site, edit: Editor) -> None:
        silu = edit.call_function(F.silu, site.input)
        edit.replace(site.product, silu, absorbing=[site.sigmoid])

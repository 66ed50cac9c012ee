"""Products with constant weights, alike in every spelling, and several of them as one."""

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.fx import Node

from fxpasses.core import Editor, Formula
from fxpasses.views.base import attribute_path, constant, view_at
from fxpasses.views.layers import Conv, Linear, constant_like, linear_of
from fxpasses.views.products import Matmul
from fxpasses.views.shapes import Permute


@dataclass(frozen=True, slots=True, eq=False)
class ConstantProduct:
    """A product of a value with a constant weight: a layer, or a matrix on the right."""

    view: Linear | Conv | Matmul
    weight: Tensor
    bias: Tensor | None
    paths: Mapping[str, str | None]
    """Where the module holds weight and bias; None: it does not."""
    is_flipped: bool = False
    """Whether the weight has a column, in place of a row, for each feature of the result."""

    @staticmethod
    def at(node: object) -> "ConstantProduct | None":
        """The product that `node` computes; of floats, and no grouped or transposed convolution."""
        view = view_at(node, Linear, Conv, Matmul)
        if view is None:
            return None
        found = _of_matmul(view) if isinstance(view, Matmul) else _of_layer(view)
        return found if found is not None and _is_sound(found) else None

    @property
    def node(self) -> Node:
        return self.view.node

    @property
    def value(self) -> Any:
        """What is multiplied."""
        return self.view.left if isinstance(self.view, Matmul) else self.view.input

    @property
    def width(self) -> int:
        """The features of the result."""
        return self.weight.shape[1 if self.is_flipped else 0]

    @property
    def inner(self) -> int:
        """The features of what is multiplied."""
        return self.weight.shape[0 if self.is_flipped else 1]

    @property
    def tensors(self) -> Mapping[str, Tensor]:
        """Weight and bias, as far as there are any."""
        named = {"weight": self.weight, "bias": self.bias}
        return {name: tensor for name, tensor in named.items() if tensor is not None}

    @property
    def axis(self) -> int:
        """The axis of the result that its features lie on, counted from the end."""
        return -1 - self.view.spatial_rank if isinstance(self.view, Conv) else -1

    @property
    def kind(self) -> tuple[Hashable, ...]:
        """Equal for those that one product can take the place of, if they multiply one value."""
        geometry: tuple[Any, ...] = ()
        if isinstance(self.view, Conv):
            settings = (self.view.stride, self.view.padding, self.view.dilation)
            geometry = (self.view.spatial_rank, self.view.kernel_size, *settings)
        return self.inner, self.weight.dtype, self.weight.device, geometry

    def with_tensors(self, edit: Editor, weight: Node, bias: Node | None, value: Any) -> Node:
        """The same product of another value with other tensors; the weight has rows."""
        if isinstance(self.view, Conv):
            return self.view.with_tensors(edit, weight, bias)
        return linear_of(edit, value, weight, bias)


def _is_sound(product: ConstantProduct) -> bool:
    """Whether the tensors are as a layer needs them."""
    weight, bias = product.weight, product.bias
    is_matrix = isinstance(product.view, Conv) or weight.dim() == 2
    fits = bias is None or (bias.shape == (product.width,) and bias.dtype is weight.dtype)
    return is_matrix and weight.is_floating_point() and fits


def _of_layer(view: Linear | Conv) -> ConstantProduct | None:
    if not view.has_constant_parameters or not (isinstance(view, Linear) or _is_plain(view)):
        return None
    paths = {name: view.path(name) for name in ("weight", "bias")}
    return ConstantProduct(view, view.weight, view.bias, paths)


def _is_plain(conv: Conv) -> bool:
    settings = (*conv.stride, *conv.dilation, *conv.padding)
    plain = not conv.is_transposed and conv.groups == 1 and conv.padding_mode == "zeros"
    return plain and all(isinstance(one, (int, str)) for one in settings)


def _of_matmul(view: Matmul) -> ConstantProduct | None:
    turned = Permute.at(view.right)
    operand = view.right if turned is None else turned.input
    weight, bias = constant(operand), constant(view.addend)
    if weight is None or weight.dim() != 2 or (view.alpha, view.beta) != (1, 1):
        return None
    if bias is None and view.addend is not None:
        return None
    is_flipped = turned is None or turned.order(2) == (0, 1)
    paths = {"weight": attribute_path(operand), "bias": attribute_path(view.addend)}
    return ConstantProduct(view, weight, bias, paths, is_flipped)


# -- several as one


def joined_weight(
    edit: Editor, products: Sequence[ConstantProduct], *, axis: int = 0, in_graph: bool = False
) -> Node:
    """The weights, a row for each feature of the result, joined along an axis.

    Joined ahead of time, or in every call of the graph.
    """
    flipped = [product.is_flipped for product in products]
    if not in_graph:
        formula = partial(_joined, flipped=flipped, axis=axis)
        return _folded(edit, products, "weight", formula)
    read = [_read(edit, product, "weight") for product in products]
    upright = [edit.call_method("t", w) if f else w for w, f in zip(read, flipped, strict=True)]
    return edit.call_function(torch.cat, upright, axis)


def _joined(*weights: Tensor, flipped: Sequence[bool], axis: int) -> Tensor:
    upright = (w.t() if f else w for w, f in zip(weights, flipped, strict=True))
    return torch.cat(list(upright), axis)


def joined_bias(edit: Editor, products: Sequence[ConstantProduct]) -> Node | None:
    """The biases in a row, with zeros where a product has none; None where no product has one."""
    if all(product.bias is None for product in products):
        return None
    gaps = [product.width if product.bias is None else None for product in products]
    return _folded(edit, products, "bias", partial(_in_a_row, gaps=gaps))


def _in_a_row(*biases: Tensor, gaps: Sequence[int | None]) -> Tensor:
    left = iter(biases)
    return torch.cat([next(left) if gap is None else biases[0].new_zeros(gap) for gap in gaps])


def summed_bias(
    edit: Editor, products: Sequence[ConstantProduct], *, in_graph: bool = False
) -> Node | None:
    """The sum of the biases; None where no product has one."""
    biased = [product for product in products if product.bias is not None]
    if not biased:
        return None
    if not in_graph:
        return _folded(edit, products, "bias", lambda *biases: torch.stack(biases).sum(0))
    first, *others = [_read(edit, product, "bias") for product in biased]
    for other in others:
        first = edit.call_function(torch.add, first, other)
    return first


def _folded(edit: Editor, products: Sequence[ConstantProduct], name: str, formula: Formula) -> Node:
    known = [tensor for p in products for key, tensor in p.tensors.items() if key == name]
    # As the most demanding of them is: a parameter, and one that requires gradients, if any does.
    typical = max(known, key=lambda t: (isinstance(t, nn.Parameter), t.requires_grad))
    near = f"{products[0].node.name}_{name}"
    return constant_like(edit, typical, edit.fold(formula, *known), near)


def _read(edit: Editor, product: ConstantProduct, name: str) -> Node:
    path = product.paths[name]
    return edit.constant(product.tensors[name], name) if path is None else edit.get_attr(path)

"""Convolutions and linear layers, alone and at the start of a unit."""

from copy import deepcopy
from dataclasses import dataclass
from typing import Any, ClassVar, Final

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.fx import Node

from fxpasses.core import Editor, Fold
from fxpasses.ops import Op, with_arguments
from fxpasses.views.base import View, view_at
from fxpasses.views.spatial import Spatial

_CONTAINERS = {k: type(v) for k, v in vars(nn.Module()).items() if isinstance(v, (dict, set))}
_PLAIN = (int, float, str, type(None), torch.dtype, torch.device)
_ATOMS = frozenset((*_PLAIN, bool))


@dataclass(frozen=True)
class Weighted(View):
    """A layer that multiplies its input by `weight` and may add `bias`."""

    ops: ClassVar[frozenset[Op] | None] = frozenset((Op.CONV, Op.CONV_TRANSPOSE, Op.LINEAR))

    @property
    def has_bias(self) -> bool:
        return self.has("bias")

    @property
    def has_constant_parameters(self) -> bool:
        return self.tensor("weight") is not None and self.are_constant("bias")

    @property
    def weight(self) -> Tensor:
        """The weight, where `has_constant_parameters`."""
        weight = self.tensor("weight")
        assert weight is not None, f"the weight of {self.node} is not constant"
        return weight

    @property
    def bias(self) -> Tensor | None:
        """The bias, where `has_constant_parameters`."""
        return self.tensor("bias")

    def with_parameters(self, edit: Editor, weight: Fold, bias: Fold | None) -> Node:
        """The same call with folded parameters.

        A module is not changed: the new call has a module of its own, of the same class and
        settings, without hooks. New parameters require gradients where the old weight did.
        """
        if self.module is not None and self.arguments.get("weight") is None:
            return self._with_module(edit, self.module, weight, bias)
        changed = {
            name: None if fold is None else self._constant(edit, name, fold)
            for name, fold in (("weight", weight), ("bias", bias))
        }
        if self.module is not None:  # a unit that is given its parameters
            return edit.copy(self.node, **changed)
        found = with_arguments(self.node, changed)
        assert found is not None, "a view is made of a call whose operands are known"
        args, kwargs = found
        return edit.copy(self.node, args=args, **kwargs)

    def _with_module(
        self, edit: Editor, module: nn.Module, weight: Fold, bias: Fold | None
    ) -> Node:
        made = same_settings(module)
        held = vars(made)["_parameters"]  # new, so that nothing of what torch checks can be wrong
        held["weight"] = self._parameter(edit, weight)
        held["bias"] = None if bias is None else self._parameter(edit, bias)
        near = str(self.node.target).rpartition(".")[2]
        return edit.call_module(made, near, *self.node.args, **self.node.kwargs)

    def _constant(self, edit: Editor, name: str, fold: Fold) -> Node:
        return constant_like(edit, self.weight, fold, f"{self.node.name}_{name}")

    def _parameter(self, edit: Editor, fold: Fold) -> nn.Parameter:
        old = self.tensor("weight")
        return edit.parameter(fold, requires_grad=old is not None and old.requires_grad)


def constant_like(edit: Editor, old: Tensor, fold: Fold, near: str) -> Node:
    """What the old tensor is, the new one is too: parameter, buffer or plain attribute."""
    value = fold.value
    if isinstance(old, nn.Parameter):
        value = edit.parameter(fold, requires_grad=old.requires_grad)
    elif any(buffer is old for buffer in edit.module.buffers()):
        value = edit.buffer(fold)
    return edit.constant(value, near)


@dataclass(frozen=True)
class Conv(Weighted, Spatial):
    """A convolution of any rank, transposed or not."""

    ops: ClassVar[frozenset[Op] | None] = frozenset((Op.CONV, Op.CONV_TRANSPOSE))

    @property
    def is_transposed(self) -> bool:
        return self.op is Op.CONV_TRANSPOSE or self.operand("transposed") is True

    @property
    def groups(self) -> int:
        return self.operand("groups", 1)

    @property
    def kernel_size(self) -> tuple[int, ...] | None:
        """None where the weight is computed at run time."""
        weight = self.tensor("weight")
        return None if weight is None else tuple(weight.shape[2:])

    @property
    def stride(self) -> tuple[Any, ...]:
        return self.each("stride", 1)

    @property
    def padding(self) -> tuple[Any, ...] | str:
        """In numbers, one an axis, or `same` or `valid`."""
        value = self.operand("padding", 0)
        return value if isinstance(value, str) else self.each("padding", 0)

    @property
    def dilation(self) -> tuple[Any, ...]:
        return self.each("dilation", 1)

    @property
    def output_padding(self) -> tuple[Any, ...]:
        return self.each("output_padding", 0)

    @property
    def padding_mode(self) -> str:
        """`zeros`, `reflect`, `replicate` or `circular`; functions know zeros alone."""
        return self.operand("padding_mode", "zeros")

    def with_tensors(self, edit: Editor, weight: Node, bias: Node | None) -> Node:
        """The same convolution, of zero padding, with tensors that the graph computes."""
        function = (F.conv1d, F.conv2d, F.conv3d)[self.spatial_rank - 1]
        settings = (self.stride, self.padding, self.dilation, self.groups)
        return edit.call_function(function, self.input, weight, bias, *settings)

    @property
    def pads_with_values(self) -> bool:
        """Whether the border of the input may be padded at all."""
        padding = self.padding
        return padding == "same" or (not isinstance(padding, str) and any(p != 0 for p in padding))


@dataclass(frozen=True)
class Linear(Weighted):
    """`input @ weight.T + bias`."""

    ops: ClassVar[frozenset[Op] | None] = frozenset((Op.LINEAR,))

    def with_tensors(self, edit: Editor, weight: Node, bias: Node | None) -> Node:
        """The same product with tensors that the graph computes."""
        return linear_of(edit, self.input, weight, bias)


def linear_of(edit: Editor, value: Node, weight: Node, bias: Node | None) -> Node:
    """`value @ weight.T + bias`, as a new call."""
    return edit.call_function(F.linear, value, weight, bias)


@dataclass(frozen=True)
class _Start(Weighted):
    """The layer that a unit starts with: `activation(layer(input) + residual)`.

    Its parameters and its input are those of the layer, its result is the unit's.
    """

    @property
    def residual(self) -> Any:
        """What is added to the layer's output; None where nothing is."""
        return self.operand("residual") if self.operand("adds") else None

    @property
    def activation(self) -> str | None:
        """What is done last, by the name of the op."""
        return self.operand("activation")


@dataclass(frozen=True)
class ConvOfUnit(_Start, Conv):
    """The convolution that a unit starts with."""

    ops: ClassVar[frozenset[Op] | None] = frozenset((Op.CONV_UNIT,))


@dataclass(frozen=True)
class LinearOfUnit(_Start, Linear):
    """The linear layer that a unit starts with."""

    ops: ClassVar[frozenset[Op] | None] = frozenset((Op.LINEAR_UNIT,))


def first_layer_at(node: object) -> Weighted | None:
    """The convolution or linear layer that a call is, or starts with.

    For what concerns the input of the layer; what concerns its output asks `Conv` and `Linear`,
    which no unit is in which something follows.
    """
    return view_at(node, *STARTS)


STARTS: Final[tuple[type[Weighted], ...]] = (Conv, Linear, ConvOfUnit, LinearOfUnit)


def same_settings(module: nn.Module) -> nn.Module:
    """A module of the same class, mode and settings, with no parameters, buffers or hooks.

    Settings are plain data: numbers, text, dtypes, and containers of them.
    """
    made: nn.Module = object.__new__(type(module))
    own = vars(made)
    own.update({name: kind() for name, kind in _CONTAINERS.items()})
    for name, value in vars(module).items():
        if name in own:
            continue
        if _is_atom(value):
            own[name] = value
        elif _is_plain(value):
            own[name] = deepcopy(value)
    return made


def _is_atom(value: Any) -> bool:
    """Whether the value is told at a glance to be one that nobody can change."""
    kind = type(value)
    return kind in _ATOMS or (kind is tuple and _ATOMS.issuperset(map(type, value)))


def _is_plain(value: Any) -> bool:
    if isinstance(value, (tuple, list)):
        return all(map(_is_plain, value))
    return isinstance(value, _PLAIN)

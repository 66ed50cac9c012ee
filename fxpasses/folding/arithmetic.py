"""Sums, differences, products and quotients of a value and a constant, as maps of channels."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Final, TypeAlias

import torch
from torch import Tensor
from torch.fx import Node

from fxpasses.core import Facts, widened
from fxpasses.folding.affine import Affine, Site, Values, times
from fxpasses.ops import Op
from fxpasses.views import Binary, ConstantView, Conv, Negation, Weighted

MOST_TAKEN: Final = 4.0
"""What a summand in front may add to the layer's output, where that is of the size of one: as many
standard deviations as a norm in front may take away."""

CALLS: Final[tuple[type[Binary | Negation], ...]] = (Binary, Negation)
"""The views of calls that may be arithmetic."""

Number: TypeAlias = bool | int | float
_OPS: Final = frozenset({Op.ADD, Op.SUB, Op.MUL, Op.DIV})


@dataclass(frozen=True)
class Arithmetic(Affine):
    """A sum, difference, product or quotient of a value and a constant, or a negation."""

    noun: ClassVar[str] = "the constant"
    call: Binary | Negation
    value: Node
    constant: Number | ConstantView | None = None
    """None in a negation."""
    is_first: bool = False
    """Whether the constant is the left operand."""
    alpha: Number = 1
    """What the right operand of a sum or difference is multiplied with."""

    @classmethod
    def of(cls, call: Binary | Negation) -> "Arithmetic | None":
        """The call as a map of the operand that is no constant; None where there is none."""
        if isinstance(call, Negation):
            value = call.input
            return cls(call, value) if isinstance(value, Node) else None
        if call.op not in _OPS or call.rounding_mode is not None or not _is_number(call.alpha):
            return None
        sides = ((call.left, call.right, False), (call.right, call.left, True))
        for value, other, is_first in sides:
            known = other if _is_number(other) else ConstantView.at(other)
            if isinstance(value, Node) and known is not None and ConstantView.at(value) is None:
                return cls(call, value, known, is_first, call.alpha)
        return None

    @property
    def node(self) -> Node:
        return self.call.node

    @property
    def input(self) -> Node:
        return self.value

    @property
    def tensors(self) -> dict[str, Tensor]:
        held = self.constant
        if isinstance(held, ConstantView) and held.is_held:
            return {"constant": held.tensor}
        return {}

    @property
    def constants(self) -> Sequence[ConstantView]:
        return (self.constant,) if isinstance(self.constant, ConstantView) else ()

    @property
    def is_by_rows(self) -> bool:
        return not isinstance(self.constant, ConstantView) or not self.constant.looks

    @property
    def shifts(self) -> bool:
        return self.call.op in (Op.ADD, Op.SUB)

    @property
    def divides(self) -> bool:
        """Whether the constant is divided by the value, which is no affine map."""
        return self.call.op is Op.DIV and self.is_first

    def scale(self, values: Values) -> Tensor:
        op = self.call.op
        if op is Op.MUL:
            return self._amount(values)
        if op is Op.DIV:
            return 1 / self._amount(values)
        is_negative = op is Op.NEG or (op is Op.SUB and self.is_first)
        factor = self.alpha if self.shifts and self.is_first else 1
        return wide(-factor if is_negative else factor)

    def shift(self, values: Values) -> Tensor:
        if not self.shifts:
            return wide(0)
        amount = self._amount(values)
        if self.is_first:
            return amount
        return amount * (-self.alpha if self.call.op is Op.SUB else self.alpha)

    def _amount(self, values: Values) -> Tensor:
        """The constant: one number, or one for each channel."""
        held = self.constant
        if isinstance(held, ConstantView):
            amount = held.of(values["constant"] if held.is_held else widened(held.tensor))
            amount = amount if amount.is_complex() else amount.to(torch.float64)
            return amount.reshape(()) if amount.numel() == 1 else amount.flatten()
        assert held is not None, "only a negation has none"
        return wide(held)

    def mismatch(self, channels: int, behind: int, most: int) -> str | None:
        """Why the constant is not one number, or one for each of so many channels; None if it is.

        Broadcasting counts axes from the last one.

        Args:
            channels: how many the value has, where it has them.
            behind: how many axes lie behind that of the channels.
            most: as many axes as the value is sure to have.
        """
        shape = self.constant.shape if isinstance(self.constant, ConstantView) else ()
        if not shape:
            return None
        if len(shape) > most:
            return "the constant may have more axes than the value"
        own = shape[-1 - behind] if len(shape) > behind else 1
        if math.prod(shape) != own or own not in (1, channels):
            return f"the constant has the shape {shape}, the value {channels} channels"
        return None


def wide(number: Number) -> Tensor:
    return torch.tensor(float(number), dtype=torch.float64)


def axes_behind(layer: Weighted) -> int:
    """How many axes lie behind the channels of what the layer is given, and gives."""
    return layer.weight.dim() - 2 if isinstance(layer, Conv) else 0


def little_cancels(site: Site, _: Facts | None = None) -> str | None:
    """Folded, the layer adds up what the constant in front of it would have taken away before."""
    if not (site.is_in_front and site.affine.shifts):
        return None
    weight = widened(site.known["weight"])
    moved = torch.linalg.vector_norm(times(weight, site.affine.shift(site.affine.amounts), site))
    taken = float(moved) / math.sqrt(max(1, len(weight)))
    if not taken > MOST_TAKEN:
        return None
    return f"the constant moves the layer's output by {taken:.1f}, in front of it"


def is_finite(affine: Affine) -> bool:
    """Whether all that the map multiplies by and adds is."""
    parts = affine.scale(affine.amounts), affine.shift(affine.amounts)
    return all(bool(torch.isfinite(part).all()) for part in parts)


def _is_number(value: object) -> bool:
    return isinstance(value, bool | int | float)

"""Activations, arithmetic, softmax, dropout."""

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import nn
from torch.fx import Node

from fxpasses.ops import ACTIVATIONS, BINARY, DROPOUTS, SOFTMAXES, Op
from fxpasses.views.base import View, ViewT, view_at


@dataclass(frozen=True)
class Activation(View):
    """An activation; its settings are operands: `negative_slope`, `approximate`, `min_val`."""

    ops: ClassVar[frozenset[Op] | None] = ACTIVATIONS

    @property
    def is_in_place(self) -> bool:
        """Whether it is asked to write its input by `inplace=True`; `effects` knows every form."""
        return bool(self.operand("inplace"))


@dataclass(frozen=True)
class Binary(View):
    """`left op right`, element by element. Reflected spellings are turned round."""

    ops: ClassVar[frozenset[Op] | None] = BINARY

    @property
    def left(self) -> Any:
        """A node or a number."""
        return self.operand("input")

    @property
    def right(self) -> Any:
        """A node or a number."""
        return self.operand("exponent" if self.op is Op.POW else "other")

    @property
    def alpha(self) -> Any:
        """What `right` is multiplied with in a sum or difference."""
        return self.operand("alpha", 1)

    @property
    def rounding_mode(self) -> str | None:
        """Of a division: None, `floor` or `trunc`."""
        return self.operand("rounding_mode")


@dataclass(frozen=True)
class Negation(View):
    """The value with the other sign."""

    ops: ClassVar[frozenset[Op] | None] = frozenset((Op.NEG,))


@dataclass(frozen=True)
class Softmax(View):
    """Softmax, its logarithm, or of the negative."""

    ops: ClassVar[frozenset[Op] | None] = SOFTMAXES

    @property
    def input(self) -> Any:
        return self.operand("logits" if self.op is Op.GUMBEL_SOFTMAX else "input")

    @property
    def dim(self) -> int | None:
        """The axis; None where torch chooses by rank."""
        return -3 if isinstance(self.module, nn.Softmax2d) else self.operand("dim")

    @property
    def dtype(self) -> torch.dtype | None:
        """What the input is cast to first."""
        return self.operand("dtype")


@dataclass(frozen=True)
class Dropout(View):
    """Dropout of elements, features, or to a constant."""

    ops: ClassVar[frozenset[Op] | None] = DROPOUTS

    @property
    def p(self) -> Any:
        return self.operand("p", 0.5)

    @property
    def is_active(self) -> bool:
        """Whether it may drop anything; if not it is the identity."""
        return self.operand("training") is not False and self.p != 0


@dataclass(frozen=True)
class Identity(View):
    """What hands its input on, and at most lays it out anew."""

    ops: ClassVar[frozenset[Op] | None] = frozenset((Op.IDENTITY, Op.CONTIGUOUS))


def seen_through(value: object, *kinds: type[ViewT]) -> tuple[ViewT | None, tuple[Node, ...]]:
    """The view of a value as it was before nodes that hand it on, and those nodes in order.

    Identities do, and dropout that drops nothing.
    """
    passing: list[Node] = []
    while True:
        view = view_at(value, *kinds, Identity, Dropout)
        if not isinstance(view, Identity | Dropout):
            return view, tuple(reversed(passing))
        if isinstance(view, Dropout) and view.is_active:
            return None, ()
        passing.append(view.node)
        value = view.operand("input")

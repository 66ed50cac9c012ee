"""Activations, arithmetic, softmax, dropout."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Final

import torch
from torch import nn
from torch.fx import Node

from fxpasses.core import Editor
from fxpasses.ops import (
    ACTIVATIONS,
    BINARY,
    DROPOUTS,
    SOFTMAXES,
    Op,
    reads_only_metadata,
    with_arguments,
)
from fxpasses.views.base import View, ViewT, view_at
from fxpasses.views.layers import same_settings


@dataclass(frozen=True)
class Activation(View):
    """An activation; its settings are operands: `negative_slope`, `approximate`, `min_val`."""

    ops: ClassVar[frozenset[Op] | None] = ACTIVATIONS

    @property
    def is_in_place(self) -> bool:
        """Whether it is asked to write its input by `inplace=True`; `effects` knows every form."""
        return bool(self.operand("inplace"))

    def out_of_place(self, edit: Editor) -> Node | None:
        """The same call, but for `inplace=True`; None where that is part of its name."""
        if self.module is not None:
            made = same_settings(self.module)
            vars(made)["inplace"] = False
            near = str(self.node.target).rpartition(".")[2]
            return edit.call_module(made, near, *self.node.args, **self.node.kwargs)
        found = with_arguments(self.node, {"inplace": False})
        return None if found is None else edit.copy(self.node, args=found[0], **found[1])


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


HAND_ON: Final = (Identity, Dropout)
"""What may be nothing but the value that it is given."""


def seen_through(value: object, *kinds: type[ViewT]) -> tuple[ViewT | None, tuple[Node, ...]]:
    """The view of a value as it was before nodes that hand it on, and those nodes in order.

    Identities do, and dropout that drops nothing.
    """
    passing: list[Node] = []
    while True:
        view = view_at(value, *kinds, *HAND_ON)
        if not isinstance(view, HAND_ON):
            return view, tuple(reversed(passing))
        if isinstance(view, Dropout) and view.is_active:
            return None, ()
        passing.append(view.node)
        value = view.operand("input")


def carried(edit: Editor, first: Node, passing: Sequence[Node], new: Node) -> tuple[Node, Node]:
    """Make copies of what hands on the value of `first`, in order, that hand on `new`.

    Who asks for a size, and the like, asks the new ones. Returns the last of the old and of the
    new nodes.
    """
    old = first
    _repoint(edit, old, new)
    for node in passing:
        with edit.before(node):
            made = edit.copy(node)
        edit.rewire(made, old, new)
        _repoint(edit, node, made)
        old, new = node, made
    return old, new


def _repoint(edit: Editor, old: Node, new: Node) -> None:
    for reader in list(old.users):
        if reads_only_metadata(reader, old):
            edit.rewire(reader, old, new)

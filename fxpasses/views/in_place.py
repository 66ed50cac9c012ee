"""The form of a call that writes one of its operands in place of making a new tensor."""

from collections.abc import Callable
from functools import cache
from typing import Any, Final

from torch.fx import Node

from fxpasses.core import Editor
from fxpasses.ops import ACTIVATIONS, UNARY, VOCABULARY, Op, Schema, schemas_of_function
from fxpasses.views.base import View

_OF_TWO: Final = frozenset({Op.ADD, Op.SUB, Op.MUL, Op.DIV, Op.MASKED_FILL})
_NEUTRAL: Final = {"alpha": 1, "decimals": 0}
_NO_OPERANDS: Final = frozenset({"input", "inplace", "out"})


def _is_written_as(name: str) -> bool:
    return name.endswith("_") and not name.startswith("_")


@cache
def _method(op: Op) -> str | None:
    """The method of tensors that computes `op` in place."""
    return next(filter(_is_written_as, VOCABULARY[op].methods), None)


@cache
def _function(op: Op) -> tuple[Callable[..., Any], Schema] | None:
    """The function that computes `op` in place, where there is no such method."""
    for function in VOCABULARY[op].functions:
        if _is_written_as(getattr(function, "__name__", "")):
            for schema in schemas_of_function(function):
                if schema.parameters and schema.parameters[0].written:
                    return function, schema
    return None


_NO_BACKWARD: Final = frozenset({Op.ACOSH, Op.ASINH, Op.ATANH})
"""Torch has no derivative of these forms."""

HAVE_FORMS: Final = frozenset(
    op
    for op in ((ACTIVATIONS - {Op.RRELU}) | UNARY | _OF_TWO) - _NO_BACKWARD
    if _method(op) is not None or _function(op) is not None
)
"""The ops of which there is such a form, and that give what they read in the shape of it."""


def written_in_place(edit: Editor, view: View, target: Node, other: Any = None) -> Node:
    """The call of `view`, one of `HAVE_FORMS`, with its result in the memory of `target`.

    Args:
        edit: where the node is made.
        view: of the call, which has a `target` among its operands.
        target: what is written: the first operand, or with `other` the second.
        other: the first operand, where the second is written.
    """
    method = _method(view.op)
    if method is None:
        found = _function(view.op)
        assert found is not None, f"{view.op} has no form that writes its operand"
        function, schema = found
        settings = {p.name: view.operand(p.name, p.default) for p in schema.parameters[1:]}
        return edit.call_function(function, target, **settings)
    operands = {
        name: value
        for name, value in view.arguments.items()
        if name not in _NO_OPERANDS and value is not None and value != _NEUTRAL.get(name)
    }
    if other is not None:
        operands["other"] = other
    return edit.call_method(method, target, **operands)

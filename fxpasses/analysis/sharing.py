"""Whose memory the value of one node may lie in."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch._ops import OpOverload
from torch.fx import Node
from torch.fx.node import map_arg

from fxpasses.core import Effects
from fxpasses.ops import Op, op_of

# Their result may lie in their first operand. That includes what returns its input where it has
# nothing to do: a cast to the same dtype, dropout in evaluation, a shuffle of one group.
_LOOKS_INTO_ITS_INPUT: Final = frozenset(
    {
        Op.IDENTITY,
        Op.VIEW,
        Op.VIEW_AS,
        Op.RESHAPE,
        Op.RESHAPE_AS,
        Op.FLATTEN,
        Op.UNFLATTEN,
        Op.PERMUTE,
        Op.TRANSPOSE,
        Op.T,
        Op.MOVEDIM,
        Op.SQUEEZE,
        Op.UNSQUEEZE,
        Op.EXPAND,
        Op.EXPAND_AS,
        Op.BROADCAST_TO,
        Op.SELECT,
        Op.NARROW,
        Op.SLICE,
        Op.DIAGONAL,
        Op.UNFOLD,
        Op.AS_STRIDED,
        Op.ALIAS,
        Op.DETACH,
        Op.CONTIGUOUS,
        Op.CAST,
        Op.SPLIT,
        Op.CHUNK,
        Op.TENSOR_SPLIT,
        Op.UNBIND,
        Op.GETITEM,
        Op.POSITIVE,
        Op.TENSOR,
        Op.AS_TENSOR,
        Op.DROPOUT,
        Op.FEATURE_DROPOUT,
        Op.ALPHA_DROPOUT,
        Op.FEATURE_ALPHA_DROPOUT,
        Op.STOCHASTIC_DEPTH,
        Op.PIXEL_SHUFFLE,
        Op.PIXEL_UNSHUFFLE,
        Op.CHANNEL_SHUFFLE,
    }
)
_LOOKS_INTO_ANY_OPERAND: Final = frozenset({Op.EINSUM, Op.MESHGRID})
_NO_TENSOR: Final = frozenset({Op.SIZE, Op.RANK, Op.NUMEL, Op.STRIDE, Op.ITEM, Op.ASSERT})
_TENSOR_ATTRIBUTES: Final = frozenset({"data", "grad", "T", "mT", "H", "mH", "real", "imag"})
_INPUT_NAMES: Final = ("input", "self", "tensor", "tensors", "operands", "data")


@dataclass(frozen=True, slots=True)
class Sharing:
    """Where the value of a node may lie."""

    operands: tuple[Node, ...] = ()
    """In the memory of these."""
    callee: bool = False
    """In memory that the called code can get at by itself."""
    is_memory: bool = False
    """Else in memory of its own; False also for what is no tensor."""


_FRESH: Final = Sharing(is_memory=True)
_NOTHING: Final = Sharing()


def sharing_of(node: Node, effects: Effects) -> Sharing:
    """Never too little: what is not known to make a new tensor may return what it was given."""
    if node.op in ("placeholder", "get_attr"):
        return _FRESH
    if node.op == "output":
        return Sharing(tuple(node.all_input_nodes))
    if effects.unknown:
        return Sharing(tuple(node.all_input_nodes), callee=True)
    op = op_of(node)
    if op is Op.GETATTR:
        return _attribute_sharing(node)
    shared = _known_sharing(node, op) if op is not None else _schema_sharing(node)
    if effects.writes:
        return Sharing(tuple(dict.fromkeys((*effects.writes, *shared.operands))), shared.callee)
    return shared


def _known_sharing(node: Node, op: Op) -> Sharing:
    if op in _NO_TENSOR or op is Op.SETITEM:
        return _NOTHING
    if op in _LOOKS_INTO_ANY_OPERAND:
        return _within(node.all_input_nodes)
    return _within(_first_operand(node)) if op in _LOOKS_INTO_ITS_INPUT else _FRESH


def _attribute_sharing(node: Node) -> Sharing:
    name = node.args[1] if len(node.args) > 1 else node.kwargs.get("name")
    return _within(node.all_input_nodes[:1]) if name in _TENSOR_ATTRIBUTES else _NOTHING


def _within(operands: Iterable[Node]) -> Sharing:
    found = tuple(operands)
    return Sharing(found) if found else _FRESH


def _first_operand(node: Node) -> list[Node]:
    named = (node.kwargs[name] for name in _INPUT_NAMES if name in node.kwargs)
    first = node.args[0] if node.args else next(named, None)
    found: list[Node] = []
    map_arg(first, lambda n: (found.append(n), n)[1])
    return found


def _schema_sharing(node: Node) -> Sharing:
    """By the schemas of all overloads of that name; without one, anything may be returned."""
    schemas, is_composite = _schemas(node)
    if not schemas:
        return Sharing(tuple(node.all_input_nodes), callee=True)
    # A composite may end in a view that its schema does not tell of, as `type_as` does.
    if is_composite or any(_is_view(schema) for schema in schemas):
        return _within(node.all_input_nodes)
    return _FRESH


def _is_view(schema: Any) -> bool:
    """Whether it returns an alias; what it returns because it wrote it is in its effects."""
    aliases = (returned.alias_info for returned in schema.returns)
    return any(alias is not None and not alias.is_write for alias in aliases)


def _schemas(node: Node) -> tuple[list[Any], bool]:
    target: Callable[..., Any] | str = node.target
    if isinstance(target, OpOverload):
        return [target._schema], _is_composite(target.name())  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]  torch has no public name
    name = target if isinstance(target, str) else _builtin_name(target)
    if node.op == "call_module" or not name:
        return [], False
    qualified = f"aten::{name}"
    return torch._C._jit_get_schemas_for_operator(qualified), _is_composite(qualified)  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]  torch has no public name


def _builtin_name(function: Callable[..., Any]) -> str | None:
    """The name of a function that torch itself implements; a Python function has no schema."""
    is_builtin = type(function).__name__ in ("builtin_function_or_method", "method_descriptor")
    return getattr(function, "__name__", None) if is_builtin else None


def _is_composite(qualified: str) -> bool:
    try:
        return torch._C._dispatch_has_kernel_for_dispatch_key(  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]  torch has no public name
            qualified, "CompositeImplicitAutograd"
        )
    except RuntimeError:  # no operator of exactly this name: only overloads
        return True

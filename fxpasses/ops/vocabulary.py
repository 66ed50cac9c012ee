"""Which op a node computes."""

from collections.abc import Callable, Mapping
from functools import cache
from types import FunctionType
from typing import Any, Final, TypeVar

from torch import nn
from torch._ops import OpOverload, OpOverloadPacket
from torch.fx import Node

from fxpasses.ops.modules import computes_as, is_plain, kept, module_of
from fxpasses.ops.op import Op
from fxpasses.ops.purity import qualified_name
from fxpasses.ops.schemas import schema_of, schemas_of_function
from fxpasses.ops.sets import BINARY, QUESTIONS, UNITS
from fxpasses.ops.signatures import arguments_of
from fxpasses.ops.spelling import Spellings
from fxpasses.ops.tables import VOCABULARY

_Key = TypeVar("_Key")


def index_by(
    vocabulary: Mapping[Op, Spellings], keys: Callable[[Spellings], tuple[_Key, ...]]
) -> dict[_Key, Op]:
    """The op of each spelling.

    Raises:
        ValueError: two ops claim one spelling.
    """
    index: dict[_Key, Op] = {}
    for op, spellings in vocabulary.items():
        for key in keys(spellings):
            if index.setdefault(key, op) is not op:
                raise ValueError(f"{key} spells both {index[key]} and {op}")
    return index


_BY_MODULE: Final = index_by(VOCABULARY, lambda spellings: spellings.modules)
_BY_CLASS_NAME: Final = index_by(VOCABULARY, lambda spellings: spellings.classes)
_BY_FUNCTION_NAME: Final = index_by(VOCABULARY, lambda spellings: spellings.function_names)
_BY_FUNCTION: Final = index_by(VOCABULARY, lambda spellings: spellings.functions)
_BY_METHOD: Final = index_by(VOCABULARY, lambda spellings: spellings.methods)
_BY_ATEN: Final = index_by(VOCABULARY, lambda spellings: spellings.aten)


def op_of(node: Node) -> Op | None:
    """The op that `node` computes, or None where the vocabulary does not know it.

    A module with hooks, a parametrised one and one whose methods are replaced is not known.
    """
    match node.op:
        case "call_module":
            op = op_of_module(module_of(node))
        case "call_function":
            op = op_of_function(node.target)
        case "call_method":
            op = _BY_METHOD.get(str(node.target))
        case _:
            return None
    refine = _REFINED.get(op) if op is not None else None
    return refine(node) if refine else op


def label_of(node: Node) -> str | None:
    """The name of the op; of a unit, those of all that it computes: `conv+add+relu`."""
    op = op_of(node)
    if op is None or op not in UNITS:
        return op
    unit = module_of(node)
    added = Op.ADD if getattr(unit, "adds", False) else None
    parts = (_bare_layer(op, unit), added, getattr(unit, "activation", None))
    return "+".join(part for part in parts if part)


def op_of_module(module: nn.Module) -> Op | None:
    """The op that a call of `module` computes, or None."""
    op = _op_of_class(type(module))
    return op if op is not None and is_plain(module) else None


def op_of_function(target: Any) -> Op | None:
    """The op that a call of `target` computes as far as its arguments do not matter, or None."""
    if isinstance(target, OpOverload):
        return _op_of_overload(target)
    if isinstance(target, OpOverloadPacket):
        namespace, _, name = str(target).partition(".")
        return _BY_ATEN.get(name) if namespace == "aten" else None
    try:
        op = _BY_FUNCTION.get(target)
    except TypeError:  # what cannot be hashed is in no table
        return None
    if op is None and isinstance(target, FunctionType):
        return _BY_FUNCTION_NAME.get(qualified_name(target))
    return op


def is_number(node: Node) -> bool:
    """Whether the value is sure to be made of sizes: a number, or a tuple of numbers."""
    op = op_of(node)
    if op in QUESTIONS or op is Op.ITEM:
        return True
    is_function = node.op == "call_function"
    of_math = is_function and getattr(node.target, "__module__", None) == "math"
    computed = of_math or op is Op.GETITEM or (op in BINARY and is_function)
    operands = node.all_input_nodes
    return computed and bool(operands) and all(map(is_number, operands))


@kept
def _op_of_class(cls: type[nn.Module]) -> Op | None:
    if base := computes_as(cls, _BY_MODULE):
        return _BY_MODULE[base]
    named = {base: op for base in cls.__mro__ if (op := _BY_CLASS_NAME.get(qualified_name(base)))}
    base = computes_as(cls, named)
    return None if base is None else named[base]


@cache
def _op_of_overload(overload: OpOverload[..., Any]) -> Op | None:
    schema = schema_of(overload)
    namespace, _, name = schema.name.partition("::")
    if namespace != "aten" or not schema.deals_with_tensors:
        return None
    return _BY_ATEN.get(name)


# -- where the arguments decide which op a call is


def _conv(node: Node) -> Op:
    if node.op != "call_function" or not _may_be_transposed(node.target):
        return Op.CONV
    return Op.CONV_TRANSPOSE if arguments_of(node).get("transposed") is True else Op.CONV


@cache
def _may_be_transposed(target: Any) -> bool:
    parameters = (p for schema in schemas_of_function(target) for p in schema.parameters)
    return any(p.name == "transposed" for p in parameters)


def _with_indices(plain: Op, with_indices: Op) -> Callable[[Node], Op]:
    def refine(node: Node) -> Op:
        if node.op == "call_module":
            asked = getattr(module_of(node), "return_indices", False)
        else:
            asked = arguments_of(node).get("return_indices")
        return with_indices if asked else plain

    return refine


def _of_two(reduction: Op, binary: Op) -> Callable[[Node], Op | None]:
    def refine(node: Node) -> Op | None:
        other = arguments_of(node).get("other")
        if isinstance(other, Node) and is_number(other):
            return None  # It may be the axis of a reduction, or be compared with.
        return reduction if other is None else binary

    return refine


def _unit(op: Op) -> Callable[[Node], Op]:
    def refine(node: Node) -> Op:
        unit = module_of(node)
        follows = getattr(unit, "adds", False) or getattr(unit, "activation", None) is not None
        return op if follows else _bare_layer(op, unit)

    return refine


def _bare_layer(op: Op, unit: nn.Module) -> Op:
    if op is Op.LINEAR_UNIT:
        return Op.LINEAR
    return Op.CONV_TRANSPOSE if getattr(unit, "transposed", False) else Op.CONV


def _where(node: Node) -> Op | None:
    return Op.WHERE if len(arguments_of(node)) > 1 else None


def _cast(node: Node) -> Op | None:
    # `x.type()` asks for a name.
    return None if node.target == "type" and len(node.args) + len(node.kwargs) == 1 else Op.CAST


_REFINED: Final[Mapping[Op | None, Callable[[Node], Op | None]]] = {
    Op.CONV: _conv,
    Op.CONV_UNIT: _unit(Op.CONV_UNIT),
    Op.LINEAR_UNIT: _unit(Op.LINEAR_UNIT),
    Op.MAX_POOL: _with_indices(Op.MAX_POOL, Op.MAX_POOL_WITH_INDICES),
    Op.ADAPTIVE_MAX_POOL: _with_indices(Op.ADAPTIVE_MAX_POOL, Op.ADAPTIVE_MAX_POOL_WITH_INDICES),
    Op.FRACTIONAL_MAX_POOL: _with_indices(
        Op.FRACTIONAL_MAX_POOL, Op.FRACTIONAL_MAX_POOL_WITH_INDICES
    ),
    Op.MAX: _of_two(Op.MAX, Op.MAXIMUM),
    Op.MIN: _of_two(Op.MIN, Op.MINIMUM),
    Op.WHERE: _where,
    Op.CAST: _cast,
}

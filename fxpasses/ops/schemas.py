"""What a callable takes: its parameters by name, one schema for each overload."""

import inspect
import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cache
from types import FunctionType
from typing import Any, Final

import torch
import torch.nn.functional as F
from torch import Tensor
from torch._ops import OpOverload, OpOverloadPacket

from fxpasses.ops.modules import kept

MISSING: Final = inspect.Parameter.empty
_ANY: Final = "Any"


@dataclass(frozen=True, slots=True)
class Parameter:
    """One parameter of a call."""

    name: str
    kind: str = _ANY
    """The type as schemas write it, without `Optional`: `Tensor`, `List[int]`, ...; or `Any`."""
    optional: bool = False
    default: Any = MISSING
    keyword_only: bool = False
    written: bool = False
    """Whether the call writes this operand in place."""
    length: int | None = None
    """A list of this many numbers may be given as one number."""
    variadic: bool = False


@dataclass(frozen=True, slots=True)
class Schema:
    """One overload of a callable."""

    name: str
    """With its namespace where it has one: `aten::relu`."""
    parameters: tuple[Parameter, ...]
    returns_tensor: bool = True
    packs: bool = True
    """Whether a last list of numbers may be given as numbers one by one."""

    @property
    def deals_with_tensors(self) -> bool:
        return self.returns_tensor or any("Tensor" in p.kind for p in self.parameters)

    @property
    def is_out_form(self) -> bool:
        """Whether results go into tensors that the caller gives by keyword."""
        return any(p.written and p.keyword_only for p in self.parameters)


# What torch gives no schema for. Methods whose operands are in another order than the function's,
# and casts.
_FORMAT = "MemoryFormat? memory_format=None"
_MOVING = "bool non_blocking=False, bool copy=False"
_PLACE = "ScalarType? dtype=None, Device? device=None, bool pin_memory=False"
_METHODS: Final[Mapping[str, tuple[str, ...]]] = {
    "to": (
        f"(Tensor self, ScalarType dtype, {_MOVING}, *, {_FORMAT}) -> Tensor",
        f"(Tensor self, Device? device=None, ScalarType? dtype=None, {_MOVING}, *, {_FORMAT}) -> Tensor",  # noqa: E501  one schema
        f"(Tensor self, Tensor other, {_MOVING}, *, {_FORMAT}) -> Tensor",
    ),
    **dict.fromkeys(
        (
            *("float", "double", "half", "bfloat16", "int", "long", "short", "char", "byte"),
            *("bool", "cfloat", "cdouble", "cpu"),
        ),
        (f"(Tensor self, *, {_FORMAT}) -> Tensor",),
    ),
    "cuda": (
        f"(Tensor self, Device? device=None, bool non_blocking=False, *, {_FORMAT}) -> Tensor",
    ),
    "type": (
        "(Tensor self, ScalarType dtype, bool non_blocking=False) -> Tensor",
        "(Tensor self, str dtype, bool non_blocking=False) -> Tensor",
        "(Tensor self) -> str",
    ),
    "where": (
        "(Tensor self, Tensor condition, Tensor other) -> Tensor",
        "(Tensor self, Tensor condition, Scalar other) -> Tensor",
    ),
    "nelement": ("(Tensor self) -> int",),
    "ndimension": ("(Tensor self) -> int",),
    "new_tensor": (f"(Tensor self, Any data, *, {_PLACE}) -> Tensor",),
}

_UNARY: Final = frozenset(("neg", "pos", "abs", "invert", "inv", "not", "truth", "index"))
_OPERANDS: Final[Mapping[str, tuple[str, ...]]] = {
    "pow": ("input", "exponent"),
    "getitem": ("input", "index"),
    "setitem": ("input", "index", "value"),
}
_WRITERS: Final = frozenset(("setitem", "delitem"))
_NEVER_IN_PLACE: Final = frozenset(("matmul",))
"""Tensors have no in-place form of these: `a @= b` makes a new tensor."""
_BINARY_DUNDERS: Final = frozenset(
    (
        *("add", "sub", "mul", "div", "truediv", "floordiv", "mod", "pow", "matmul"),
        *("and", "or", "xor", "lshift", "rshift", "eq", "ne", "lt", "le", "gt", "ge"),
        *("getitem", "setitem"),
    )
)
# Some are called otherwise by themselves: `Tensor.__ipow__` is `pow_`.
_DUNDER_METHODS: Final[Mapping[Any, str]] = {
    method: name
    for bare in sorted(_BINARY_DUNDERS | _UNARY)
    for name in (f"__{bare}__", f"__i{bare}__", f"__r{bare}__")
    if (method := getattr(Tensor, name, None)) is not None
}


def _of_data(name: str, **options: Any) -> Schema:
    keywords = (Parameter(key, default=one, keyword_only=True) for key, one in options.items())
    return Schema(name, (Parameter("data"), *keywords))


_BUILTINS: Final[Mapping[Callable[..., Any], Schema]] = {
    getattr: Schema(
        "getattr",
        (Parameter("input"), Parameter("name"), Parameter("default", default=None)),
        False,
    ),
    torch.tensor: _of_data("tensor", dtype=None, device=None, pin_memory=False),
    torch.as_tensor: _of_data("as_tensor", dtype=None, device=None),
    torch.einsum: Schema("einsum", (Parameter("equation"), Parameter("operands", variadic=True))),
}


def schemas_of_function(function: Any) -> tuple[Schema, ...]:
    """Every overload of something that a `call_function` node calls. Empty where unknown."""
    return _of_any_python(function) if isinstance(function, FunctionType) else _of_other(function)


@kept
def _of_any_python(function: FunctionType) -> tuple[Schema, ...]:
    return _schemas_of(function)


@cache
def _of_other(function: Any) -> tuple[Schema, ...]:
    return _schemas_of(function)


def _schemas_of(function: Any) -> tuple[Schema, ...]:
    if isinstance(function, OpOverload):
        return (schema_of(function),)
    if isinstance(function, OpOverloadPacket):
        return tuple(schema_of(getattr(function, name)) for name in function.overloads())
    if schema := _BUILTINS.get(function):
        return (schema,)
    if dunder := _DUNDER_METHODS.get(function):
        return schemas_of_method(dunder)
    name = getattr(function, "__name__", "")
    if getattr(operator, name, None) is function:
        return (_of_operator(name),)
    if getattr(Tensor, name, None) is function:
        return schemas_of_method(name)
    if isinstance(function, FunctionType):
        return _of_python(function)
    return schemas_named(f"aten::{name}") if _is_torch_builtin(function) else ()


@cache
def schemas_of_method(name: str) -> tuple[Schema, ...]:
    """Every overload of a method of tensors; the receiver comes first. Empty where unknown."""
    if own := _METHODS.get(name):
        return tuple(_parsed(name, text) for text in own)
    if (bare := _without_underscores(name)) is not None:
        return (_of_dunder(bare),)
    function = getattr(Tensor, name, None)
    if isinstance(function, FunctionType) and (schemas := _of_python(function)):
        return schemas
    return tuple(
        _receiver_first(schema)
        for schema in schemas_named(f"aten::{name}")
        if not schema.is_out_form and "self" in {p.name for p in schema.parameters}
    )


@cache
def schemas_named(name: str) -> tuple[Schema, ...]:
    """Every registered overload of `namespace::name`."""
    found = torch._C._jit_get_schemas_for_operator(name)  # pyright: ignore[reportPrivateUsage]  # noqa: SLF001  no public name
    return tuple(_read(schema) for schema in found)


@cache
def schema_of(overload: OpOverload[..., Any]) -> Schema:
    return replace(_read(overload._schema), packs=False)  # pyright: ignore[reportPrivateUsage]  # noqa: SLF001  no public name


def _is_torch_builtin(function: Any) -> bool:
    module = getattr(function, "__module__", None) or ""
    return module == "torch" or module.startswith("torch._C")


def _read(schema: Any) -> Schema:
    parameters = tuple(_read_argument(argument) for argument in schema.arguments)
    return Schema(schema.name, parameters, any("Tensor" in str(r.type) for r in schema.returns))


_BY_NUMBER: Final[Mapping[tuple[str, str], Any]] = {
    ("MemoryFormat", "0"): torch.contiguous_format,
    ("MemoryFormat", "1"): torch.preserve_format,
    ("ScalarType", "4"): torch.int64,
}
"""Schemas give defaults of these kinds as torch's internal numbers."""


def _read_argument(argument: Any) -> Parameter:
    kind = str(argument.real_type)
    optional = kind.startswith("Optional[")
    kind = kind.removeprefix("Optional[").removesuffix("]") if optional else kind
    alias = argument.alias_info
    default = argument.default_value if argument.has_default_value() else MISSING
    return Parameter(
        name=argument.name,
        kind=kind,
        optional=optional,
        default=_BY_NUMBER.get((kind, str(default)), default),
        keyword_only=argument.kwarg_only,
        written=alias is not None and alias.is_write,
        length=argument.N,
    )


def _parsed(name: str, text: str) -> Schema:
    return _read(torch._C.parse_schema(f"own::{name}{text}"))  # pyright: ignore[reportPrivateUsage]  # noqa: SLF001  no public name


def _receiver_first(schema: Schema) -> Schema:
    first = [p for p in schema.parameters if p.name == "self"]
    return replace(schema, parameters=(*first, *(p for p in schema.parameters if p.name != "self")))


def _of_python(function: FunctionType) -> tuple[Schema, ...]:
    try:
        signature = inspect.signature(function)
    except ValueError:  # wraps a builtin
        return ()
    if all(p.kind in (p.VAR_POSITIONAL, p.VAR_KEYWORD) for p in signature.parameters.values()):
        # F chooses some implementations by an argument, behind a signature that says nothing.
        chosen = getattr(F, f"_{function.__name__}", None)
        if not isinstance(chosen, FunctionType) or chosen is function:
            return ()
        signature = inspect.signature(chosen)
    parameters = tuple(map(_of_python_parameter, signature.parameters.values()))
    return (Schema(function.__name__, parameters),)


def _of_python_parameter(parameter: inspect.Parameter) -> Parameter:
    return Parameter(
        parameter.name,
        default=parameter.default,
        keyword_only=parameter.kind is parameter.KEYWORD_ONLY,
        variadic=parameter.kind is parameter.VAR_POSITIONAL,
    )


def _of_operator(name: str) -> Schema:
    bare = name.rstrip("_")
    if bare.startswith("i") and bare[1:] in _BINARY_DUNDERS:
        return _of_operands(bare[1:], writes=bare[1:] not in _NEVER_IN_PLACE)
    return _of_operands(bare, writes=bare in _WRITERS)


def _without_underscores(name: str) -> str | None:
    """`radd` of `__radd__`, where it is the method of an operator."""
    if not (name.startswith("__") and name.endswith("__")):
        return None
    bare = name.strip("_")
    known = bare in _UNARY or bare in _BINARY_DUNDERS or bare[1:] in _BINARY_DUNDERS
    return bare if known else None


def _of_dunder(bare: str) -> Schema:
    if bare in _BINARY_DUNDERS or bare in _UNARY:
        return _of_operands(bare, writes=bare in _WRITERS)
    schema = _of_operands(bare[1:], writes=bare[0] == "i")
    if bare[0] == "r":
        return replace(schema, parameters=schema.parameters[::-1])
    return schema


def _of_operands(bare: str, *, writes: bool) -> Schema:
    names = _OPERANDS.get(bare, ("input",) if bare in _UNARY else ("input", "other"))
    first, *others = names
    parameters = (Parameter(first, written=writes), *map(Parameter, others))
    return Schema(bare, parameters)

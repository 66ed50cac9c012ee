"""The operands of a call by name, in whatever spelling, with the defaults filled in.

Names are torch's: `input` for what schemas call `self`, and one name for one operand where the
spellings differ (`other` for the `mat2` of `mm`).
"""

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from operator import itemgetter
from typing import Any, Final, TypeAlias, cast

import torch
from torch import Tensor, nn
from torch.fx import Node

from fxpasses.ops.modules import kept, module_of
from fxpasses.ops.schemas import (
    MISSING,
    Parameter,
    Schema,
    schemas_of_function,
    schemas_of_method,
)

Pickers: TypeAlias = Mapping[str, Callable[[Sequence[Any]], Any]]

# Names that torch takes from NumPy.
_NUMPY: Final[Mapping[str, str]] = {
    **dict.fromkeys(("x", "a", "x1"), "input"),
    "x2": "other",
    "axis": "dim",
    "keepdims": "keepdim",
}
_EVERYWHERE: Final = {"self": "input", "train": "training"}
_SPLIT: Final = {
    "tensor": "input",
    "split_size_or_sections": "split_size",
    "split_sizes": "split_size",
}
_RENAMED: Final[Mapping[str, Mapping[str, str]]] = {
    "rsub": {"self": "other", "other": "input"},
    "embedding": {"indices": "input"},
    "mm": {"mat2": "other"},
    "bmm": {"mat2": "other"},
    "mv": {"vec": "other"},
    "dot": {"tensor": "other"},
    "outer": {"vec2": "other"},
    "ger": {"vec2": "other"},
    "split": _SPLIT,
    "split_with_sizes": _SPLIT,
    "swapaxes": {"axis0": "dim0", "axis1": "dim1"},
    "einsum": {"operands": "tensors"},
    "scalar_tensor": {"s": "data"},
    "reshape": {"shape": "size"},
}
_SILENT: Final = ("requires_grad", "out", "names")
"""Keywords that Python takes besides those of the schema."""


def arguments_of(node: Node) -> Mapping[str, Any]:
    """Operands of a call by name; empty where they cannot be told."""
    return bind(node) or {}


def bind(node: Node) -> dict[str, Any] | None:
    """Operands of a call by name, or None where no known signature fits.

    For a module these are the arguments of `forward`; its settings are attributes.
    """
    if node.op == "call_module":
        if node.graph.owning_module is None:
            return None
        return forward_arguments(module_of(node), node.args, node.kwargs)
    found = choose(schemas_of(node), node.args, node.kwargs)
    return None if found is None else named(*found)


def schemas_of(node: Node) -> tuple[Schema, ...]:
    """Every overload that a function or method call may mean."""
    if node.op == "call_function":
        return schemas_of_function(node.target)
    return schemas_of_method(str(node.target)) if node.op == "call_method" else ()


def forward_arguments(
    module: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> dict[str, Any] | None:
    """The arguments of a module call by the names that `forward` gives them."""
    forms, form = _forms(type(module)), (len(args), *kwargs)
    if form not in forms:
        forms[form] = _pickers(type(module), *form)
    pickers, given = forms[form], (*args, *kwargs.values())
    return None if pickers is None else {name: pick(given) for name, pick in pickers.items()}


@kept
def _forms(cls: type[nn.Module]) -> dict[tuple[Any, ...], Pickers | None]:  # noqa: ARG001  the key
    """What is known of calls of `cls.forward`, by their number of operands and their keywords."""
    return {}


def _pickers(cls: type[nn.Module], count: int, *keywords: str) -> Pickers | None:
    """How each argument of `forward` is found among what is given; None where it does not fit."""
    given = {keyword: count + number for number, keyword in enumerate(keywords)}
    signature = inspect.signature(cls.forward)
    try:
        bound = signature.bind(None, *range(count), **given)
    except TypeError:
        return None
    own, *_ = signature.parameters
    named = {name: _picker(place) for name, place in bound.arguments.items() if name != own}
    bound.apply_defaults()
    defaults = {name: _always(value) for name, value in bound.arguments.items() if name != own}
    return {name: named.get(name, default) for name, default in defaults.items()}


def _picker(place: Any) -> Callable[[Sequence[Any]], Any]:
    if isinstance(place, tuple):
        return lambda given: tuple(given[one] for one in cast("tuple[int, ...]", place))
    if isinstance(place, dict):
        named = cast("dict[str, int]", place)
        return lambda given: {name: given[one] for name, one in named.items()}
    return itemgetter(place)


def _always(value: Any) -> Callable[[Sequence[Any]], Any]:
    return lambda _: value


def choose(
    schemas: Iterable[Schema], args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> tuple[Schema, dict[str, Any]] | None:
    """The overload that a call means, with its arguments by the schema's own names.

    A node counts as a tensor if any overload lets it, else as whatever is asked for; and a number
    as a tensor only if no overload takes a number.
    """
    bound = [
        (schema, arguments)
        for schema in schemas
        if (arguments := bind_schema(schema, args, kwargs)) is not None
    ]
    for strict in (True, False):
        for schema, arguments in bound:
            if _all_fit(schema, arguments, strict=strict):
                return schema, arguments
    return None


def fits_exactly(schema: Schema, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bool:
    """Whether every argument is of the type that the schema says."""
    bound = bind_schema(schema, args, kwargs)
    return bound is not None and _all_fit(schema, bound, strict=True)


def bind_schema(
    schema: Schema, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> dict[str, Any] | None:
    """Arguments by the schema's own names, defaults filled in; None where the call cannot be it."""
    positional = [p for p in schema.parameters if not p.keyword_only]
    args = _packed(positional, args, numbers=schema.packs)
    if len(args) > len(positional):
        return None
    names = {p.name for p in schema.parameters}
    bound = dict(zip((p.name for p in positional), args, strict=False))
    for key, value in kwargs.items():
        name = _own_name(key, names)
        if name is None or name in bound:
            return None
        bound[name] = value
    for parameter in schema.parameters:
        if parameter.name not in bound:
            if parameter.default is MISSING:
                return None
            bound[parameter.name] = parameter.default
    return bound


def _own_name(key: str, names: set[str]) -> str | None:
    """The parameter that a keyword means."""
    if key in names or key in _SILENT:
        return key
    canonical = _NUMPY.get(key, key)
    for name in (canonical, *(old for old, new in _EVERYWHERE.items() if new == canonical)):
        if name in names:
            return name
    return None


def _packed(
    positional: list[Parameter], args: tuple[Any, ...], *, numbers: bool
) -> tuple[Any, ...]:
    """`x.view(2, 3)` as `x.view((2, 3))`, and everything from a variadic parameter on as one."""
    for position, parameter in enumerate(positional):
        rest = args[position:]
        if parameter.variadic:
            given = rest[0] if len(rest) == 1 and isinstance(rest[0], (list, tuple)) else rest
            return (*args[:position], tuple(given))
        if not numbers or parameter.kind != "List[int]" or position + 1 != len(positional):
            continue
        if len(rest) > 1 or (len(rest) == 1 and _is_one_number(rest[0])):
            return (*args[:position], tuple(rest)) if position <= 1 else args
    return args


def _is_one_number(value: Any) -> bool:
    if isinstance(value, Node):
        return not (value.op == "call_method" and value.target == "size" and len(value.args) == 1)
    return isinstance(value, int)


def _all_fit(schema: Schema, arguments: Mapping[str, Any], *, strict: bool) -> bool:
    return all(
        p.name not in arguments
        or arguments[p.name] is p.default
        or _fits(arguments[p.name], p, strict=strict)
        for p in schema.parameters
    )


_KINDS: Final[Mapping[type, frozenset[str]]] = {
    bool: frozenset(("bool", "number")),
    int: frozenset(("int", "float", "number", "complex", "Device")),
    float: frozenset(("float", "number", "complex")),
    complex: frozenset(("complex", "number")),
    str: frozenset(("str", "Device")),
    torch.dtype: frozenset(("ScalarType",)),
    type: frozenset(("ScalarType",)),  # `float`, `int`, `bool`
    torch.device: frozenset(("Device",)),
    torch.layout: frozenset(("Layout",)),
    torch.memory_format: frozenset(("MemoryFormat",)),
    torch.Generator: frozenset(("Generator",)),
}


def _fits(value: Any, parameter: Parameter, *, strict: bool) -> bool:
    kind = parameter.kind
    if kind == "Any":
        return True
    if value is None:
        return parameter.optional
    if isinstance(value, (list, tuple)):
        return _list_fits(value, kind, strict=strict)
    if isinstance(value, int) and not isinstance(value, bool) and parameter.length is not None:
        return kind in ("List[int]", "List[float]")
    return _kind_fits(value, kind, strict=strict)


def _list_fits(values: Iterable[Any], kind: str, *, strict: bool) -> bool:
    if not kind.startswith("List["):
        return False
    element = kind.removeprefix("List[").removesuffix("]")
    optional = element.startswith("Optional[")
    element = element.removeprefix("Optional[").removesuffix("]") if optional else element
    # Nodes among the numbers of a list yield numbers.
    strict = strict and element == "Tensor"
    return all(
        optional if value is None else _kind_fits(value, element, strict=strict) for value in values
    )


def _kind_fits(value: Any, kind: str, *, strict: bool) -> bool:
    if isinstance(value, Node):
        return kind == "Tensor" or not strict
    if isinstance(value, Tensor) or (kind == "Tensor" and not strict):
        return kind == "Tensor" and isinstance(value, (Tensor, int, float, complex))
    return any(isinstance(value, cls) and kind in kinds for cls, kinds in _KINDS.items())


def named(schema: Schema, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Arguments by the names that all spellings share."""
    return {
        canonical_name(schema, name): value
        for name, value in arguments.items()
        if not name.startswith("_")
    }


def canonical_name(schema: Schema, name: str) -> str:
    renamed = _RENAMED.get(schema.name.rpartition("::")[2].rstrip("_"), {})
    return renamed.get(name, _EVERYWHERE.get(name, name))


def with_arguments(
    node: Node, changed: Mapping[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
    """The `args` and `kwargs` of the same function call with some operands changed, by name.

    None where no signature fits, or a changed operand has no place in it.
    """
    if node.op != "call_function":
        return None
    found = choose(schemas_of_function(node.target), node.args, node.kwargs)
    if found is None:
        return None
    args, kwargs = list(node.args), dict(node.kwargs)
    for position, parameter in enumerate(found[0].parameters):
        name = canonical_name(found[0], parameter.name)
        if name not in changed:
            continue
        if position < len(args):
            args[position] = changed[name]
        else:
            kwargs[parameter.name] = changed[name]
    taken = {canonical_name(found[0], p.name) for p in found[0].parameters}
    return (tuple(args), kwargs) if changed.keys() <= taken else None

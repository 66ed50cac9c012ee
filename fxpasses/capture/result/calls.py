"""Functions that stand for calls which generated code cannot spell."""

import operator
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any


def call_method(value: Any, name: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    """Call a method with keywords that are no identifiers (`x.random_(**{"from": 1})`)."""
    return getattr(value, name)(*args, **kwargs)


def attribute(owner: Any, name: str) -> Any:
    """The attribute `name`, whatever its characters."""
    return getattr(owner, name)


def power(base: Any, exponent: Any) -> Any:
    """`base ** exponent` for a negative constant base, whose sign generated code would misplace."""
    return base**exponent


def _assigned(operation: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    def assign(left: Any, right: Any) -> Any:
        return operation(left, right)

    assign.__name__ = assign.__qualname__ = f"assigned_{operation.__name__}"
    return assign


# `a += b` where `a` may be a number: generated code for `operator.iadd` rebinds the name of `a`,
# under which its old value may be read later.
assigned_iadd = _assigned(operator.iadd)
assigned_isub = _assigned(operator.isub)
assigned_imul = _assigned(operator.imul)
assigned_itruediv = _assigned(operator.itruediv)
assigned_ifloordiv = _assigned(operator.ifloordiv)
assigned_imod = _assigned(operator.imod)
assigned_ipow = _assigned(operator.ipow)
assigned_imatmul = _assigned(operator.imatmul)
assigned_iand = _assigned(operator.iand)
assigned_ior = _assigned(operator.ior)
assigned_ixor = _assigned(operator.ixor)
assigned_ilshift = _assigned(operator.ilshift)
assigned_irshift = _assigned(operator.irshift)

IN_PLACE = MappingProxyType(
    {
        operator.iadd: assigned_iadd,
        operator.isub: assigned_isub,
        operator.imul: assigned_imul,
        operator.itruediv: assigned_itruediv,
        operator.ifloordiv: assigned_ifloordiv,
        operator.imod: assigned_imod,
        operator.ipow: assigned_ipow,
        operator.imatmul: assigned_imatmul,
        operator.iand: assigned_iand,
        operator.ior: assigned_ior,
        operator.ixor: assigned_ixor,
        operator.ilshift: assigned_ilshift,
        operator.irshift: assigned_irshift,
    }
)

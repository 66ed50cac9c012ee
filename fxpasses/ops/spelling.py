"""How one op can be written, and the short form in which the tables say it."""

import operator
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Final

import torch
import torch.nn.functional as F
from torch import Tensor, nn

Function = Callable[..., Any]


@dataclass(frozen=True, slots=True)
class Spellings:
    """Every way to write one op. Whether a call writes its input is asked of `effects`."""

    modules: tuple[type[nn.Module], ...] = ()
    classes: tuple[str, ...] = ()
    """Module classes of optional packages, by qualified name."""
    function_names: tuple[str, ...] = ()
    """Functions of optional packages, by qualified name."""
    functions: tuple[Function, ...] = ()
    """The first is the one that the others are compared with."""
    methods: tuple[str, ...] = ()
    aten: tuple[str, ...] = ()
    """Names in `torch.ops.aten`; every overload that deals with tensors counts."""


NN_BUILTINS: Final[Any] = torch._C._nn  # pyright: ignore[reportAttributeAccessIssue, reportPrivateUsage]  # noqa: SLF001  what fx records for much of F has no public name
_NAMESPACES: Final = (torch, F, NN_BUILTINS, Tensor)


def spell(
    *names: str,
    modules: Iterable[type[nn.Module]] = (),
    classes: Iterable[str] = (),
    function_names: Iterable[str] = (),
    functions: Iterable[Function] = (),
    operators: Iterable[str] = (),
    methods: Iterable[str] = (),
    aten: Iterable[str] = (),
) -> Spellings:
    """An op that torch calls by `names`, in every place, with and without a trailing underscore.

    `operators` are names in the module `operator`, with their in-place and reflected methods.
    Names that the installed torch lacks are left out.
    """
    written = [form for name in names for form in (name, f"{name}_")]
    dunders = [form for name in operators for form in _dunders(name)]
    found = [
        *(getattr(place, name, None) for place in _NAMESPACES for name in written),
        *(getattr(operator, name, None) for base in operators for name in _operators(base)),
        *(getattr(Tensor, name, None) for name in dunders),
    ]
    called = [name for name in (*written, *dunders) if _is_function(getattr(Tensor, name, None))]
    return Spellings(
        modules=tuple(modules),
        classes=tuple(classes),
        function_names=tuple(function_names),
        functions=_unique((*functions, *filter(_is_function, found))),
        methods=_unique((*called, *methods)),
        # What every object has, such as `__eq__`, is no operator of aten.
        aten=_unique((*written, *(n for n in dunders if not hasattr(object, n)), *aten)),
    )


def _is_function(value: Any) -> bool:
    return callable(value) and not isinstance(value, type)


def _operators(name: str) -> tuple[str, ...]:
    return name, f"i{name.rstrip('_')}"


def _dunders(name: str) -> tuple[str, ...]:
    bare = name.rstrip("_")
    bases = ("truediv", "div") if bare == "truediv" else (bare,)
    return tuple(f"__{prefix}{base}__" for base in bases for prefix in ("", "i", "r"))


def _unique(items: Iterable[Any]) -> tuple[Any, ...]:
    return tuple(dict.fromkeys(items))

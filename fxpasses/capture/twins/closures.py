"""Functions that hold modules in their closures, and how to build them again over other ones."""

import collections
import functools
import types
from typing import Any, cast

from torch import Tensor, nn

_HOLDERS = (dict, list, tuple, set, frozenset, collections.deque)


def filled_cells(function: types.FunctionType) -> list[Any]:
    """What the closure of `function` holds, without the cells that are still empty."""
    held: list[Any] = []
    for cell in function.__closure__ or ():
        try:
            held.append(cell.cell_contents)
        except ValueError:
            continue
    return held


def rebuilt_function(
    function: types.FunctionType, cells: tuple[types.CellType, ...]
) -> types.FunctionType:
    """`function` again, over other cells; its defaults are shared."""
    made = types.FunctionType(
        function.__code__, function.__globals__, function.__name__, function.__defaults__, cells
    )
    made.__kwdefaults__ = function.__kwdefaults__
    made.__qualname__ = function.__qualname__
    made.__module__ = function.__module__
    made.__doc__ = function.__doc__
    made.__annotations__ = function.__annotations__
    made.__dict__.update(function.__dict__)
    return made


def reaches_module(value: Any, known: dict[int, bool]) -> bool:
    """Whether closures and containers lead from `value` to a module.

    Args:
        value: Where to start.
        known: Answers by `id`, for functions asked for again; filled here.
    """
    if id(value) in known:
        return known[id(value)]
    seen: set[int] = set()
    stack: list[Any] = [value]
    found = False
    while stack and not found:
        item = stack.pop()
        if isinstance(item, nn.Module):
            found = True
        elif id(item) not in seen and not isinstance(item, Tensor):
            seen.add(id(item))
            stack.extend(_held(item))
    known[id(value)] = found
    return found


def _held(value: Any) -> list[Any]:
    if isinstance(value, types.FunctionType):
        defaults = [*(value.__defaults__ or ()), *(value.__kwdefaults__ or {}).values()]
        return [*filled_cells(value), *defaults]
    if isinstance(value, types.MethodType):
        return [value.__self__]
    if isinstance(value, functools.partial):
        return [value.func, *value.args, *value.keywords.values()]
    if isinstance(value, dict):
        return list(cast("dict[Any, Any]", value).values())
    if isinstance(value, _HOLDERS):
        return list(cast("Any", value))
    return []

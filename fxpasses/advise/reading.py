"""The calls that the source of a module's forward makes, and of what it calls of its own."""

import ast
import inspect
from collections.abc import Iterator
from dataclasses import dataclass
from textwrap import dedent
from types import FunctionType, MethodType
from typing import Any, Final

from torch import nn

_MOST_FUNCTIONS: Final = 60


@dataclass(frozen=True, slots=True)
class Written:
    """A call as it is written: `owner.name(...)`."""

    name: str
    owner: str
    source: str
    """`file:line`."""


def calls_written(module: nn.Module) -> Iterator[Written]:
    """Calls in `forward`, in methods of the module and in functions that it calls, in turn.

    Code of torch itself is not read, nor what has no source.
    """
    waiting: list[Any] = [inspect.getattr_static(module, "forward", None)]
    read: set[Any] = set()
    while waiting and len(read) < _MOST_FUNCTIONS:
        function = _plain_function(waiting.pop(0))
        if function is None or function in read or _is_of_torch(function):
            continue
        read.add(function)
        for call, source in _calls(function):
            owner, name = _spelled(call.func)
            yield Written(name, owner, source)
            waiting.append(_called(function, module, owner, name))


def _calls(function: FunctionType) -> Iterator[tuple[ast.Call, str]]:
    try:
        lines, first = inspect.getsourcelines(function)
        tree = ast.parse(dedent("".join(lines)))
    except (OSError, TypeError, SyntaxError):  # made at run time, or not in a file
        return
    file = inspect.getsourcefile(function) or function.__code__.co_filename
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            yield node, f"{file}:{first + _line(node) - 1}"


def _line(call: ast.Call) -> int:
    """Of a chain over several lines, the one with the name."""
    return call.func.end_lineno or call.lineno


def _spelled(target: ast.expr) -> tuple[str, str]:
    if isinstance(target, ast.Attribute):
        owner = target.value.id if isinstance(target.value, ast.Name) else ""
        return owner, target.attr
    return "", target.id if isinstance(target, ast.Name) else ""


def _called(function: FunctionType, module: nn.Module, owner: str, name: str) -> Any:
    """The function of that name that the code means, or None."""
    if owner == "self":
        return inspect.getattr_static(module, name, None)
    if owner:
        return _names_in(function.__globals__.get(owner)).get(name)
    return function.__globals__.get(name)


def _names_in(module: Any) -> dict[str, Any]:
    return vars(module) if inspect.ismodule(module) else {}


def _plain_function(found: Any) -> FunctionType | None:
    if isinstance(found, staticmethod | classmethod):
        found = found.__func__
    if isinstance(found, MethodType):
        found = found.__func__
    found = inspect.unwrap(found) if isinstance(found, FunctionType) else found
    return found if isinstance(found, FunctionType) else None


def _is_of_torch(function: FunctionType) -> bool:
    return (function.__module__ or "").partition(".")[0] == "torch"

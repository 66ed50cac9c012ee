"""Guards of a graph that is traced anew: they stay nodes, and are not asked meanwhile.

The tracer makes guards of its own out of the same functions, so the old ones are called by other
names as long as the trace lasts.
"""

from collections.abc import Callable
from typing import Any, Final

from torch.fx import Graph, GraphModule

from fxpasses.capture import guards


def guard(value: Any, expected: Any) -> None:
    guards.guard(value, expected)


def check_len(values: Any, expected: Any) -> None:
    guards.check_len(values, expected)


def check_unpack(values: Any, expected: Any) -> None:
    guards.check_unpack(values, expected)


def check_structure(value: Any, expected: Any) -> None:
    guards.check_structure(value, expected)


def require_structure(value: Any, expected: Any) -> None:
    guards.require_structure(value, expected)


_STAND_INS: Final[dict[Callable[..., Any], Callable[..., Any]]] = {
    guards.guard: guard,
    guards.check_len: check_len,
    guards.check_unpack: check_unpack,
    guards.check_structure: check_structure,
    guards.require_structure: require_structure,
}
_GUARDS: Final = {stand_in: original for original, stand_in in _STAND_INS.items()}

STAND_INS: Final = tuple(_GUARDS)
"""Functions that the tracer is to leave as they are."""


def hide_guards(module: GraphModule) -> None:
    """Let other functions stand for the guards of a graph that is about to be traced."""
    if _exchange(module.graph, _STAND_INS):
        module.recompile()


def show_guards(graph: Graph) -> None:
    """Put the guards back into what was traced."""
    _exchange(graph, _GUARDS)


def _exchange(graph: Graph, by: dict[Callable[..., Any], Callable[..., Any]]) -> bool:
    found = False
    for node in graph.nodes:
        if node.op == "call_function" and node.target in by:
            node.target = by[node.target]
            found = True
    return found

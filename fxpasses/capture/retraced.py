"""Models that have been captured before: what of the earlier graphs a new trace sees.

Guards of a graph that is traced anew stay nodes, and are not asked meanwhile. The tracer makes
guards of its own out of the same functions, so the old ones are called by other names as long as
the trace lasts.
"""

from collections.abc import Callable, Mapping
from functools import wraps
from typing import Any, Final

from torch import nn
from torch.fx import Graph, GraphModule

from fxpasses.capture.arguments import Arguments
from fxpasses.capture.inside import all_modules, attributes_of
from fxpasses.capture.result import guards
from fxpasses.capture.result.entry import Forward
from fxpasses.capture.result.module import CapturedModule, entry_of, generate_code
from fxpasses.ops import raising


def _stand_in(check: guards.Check) -> guards.Check:
    @raising
    @wraps(check)
    def stand_in(value: Any, expected: Any) -> None:
        check(value, expected)

    stand_in.__module__ = __name__
    return stand_in


_STAND_INS: Final = {check: _stand_in(check) for check in guards.CHECKS}
_GUARDS: Final = {stand_in: original for original, stand_in in _STAND_INS.items()}

STAND_INS: Final = tuple(_GUARDS)
"""Functions that the tracer is to leave as they are."""


def hide_guards(module: GraphModule) -> None:
    """Let other functions stand for the guards of a graph that is about to be traced."""
    if _exchange(module.graph, _STAND_INS):
        module.recompile()
    generate_code(module)  # now, because a forward that makes it is one that changes state


def show_guards(graph: Graph) -> None:
    """Put the guards back into what was traced."""
    _exchange(graph, _GUARDS)


def _exchange(graph: Graph, by: Mapping[Callable[..., Any], Callable[..., Any]]) -> bool:
    found = False
    for node in graph.nodes:
        if node.op == "call_function" and node.target in by:
            node.target = by[node.target]
            found = True
    return found


def bare(root: nn.Module, example: Arguments | None) -> bool:
    """Take the graphs of earlier captures off a twin, so that the model's own code is traced.

    The graph of the root itself is traced where it holds for the example, so that what passes
    have done before is built upon. Returns whether it is.
    """
    before = captured_before(root)
    if before is not None and example is not None:
        entry = entry_of(before)
        entry.transparent = entry.holds_for(example.args, dict(example.kwargs))
        if entry.transparent:
            hide_guards(before)
    transparent = before is not None and entry_of(before).transparent
    for module in all_modules(root):
        forward = attributes_of(module).get("forward")
        if not isinstance(forward, Forward) or (module is root and transparent):
            continue
        if forward.before is None:
            del attributes_of(module)["forward"]
        else:
            attributes_of(module)["forward"] = forward.before
    return transparent


def captured_before(module: nn.Module) -> CapturedModule | None:
    """The captured module that a module is, or that stands in for its forward."""
    if isinstance(module, CapturedModule):
        return module
    forward = attributes_of(module).get("forward")
    serving = forward.serve if isinstance(forward, Forward) else None
    return serving if isinstance(serving, CapturedModule) else None

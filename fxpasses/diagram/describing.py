"""What the box of a node says."""

from typing import Any, Final

from torch.fx import Node

from fxpasses.core import MODULE_STACK, ORIGIN, source_of
from fxpasses.core.described import value_of
from fxpasses.core.plain import installed_place
from fxpasses.diagram.constants import constants_told
from fxpasses.diagram.scene import Badge, Box, Family, Modules, Sign
from fxpasses.ops import (
    ACTIVATIONS,
    MATMULS,
    NORMS,
    POOLS,
    SOFTMAXES,
    UNITS,
    VIEWS,
    Op,
    label_of,
    module_of,
    op_of,
)

_WIDTH: Final = 36
_LAYERS: Final = MATMULS | {
    *UNITS,
    *(Op.CONV, Op.CONV_TRANSPOSE, Op.LINEAR, Op.BILINEAR, Op.EMBEDDING, Op.EMBEDDING_BAG),
}
_FAMILIES: Final = (
    (_LAYERS, Family.LAYER),
    (NORMS, Family.NORM),
    (ACTIVATIONS | SOFTMAXES, Family.ACTIVATION),
    (POOLS, Family.POOL),
    (VIEWS, Family.VIEW),
)


def box_of(node: Node, sign: Sign, *, badges: tuple[Badge, ...] = ()) -> Box:
    """The box of one node; `badges` tell the constants that it reads."""
    op = _known_op(node)
    path = modules_of(node)
    return Box(
        title=_cut(_title(node, op)),
        name=_cut(_short_name(node, path)),
        value=_cut(value_of(node)),
        notes=tuple(_notes(node)),
        sign=sign,
        family=_family(node, op),
        modules=path,
        badges=badges,
    )


def modules_of(node: Node) -> Modules:
    """The modules around a node, without one that the node itself is the call of."""
    stack: dict[str, tuple[str, Any]] = node.meta.get(MODULE_STACK) or {}
    around = [(path, _class_name(kind)) for path, kind in stack.values() if path]
    if node.op == "call_module" and around:
        around.pop()
    if not stack and node.op == "call_module":
        parts = str(node.target).split(".")[:-1]
        around = [(".".join(parts[: n + 1]), "") for n in range(len(parts))]
    return tuple(around)


def origin_of(node: Node) -> tuple[str, ...]:
    """The pass that made the node, and the nodes that it stands for; empty where none did."""
    origin = node.meta.get(ORIGIN)
    return tuple(map(str, origin)) if isinstance(origin, tuple) else ()


def _known_op(node: Node) -> Op | None:
    try:
        return op_of(node)
    except (AttributeError, AssertionError):  # a graph that is broken can be drawn, too
        return None


def _title(node: Node, op: Op | None) -> str:
    return (label_of(node) if op in UNITS else op) or _called(node)


def _called(node: Node) -> str:
    if node.op == "placeholder":
        return "input"
    if node.op == "get_attr":
        return "constant"
    if node.op == "call_function":
        return str(getattr(node.target, "__name__", node.target))
    if node.op == "call_module":
        try:
            return type(module_of(node)).__name__
        except (AttributeError, AssertionError):
            return "missing module"
    return str(node.target)


def _family(node: Node, op: Op | None) -> Family:
    if node.op in ("placeholder", "output"):
        return Family.BORDER
    if node.op == "get_attr":
        return Family.CONSTANT
    if op is None:
        return Family.OPAQUE if node.op == "call_module" else Family.OTHER
    return next((family for ops, family in _FAMILIES if op in ops), Family.OTHER)


def _short_name(node: Node, path: Modules) -> str:
    """The name of the module that is called, inside of those around it; else the node's own."""
    if node.op != "call_module":
        return node.name
    target = str(node.target)
    around = f"{path[-1][0]}." if path else ""
    return target.removeprefix(around)


def _notes(node: Node) -> list[str]:
    notes = [f"{node.op} {node.name} = {_target(node)}"]
    constants = [one for one in node.all_input_nodes if one.op == "get_attr"]
    notes += constants_told(node, constants)
    if source := source_of(node):
        notes.append(installed_place(str(source)))
    if origin := origin_of(node):
        by, *old = origin
        notes.append(f"made by {by}" + (f" of {', '.join(old)}" if old else ""))
    return notes


def _target(node: Node) -> str:
    return node.target if isinstance(node.target, str) else _called(node)


def _class_name(kind: Any) -> str:
    return kind.__name__ if isinstance(kind, type) else str(kind).rpartition(".")[2]


def _cut(text: str) -> str:
    return text if len(text) <= _WIDTH else f"{text[: _WIDTH - 3]}..."

"""Put other activations in the place of some, by request.

    relu(x)  ->  silu(x)

The result is another function, to be trained or tuned further.
"""

import inspect
from collections.abc import Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from fnmatch import fnmatchcase
from typing import Any, ClassVar, Final

from torch import nn
from torch.fx import Node

from fxpasses.core import MODULE_STACK, Condition, Editor, Facts, Numerics, Rewrite
from fxpasses.ops import ACTIVATIONS, VOCABULARY, Op
from fxpasses.views import Activation

_CHANGES_SHAPE: Final = frozenset({Op.GLU})
_NEEDS_WEIGHTS: Final = frozenset({Op.PRELU})
_IN_PLACE: Final = "inplace"


def _names() -> dict[str, Op]:
    found: dict[str, Op] = {}
    for op in ACTIVATIONS - _CHANGES_SHAPE:
        classes = (cls.__name__.lower() for cls in VOCABULARY[op].modules)
        found.update(dict.fromkeys((str(op), *classes), op))
    return found


NAMES: Final[Mapping[str, Op]] = _names()
"""Every name that an activation goes by, in small letters: of the op and of torch's class."""


@dataclass(frozen=True, slots=True)
class Site:
    """A call of an activation, and what is to take its place."""

    old: Activation
    new: nn.Module
    """Has the options that the new one was given."""
    writes: bool
    """Whether the old one writes its input, and something sees that."""


def input_is_a_float(site: Site, facts: Facts) -> str | None:
    """Relu and a few others take integers, most do not."""
    dtype = facts.dtype(site.old.node)
    is_other = dtype is not None and not dtype.is_floating_point
    return f"it computes {dtype}, and few activations do" if is_other else None


class SwapActivation(Rewrite[Site]):
    """Put other activations in the place of some, in every spelling, by request.

    An activation that wrote its input in place still does, where something sees it.
    """

    name = "swap_activation"
    numerics = Numerics.MEANING
    trains = True
    legal_if = (input_is_a_float,)
    remedies: ClassVar[Mapping[Condition[Any], str]] = {
        input_is_a_float: "cast the input to a floating-point dtype first, if it is to be swapped",
    }

    mapping: Mapping[str, Any]
    """From an activation to another: `{"relu": "gelu"}`, with options of the new one
    `{"relu": {"gelu": {"approximate": "tanh"}}}`. Names are those of torch's functions or
    classes."""
    within: tuple[str, ...] = ("*",)
    """Patterns of module paths in which to swap: `("encoder.*",)`."""

    def __post_init__(self) -> None:
        if not self.mapping:
            raise ValueError('mapping is empty: pass one such as {"relu": "gelu"}')
        for old, new in self.mapping.items():
            _op_named(old)
            _made(new)

    def match(self, node: Node, facts: Facts) -> Site | None:
        old = Activation.at(node)
        wanted = None if old is None else self._wanted(old.op)
        if old is None or wanted is None or not self._is_within(node):
            return None
        new = _made(wanted)
        return None if _is_already(old, new) else Site(old, new, _is_seen(old, facts))

    def _wanted(self, op: Op) -> Any:
        return next((new for old, new in self.mapping.items() if _op_named(old) is op), None)

    def _is_within(self, node: Node) -> bool:
        path = _path_of(node)
        return any(fnmatchcase(path, pattern) for pattern in self.within)

    def why(self, site: Site) -> str:
        return f"{site.old.op} becomes {type(site.new).__name__}, as asked for"

    def rewrite(self, site: Site, edit: Editor) -> None:
        old, new, value = site.old, site.new, site.old.input
        has_own_form = hasattr(new, _IN_PLACE)
        if site.writes and has_own_form:
            setattr(new, _IN_PLACE, True)
        elif site.writes:
            # Autograd needs the input of many activations as it was.
            value = edit.call_method("clone", value)
        is_called = old.module is not None
        near = str(old.node.target) if is_called else str(_op_named(type(new).__name__))
        new.train(edit.module.training)
        result = edit.call_module(new, near, value)
        if site.writes and not has_own_form:
            result = edit.call_method("copy_", old.input, result)
        edit.replace(old.node, result)


def _op_named(name: object) -> Op:
    known = NAMES.get(str(name).rpartition(".")[2].lower())
    if known is None:
        near = get_close_matches(str(name).lower(), NAMES, 1)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        raise ValueError(f"{name!r} is no activation that can be swapped{hint}")
    return known


def _made(wanted: Any) -> nn.Module:
    """The activation that one side of the mapping means, with its options."""
    options: Mapping[str, Any] = {}
    name: Any = wanted
    if isinstance(wanted, Mapping):
        if len(wanted) != 1:
            raise ValueError(f'{wanted!r}: pass one activation, {{"gelu": {{"approximate": ...}}}}')
        ((name, options),) = wanted.items()
    op = _op_named(name)
    if op in _NEEDS_WEIGHTS:
        raise ValueError(f"{name} has weights, which a swap does not make")
    kind = VOCABULARY[op].modules[0]
    try:
        return kind(**options)
    except TypeError as error:
        raise ValueError(f"{name} does not take {dict(options)}: {error}") from error


def _is_already(old: Activation, new: nn.Module) -> bool:
    """Whether a call computes what is asked for, with the same options."""
    if old.op is not _op_named(type(new).__name__):
        return False
    options = set(inspect.signature(type(new)).parameters) - {_IN_PLACE}
    return all(old.operand(name) == getattr(new, name) for name in options)


def _path_of(node: Node) -> str:
    """The path of the module that is called, or of the one whose forward calls the function."""
    if node.op == "call_module":
        return str(node.target)
    stack = node.meta.get(MODULE_STACK) or {}
    *_, (path, _kind) = stack.values() or [("", None)]
    return str(path)


def _is_seen(old: Activation, facts: Facts) -> bool:
    """Whether the input is written, and that is seen by another way than through the result."""
    value = old.input
    if value not in facts.effects(old.node).writes:
        return False
    nodes = list(old.node.graph.nodes)
    outside = (node for node in nodes if node.op in ("placeholder", "get_attr"))
    if any(facts.may_alias(node, value) for node in outside):
        return True
    through = {old.node}
    for node in nodes[nodes.index(old.node) + 1 :]:
        operands = node.all_input_nodes
        others = [operand for operand in operands if operand not in through]
        if any(facts.may_alias(operand, value) for operand in others):
            return True
        if len(others) < len(operands):
            through.add(node)
    return False

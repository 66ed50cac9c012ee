"""Records operations as nodes while the example runs along."""

import operator
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from typing import Any, Final

import torch
from torch import Tensor, nn
from torch.fx import Graph, Node
from torch.fx.node import map_arg

from fxpasses.capture.calls import IN_PLACE, attribute, call_method, power
from fxpasses.capture.encoding import Encoder
from fxpasses.capture.guards import check_len, check_unpack, guard
from fxpasses.capture.internals import (
    ScriptMethod,
    erase_behind,
    is_erased,
    reserve_name,
    set_grad_enabled,
    torch_state,
)
from fxpasses.capture.memory import Memory
from fxpasses.capture.names import is_identifier
from fxpasses.capture.paths import Paths
from fxpasses.capture.proxies import (
    VALUE_TYPES,
    Attribute,
    Made,
    Shape,
    Size,
    Value,
    count_unpacked_next,
    find_value,
)
from fxpasses.capture.refusal import Refusal, here
from fxpasses.capture.request import OpaqueKind, Request
from fxpasses.capture.structures import (
    children_of,
    element,
    has_tensor,
    is_record,
    rebuilt,
)
from fxpasses.capture.values import (
    EXPLICIT_RANK,
    FIXED_METHODS,
    LOOSE_LENGTH,
    LOOSE_RANK,
    REFUSED_METHODS,
    RESHAPES_IN_PLACE,
    SIZE_METHODS,
    UNKNOWN,
    Taint,
    is_surely_tensor,
    mark_known,
    name_of,
)
from fxpasses.capture.watch import first_difference
from fxpasses.core.values import MODULE_STACK, SOURCE, STANDS_FOR

# Functions of no tensor whose effect or answer is Python's, not the graph's.
_NATIVE: Final = frozenset(
    [
        "_set_grad_enabled",
        "get_default_dtype",
        "get_rng_state",
        "_record_function_enter_new",
        "_record_function_exit",
        "__set__",
        "get_device_module",
        "set_default_dtype",
    ]
)
# Questions about real tensors that Python may decide on for good: weights keep their shapes.
_ABOUT_CONSTANTS: Final = (
    SIZE_METHODS
    | FIXED_METHODS
    | frozenset(
        ["__repr__", "__format__", "__str__", "__hash__", "__dir__", "is_same_size", "is_tensor"]
    )
)
_DECISIONS: Final = frozenset(
    [
        "__bool__",
        "__int__",
        "__float__",
        "__index__",
        "__complex__",
        "__contains__",
        "__deepcopy__",
        "__reduce_ex__",
        "requires_grad_",
        "backward",
    ]
)
_COMPARES: Final = frozenset(
    getattr(operator, name)
    for name in ["add", "sub", "mul", "truediv", "eq", "ne", "lt", "gt", "le", "ge"]
)
_WHOLES_KEPT: Final = 64  # each keeps the example's values alive


class Outcome:
    """What came of running one operation on the example."""

    __slots__ = ("known", "loose", "numbers", "taint")

    def __init__(self, known: Any, taint: Taint, numbers: Taint, *, loose: bool) -> None:
        self.known = known
        self.taint = taint  # of the sizes of its tensors
        self.numbers = numbers  # of all that is no tensor
        self.loose = loose


class _Operands:
    """The example's values of a call's operands, and what they depend on."""

    def __init__(self, memory: Memory) -> None:
        self._memory = memory
        self.is_known = True
        self.tensors = self.numbers = Taint.FIXED
        self.loose = self.has_tensor = False

    def plain(self, value: Any) -> Any:
        kind = type(value)
        if kind in VALUE_TYPES:
            return self._value(value)
        if kind is tuple or kind is Shape:
            items = [self.plain(item) for item in value]
            return torch.Size(items) if kind is Shape and UNKNOWN not in items else tuple(items)
        if kind is slice:
            return slice(self.plain(value.start), self.plain(value.stop), self.plain(value.step))
        if isinstance(value, Tensor):
            self.has_tensor = True
            return self._memory.copy_of(value) if self._memory.has_copy(value) else value
        children = dict(children_of(value))
        if not children and kind not in (list, dict):
            return value
        return rebuilt(value, {key: self.plain(item) for key, item in children.items()})

    def _value(self, value: Value) -> Any:
        known = value.known
        if known is UNKNOWN:
            self.is_known = False
        if isinstance(known, Tensor):
            self.has_tensor = True
            self.tensors = max(self.tensors, value.taint)
            self.loose = self.loose or value.loose
        else:
            self.numbers = max(self.numbers, value.taint)
        return known


class Recorder:
    """Builds the graph: every operation of the model becomes a node, run on the example at once."""

    def __init__(self, request: Request, paths: Paths) -> None:
        self.request = request
        self.graph = Graph()
        # A node of this name would hide the module in generated code.
        reserve_name(self.graph, "self")
        self.paths = paths
        self.memory = Memory()
        self.evaluating = 0
        self.sizes_from_data = self.squeezed = False
        self.has_example = request.args is not None
        self.uses_guards = self.has_example and request.sizes == "guards"
        self.guards = 0
        self.reads_grad_mode = self.reads_device = False
        self.refusals: list[Refusal] = []
        self.notes: dict[str, None] = {}
        self.constants: list[tuple[str, Tensor]] = []
        self.module_stack: dict[str, tuple[str, Any]] = {}
        self.stack_meta: dict[str, tuple[str, Any]] | None = None
        self.region = torch_state()
        self._encoder = Encoder(self)
        self._tensors: dict[int, tuple[Tensor, Made]] = {}
        self._wholes: dict[int, tuple[Any, Value]] = {}
        self._guarded: dict[Node, Any] = {}

    # -- refusing and noting

    def refuse(self, kind: OpaqueKind, reason: str) -> Refusal:
        """A refusal to raise. It is remembered, in case the model's code catches it."""
        refusal = Refusal(kind, reason, here())
        self.refusals.append(refusal)
        return refusal

    @contextmanager
    def quiet(self) -> Generator[None]:
        """What runs in this block is ours: it is not recorded."""
        self.evaluating += 1
        try:
            yield
        finally:
            self.evaluating -= 1

    def note(self, text: str) -> None:
        self.notes[text] = None

    # -- nodes

    def create_node(
        self, op: str, target: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> Node:
        """Add a node for encoded arguments, with its source and place in the model."""
        if op not in ("placeholder", "output"):
            self._check_region()
            map_arg((args, kwargs), self._check_alive)
        name = None if isinstance(target, str) else _node_name(target)
        node = self.graph.create_node(op, target, args, dict(kwargs), name)
        meta = node.meta
        meta[STANDS_FOR] = node.name
        source = here()
        if source is not None:
            meta[SOURCE] = source
        if self.module_stack:
            if self.stack_meta is None:
                self.stack_meta = dict(self.module_stack)
            meta[MODULE_STACK] = self.stack_meta
        return node

    def _check_region(self) -> None:
        now = torch_state()
        if now != self.region:
            what = first_difference(now, self.region)
            raise self.refuse(OpaqueKind.REGION, f"{what} changes inside forward")

    def _check_alive(self, node: Node) -> Node:
        if is_erased(node):
            reason = "uses a value that was made inside an opaque module"
            raise self.refuse(OpaqueKind.UNTRACEABLE_VALUE, reason)
        return node

    def make_node(self, op: str, target: Any, args: tuple[Any, ...]) -> Node:
        return self.create_node(op, target, tuple(map(self.argument, args)), {})

    def argument(self, value: Any) -> Any:
        return self._encoder.encode(value)

    def output_argument(self, value: Any) -> Any:
        return self._encoder.output(value)

    def note_value(self, node: Node, value: object, *, rank_is_fixed: bool) -> None:
        if value is not UNKNOWN:
            with self.quiet():
                mark_known(node, value, rank_is_fixed=rank_is_fixed)

    def record(self, op: str, target: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """Record one operation on what the model passes to it; returns what the model gets."""
        if self.evaluating:
            raise Refusal(OpaqueKind.PYTHON_STATE, "a traced value in Python state")
        if not self.has_example:
            self._check_write(op, target, args)
        op, target, args, kwargs = _spellable(op, target, args, kwargs, self)
        encode = self._encoder
        node = self.create_node(
            op, target, tuple(map(encode.encode, args)), encode.keywords(kwargs)
        )
        if not self.has_example:
            return self._unknown(node, args)
        outcome = self.evaluate(target, lambda: _runner(op, target), args, kwargs)
        return self.give(node, outcome)

    def _check_write(self, op: str, target: Any, args: tuple[Any, ...]) -> None:
        """Without an example, a write to a parameter shows only in the name of the method."""
        name = name_of(target)
        owner = args[0] if args else UNKNOWN
        is_method = op == "call_method" and name.endswith("_") and not name.endswith("__")
        is_write = is_method or (op == "call_function" and target in IN_PLACE)
        if is_write and isinstance(owner, Value) and self.memory.is_parameter(owner.known):
            raise self.refuse(OpaqueKind.WRITES_PARAMETER, "writes a parameter in place")

    def _unknown(self, node: Node, args: tuple[Any, ...]) -> Made:
        made = Made(node, self, UNKNOWN, Taint.DATA)
        sure = tuple(arg.is_tensor for arg in args if type(arg) in VALUE_TYPES)
        made.is_tensor = is_surely_tensor(node.op, node.target, sure)
        return made

    # -- running along

    def evaluate(
        self, target: Any, runner: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> Outcome:
        """Run an operation on the example's values."""
        operands = _Operands(self.memory)
        plain_args = operands.plain(args)
        plain_kwargs = {name: operands.plain(value) for name, value in kwargs.items()}
        if not operands.is_known:
            return Outcome(UNKNOWN, Taint.DATA, Taint.DATA, loose=True)
        self.sizes_from_data = self.squeezed = False
        known = self._run(runner(), plain_args, plain_kwargs)
        return self._classified(target, known, operands)

    def _run(self, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        grad_mode = self.region[0]
        self.evaluating += 1
        set_grad_enabled(False)
        try:
            return function(*args, **kwargs)
        except Refusal as refusal:
            self.refusals.append(refusal)
            raise
        except Exception as error:
            raise self.refuse(
                OpaqueKind.ERROR, f"{type(error).__name__}: {_first_line(error)}"
            ) from error
        finally:
            set_grad_enabled(grad_mode)
            self.evaluating -= 1

    def _classified(self, target: Any, known: Any, operands: _Operands) -> Outcome:
        name = name_of(target)
        sizes = operands.tensors
        if target not in _COMPARES:
            sizes = max(sizes, operands.numbers)
        if self.sizes_from_data:
            sizes = Taint.DATA
        numbers = Taint.DATA if operands.has_tensor else operands.numbers
        loose = operands.loose and name not in EXPLICIT_RANK
        if sizes is not Taint.FIXED and (name in LOOSE_RANK or self._may_squeeze(target)):
            loose = True
        return Outcome(known, sizes, numbers, loose=loose)

    def _may_squeeze(self, target: Any) -> bool:
        """Whether a function that is not torch's own has dropped dimensions of size one."""
        home = getattr(target, "__module__", None) or "torch"
        return self.squeezed and not home.startswith(("torch", "_operator", "math"))

    # -- results

    def give(self, node: Node, outcome: Outcome) -> Any:
        """What the model gets for a node: a value, or a structure of values."""
        known = outcome.known
        is_tensor = isinstance(known, Tensor)
        taint = outcome.taint if is_tensor else outcome.numbers
        made = Made(node, self, known, taint, loose=outcome.loose and is_tensor)
        self.note_value(node, known, rank_is_fixed=not outcome.loose)
        if is_tensor or known is UNKNOWN:
            return made
        if known is None or type(known) is str:
            return known
        is_structure = isinstance(known, dict) or is_record(known)
        if is_structure or has_tensor(known):
            self._check_length(made, outcome)
            return self.spread(made, known, outcome)
        is_number = isinstance(known, (bool, int, float, torch.dtype))
        if not is_number or taint is not Taint.FIXED:
            return made
        self.reads_device = True  # the comparison of two devices, for all we know
        return known

    def spread(self, root: Value, container: Any, outcome: Outcome) -> Any:
        """The container that `root` stands for, with lazy values for what it holds."""
        items: dict[Any, Any] = {}
        for key, item in children_of(container):
            is_tensor = isinstance(item, Tensor)
            taint = outcome.taint if is_tensor else outcome.numbers
            loose = outcome.loose and is_tensor
            lazy = element(root, key, item, taint, loose=loose, container=container)
            is_constant = item is None or type(item) is str
            is_nested = any(True for _ in children_of(item))
            items[key] = (
                item if is_constant else self.spread(lazy, item, outcome) if is_nested else lazy
            )
        if not items:
            return container
        spread = rebuilt(container, items)
        if isinstance(spread, tuple):
            self._wholes[id(spread)] = (spread, root)
            if len(self._wholes) > _WHOLES_KEPT:
                del self._wholes[next(iter(self._wholes))]
        return spread

    def whole(self, container: Any) -> Node | None:
        """The node that returned exactly this tuple, if one did."""
        found = self._wholes.get(id(container))
        return None if found is None or found[0] is not container else found[1].node

    def _check_length(self, made: Made, outcome: Outcome) -> None:
        """Of how many parts a split returns: check it where that depends on sizes."""
        node = made.node
        is_loose = name_of(node.target) in LOOSE_LENGTH and outcome.taint is not Taint.FIXED
        has_list = len(node.args) > 1 and isinstance(node.args[1], (list, tuple))
        if not is_loose or has_list:
            return
        count = len(made.known)
        if count_unpacked_next() == count:
            self.create_node("call_function", check_unpack, (node, count), {})
        else:
            self.add_guard(check_len, (node, count))

    # -- decisions

    def decide(self, value: Value, question: str) -> Any:
        """The value that Python may decide on, guarded where it depends on sizes."""
        known, taint = value.known, value.taint
        may_decide = known is not UNKNOWN and not isinstance(known, Tensor)
        if may_decide and taint is Taint.FIXED:
            return known
        if not may_decide or taint is Taint.DATA or not self.uses_guards:
            raise self.refuse(OpaqueKind.CONTROL_FLOW, question)
        node = value.node
        if node not in self._guarded:
            self.add_guard(guard, (node, self.argument(known)))
            self._guarded[node] = known
        return known

    def add_guard(self, check: Any, args: tuple[Any, ...]) -> None:
        if self.memory.effect:
            reason = f"depends on a size after {self.memory.effect}"
            raise self.refuse(OpaqueKind.GUARD_AFTER_EFFECT, reason)
        self.create_node("call_function", check, args, {})
        self.guards += 1

    def guard_after(self, reason: str) -> None:
        """From here on, running the module's own code again would repeat something."""
        self.memory.effect = self.memory.effect or reason

    # -- tensors that are no proxies

    def lift(self, tensor: Tensor) -> Made:
        """The value of a real tensor: a parameter, a buffer, a constant."""
        found = self._tensors.get(id(tensor))
        if found is not None and not is_erased(found[1].node):
            return found[1]
        made = self._lifted(tensor)
        self._tensors[id(tensor)] = (tensor, made)
        return made

    def _lifted(self, tensor: Tensor) -> Made:
        is_parameter = isinstance(tensor, nn.Parameter)
        if self.paths.has_tensor(tensor):
            target = self.paths.tensor_target(tensor)
            known = self._detached(tensor) if is_parameter else self._copy(tensor)
            if target is not None:
                return self._constant(self.create_node("get_attr", target, (), {}), known)
            return self._constant(self._by_owner(tensor), known)
        name = f"_constant{len(self.constants)}"
        while hasattr(self.request.root, name):
            name += "_"
        is_made_here = self.memory.is_made_here(tensor)
        self.constants.append((name, tensor))
        node = self.create_node("get_attr", name, (), {})
        if is_made_here:  # eager makes it anew at each call
            node = self.create_node("call_method", "clone", (node,), {})
        return self._constant(node, self._copy(tensor))

    def _by_owner(self, tensor: Tensor) -> Node:
        owner, name = self.paths.owner_of(tensor)
        if owner is self.request.root:
            reason = "has a tensor whose name generated code cannot hold"
            raise self.refuse(OpaqueKind.UNTRACEABLE_VALUE, reason)
        node = self.create_node("get_attr", self.paths.target(owner), (), {})
        return self.create_node("call_function", attribute, (node, name), {})

    def _constant(self, node: Node, known: Tensor) -> Made:
        made = Made(node, self, known, Taint.FIXED)
        self.note_value(node, known, rank_is_fixed=True)
        return made

    def _copy(self, tensor: Tensor) -> Tensor:
        return self.memory.copy_of(tensor) if self.has_example else self._detached(tensor)

    def _detached(self, tensor: Tensor) -> Tensor:
        with self.quiet():
            return tensor.detach()

    def known_of(self, value: Any) -> Any:
        """The example's values in place of traced ones."""
        return _Operands(self.memory).plain(value)

    def copied(self, leaf: Any) -> Any:
        """The run along's own copy of an input."""
        return self.memory.copy_of(leaf) if isinstance(leaf, Tensor) else leaf

    def made_from_memory(self, tensor: Any) -> None:
        self.memory.adopt(tensor)

    def replace_known(self, old: Tensor, new: Tensor) -> None:
        """The example's value of a parameter is another tensor from now on."""
        found = self._tensors.get(id(old))
        if found is not None:
            found[1].known = self._detached(new)

    # -- what torch calls

    def torch_function(
        self, function: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> Any:
        """A torch function or method that the model calls, with traced values or without."""
        if self.evaluating:
            raise Refusal(OpaqueKind.PYTHON_STATE, "a traced value in Python state")
        name: str = getattr(function, "__name__", "")
        if isinstance(function, ScriptMethod):
            raise self.refuse(OpaqueKind.COMPILED, "calls a TorchScript method")
        if find_value((args, kwargs)) is None:
            if _runs_natively(function, name, args):
                self.reads_grad_mode |= name == "_set_grad_enabled"
                return function(*args, **kwargs)
            if name in _DECISIONS:
                raise self.refuse(OpaqueKind.CONTROL_FLOW, f"{name} of a tensor of the model")
        if torch.overrides.is_tensor_method_or_property(function):
            return self._method(function, name, args, kwargs)
        return self.record("call_function", function, args, kwargs)

    def _method(
        self, function: Any, name: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> Any:
        owner = args[0] if args else UNKNOWN
        if name in ("__get__", "__set__", "__delete__"):
            return self._property(function, name, owner)
        if name.startswith("__") and name.endswith("__"):
            return self._special(name, args, kwargs)
        if isinstance(owner, (Value, Tensor)):
            value = owner if isinstance(owner, Value) else self.lift(owner)
            return self.call_tensor_method(value, name, args[1:], kwargs)
        return self.record("call_method", name, args, kwargs)

    def _property(self, function: Any, name: str, owner: Any) -> Any:
        attribute_name: str = function.__self__.__name__
        if name != "__get__":
            reason = f"sets .{attribute_name} of a tensor"
            raise self.refuse(OpaqueKind.UNTRACEABLE_VALUE, reason)
        return getattr(owner if isinstance(owner, Value) else self.lift(owner), attribute_name)

    def _special(self, name: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """`Tensor.__getitem__` and its kin, in the spelling of an operator."""
        bare = name.strip("_")
        if name == "__iter__":
            return iter(self.record("call_method", "unbind", (args[0], 0), {}))
        if hasattr(operator, bare) and not kwargs:
            return self.record("call_function", getattr(operator, bare), args, {})
        if bare[:1] == "r" and hasattr(operator, bare[1:]) and len(args) == 2:
            swapped = (args[1], args[0])
            return self.record("call_function", getattr(operator, bare[1:]), swapped, {})
        raise self.refuse(OpaqueKind.UNTRACEABLE_VALUE, f"calls {name} of a tensor")

    def call_tensor_method(
        self, value: Value, name: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> Any:
        """A method of a tensor: questions are answered or become sizes, the rest is a node."""
        if name in REFUSED_METHODS:
            raise self.refuse(OpaqueKind.UNTRACEABLE_VALUE, f"calls .{name}()")
        if name in RESHAPES_IN_PLACE:
            reason = f"changes a shape in place by .{name}()"
            raise self.refuse(OpaqueKind.UNTRACEABLE_VALUE, reason)
        known = value.known
        if not isinstance(known, Tensor) or name not in SIZE_METHODS:
            return self.record("call_method", name, (value, *args), kwargs)
        return self._question(value, known, name, args, kwargs)

    def _question(
        self,
        value: Value,
        known: Tensor,
        name: str,
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
    ) -> Any:
        if value.taint is Taint.FIXED and not value.loose:
            return self._ask(known, name, args, kwargs)
        if name in ("dim", "ndimension") and not value.loose:
            return known.dim()
        if name == "size" and not value.loose:
            return _size(value, known, *args, **kwargs)
        node = self.make_node("call_method", name, (value, *args))
        answer = self._ask(known, name, args, kwargs)
        self.note_value(node, answer, rank_is_fixed=True)
        return Made(node, self, answer, max(value.taint, Taint.SIZE))

    def _ask(
        self, known: Tensor, name: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> Any:
        with self.quiet():
            return getattr(known, name)(*args, **kwargs)

    def in_place(self, operation: Any, left: Value, right: Any) -> Any:
        """`left += right` and its kin: only a tensor is changed in place."""
        if isinstance(left.known, Tensor) or left.is_tensor:
            return self.record("call_function", operation, (left, right), {})
        if left.known is UNKNOWN:
            return self.record("call_function", IN_PLACE[operation], (left, right), {})
        name = operation.__name__[1:]
        pure = getattr(operator, name, None) or getattr(operator, f"{name}_")
        return self.record("call_function", pure, (left, right), {})

    # -- taking back

    def forget_nodes(self, tail: Node) -> None:
        """Erase every node behind `tail`, and all that is known of them."""
        for node in erase_behind(self.graph, tail):
            self._guarded.pop(node, None)


def _spellable(
    op: str, target: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any], host: Recorder
) -> tuple[str, Any, tuple[Any, ...], Mapping[str, Any]]:
    """The same call in a form that generated code can spell."""
    if kwargs and not all(map(is_identifier, kwargs)):
        if op != "call_method":
            reason = "a keyword that is no identifier"
            raise host.refuse(OpaqueKind.UNTRACEABLE_VALUE, reason)
        return "call_function", call_method, (args[0], target, args[1:], dict(kwargs)), {}
    if target is operator.pow and isinstance(args[0], (int, float)):
        return op, power, args, kwargs
    return op, target, args, kwargs


def _runner(op: str, target: Any) -> Any:
    if op == "call_function":
        return target

    def run(value: Any, *args: Any, **kwargs: Any) -> Any:
        return getattr(value, target)(*args, **kwargs)

    return run


def _size(value: Value, known: Tensor, dim: int | None = None) -> Any:
    if dim is None:
        return Shape([Size(value, axis) for axis in range(known.dim())])
    axis = int(dim)
    if not -known.dim() <= axis < known.dim():
        raise IndexError(f"Dimension out of range: {axis} of {known.dim()}")
    return Size(value, axis)


def _runs_natively(function: Any, name: str, args: tuple[Any, ...]) -> bool:
    """Whether a call without traced values is Python's business: no tensor comes of it."""
    if name in _NATIVE or "_record_function" in str(function):
        return name != "__set__"
    if name == "__get__":
        tensor, attribute_name = args[0], function.__self__.__name__
        is_shape = attribute_name in ("shape", "ndim", "dtype", "device", "layout", "is_cuda")
        return is_shape and not isinstance(tensor, Value)
    return name in _ABOUT_CONSTANTS or name == "device"


def _node_name(target: Any) -> str:
    name: str = getattr(target, "__name__", type(target).__name__)
    return name.strip("_") or "op"


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [""])[0][:160]


__all__ = ["Attribute", "Outcome", "Recorder"]

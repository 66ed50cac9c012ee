"""Records operations as nodes while the example runs along."""

import operator
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from typing import Any, Final

import torch
from torch import Tensor, nn
from torch.fx import Graph, Node
from torch.fx.node import map_arg

from fxpasses.capture.result.calls import IN_PLACE, attribute, call_method, power
from fxpasses.capture.result.guards import check_len, check_unpack, guard
from fxpasses.capture.tracing.asking import Asking
from fxpasses.capture.tracing.encoding import Encoder
from fxpasses.capture.tracing.functions import assign, call_tensor_method, torch_function
from fxpasses.capture.tracing.internals import (
    erase_behind,
    is_erased,
    reserve_name,
    set_grad_enabled,
    torch_state,
)
from fxpasses.capture.tracing.memory import Memory
from fxpasses.capture.tracing.names import is_identifier
from fxpasses.capture.tracing.numbers import follows_from_numbers
from fxpasses.capture.tracing.operands import Operands, Outcome
from fxpasses.capture.tracing.paths import Paths
from fxpasses.capture.tracing.proxies import (
    VALUE_TYPES,
    Held,
    Made,
    Value,
    count_unpacked_next,
)
from fxpasses.capture.tracing.questions import type_of_value
from fxpasses.capture.tracing.refusal import Refusal, here
from fxpasses.capture.tracing.request import Note, OpaqueKind, Request
from fxpasses.capture.tracing.structures import (
    children_of,
    element,
    has_tensor,
    is_record,
    rebuilt,
)
from fxpasses.capture.tracing.values import (
    EXPLICIT_RANK,
    LOOSE_LENGTH,
    LOOSE_RANK,
    UNKNOWN,
    Taint,
    is_surely_tensor,
    mark_known,
    name_of,
)
from fxpasses.capture.tracing.watch import first_difference
from fxpasses.core import add_node
from fxpasses.core.values import MODULE_STACK, SOURCE, STANDS_FOR

_COMPARES: Final = frozenset(
    getattr(operator, name)
    for name in ["add", "sub", "mul", "truediv", "eq", "ne", "lt", "gt", "le", "ge"]
)
_ASSIGNING: Final = frozenset(IN_PLACE)
_WHOLES_KEPT: Final = 64  # each keeps the example's values alive


class Recorder:
    """Builds the graph: every operation of the model becomes a node, run on the example at once."""

    def __init__(self, request: Request, paths: Paths) -> None:
        self.request = request
        self.graph = Graph()
        # A node of this name would hide the module in generated code.
        reserve_name(self.graph, "self")
        self.paths = paths
        self.memory = Memory()
        self.ended, self.evaluating = False, 0
        self.sizes_from_data = self.squeezed = False
        self.has_example = request.args is not None
        self.uses_guards = self.has_example and request.sizes != "kinds"
        self.sizes_are_fixed = self.has_example and request.sizes == "shapes"
        self.guards = self.late_guards = 0
        self.reads_grad_mode = self.reads_device = False
        self.settings: set[str] = set()
        self.asking = Asking(self)
        self.refusals: list[Refusal] = []
        self.notes: dict[Note, None] = {}
        self.constants: list[tuple[str, Tensor]] = []
        self.module_stack: dict[str, tuple[str, Any]] = {}
        self.stack_meta: dict[str, tuple[str, Any]] | None = None
        self.region = self.region_at_entry()
        self._encoder = Encoder(self)
        self._tensors: dict[int, tuple[Tensor, Made]] = {}
        self._wholes: dict[int, tuple[Any, Value]] = {}
        self._guarded: dict[Node, Any] = {}

    def end(self) -> None:
        """Let go of everything: values that outlive the trace hold nothing of the model."""
        vars(self).clear()
        self.ended, self.evaluating = True, 1

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

    def note(self, note: Note) -> None:
        self.notes[note] = None

    # -- nodes

    def create_node(
        self, op: str, target: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> Node:
        """Add a node for encoded arguments, with its source and place in the model."""
        if op not in ("placeholder", "output"):
            self._check_region()
            map_arg((args, kwargs), self._check_alive)
        name = None if isinstance(target, str) else _node_name(target)
        node = add_node(self.graph, op, target, args, kwargs, name)
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

    def region_at_entry(self) -> tuple[Any, ...]:
        """The state of torch that every node has to be made in."""
        now = torch_state()
        return (False, *now[1:]) if self.request.without_gradients else now

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
        operands = Operands(self.memory)
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

    def _classified(self, target: Any, known: Any, operands: Operands) -> Outcome:
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
        if known is None:
            return None
        if type(known) is str:
            self.reads_device = True  # the name of one, for all we know
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
        if isinstance(known, Tensor) and known.numel() == 1 and follows_from_numbers(value.node):
            with self.quiet():
                known, taint = known.item(), Taint.FIXED
        may_decide = known is not UNKNOWN and not isinstance(known, Tensor)
        if may_decide and taint is Taint.FIXED:
            self.reads_device = True  # the index of one, for all we know
            return known
        if not may_decide or taint is Taint.DATA or not self.uses_guards:
            raise self.refuse(OpaqueKind.CONTROL_FLOW, question)
        node = value.node
        if node not in self._guarded:
            self.add_guard(guard, (node, self.argument(known)))
            self._guarded[node] = known
        return known

    def ask(self, value: Value, question: str) -> Any:
        """The answer to a question about a tensor, which is part of the pattern from now on."""
        return self.asking.ask(value, question)

    def type_of(self, value: Value) -> type:
        """What `type` is told of a value in eager."""
        return type_of_value(self, value)

    def add_guard(self, check: Any, args: tuple[Any, ...]) -> None:
        if self.memory.lasting:
            reason = f"depends on a size after {self.memory.lasting}"
            raise self.refuse(OpaqueKind.GUARD_AFTER_EFFECT, reason)
        self.create_node("call_function", check, args, {})
        self.guards += 1
        self.late_guards += bool(self.memory.effect)

    def guard_after(self, reason: str) -> None:
        """From here on, running the module's own code again would repeat something."""
        self.memory.effect = self.memory.effect or reason
        self.memory.lasting = self.memory.lasting or reason

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
                node = self.create_node("get_attr", target, (), {})
                return self._constant(node, known, tensor)
            return self._constant(self._by_owner(tensor), known, tensor)
        name = f"_constant{len(self.constants)}"
        while hasattr(self.request.root, name):
            name += "_"
        is_made_here = self.memory.is_made_here(tensor)
        self.constants.append((name, self.memory.original_of(tensor)))
        node = self.create_node("get_attr", name, (), {})
        if is_made_here:  # eager makes it anew at each call
            node = self.create_node("call_method", "clone", (node,), {})
        return self._constant(node, self._copy(tensor), tensor)

    def _by_owner(self, tensor: Tensor) -> Node:
        owner, name = self.paths.owner_of(tensor)
        if owner is self.request.root:
            reason = "has a tensor whose name generated code cannot hold"
            raise self.refuse(OpaqueKind.UNTRACEABLE_VALUE, reason)
        node = self.create_node("get_attr", self.paths.target(owner), (), {})
        return self.create_node("call_function", attribute, (node, name), {})

    def _constant(self, node: Node, known: Tensor, real: Tensor) -> Made:
        made = Held(node, self, known, real)
        self.note_value(node, known, rank_is_fixed=True)
        return made

    def _copy(self, tensor: Tensor) -> Tensor:
        return self.memory.copy_of(tensor) if self.has_example else self._detached(tensor)

    def _detached(self, tensor: Tensor) -> Tensor:
        with self.quiet():
            return tensor.detach()

    def known_of(self, value: Any) -> Any:
        """The example's values in place of traced ones."""
        return Operands(self.memory).plain(value)

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

    # -- what torch and the proxies call

    def torch_function(
        self, function: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> Any:
        """A torch function or method that the model calls, with traced values or without."""
        if self.evaluating:
            raise Refusal(OpaqueKind.PYTHON_STATE, "a traced value in Python state")
        return torch_function(self, function, args, kwargs)

    def call_tensor_method(
        self, value: Value, name: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> Any:
        """A method of a tensor: questions are answered or become sizes, the rest is a node."""
        return call_tensor_method(self, value, name, args, kwargs)

    def in_place(self, operation: Any, left: Value, right: Any) -> Any:
        """`left += right` and its kin: only a tensor is changed in place."""
        return assign(self, operation, left, right)

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
    if target in _ASSIGNING and not isinstance(args[0], (Value, Tensor)):
        return op, IN_PLACE[target], args, kwargs
    return op, target, args, kwargs


def _runner(op: str, target: Any) -> Any:
    if op == "call_function":
        return target

    def run(value: Any, /, *args: Any, **kwargs: Any) -> Any:
        return getattr(value, target)(*args, **kwargs)

    return run


def _node_name(target: Any) -> str:
    name: str = getattr(target, "__name__", type(target).__name__)
    return name.strip("_") or "op"


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [""])[0][:160]

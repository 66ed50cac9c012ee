"""What flows through the model's code in place of tensors, and of numbers computed from them."""

import dis
import math
import operator
from collections.abc import Callable, Iterator, Mapping
from types import FrameType
from typing import Any, Final, Protocol, SupportsIndex

import torch
from torch import Tensor
from torch.fx import Node
from torch.fx.graph import inplace_methods, magic_methods, reflectable_magic_methods

from fxpasses.capture.result.guards import check_unpack
from fxpasses.capture.result.questions import MISSING, QUESTIONS, Kept
from fxpasses.capture.tracing.internals import frame, is_erased
from fxpasses.capture.tracing.refusal import Refusal, is_model_file, model_frame
from fxpasses.capture.tracing.request import OpaqueKind
from fxpasses.capture.tracing.values import (
    ANSWERED,
    REFUSED,
    SIZE_ATTRIBUTES,
    UNKNOWN,
    Taint,
)


class Recorder(Protocol):
    """What a proxy needs of the tracer."""

    evaluating: int
    reads_device: bool
    ended: bool  # values may outlive the trace, as keys in caches of functions

    def refuse(self, kind: OpaqueKind, reason: str) -> Refusal: ...
    def record(
        self, op: str, target: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> Any: ...
    def make_node(self, op: str, target: Any, args: tuple[Any, ...]) -> Node: ...
    def note_value(self, node: Node, value: object, *, rank_is_fixed: bool) -> None: ...
    def argument(self, value: Any) -> Any: ...
    def decide(self, value: "Value", question: str) -> Any: ...
    def ask(self, value: "Value", question: str) -> Any: ...
    def type_of(self, value: "Value") -> type: ...
    def torch_function(
        self, function: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> Any: ...
    def call_tensor_method(
        self, value: "Value", name: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> Any: ...
    def in_place(self, operation: Any, left: "Value", right: Any) -> Any: ...


class Value:
    """A value that the graph computes. `known` is the example's, UNKNOWN where there is none.

    `taint` tells what the value (of a tensor: its sizes) depends on, `loose` that the rank does
    too. `is_tensor` holds where the value surely is a tensor, also without an example.
    """

    __slots__ = ("is_tensor", "known", "loose", "taint", "tracer")

    tracer: Recorder
    known: Any
    taint: Taint
    loose: bool
    is_tensor: bool

    def __init__(self, tracer: Recorder, known: Any, taint: Taint, *, loose: bool = False) -> None:
        # Past `__setattr__`, which is there for the model's code.
        put = object.__setattr__
        put(self, "tracer", tracer)
        put(self, "known", known)
        put(self, "taint", taint)
        put(self, "loose", loose)
        put(self, "is_tensor", known is not UNKNOWN and isinstance(known, Tensor))

    @property
    def node(self) -> Node:
        raise NotImplementedError

    # -- what Python may ask

    @property
    def __class__(self) -> type:  # pyright: ignore[reportIncompatibleMethodOverride]  never set
        """What `x.__class__` in the model's code is told; our own class for the C code that asks.

        C takes what says that it is a tensor for one, and crashes.
        """
        asking = frame(1)
        code = asking.f_code
        if "__class__" in code.co_names and code.co_code[asking.f_lasti] in _READS:
            return self.tracer.type_of(self) if is_model_file(code.co_filename) else type(self)
        if "__class__" in code.co_consts and is_model_file(code.co_filename):
            raise self._refusal("__class__ of a traced value")
        return type(self)

    def _refusal(self, what: str) -> Refusal:
        return self.tracer.refuse(OpaqueKind.CONTROL_FLOW, what)

    def __bool__(self) -> bool:
        return bool(self.tracer.decide(self, "a branch on a traced value"))

    def __int__(self) -> int:
        return int(self.tracer.decide(self, "int() of a traced value"))

    def __float__(self) -> float:
        return float(self.tracer.decide(self, "float() of a traced value"))

    def __complex__(self) -> complex:
        return complex(self.tracer.decide(self, "complex() of a traced value"))

    def __index__(self) -> int:
        return operator.index(self.tracer.decide(self, "a traced value as an index"))

    def __hash__(self) -> int:
        if self.tracer.evaluating or not _is_called_by_the_model():
            return id(self)
        if self.is_tensor:  # found by its identity, which no graph follows
            raise self._refusal("a traced value as a key")
        return hash(self.tracer.decide(self, "a traced value as a key"))

    def __contains__(self, item: object) -> bool:
        if isinstance(self.known, (tuple, list, dict, str)) and not isinstance(item, Value):
            return item in self.tracer.decide(self, '"in" a traced value')
        raise self._refusal('"in" a traced value')

    def __len__(self) -> int:
        if isinstance(self.known, Tensor) and self.known.dim():
            return int(self.shape[0])
        if isinstance(self.known, (tuple, list, dict, str)):
            return len(self.tracer.decide(self, "len() of a traced value"))
        raise self._refusal("len() of a traced value")

    def __iter__(self) -> Iterator[Any]:
        count = unpacked_count(frame(1))
        known = self.known
        if isinstance(known, (tuple, list)) and self.taint is not Taint.DATA:
            if count != len(known):
                self.tracer.decide(self, "a loop over a traced value")
            return iter([self[i] for i in range(len(known))])
        if count is not None and not isinstance(known, Tensor):
            self.tracer.record("call_function", check_unpack, (self, count), {})
            return iter([self[i] for i in range(count)])
        if isinstance(known, Tensor) and known.dim():
            int(self.shape[0])
            return iter(self.tracer.record("call_method", "unbind", (self, 0), {}))
        raise self._refusal("a loop over a traced value")

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        return self.__reduce_ex__(0)

    def __reduce_ex__(self, protocol: SupportsIndex) -> Any:
        reason = "copies a traced value by Python's means"
        raise self.tracer.refuse(OpaqueKind.UNTRACEABLE_VALUE, reason)

    # -- text: of a message it is never read, all other text is a decision

    def _text(self, spec: str = "") -> str:
        is_plain = not isinstance(self.known, Tensor) and self.known is not UNKNOWN
        if is_plain and self.taint is Taint.FIXED:
            self.tracer.reads_device = True
            return format(self.known, spec)
        if self.tracer.evaluating or is_message(frame(2)):
            return f"{{{self._name()}}}"
        return format(self.tracer.decide(self, "the text of a traced value"), spec)

    def _name(self) -> str:
        return "value"

    def __str__(self) -> str:
        return self._text()

    def __repr__(self) -> str:
        return self._text()

    def __format__(self, spec: str) -> str:
        return self._text(spec)

    # -- attributes and methods

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") and name.endswith("__"):
            # numpy's and other protocols: a proxy speaks none of them.
            if hasattr(Tensor, name) and name in frame(1).f_code.co_consts:
                raise self._refusal(f"{name} of a traced value")
            raise AttributeError(name)
        known = self.known
        if isinstance(known, Tensor):
            return self._tensor_attribute(name)
        if known is UNKNOWN:
            return self._unknown_attribute(name)
        if not hasattr(known, name):
            raise AttributeError(name)
        answer = Attribute(self, name)
        is_text = type(answer.known) is str or answer.known is None
        if not is_text or self.taint is not Taint.FIXED:
            return answer
        self.tracer.reads_device = True
        return answer.known

    def _unknown_attribute(self, name: str) -> Any:
        if not self.is_tensor:
            if asks_for_presence(frame(2)):
                raise self._refusal(f"whether a value that is not known has .{name}")
            return Attribute(self, name)
        if name in REFUSED:
            raise self._refusal(f"{name} of a traced value")
        return Attribute(self, name) if hasattr(Tensor, name) else self._python_attribute(name)

    def _tensor_attribute(self, name: str) -> Any:
        if name == "shape":
            return self.tracer.call_tensor_method(self, "size", (), {})
        if name == "ndim":
            return self.tracer.call_tensor_method(self, "dim", (), {})
        if not hasattr(Tensor, name):
            return self._python_attribute(name)
        if callable(getattr(Tensor, name)) or name in SIZE_ATTRIBUTES:
            return Attribute(self, name)
        if name in ANSWERED and name != "device":
            return self._answer(name)
        if name in REFUSED or not isinstance(_peek(self, name), (Tensor, torch.device)):
            raise self._refusal(f"{name} of a traced value")
        return Attribute(self, name)

    def _answer(self, name: str) -> Any:
        if QUESTIONS[name] is Kept.WHERE_READ:
            return self.tracer.ask(self, name)
        self.tracer.reads_device |= name.startswith("is_") or name == "type"
        return _peek(self, name, call=True)

    def _python_attribute(self, name: str) -> Any:
        """What Python code has put on the tensor, or has not."""
        found = self.tracer.ask(self, f".{name}")
        if found == MISSING:
            raise AttributeError(name)
        return found

    def __setattr__(self, name: str, value: Any) -> None:
        if name == "_is_param":
            raise self.tracer.refuse(OpaqueKind.NEW_MODULE, "makes a parameter in forward")
        if name not in _SLOTS:
            raise self.tracer.refuse(OpaqueKind.UNTRACEABLE_VALUE, f"sets .{name} of a tensor")
        object.__setattr__(self, name, value)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.tracer.record("call_method", "__call__", (self, *args), kwargs)

    def __setitem__(self, key: Any, value: Any) -> None:
        self.tracer.record("call_function", operator.setitem, (self, key, value), {})

    def __getitem__(self, key: Any) -> Any:
        return self.tracer.record("call_function", operator.getitem, (self, key), {})

    @classmethod
    def __torch_function__(
        cls,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        found = find_value((args, kwargs))
        if found is None or found.tracer.evaluating:
            raise Refusal(OpaqueKind.PYTHON_STATE, "a traced value among real ones")
        return found.tracer.torch_function(func, args, kwargs)


class Made(Value):
    """A value whose node exists."""

    __slots__ = ("_node",)

    _node: Node

    def __init__(
        self, node: Node, tracer: Recorder, known: Any, taint: Taint, *, loose: bool = False
    ) -> None:
        super().__init__(tracer, known, taint, loose=loose)
        object.__setattr__(self, "_node", node)

    @property
    def node(self) -> Node:
        return self._node

    def _name(self) -> str:
        return self._node.name


class Held(Made):
    """The value of a tensor that the model holds: `real` is that tensor."""

    __slots__ = ("real",)

    def __init__(self, node: Node, tracer: Recorder, known: Any, real: Tensor) -> None:
        super().__init__(node, tracer, known, Taint.FIXED)
        self.real = real


class Lazy(Value):
    """A value whose node is made when it is first used, and again if that one was taken back."""

    __slots__ = ("_made", "key", "root")

    def __init__(
        self,
        root: Value,
        key: Any,
        known: Any,
        taint: Taint,
        *,
        loose: bool = False,
    ) -> None:
        super().__init__(root.tracer, known, taint, loose=loose)
        self.root = root
        self.key = key
        self._made: Node | None = None

    @property
    def node(self) -> Node:
        made = self._made
        if made is None or is_erased(made):
            made = self._made = self._make()
            self.tracer.note_value(made, self.known, rank_is_fixed=not self.loose)
        return made

    def _make(self) -> Node:
        raise NotImplementedError

    def _name(self) -> str:
        return f"{self.root._name()}.{self.key}"  # noqa: SLF001 - its own base


class Attribute(Lazy):
    """An attribute of a traced value, or a method until it is called."""

    __slots__ = ()

    def __init__(self, root: Value, name: str) -> None:
        known: Any = UNKNOWN
        taint = root.taint
        if root.known is not UNKNOWN:
            known = _peek(root, name)
            is_about_tensor = isinstance(root.known, Tensor) and not isinstance(known, Tensor)
            if is_about_tensor and name not in SIZE_ATTRIBUTES:
                taint = Taint.FIXED
        super().__init__(root, name, known, taint, loose=root.loose)

    def _make(self) -> Node:
        return self.tracer.make_node("call_function", getattr, (self.root, self.key))

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        root, name = self.root, self.key
        if name in REFUSED:
            raise self.tracer.refuse(OpaqueKind.UNTRACEABLE_VALUE, f"calls .{name}()")
        if isinstance(root.known, Tensor) or root.is_tensor:
            if name in ANSWERED and root.known is not UNKNOWN and not (args or kwargs):
                return root._answer(name)  # noqa: SLF001 - its own base
            return self.tracer.call_tensor_method(root, name, args, kwargs)
        return self.tracer.record("call_method", name, (root, *args), kwargs)


class Item(Lazy):
    """An element of a container that a node returns."""

    __slots__ = ()

    def _make(self) -> Node:
        return self.tracer.make_node("call_function", operator.getitem, (self.root, self.key))


class Field(Lazy):
    """A field of an object that a node returns."""

    __slots__ = ()

    def _make(self) -> Node:
        return self.tracer.make_node("call_function", getattr, (self.root, self.key))


class Size(Lazy):
    """One size of a tensor."""

    __slots__ = ()

    def __init__(self, root: Value, axis: int) -> None:
        taint = max(root.taint, Taint.SIZE)
        super().__init__(root, axis, root.known.shape[axis], taint)

    def _make(self) -> Node:
        return self.tracer.make_node("call_method", "size", (self.root, self.key))


class Shape(tuple[Any, ...]):
    """The sizes of a tensor, as a tuple of numbers that know where they come from."""

    __slots__ = ()

    def numel(self) -> Any:
        total: Any = 1
        for size in self:
            total = size * total
        return total

    def __getitem__(self, key: SupportsIndex | slice) -> Any:
        found = super().__getitem__(key)
        return Shape(found) if isinstance(key, slice) else found

    def __add__(self, other: tuple[Any, ...]) -> "Shape":
        return Shape(super().__add__(other))

    def _text(self) -> str:
        if is_message(frame(2)):
            return f"torch.Size([{', '.join(map(str, self))}])"
        return str(torch.Size(map(operator.index, self)))

    def __str__(self) -> str:
        return self._text()

    def __repr__(self) -> str:
        return self._text()

    def __format__(self, spec: str) -> str:
        return format(self._text(), spec)


_SLOTS: Final = frozenset((*Value.__slots__, *Made.__slots__, *Held.__slots__, *Lazy.__slots__))
VALUE_TYPES: Final = frozenset((Made, Held, Attribute, Item, Field, Size))


def _peek(root: Value, name: str, *, call: bool = False) -> Any:
    """The attribute of the example's value, where it is no method; UNKNOWN where it raises."""
    tracer = root.tracer
    tracer.evaluating += 1
    try:
        found = getattr(root.known, name)
        if callable(found):
            return found() if call else UNKNOWN
    except Exception:
        return UNKNOWN
    else:
        return found
    finally:
        tracer.evaluating -= 1


def _is_called_by_the_model() -> bool:
    return is_model_file(frame(2).f_code.co_filename)


_READS: Final = frozenset(dis.opmap[n] for n in ("LOAD_ATTR", "LOAD_METHOD") if n in dis.opmap)


def asks_for_presence(asking: FrameType) -> bool:
    """Whether a frame asks if there is an attribute: by `hasattr`, or `getattr` with a default."""
    code, position = asking.f_code.co_code, asking.f_lasti
    if not is_model_file(asking.f_code.co_filename) or code[position] in _READS:
        return False
    return "hasattr" in asking.f_code.co_names or code[position + 1] == 3


_CALLS: Final = frozenset(code for name, code in dis.opmap.items() if name.startswith("CALL"))
_MAKE_TEXT: Final = frozenset(
    ("str", "repr", "format", "ascii", "format_map", "__str__", "__repr__", "__format__")
)
_READS_TEXT: Final = (
    "STORE",
    "RETURN",
    "POP_JUMP",
    "COMPARE",
    "CONTAINS",
    "BINARY_SUBSCR",
    "YIELD",
)


def is_message(asking: FrameType) -> bool:
    """Whether the text that a frame asks for is dropped with the statement that it is made in.

    So it is in `raise`, `assert`, and calls for their effect alone, such as logging. Code that is
    not the model's makes text for messages only.
    """
    if not is_model_file(asking.f_code.co_filename) or _is_logging(asking):
        return True
    code = asking.f_code
    if code.co_code[asking.f_lasti] in _CALLS and _MAKE_TEXT.isdisjoint(code.co_names):
        return True  # what was called complains of its argument
    for instruction in dis.get_instructions(asking.f_code):
        if instruction.offset <= asking.f_lasti:
            continue
        if instruction.opname in ("POP_TOP", "RAISE_VARARGS"):
            return True
        if instruction.opname.startswith(_READS_TEXT):
            return False
    return False


def _is_logging(asking: FrameType) -> bool:
    package = asking.f_globals.get("__name__", "").split(".")[0]
    return package in ("logging", "warnings", "traceback", "unittest", "pdb")


_UNPACK: Final = dis.opmap["UNPACK_SEQUENCE"]


def unpacked_count(asking: FrameType) -> int | None:
    """How many names a frame unpacks into right now, None if it does something else."""
    code, position = asking.f_code.co_code, asking.f_lasti
    return code[position + 1] if code[position] == _UNPACK else None


def count_unpacked_next() -> int | None:
    """Into how many names the model's code unpacks what is being computed right now."""
    asking = model_frame()
    if asking is None:
        return None
    code = asking.f_code.co_code
    position = asking.f_lasti + 2
    while position < len(code) and code[position] == 0:  # inline caches of the call
        position += 2
    return code[position + 1] if position < len(code) and code[position] == _UNPACK else None


def find_value(container: Any) -> Value | None:
    """The first traced value in nested tuples, lists, dicts and slices."""
    stack = [container]
    while stack:
        item = stack.pop()
        kind = type(item)
        if kind in VALUE_TYPES:
            return item
        if issubclass(kind, (tuple, list)):
            stack.extend(item)
        elif issubclass(kind, dict):
            stack.extend(item.values())
        elif kind is slice:
            stack += (item.start, item.stop, item.step)
    return None


# -- operators


def _operator(target: Callable[..., Any]) -> Callable[..., Any]:
    def apply(*args: Any) -> Any:
        return args[0].tracer.record("call_function", target, args, {})

    return apply


def _reflected(target: Callable[..., Any]) -> Callable[..., Any]:
    def apply(self: Value, left: Any) -> Any:
        return self.tracer.record("call_function", target, (left, self), {})

    return apply


def _comparing(target: Callable[..., Any]) -> Callable[..., Any]:
    def apply(left: Value, right: Any) -> Any:
        if left.tracer.ended or (type(right) in VALUE_TYPES and right.tracer.ended):
            return (left is right) is (target is operator.eq)
        return left.tracer.record("call_function", target, (left, right), {})

    return apply


def _assigning(target: Callable[..., Any]) -> Callable[..., Any]:
    def apply(self: Value, right: Any) -> Any:
        return self.tracer.in_place(target, self, right)

    return apply


def _define_operators() -> None:
    """As methods of every traced value."""
    for name in magic_methods:
        if hasattr(operator, name) and name != "getitem":
            setattr(Value, f"__{name.strip('_')}__", _operator(getattr(operator, name)))
    for name in reflectable_magic_methods:
        if hasattr(operator, name) and name != "getitem":
            setattr(Value, f"__r{name.strip('_')}__", _reflected(getattr(operator, name)))
    for name in inplace_methods:
        if name != "setitem":
            setattr(Value, f"__{name}__", _assigning(getattr(operator, name)))
    for target in (operator.eq, operator.ne):
        setattr(Value, f"__{target.__name__}__", _comparing(target))
    unary: dict[str, Callable[..., Any]] = {
        "abs": operator.abs,
        "round": round,
        "floor": math.floor,
        "ceil": math.ceil,
        "trunc": math.trunc,
    }
    for name, function in unary.items():
        setattr(Value, f"__{name}__", _operator(function))


_define_operators()


def is_operator(name: str) -> bool:
    """Whether a method of tensors is an operator by its name, which traced values have as well."""
    is_special = name.startswith("__") and name.endswith("__")
    spellings = (name, name.replace("__r", "__", 1))
    return is_special and hasattr(Value, name) and any(hasattr(operator, n) for n in spellings)

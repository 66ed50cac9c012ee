"""How Python values become arguments of nodes."""

import collections
from collections.abc import Callable, Mapping
from enum import Enum, Flag
from typing import Any, Final, Protocol

import torch
from torch import Tensor, nn
from torch.fx import Node

from fxpasses.capture.tracing.internals import OPERATIONS
from fxpasses.capture.tracing.names import is_identifier
from fxpasses.capture.tracing.proxies import VALUE_TYPES, Made, Shape
from fxpasses.capture.tracing.refusal import Refusal
from fxpasses.capture.tracing.request import OpaqueKind
from fxpasses.capture.tracing.structures import PLAIN, is_named_tuple, is_record
from fxpasses.core.given import an


class Sink(Protocol):
    """What encoding needs of the tracer."""

    def refuse(self, kind: OpaqueKind, reason: str) -> Refusal: ...
    def create_node(
        self, op: str, target: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> Node: ...
    def lift(self, tensor: Tensor) -> Made: ...
    def whole(self, container: Any) -> Node | None: ...


_KEYS: Final = frozenset((str, int, bool, float, type(None)))


class Encoder:
    """Turns what the model passes to an operation into what a node may hold."""

    def __init__(self, sink: Sink) -> None:
        self._sink = sink
        self._by_type: dict[type, Callable[[Any], Any]] = {
            tuple: self._tuple,
            Shape: self._tuple,
            torch.Size: tuple,
            list: self._list,
            dict: self._dict,
            slice: self._slice,
            range: self._range,
            collections.OrderedDict: self._ordered,
        }

    def encode(self, value: Any) -> Any:
        kind = type(value)
        if kind in VALUE_TYPES:
            return value.node
        if kind in PLAIN:
            return value
        encoder = self._by_type.get(kind)
        return self._other(value) if encoder is None else encoder(value)

    def keywords(self, kwargs: Mapping[str, Any]) -> dict[str, Any]:
        return {name: self.encode(value) for name, value in kwargs.items()}

    def output(self, value: Any) -> Any:
        """As `encode`, where the type of a shape matters as well."""
        if type(value) in (Shape, torch.Size):
            sizes = [self.encode(size) for size in value]
            return self._sink.create_node("call_function", torch.Size, (sizes,), {})
        kind = type(value)
        if kind is dict:
            return {self._key(key): self.output(item) for key, item in value.items()}
        if kind in (tuple, list):
            whole = self._sink.whole(value)
            return kind(self.output(item) for item in value) if whole is None else whole
        return self.encode(value)

    # -- containers

    def _tuple(self, value: tuple[Any, ...]) -> Any:
        whole = self._sink.whole(value)
        return tuple(self.encode(item) for item in value) if whole is None else whole

    def _list(self, value: list[Any]) -> list[Any]:
        return [self.encode(item) for item in value]

    def _dict(self, value: Mapping[Any, Any]) -> dict[Any, Any]:
        for item in value.values():
            if isinstance(item, Enum) or is_named_tuple(type(item)):
                # Generated code would spell it as a message, not as code.
                raise self._refuse(f"{an(type(item))} in a dict")
        return {self._key(key): self.encode(item) for key, item in value.items()}

    def _key(self, key: Any) -> Any:
        if type(key) not in _KEYS:
            raise self._refuse(f"{an(type(key))} as a key of a dict")
        return key

    def _ordered(self, value: Mapping[Any, Any]) -> Node:
        pairs = [[self._key(key), self.encode(item)] for key, item in value.items()]
        return self._make(collections.OrderedDict, (pairs,), {})

    def _slice(self, value: slice) -> slice:
        return slice(self.encode(value.start), self.encode(value.stop), self.encode(value.step))

    def _range(self, value: range) -> range:
        return value

    # -- everything else

    def _other(self, value: Any) -> Any:
        if isinstance(value, Tensor):
            return self._sink.lift(value).node
        if isinstance(value, Enum):
            return self._enum(value)
        if is_record(value):
            return self._record(value)
        if is_named_tuple(type(value)):
            whole = self._sink.whole(value)
            args = tuple(self.encode(item) for item in value)
            return self._make(type(value), args, {}) if whole is None else whole
        if isinstance(value, tuple):
            whole = self._sink.whole(value)
            if whole is not None:
                return whole
        if isinstance(value, OPERATIONS):
            return value
        return self._scalar(value)

    def _scalar(self, value: Any) -> Any:
        if type(value).__module__ == "numpy" and hasattr(value, "item") and value.ndim == 0:
            return value.item()
        if isinstance(value, torch.Generator):
            reason = "a random generator as an argument"
            raise self._sink.refuse(OpaqueKind.RANDOM_STATE, reason)
        if isinstance(value, nn.Module):
            raise self._refuse("a module as an argument")
        raise self._refuse(f"{an(type(value))} as an argument")

    def _enum(self, value: Enum) -> Enum:
        is_combined = isinstance(value, Flag) and value.name not in type(value).__members__
        if is_combined or not is_identifier(type(value).__name__):
            raise self._refuse(f"{an(type(value))} as an argument")
        return value

    def _record(self, value: Any) -> Node:
        kind = type(value)
        if isinstance(value, dict):
            return self._make(kind, (), {k: self.encode(v) for k, v in value.items()})
        fields = kind.__dataclass_fields__.values()
        if hasattr(kind, "__post_init__") or any(not field.init for field in fields):
            # Its constructor computes: it would do so twice.
            raise self._refuse(f"{an(kind)}, which computes when it is made,")
        return self._make(kind, (), {f.name: self.encode(getattr(value, f.name)) for f in fields})

    def _make(self, kind: type, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Node:
        return self._sink.create_node("call_function", kind, args, kwargs)

    def _refuse(self, what: str) -> Refusal:
        return self._sink.refuse(OpaqueKind.UNTRACEABLE_VALUE, f"{what} cannot be in a graph")

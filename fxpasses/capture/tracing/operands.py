"""The example's values of what an operation is given, and what they depend on."""

from typing import Any

import torch
from torch import Tensor

from fxpasses.capture.tracing.memory import Memory
from fxpasses.capture.tracing.proxies import VALUE_TYPES, Shape, Value
from fxpasses.capture.tracing.structures import children_of, rebuilt
from fxpasses.capture.tracing.values import UNKNOWN, Taint


class Outcome:
    """What came of running one operation on the example."""

    __slots__ = ("known", "loose", "numbers", "taint")

    def __init__(self, known: Any, taint: Taint, numbers: Taint, *, loose: bool) -> None:
        self.known = known
        self.taint = taint  # of the sizes of its tensors
        self.numbers = numbers  # of all that is no tensor
        self.loose = loose


class Operands:
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

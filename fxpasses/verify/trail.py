"""What is kept of a run to compare it with another: values on the way, not only at the end.

Behind an op that jumps (argmax, sort, rounding, a comparison) a difference of rounding can show at
full size. So what such ops read is kept, and what they made of it: two runs are compared up to
the first of them that decided otherwise on inputs that agree.
"""

from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from fxpasses.verify.structures import tensors_of

Key: TypeAlias = tuple[Any, ...]

_JUMPS = frozenset(
    {
        *("argmax", "argmin", "topk", "sort", "argsort", "kthvalue", "mode", "median", "msort"),
        *("nonzero", "unique", "_unique2", "unique_dim", "bucketize", "searchsorted", "histc"),
        *("round", "floor", "ceil", "trunc", "frac", "sign", "floor_divide", "fmod", "remainder"),
        *("gt", "ge", "lt", "le", "eq", "ne", "equal", "isclose", "signbit", "logical_not"),
        *("multinomial", "nms", "_local_scalar_dense", "heaviside", "nanmedian"),
    }
)
# `x.max(dim)` also returns where the maximum is.
_JUMPS_WITH_DIMENSION = frozenset({"max", "min", "cummax", "cummin"})
_BUDGET = 256 * 2**20


@dataclass(frozen=True, slots=True)
class Event:
    """A place on the way of a run: `values` must agree, or a graph's outputs are wrong.

    `decision` is what an op that jumps made of them; None where nothing jumps.
    """

    key: Key
    values: tuple[Any, ...] | None
    decision: tuple[Any, ...] | None = None


@dataclass(slots=True)
class Trail:
    """The events of one run, in order. Keys say which event of another run is the same."""

    events: dict[Key, Event] = field(default_factory=dict[Key, Event])
    jumped: bool = False
    _place: Key = ("outside",)
    _bytes: int = 0
    _asleep: bool = False

    @contextmanager
    def at(self, place: Key) -> Generator[None]:
        """Events inside the block belong to `place`."""
        before, self._place = self._place, place
        try:
            yield
        finally:
            self._place = before

    @contextmanager
    def paused(self) -> Generator[None]:
        """What runs inside the block is no part of the run."""
        before, self._asleep = self._asleep, True
        try:
            yield
        finally:
            self._asleep = before

    def met(self, func: Any, operands: Sequence[Tensor], result: Any) -> None:
        """An op was dispatched: keep what it read if it jumps."""
        if not self._asleep and jumps(func, operands, result):
            self.jumped = True
            floats = tuple(t for t in operands if t.is_floating_point())
            name = func.overloadpacket.__name__
            self.add((*self._place, name), floats, tuple(tree_leaves(result)))

    def end(self, key: Key, values: Sequence[Any]) -> None:
        """Keep what a run returned; nobody writes it any more, so it is not copied."""
        self.events[key] = Event(key, tuple(values))

    def add(self, key: Key, values: Sequence[Any], decision: Sequence[Any] | None = None) -> None:
        """Keep an event; a second one with the same key is numbered."""
        number = 0
        while (*key, number) in self.events:
            number += 1
        numbered = (*key, number)
        made = None if decision is None else tuple(_kept(v) for v in decision)
        self._bytes += sum(_size(value) for value in (*values, *(made or ())))
        kept = tuple(_kept(v) for v in values) if self._bytes < _BUDGET else None
        self.events[numbered] = Event(numbered, kept, made if kept is not None else None)


class Follow(TorchDispatchMode):
    """Lets a trail see the ops of a run, and changes nothing."""

    def __init__(self, trail: Trail) -> None:
        super().__init__()
        self.trail = trail

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        self.trail.met(func, list(tensors_of((args, kwargs))), result)
        return result


def jumps(func: Any, operands: Sequence[Tensor], result: Any) -> bool:
    """Whether the value of the dispatched op jumps as a float operand moves a little."""
    name = func.overloadpacket.__name__.removesuffix("_")
    if name == "_to_copy":
        return operands[0].is_floating_point() and not _is_float(result)
    if name in _JUMPS or (name in _JUMPS_WITH_DIMENSION and "dim" in str(func)):
        return any(operand.is_floating_point() for operand in operands)
    return False


def _is_float(value: Any) -> bool:
    return isinstance(value, Tensor) and (value.is_floating_point() or value.is_complex())


def _kept(value: Any) -> Any:
    return value.detach().clone() if isinstance(value, Tensor) else value


def _size(value: Any) -> int:
    return value.numel() * value.element_size() if isinstance(value, Tensor) else 0

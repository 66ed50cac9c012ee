"""Calls that wait for the device, or copy to it: what they ask for, in every spelling."""

from collections.abc import Iterable, Mapping
from enum import StrEnum, auto
from types import MappingProxyType
from typing import Any, Final

import torch
from torch import Tensor
from torch._ops import OpOverload, OpOverloadPacket
from torch.fx import Node

from fxpasses.ops.op import Op
from fxpasses.ops.signatures import arguments_of
from fxpasses.ops.vocabulary import op_of, op_of_function


class Sync(StrEnum):
    """Why the host waits."""

    VALUE = auto()
    """A value of a tensor becomes a Python number."""
    ARRAY = auto()
    """A tensor becomes an array on the host."""
    TO_HOST = auto()
    """A tensor is copied from the device."""
    TO_DEVICE = auto()
    """Something is copied to the device in every call."""
    DATA_SIZED = auto()
    """The size of the result hangs on data."""
    WAIT = auto()
    """The host waits on purpose."""


_NAMES: Final[Mapping[Sync, tuple[str, ...]]] = {
    Sync.VALUE: (
        *("item", "tolist", "is_nonzero", "equal", "allclose", "_local_scalar_dense"),
        *("__bool__", "__int__", "__float__", "__index__"),
    ),
    Sync.ARRAY: ("numpy", "__array__"),
    Sync.TO_HOST: ("cpu",),
    Sync.TO_DEVICE: ("cuda", "from_numpy", "as_tensor"),
    Sync.DATA_SIZED: (
        *("nonzero", "argwhere", "masked_select", "unique", "unique_consecutive", "bincount"),
        *("_unique2", "unique_dim"),
    ),
    Sync.WAIT: ("synchronize",),
}
_BY_NAME: Final = MappingProxyType({name: sync for sync, all_ in _NAMES.items() for name in all_})
_OTHERS: Final = frozenset({"numpy", "np", "math", "random", "itertools"})
"""Modules whose functions have such names, too, and deal with no tensors."""


def _functions() -> Iterable[tuple[Any, Sync]]:
    for name, sync in _BY_NAME.items():
        for place in (torch, Tensor):
            if callable(found := getattr(place, name, None)) and not isinstance(found, type):
                yield found, sync
    yield torch.cuda.synchronize, Sync.WAIT


_BY_FUNCTION: Final = MappingProxyType(dict(_functions()))


def sync_of(node: Node) -> Sync | None:
    """What a node makes the host wait for, as far as its call alone tells; else None."""
    known = _refined(node)
    if known is not None:
        return known
    if node.op == "call_method":
        return _BY_NAME.get(str(node.target))
    if node.op != "call_function":
        return None
    target: Any = node.target
    if isinstance(target, OpOverload | OpOverloadPacket):
        packet = target.overloadpacket if isinstance(target, OpOverload) else target
        namespace, _, name = str(packet).partition(".")
        return _BY_NAME.get(name) if namespace == "aten" else None
    try:
        return _BY_FUNCTION.get(target)
    except TypeError:  # what cannot be hashed is in no table
        return None


def sync_named(name: str, owner: str = "") -> Sync | None:
    """What a call of a method or function of that name would wait for, judged by names alone.

    `owner` is the name in front of the dot, where there is one.
    """
    return None if owner in _OTHERS or name.startswith("_") else _BY_NAME.get(name)


def _is_where(node: Node) -> bool:
    """Of a condition alone, too, which is no choice between two values."""
    return node.op == "call_function" and op_of_function(node.target) is Op.WHERE


def _refined(node: Node) -> Sync | None:
    """Where it hangs on the arguments."""
    op = op_of(node)
    if len(node.args) + len(node.kwargs) == 1 and _is_where(node):
        return Sync.DATA_SIZED
    if op is Op.REPEAT_INTERLEAVE:
        arguments = arguments_of(node)
        counted = isinstance(arguments.get("repeats"), Node)
        return Sync.DATA_SIZED if counted and arguments.get("output_size") is None else None
    if op is Op.ONE_HOT:
        return Sync.VALUE if arguments_of(node).get("num_classes", -1) == -1 else None
    if op is Op.CAST:
        device = arguments_of(node).get("device")
        return Sync.TO_HOST if str(device) == "cpu" or node.target == "cpu" else None
    return None

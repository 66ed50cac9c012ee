"""Chains of arithmetic with constants in front of a layer, as one map.

    (x - mean) / std  ->  x * (1 / std) - mean / std

What hands values on may lie in between. Where the model treats one channel after the other and
joins them, the chains of the channels are one map as well.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import ClassVar, Final

import torch
from torch import Tensor
from torch.fx import Node

from fxpasses.core import Facts
from fxpasses.folding.affine import Affine, Values
from fxpasses.folding.arithmetic import CALLS, Arithmetic, wide
from fxpasses.ops import Op
from fxpasses.views import (
    Binary,
    Cat,
    Clone,
    ConstantView,
    Dropout,
    Flatten,
    Identity,
    Negation,
    Permute,
    Picked,
    Reshape,
    puts_axis_back,
    view_at,
)


@dataclass(frozen=True)
class Chain(Affine):
    """Maps one after the other, from the first to the last."""

    noun: ClassVar[str] = "the normalisation"
    root: Node
    """What the first is given."""
    maps: tuple[Affine, ...]
    passing: Mapping[Node, tuple[Node, ...]] = field(default_factory=dict[Node, tuple[Node, ...]])
    """By the node of each map what hands on its value, in order."""
    copies: tuple[Node, ...] = ()
    """What makes the memory that the first writes, in order."""
    shifted: bool = True
    """Whether what the maps add belongs to it, or what they multiply by alone."""

    @property
    def node(self) -> Node:
        return self.maps[-1].node

    @property
    def input(self) -> Node:
        return self.root

    @cached_property
    def nodes(self) -> tuple[Node, ...]:
        """All that takes part, in order."""
        found = list(self.copies)
        for one in self.maps:
            found.extend((*calls_of(one), *self.passing.get(one.node, ())))
        return tuple(found)

    @property
    def tensors(self) -> Values:
        return _named(self.maps)

    @property
    def constants(self) -> Sequence[ConstantView]:
        return [constant for one in self.maps for constant in one.constants]

    @property
    def is_by_rows(self) -> bool:
        return all(one.is_by_rows for one in self.maps)

    @property
    def shifts(self) -> bool:
        return self.shifted and any(one.shifts for one in self.maps)

    def scale(self, values: Values) -> Tensor:
        factor = wide(1)
        for one, own in _with_values(self.maps, values):
            factor = factor * one.scale(own)
        return factor

    def shift(self, values: Values) -> Tensor:
        summand = wide(0)
        for one, own in _with_values(self.maps, values) if self.shifted else ():
            summand = summand * one.scale(own) + one.shift(own)
        return summand

    def offset(self, values: Values) -> Tensor:
        """What to add before anything is multiplied: the shift in terms of the root."""
        return self.shift(values) / self.scale(values)

    @property
    def factors(self) -> "Chain":
        """What is left of it once the offset is added."""
        return replace(self, shifted=False)


@dataclass(frozen=True)
class Joined(Affine):
    """Channels that are picked out of a value, mapped one by one, and joined in their order."""

    noun: ClassVar[str] = "the normalisation"
    join: Node
    value: Node
    axis: int
    channels: tuple[Chain, ...]
    """Each from the channel that was picked on."""
    picks: tuple[Node, ...]
    """The calls that pick them, and put their axes back."""

    @property
    def node(self) -> Node:
        return self.join

    @property
    def input(self) -> Node:
        return self.value

    @property
    def tensors(self) -> Values:
        return _named(self.channels)

    @property
    def constants(self) -> Sequence[ConstantView]:
        return [constant for one in self.channels for constant in one.constants]

    @property
    def is_by_rows(self) -> bool:
        return False

    @property
    def shifts(self) -> bool:
        return any(one.shifts for one in self.channels)

    def scale(self, values: Values) -> Tensor:
        return torch.stack([c.scale(own).cpu() for c, own in _with_values(self.channels, values)])

    def shift(self, values: Values) -> Tensor:
        return torch.stack([c.shift(own).cpu() for c, own in _with_values(self.channels, values)])


def calls_of(one: Affine) -> Sequence[Node]:
    """The calls that a map is made of, in order; the last one gives its value."""
    if not isinstance(one, Joined):
        return (one.node,)
    inner = (node for chain in one.channels for node in chain.nodes)
    return (*sorted({*one.picks, *inner}), one.node)


def arithmetic_of(one: Affine) -> Sequence[Arithmetic]:
    """The calls of a map that compute."""
    if isinstance(one, Chain | Joined):
        parts = one.maps if isinstance(one, Chain) else one.channels
        return [found for part in parts for found in arithmetic_of(part)]
    return [one] if isinstance(one, Arithmetic) else []


def _named(maps: Sequence[Affine]) -> Values:
    return {f"{n}.{key}": t for n, one in enumerate(maps) for key, t in one.tensors.items()}


def _with_values(maps: Sequence[Affine], values: Values) -> list[tuple[Affine, Values]]:
    """Each of the maps with the values of its own tensors."""
    own: list[dict[str, Tensor]] = [{} for _ in maps]
    for name, value in values.items():
        number, _, key = name.partition(".")
        if key:
            own[int(number)][key] = value
    return list(zip(maps, own, strict=True))


# -- finding them


def chain_behind(value: object, behind: int, facts: Facts) -> Chain | None:
    """The longest chain that gives a value; None where it is no arithmetic.

    `behind` is how many axes lie behind that of the channels.
    """
    maps: list[Affine] = []
    passing: dict[Node, tuple[Node, ...]] = {}
    handed, value = _handed_on(value)
    while (one := _map_at(value, behind, facts)) is not None:
        maps.insert(0, one)
        passing[one.node] = handed
        if isinstance(one, Joined):
            break
        handed, value = _handed_on(one.input)
    if not maps:
        return None
    copies = _copies_for(maps[0].node, facts)
    root = copies[0].all_input_nodes[0] if copies else maps[0].input
    return Chain(root, tuple(maps), passing, copies)


_MOVING: Final = (Flatten, Reshape, Permute)


def moves(node: Node) -> bool:
    """Whether a call hands on the elements that it is given in other places."""
    return view_at(node, *_MOVING) is not None


def _handed_on(value: object) -> tuple[tuple[Node, ...], object]:
    """What hands on a value, in order, and the value as it was before."""
    handed: list[Node] = []
    while (view := view_at(value, *_MOVING, Identity, Dropout, Clone)) is not None:
        if isinstance(view, Dropout) and view.is_active:
            break
        handed.insert(0, view.node)
        value = view.input
    return tuple(handed), value


def _copies_for(first: Node, facts: Facts) -> tuple[Node, ...]:
    """The copy that is made for the first call to write, if it writes one."""
    (value, *_) = (*facts.effects(first).writes, None)
    clone = Clone.at(value)
    return () if clone is None or clone.memory_format is not None else (clone.node,)


def _map_at(value: object, behind: int, facts: Facts) -> Affine | None:
    call = view_at(value, *CALLS)
    return _joined(value, behind, facts) if call is None else _affine(call)


def _affine(call: Binary | Negation) -> Arithmetic | None:
    found = Arithmetic.of(call)
    return None if found is None or found.divides else found


def _joined(value: object, behind: int, facts: Facts) -> Joined | None:
    join = Cat.at(value)
    rank = None if join is None else facts.rank(join.node)
    if join is None or rank is None or rank <= behind or not isinstance(join.tensors, list | tuple):
        return None
    axis = rank - 1 - behind
    found = [_channel(part, axis, rank) for part in join.tensors]
    channels = [channel for channel in found if channel is not None]
    wanted = [(n, join.op is Op.CAT) for n in range(len(found))]
    is_whole = [(c.number, c.keeps_axis) for c in channels] == wanted and join.dim % rank == axis
    if not is_whole or len({channel.value for channel in channels}) != 1:
        return None
    chains = tuple(channel.chain for channel in channels)
    picks = tuple(node for channel in channels for node in channel.nodes)
    is_mapped = any(chain.maps for chain in chains)
    return Joined(join.node, channels[0].value, axis, chains, picks) if is_mapped else None


@dataclass(frozen=True, slots=True)
class _Channel:
    """A part of what is joined: a channel of a value, mapped."""

    value: Node
    number: int
    keeps_axis: bool
    chain: Chain
    nodes: tuple[Node, ...]
    """The calls that pick it, and put its axis back."""


def _channel(part: object, axis: int, rank: int) -> _Channel | None:
    maps: list[Affine] = []
    axes: list[Node] = []
    while isinstance(part, Node):
        picked = Picked.at(part, axis, rank)
        if picked is not None and len(axes) + picked.keeps_axis < 2:
            chain = Chain(part, tuple(maps))
            is_kept = bool(axes) or picked.keeps_axis
            return _Channel(picked.value, picked.number, is_kept, chain, (part, *axes))
        call = view_at(part, *CALLS)
        one = None if call is None else _affine(call)
        if puts_axis_back(part, axis, rank):
            axes.append(part)
            part = part.all_input_nodes[0]
        elif one is not None:
            maps.insert(0, one)
            part = one.input
        else:
            return None
    return None

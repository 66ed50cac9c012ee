"""What a diagram shows, before it is DOT or text: boxes, edges and the modules around them."""

from collections import Counter
from dataclasses import dataclass
from enum import StrEnum, auto
from typing import TypeAlias

from fxpasses.core.plain import printable

Modules: TypeAlias = tuple[tuple[str, str], ...]
"""The modules around a node, outermost first: path and class of each."""


class Sign(StrEnum):
    """What became of a node between before and after."""

    KEPT = " "
    ADDED = "+"
    REMOVED = "-"
    CHANGED = "~"


class Family(StrEnum):
    """What kind of node it is; decides the colour of what was not changed."""

    BORDER = auto()
    LAYER = auto()
    NORM = auto()
    ACTIVATION = auto()
    POOL = auto()
    VIEW = auto()
    CONSTANT = auto()
    OPAQUE = auto()
    OTHER = auto()


@dataclass(frozen=True, slots=True)
class Box:
    """One node, or what many were folded into."""

    title: str
    """What it computes, in the words of the vocabulary."""
    name: str
    """As it is called inside of the modules around it."""
    full_name: str = ""
    """The name of the node, one of a kind in its graph, behind the path of the graph."""
    value: str = ""
    """Shape and dtype of the result, where they are known."""
    notes: tuple[str, ...] = ()
    """What is told of it at greater length: where it comes from, what became of it."""
    sign: Sign = Sign.KEPT
    family: Family = Family.OTHER
    modules: Modules = ()
    holds: Counter[Sign] | None = None
    """Where it is folded: how many boxes of each sign it stands for."""

    def __post_init__(self) -> None:
        for field in ("title", "name", "full_name", "value"):
            object.__setattr__(self, field, printable(getattr(self, field)))
        object.__setattr__(self, "notes", tuple(map(printable, self.notes)))

    @property
    def is_folded(self) -> bool:
        return self.holds is not None

    def counted(self) -> Counter[Sign]:
        return Counter({self.sign: 1}) if self.holds is None else self.holds


@dataclass(frozen=True, slots=True)
class Scene:
    """Boxes by key in the order in which they run, and edges by the keys of their ends."""

    title: str
    boxes: dict[str, Box]
    edges: dict[tuple[str, str], Sign]
    is_comparison: bool = False

    def counted(self) -> Counter[Sign]:
        return sum((box.counted() for box in self.boxes.values()), Counter[Sign]())

    def caption(self) -> str:
        """What is shown, in one line."""
        counts = self.counted()
        nodes = counts.total()
        parts = [printable(self.title)]
        if self.is_comparison:
            before, after = nodes - counts[Sign.ADDED], nodes - counts[Sign.REMOVED]
            parts.append(f"{before:,} -> {after:,} nodes")
            parts += [
                f"{sign} {counts[sign]:,} {sign.name.lower()}"
                for sign in (Sign.ADDED, Sign.REMOVED, Sign.CHANGED)
                if counts[sign]
            ] or ["no difference"]
        else:
            parts.append(f"{nodes:,} node{'' if nodes == 1 else 's'}")
        if any(box.is_folded for box in self.boxes.values()):
            parts.append(f"folded into {len(self.boxes):,} boxes")
        return ", ".join(parts)

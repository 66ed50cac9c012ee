"""What a diagram shows, before it is DOT or text: boxes, edges and the modules around them."""

from collections import Counter
from dataclasses import dataclass, field
from enum import StrEnum, auto
from typing import TypeAlias

from fxpasses.core.plain import printable
from fxpasses.diagram.scale import Scale

Modules: TypeAlias = tuple[tuple[str, str], ...]
"""The modules around a node, outermost first: path and class of each."""


class Sign(StrEnum):
    """What became of a node between before and after."""

    KEPT = " "
    ADDED = "+"
    REMOVED = "-"
    CHANGED = "~"
    REFUSED = "!"
    """Kept, and a pass that looked at it left it so, for a reason."""
    FAILED = "x"
    """Kept, because a rewrite of it was found wrong and undone."""


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
class Badge:
    """Constants that a node reads, told in its box."""

    text: str
    """How many numbers they are, as in `9.4K`, or what came or went by its name."""
    sign: Sign = Sign.KEPT

    def __post_init__(self) -> None:
        object.__setattr__(self, "text", printable(self.text))


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
    badges: tuple[Badge, ...] = ()
    reasons: tuple[str, ...] = ()
    """Why passes left it as it is, or what was wrong with a rewrite of it."""
    refused: int = 0
    """How many nodes in it a pass left as they are, for a reason; told also of changed ones."""
    measured: float | None = None
    """What the colours show, where it was measured."""
    detail: str = ""
    """Where it is folded: how many nodes it holds, and what became of them."""
    holds: Counter[Sign] | None = None
    """Where it is folded: how many boxes of each sign it stands for."""
    members: tuple[str, ...] = ()
    """Where it is folded: the full names of its nodes."""

    def __post_init__(self) -> None:
        for name in ("title", "name", "full_name", "value", "detail"):
            object.__setattr__(self, name, printable(getattr(self, name)))
        for name in ("notes", "reasons", "members"):
            object.__setattr__(self, name, tuple(map(printable, getattr(self, name))))

    @property
    def is_folded(self) -> bool:
        return self.holds is not None

    def counted(self) -> Counter[Sign]:
        return Counter({self.sign: 1}) if self.holds is None else self.holds


@dataclass(frozen=True, slots=True)
class Edge:
    """What one box reads of another."""

    sign: Sign
    value: str = ""
    """Shape and dtype of what is read, where they are known."""


@dataclass(frozen=True, slots=True)
class Scene:
    """Boxes by key in the order in which they run, and edges by the keys of their ends."""

    title: str
    boxes: dict[str, Box]
    edges: dict[tuple[str, str], Edge]
    is_comparison: bool = False
    constants: Counter[Sign] = field(default_factory=Counter[Sign])
    """How many nodes of each sign are badges, not boxes."""
    left_out: Counter[Sign] = field(default_factory=Counter[Sign])
    """How many nodes of each sign are neither, because something else is looked at."""
    focus: str = ""
    """What is looked at, where not all is."""
    scale: Scale | None = None
    """What the colours show, where not what was changed."""

    def counted(self) -> Counter[Sign]:
        """How many nodes there are of each sign, wherever they are shown."""
        boxes = (box.counted() for box in self.boxes.values())
        return sum(boxes, self.constants + self.left_out)

    def shown(self) -> int:
        """How many nodes are seen one by one."""
        single = sum(not box.is_folded for box in self.boxes.values())
        return single + self.constants.total()

    def refused(self) -> int:
        return sum(box.refused for box in self.boxes.values())

"""What a command was asked for, before torch is loaded."""

from dataclasses import dataclass
from enum import StrEnum, auto
from pathlib import Path
from typing import Any


class Verify(StrEnum):
    """How much is verified."""

    SITES = auto()
    EACH = auto()
    FULL = auto()
    OFF = auto()

    @property
    def level(self) -> bool | str:
        """As `fxpasses.run` takes it."""
        return {Verify.SITES: True, Verify.OFF: False}.get(self, self.value)


class Failure(StrEnum):
    """What happens to a pass that fails, or a rewrite that is found wrong."""

    RAISE = auto()
    SKIP = auto()


class Sizes(StrEnum):
    """What becomes of branches on sizes."""

    GUARDS = auto()
    KINDS = auto()
    SHAPES = auto()


class Color(StrEnum):
    """What the colours of a picture show."""

    CHANGE = auto()
    ERROR = auto()
    TIME = auto()
    MEMORY = auto()
    SAVED = auto()


@dataclass(frozen=True, slots=True)
class Subject:
    """A model by name, and how it is called."""

    model: str
    inputs: tuple[str, ...] = ()
    train: bool = False
    seed: int = 0


@dataclass(frozen=True, slots=True)
class Pipeline:
    """Passes by name, where they are looked up, and which of their rewrites may happen."""

    passes: str
    registries: tuple[Path, ...] = ()
    target: str | None = None
    skip: tuple[str, ...] = ()
    only: tuple[str, ...] | None = None

    def arguments(self) -> dict[str, Any]:
        """As `fxpasses.run` and its kin take them."""
        return {"target": self.target, "skip": self.skip, "only": self.only}


@dataclass(frozen=True, slots=True)
class Showing:
    """Where a report goes, and how much of it."""

    report: Path | None = None
    json: bool = False
    details: bool = False


@dataclass(frozen=True, slots=True)
class Checks:
    """How a result is checked, and what becomes of what is wrong."""

    verify: Verify = Verify.SITES
    on_failure: Failure = Failure.RAISE
    stop_after: int | None = None


@dataclass(frozen=True, slots=True)
class Dumping:
    """Where the graphs between passes go, and which of them."""

    folder: Path | None = None
    changed_only: bool = False


@dataclass(frozen=True, slots=True)
class Capturing:
    """How a model becomes graphs, and whether they are shown as code."""

    sizes: Sizes = Sizes.GUARDS
    leaf_functions: tuple[str, ...] = ()
    code: bool = False


@dataclass(frozen=True, slots=True)
class Picture:
    """What of a graph is shown, how, and where it goes."""

    output: Path | None = None
    color: Color = Color.CHANGE
    focus: str | None = None
    hops: int = 2
    most_boxes: int = 150
    renderer: str | None = None
    json: bool = False

    def arguments(self) -> dict[str, Any]:
        """As `fxpasses.draw` and `fxpasses.diff` take them."""
        return {
            "color": self.color.value,
            "focus": self.focus,
            "hops": self.hops,
            "most_boxes": self.most_boxes,
            "renderer": self.renderer,
        }


@dataclass(frozen=True, slots=True)
class Profiling:
    """What is measured, and how often."""

    repeats: int = 5
    finite: bool = False
    trace: Path | None = None

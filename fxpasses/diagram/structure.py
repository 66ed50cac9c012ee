"""Boxes by the modules that they stand in."""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import Final

from fxpasses.diagram.scene import Modules, Scene

_SHORT: Final = 20


@dataclass(frozen=True, slots=True)
class Group:
    """What is told in one box."""

    around: Modules
    """The modules that the one box stands in."""
    keys: tuple[str, ...]
    title: str
    name: str
    """More of it, for what stands around it known."""
    full_name: str
    like: str = ""
    """What is built alike, where that is why it is folded."""


def within_modules(scene: Scene) -> dict[Modules, tuple[str, ...]]:
    """The keys of the boxes inside of each module, at any depth."""
    found: defaultdict[Modules, list[str]] = defaultdict(list)
    for key, box in scene.boxes.items():
        for depth in range(1, len(box.modules) + 1):
            found[box.modules[:depth]].append(key)
    return {modules: tuple(keys) for modules, keys in found.items()}


def neighbours(scene: Scene, keys: Iterable[str], hops: int) -> set[str]:
    """Those boxes, and what is at most so many edges away from one of them."""
    import networkx as nx  # noqa: PLC0415  loaded only where not everything is shown

    graph: nx.Graph[str] = nx.Graph(list(scene.edges))
    graph.add_nodes_from(scene.boxes)
    near: set[str] = set()
    for key in keys:
        near.update(nx.single_source_shortest_path_length(graph, key, cutoff=hops))
    return near


def whole(modules: Sequence[Modules], keys: tuple[str, ...], like: Modules | None = None) -> Group:
    """One module, or neighbours that are built alike, as one box; `like` is what they are as.

    `layer3.1 (Bottleneck)`, `layer3.1 ... layer3.5 (5 x Bottleneck)`.
    """
    around = modules[0][:-1]
    (first, kind), (last, _) = modules[0][-1], modules[-1][-1]
    same = "" if like is None else f"as {_short(_shared(around, like), like[-1][0])}"
    if len(modules) == 1:
        full = f"{first} ({kind})" if kind else first
        name = _within(around, first)
        return Group(around, keys, kind or name, name if kind else "", full, same)
    title = f"{len(modules)} x {kind or 'module'}"
    span = f"{_within(around, first)} ... {_within(around, last)}"
    return Group(around, keys, title, span, f"{first} ... {last} ({title})", same)


def in_a_row(scene: Scene, keys: tuple[str, ...]) -> Group:
    """Boxes that follow each other as one."""
    first, last = scene.boxes[keys[0]], scene.boxes[keys[-1]]
    around = scene.boxes[keys[0]].modules
    for key in keys:
        around = _shared(around, scene.boxes[key].modules)
    title = _span(first.title, last.title)
    return Group(around, keys, title, "", _span(first.full_name, last.full_name))


def _span(first: str, last: str) -> str:
    """From the first of the first to the last of the last, where these are spans themselves."""
    return f"{first.partition(' ... ')[0]} ... {last.rpartition(' ... ')[2]}"


def _shared(one: Modules, other: Modules) -> Modules:
    """The modules around both."""
    both = takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False))
    return tuple(module for module, _ in both)


def _short(around: Modules, path: str) -> str:
    return path if len(path) <= _SHORT else _within(around, path)


def _within(around: Modules, path: str) -> str:
    return path.removeprefix(f"{around[-1][0]}.") if around else path

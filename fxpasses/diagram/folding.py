"""Fewer boxes: what can be told in one is, until as many are left as can be looked at."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from functools import partial
from typing import Final, TypeAlias

from fxpasses.diagram.scene import Box, Family, Modules, Scene, Sign

_HOPS: Final = 2
Group: TypeAlias = tuple[Modules, tuple[str, ...], str]
"""The modules around what is folded, the keys of its boxes, and what to call it."""


def folded(scene: Scene, most: int | None) -> Scene:
    """The scene in at most `most` boxes; all of them for None.

    First, away from all changes, whole modules. Then modules that are built as the one before
    them is. Then the innermost modules, those around them, and so on; at last what stands in a
    row. What is alike is treated alike: no step stops half-way.
    """
    if most is None:
        return scene
    steps = [_untouched, _repeated]
    deepest = max((len(box.modules) for box in scene.boxes.values()), default=0)
    steps += [partial(_at_depth, depth=depth) for depth in range(deepest, 0, -1)]
    for step in steps:
        if len(scene.boxes) <= most:
            return scene
        for group in list(step(scene)):
            scene = _with_group(scene, group)
    return _in_rows(scene, most)


def _untouched(scene: Scene) -> Iterator[Group]:
    """Whole modules that hold no change and nothing near to one, the outermost first."""
    near = _near_changes(scene)
    if not near:
        return
    taken: set[str] = set()
    for modules, keys in sorted(_by_module(scene).items(), key=lambda item: len(item[0])):
        if near.isdisjoint(keys) and taken.isdisjoint(keys):
            taken.update(keys)
            yield modules[:-1], keys, _named(modules[-1])


def _repeated(scene: Scene) -> Iterator[Group]:
    """Neighbours that are built alike, but for the first; the outermost first."""
    members = _by_module(scene)
    children: defaultdict[Modules, list[Modules]] = defaultdict(list)
    for modules in members:
        children[modules[:-1]].append(modules)
    for parent, siblings in sorted(children.items(), key=lambda item: len(item[0])):
        for alike in _alike(scene, siblings, members):
            keys = tuple(key for modules in alike for key in members[modules])
            yield parent, keys, _named(*(modules[-1] for modules in alike))


def _at_depth(scene: Scene, depth: int) -> Iterator[Group]:
    for modules, keys in _by_module(scene).items():
        if len(modules) == depth:
            yield modules[:-1], keys, _named(modules[-1])


def _alike(
    scene: Scene, siblings: Iterable[Modules], members: dict[Modules, tuple[str, ...]]
) -> Iterator[list[Modules]]:
    """Runs of siblings with the same boxes, each without its first."""
    run: list[Modules] = []
    last: object = None
    for modules in siblings:
        boxes = [scene.boxes[key] for key in members[modules]]
        form = (modules[-1][1], *((box.title, box.sign) for box in boxes))
        if form == last:
            run.append(modules)
            continue
        if run:
            yield run
        run, last = [], form
    if run:
        yield run


def _in_rows(scene: Scene, most: int) -> Scene:
    """Boxes that follow each other told in one, those without a change first."""
    near = _near_changes(scene)
    apart = [key for key in scene.boxes if key not in near]
    spared = len(scene.boxes) - len(apart)
    rows = most - spared
    if len(scene.boxes) > most and rows > 0:
        scene = _rows(scene, apart, rows)
    if len(scene.boxes) > most:
        scene = _rows(scene, list(scene.boxes), most)
    return scene


def _rows(scene: Scene, keys: list[str], count: int) -> Scene:
    length = -(-len(keys) // count)
    for start in range(0, len(keys), length):
        row = tuple(keys[start : start + length])
        first, last = scene.boxes[row[0]], scene.boxes[row[-1]]
        around = _common(scene.boxes[key].modules for key in row)
        scene = _with_group(scene, (around, row, f"{first.name} ... {last.name}"))
    return scene


def _common(all_modules: Iterable[Modules]) -> Modules:
    shared: list[tuple[str, str]] = []
    for level in zip(*all_modules, strict=False):
        if len(set(level)) > 1:
            break
        shared.append(level[0])
    return tuple(shared)


def _with_group(scene: Scene, group: Group) -> Scene:
    """The scene with the boxes of a group in one, at the place of the first."""
    around, keys, name = group
    inside = [key for key in keys if key in scene.boxes]
    if len(inside) < 2:
        return scene
    first = inside[0]
    members = [scene.boxes[key] for key in inside]
    boxes: dict[str, Box] = {}
    gone = set(inside[1:])
    for key, box in scene.boxes.items():
        if key == first:
            boxes[key] = _folded_box(name, members, around)
        elif key not in gone:
            boxes[key] = box
    at = {key: first if key in gone else key for key in scene.boxes}
    edges: dict[tuple[str, str], Sign] = {}
    for (source, target), sign in scene.edges.items():
        ends = at[source], at[target]
        if ends[0] != ends[1]:
            same = edges.get(ends, sign) is sign
            edges[ends] = sign if same else Sign.KEPT
    return Scene(scene.title, boxes, edges, scene.is_comparison)


def _folded_box(name: str, members: list[Box], around: Modules) -> Box:
    counts = sum((box.counted() for box in members), Counter[Sign]())
    told = f"{counts.total():,} nodes"
    changes = [f"{sign}{counts[sign]:,}" for sign in Sign if sign is not Sign.KEPT and counts[sign]]
    return Box(
        title=name.replace(f"{around[-1][0]}.", "") if around else name,
        full_name=name,
        name=", ".join([told, *changes]),
        value=members[-1].value,
        notes=tuple(f"{box.title} {box.name}" for box in members[:8]),
        sign=Sign.CHANGED if changes else Sign.KEPT,
        family=Family.OTHER,
        modules=around,
        holds=counts,
    )


def _near_changes(scene: Scene) -> set[str]:
    """Changed boxes and what is at most two steps away; empty where nothing was changed."""
    import networkx as nx  # noqa: PLC0415  loaded only where something is folded

    graph: nx.Graph[str] = nx.Graph(scene.edges)
    graph.add_nodes_from(scene.boxes)
    near: set[str] = set()
    for key, box in scene.boxes.items():
        if box.sign is not Sign.KEPT:
            near.update(nx.single_source_shortest_path_length(graph, key, cutoff=_HOPS))
    return near


def _by_module(scene: Scene) -> dict[Modules, tuple[str, ...]]:
    """The boxes inside of each module, at any depth."""
    found: defaultdict[Modules, list[str]] = defaultdict(list)
    for key, box in scene.boxes.items():
        for depth in range(1, len(box.modules) + 1):
            found[box.modules[:depth]].append(key)
    return {modules: tuple(keys) for modules, keys in found.items()}


def _named(*modules: tuple[str, str]) -> str:
    """`layer3.1 (Bottleneck)`, `layer3.1 ... layer3.5 (5 Bottleneck)`."""
    (first, kind), (last, _) = modules[0], modules[-1]
    if len(modules) == 1:
        return f"{first} ({kind})" if kind else first
    return f"{first} ... {last} ({len(modules)} {kind or 'modules'})"

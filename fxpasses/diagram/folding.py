"""Fewer boxes: what can be told in one is, until as few are left as can be looked at."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Final

from fxpasses.diagram.repeats import repeated
from fxpasses.diagram.scale import Scale
from fxpasses.diagram.scene import Box, Edge, Family, Modules, Scene, Sign
from fxpasses.diagram.structure import Group, in_a_row, neighbours, whole, within_modules

_HOPS: Final = 2
_COMFORTABLE: Final = 60
"""With more boxes than that, what is far from all changes and what repeats is folded."""
_SHORTEST_REST: Final = 3
_LISTED: Final = 12
_TOLD: Final = (Sign.ADDED, Sign.REMOVED, Sign.CHANGED, Sign.FAILED)


def folded(scene: Scene, most: int | None) -> Scene:
    """The scene in at most `most` boxes; all of them for None.

    First, away from all changes, whole modules and the rest of others; then modules that are built
    as one before them is. Only where more than `most` are left: the innermost modules, those around
    them, and so on; at last what stands in a row. No step stops half-way.
    """
    if most is None:
        return scene
    gentle = min(most, _COMFORTABLE)
    for step in (_untouched, _rest, repeated):
        if len(scene.boxes) > gentle:
            scene = _with_groups(scene, step(scene))
    deepest = max((len(box.modules) for box in scene.boxes.values()), default=0)
    steps = [partial(_at_depth, depth=depth) for depth in range(deepest, 0, -1)]
    for step in (*steps, _far_rows, partial(_rows, most=most)):
        if len(scene.boxes) > most:
            scene = _with_groups(scene, step(scene))
    return scene


def _untouched(scene: Scene) -> Iterator[Group]:
    """Whole modules that hold no change and nothing near to one, the outermost first.

    Neighbours of one class and size are told in one.
    """
    near = _near_changes(scene)
    members = within_modules(scene) if near else {}
    row: list[Modules] = []
    for modules, keys in sorted(members.items(), key=lambda item: len(item[0])):
        is_far = near.isdisjoint(keys)
        if row and not (is_far and _are_neighbours(row[-1], modules, members)):
            yield _in_one(row, members)
            row = []
        if is_far:
            row.append(modules)
    if row:
        yield _in_one(row, members)


def _are_neighbours(one: Modules, other: Modules, members: Mapping[Modules, Sequence[str]]) -> bool:
    """Whether two modules stand in one, and are of a class and size."""
    is_alike = one[-1][1] == other[-1][1] and len(members[one]) == len(members[other])
    return one[:-1] == other[:-1] and is_alike


def _in_one(row: Sequence[Modules], members: Mapping[Modules, Sequence[str]]) -> Group:
    return whole(row, tuple(key for modules in row for key in members[modules]))


def _rest(scene: Scene) -> Iterator[Group]:
    """What stands in a row in one module that holds changes, further away from them."""
    near = _near_changes(scene)
    for row in _rows_of(scene, near if near else scene.boxes):
        modules = {scene.boxes[key].modules for key in row}
        if len(modules) == 1 and len(row) >= _SHORTEST_REST:
            yield in_a_row(scene, row)


def _at_depth(scene: Scene, depth: int) -> Iterator[Group]:
    for modules, keys in within_modules(scene).items():
        if len(modules) == depth:
            yield whole([modules], keys)


def _far_rows(scene: Scene) -> Iterator[Group]:
    """Everything between what is near to changes."""
    near = _near_changes(scene)
    for row in _rows_of(scene, near if near else scene.boxes, whole_modules=False):
        yield in_a_row(scene, row)


def _rows(scene: Scene, most: int) -> Iterator[Group]:
    """Boxes that follow each other, as many at a time as it takes."""
    keys = list(scene.boxes)
    length = -(-len(keys) // max(most, 1))
    for start in range(0, len(keys), length):
        yield in_a_row(scene, tuple(keys[start : start + length]))


def _rows_of(
    scene: Scene, spared: Iterable[str], *, whole_modules: bool = True
) -> Iterator[tuple[str, ...]]:
    """Boxes that follow each other, none of them spared; in one module each, if so asked."""
    apart = frozenset(spared)
    row: list[str] = []
    for key, box in scene.boxes.items():
        stops = key in apart or (whole_modules and (box.is_folded or box.family is Family.BORDER))
        if row and (stops or (whole_modules and scene.boxes[row[-1]].modules != box.modules)):
            yield tuple(row)
            row = []
        if not stops:
            row.append(key)
    if row:
        yield tuple(row)


def _with_groups(scene: Scene, groups: Iterable[Group]) -> Scene:
    """The scene with each group in one box, at the place of its first; the earlier group wins."""
    chosen: list[Group] = []
    taken: set[str] = set()
    for group in groups:
        keys = tuple(key for key in group.keys if key in scene.boxes)
        if len(keys) > 1 and taken.isdisjoint(keys):
            taken.update(keys)
            chosen.append(replace(group, keys=keys))
    return _merged(scene, _without_circles(scene, chosen))


def _without_circles(scene: Scene, groups: Sequence[Group]) -> list[Group]:
    """The groups, those in pieces that would read of something that reads of them."""
    import networkx as nx  # noqa: PLC0415  loaded only where something is folded

    at = {key: number for number, group in enumerate(groups) for key in group.keys}
    quotient: nx.DiGraph[Any] = nx.DiGraph()
    quotient.add_edges_from((at.get(a, a), at.get(b, b)) for a, b in scene.edges)
    circles = [one for one in nx.strongly_connected_components(quotient) if len(one) > 1]
    circular = {number for one in circles for number in one if isinstance(number, int)}
    position = {key: number for number, key in enumerate(scene.boxes)}
    found: list[Group] = []
    for number, group in enumerate(groups):
        if number in circular:
            pieces = _in_pieces(group.keys, position)
            found += [in_a_row(scene, piece) for piece in pieces if len(piece) > 1]
        else:
            found.append(group)
    return found


def _in_pieces(keys: Iterable[str], position: Mapping[str, int]) -> Iterator[tuple[str, ...]]:
    """What follows each other without a gap."""
    piece: list[str] = []
    for key in keys:
        if piece and position[key] != position[piece[-1]] + 1:
            yield tuple(piece)
            piece = []
        piece.append(key)
    yield tuple(piece)


def _merged(scene: Scene, groups: Sequence[Group]) -> Scene:
    at = {key: group.keys[0] for group in groups for key in group.keys}
    by_first = {group.keys[0]: group for group in groups}
    boxes: dict[str, Box] = {}
    for key, box in scene.boxes.items():
        if key in by_first:
            group = by_first[key]
            boxes[key] = _one_box(group, [scene.boxes[one] for one in group.keys], scene.scale)
        elif key not in at:
            boxes[key] = box
    edges: dict[tuple[str, str], Edge] = {}
    for (source, target), edge in scene.edges.items():
        ends = at.get(source, source), at.get(target, target)
        if ends[0] != ends[1]:
            edges[ends] = _both(edges.get(ends, edge), edge)
    return replace(scene, boxes=boxes, edges=edges)


def _both(one: Edge, other: Edge) -> Edge:
    sign = one.sign if one.sign is other.sign else Sign.KEPT
    return Edge(sign, one.value if one.value == other.value else "several values")


def _one_box(group: Group, inside: list[Box], scale: Scale | None) -> Box:
    counts = sum((box.counted() for box in inside), Counter[Sign]())
    refused = sum(box.refused for box in inside)
    changes = [f"{sign}{counts[sign]:,}" for sign in _TOLD if counts[sign]]
    changes += [f"{Sign.REFUSED}{refused:,}"] if refused else []
    told = [f"{counts.total():,} nodes", *changes, *([group.like] if group.like else [])]
    measured = [box.measured for box in inside if box.measured is not None]
    names = tuple(name for box in inside for name in (box.members or (box.full_name,)))
    more = (f"... and {len(names) - _LISTED:,} more",) if len(names) > _LISTED else ()
    return Box(
        title=group.title,
        name=group.name,
        full_name=group.full_name,
        detail=", ".join(told),
        notes=(*names[:_LISTED], *more),
        sign=_sign_of(counts),
        family=Family.OTHER,
        modules=group.around,
        refused=refused,
        measured=scale.combined(measured) if scale else None,
        holds=counts,
        members=names,
    )


def _sign_of(counts: Counter[Sign]) -> Sign:
    """Failed where one in it is; what was changed, when not all came or all went, is changed."""
    if counts[Sign.FAILED]:
        return Sign.FAILED
    for sign in Sign:
        if counts[sign] == counts.total():
            return sign
    if any(counts[sign] for sign in _TOLD):
        return Sign.CHANGED
    return Sign.REFUSED


def _near_changes(scene: Scene) -> set[str]:
    """Changed boxes and what is at most two steps away; empty where nothing was changed."""
    changed = [key for key, box in scene.boxes.items() if box.sign is not Sign.KEPT]
    return neighbours(scene, changed, _HOPS) if changed else set()

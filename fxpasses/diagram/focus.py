"""A part of a scene: what stands near to a node, or to a module."""

from collections import Counter
from dataclasses import replace

from fxpasses.core.nearest import did_you_mean
from fxpasses.diagram.scene import Scene, Sign
from fxpasses.diagram.structure import neighbours
from fxpasses.errors import ArgumentError


def focused(scene: Scene, name: str, hops: int) -> Scene:
    """Only the boxes at most `hops` steps away from the node, or the module, of that name.

    Raises:
        ArgumentError: there is none of that name.
    """
    near = neighbours(scene, _keys_of(scene, name), hops)
    boxes = {key: box for key, box in scene.boxes.items() if key in near}
    gone = (box.counted() for key, box in scene.boxes.items() if key not in near)
    return replace(
        scene,
        boxes=boxes,
        edges={ends: edge for ends, edge in scene.edges.items() if near.issuperset(ends)},
        left_out=sum(gone, Counter[Sign]()),
        focus=f"{hops} hop{'' if hops == 1 else 's'} round {name}",
    )


def _keys_of(scene: Scene, name: str) -> list[str]:
    """Of the nodes of that name, before or after; else of what stands in the module of that name.

    A node of a graph of its own is also found without the path of that.
    """
    named = [key for key, box in scene.boxes.items() if name == box.full_name]
    named = named or [
        key for key, box in scene.boxes.items() if name == box.full_name.rpartition("/")[2]
    ]
    inside = named or [
        key for key, box in scene.boxes.items() if any(name == path for path, _ in box.modules)
    ]
    if inside:
        return inside
    paths = dict.fromkeys(path for box in scene.boxes.values() for path, _ in box.modules)
    known = [*(box.full_name for box in scene.boxes.values()), *paths]
    raise ArgumentError(f"focus: there is no node or module {name!r}{did_you_mean(name, known)}")

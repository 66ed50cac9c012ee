"""A scene as plain data: what a picture of it shows, by the ids of its elements."""

import math
from typing import Any

from fxpasses.diagram.caption import caption_of
from fxpasses.diagram.scene import Box, Scene


def data_of(scene: Scene) -> dict[str, Any]:
    """Boxes by the id that their element has in an SVG, edges, and how many nodes of each sign."""
    return {
        "caption": caption_of(scene),
        "counts": {sign.name.lower(): count for sign, count in scene.counted().items() if count},
        "refused": scene.refused(),
        "boxes": {key: _box(box) for key, box in scene.boxes.items()},
        "edges": [
            {"from": source, "to": target, "sign": edge.sign.name.lower(), "value": edge.value}
            for (source, target), edge in scene.edges.items()
        ],
    }


def _box(box: Box) -> dict[str, Any]:
    return {
        "title": box.title,
        "name": box.full_name,
        "sign": box.sign.name.lower(),
        "value": box.value,
        "modules": [list(module) for module in box.modules],
        "badges": [[badge.sign.name.lower(), badge.text] for badge in box.badges],
        "measured": _number(box.measured),
        "reasons": list(box.reasons),
        "notes": list(box.notes),
        "holds": {sign.name.lower(): count for sign, count in box.counted().items()},
        "nodes": list(box.members or (box.full_name,)),
    }


def _number(value: float | None) -> float | str | None:
    """JSON has no NaN and no infinity."""
    return value if value is None or math.isfinite(value) else str(value)

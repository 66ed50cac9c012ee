"""A scene as text: one line a node, aligned, with the sign of what became of it."""

from collections import defaultdict
from typing import Final

from fxpasses.diagram.scene import Box, Scene, Sign

_GAP: Final = "  "


def text_of(scene: Scene) -> str:
    """Sign, name, what it computes, of what, and its value."""
    operands: defaultdict[str, list[str]] = defaultdict(list)
    names = {key: box.full_name for key, box in scene.boxes.items()}
    for (source, target), sign in scene.edges.items():
        mark = "" if sign in (Sign.KEPT, scene.boxes[target].sign) else str(sign)
        operands[target].append(f"{mark}{names[source]}")
    rows = [
        (f"{box.sign} {names[key]}", _computes(box), ", ".join(operands[key]), box.value)
        for key, box in scene.boxes.items()
    ]
    widths = [max((len(row[n]) for row in rows), default=0) for n in range(4)]
    lines = [
        _GAP.join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    ]
    return "\n".join([scene.caption(), *lines])


def _computes(box: Box) -> str:
    return box.name if box.is_folded else box.title

"""A scene as text: one line a node, aligned, with the sign of what became of it."""

from collections import defaultdict
from typing import Final

from fxpasses.diagram.caption import caption_of
from fxpasses.diagram.scene import Box, Scene, Sign

_GAP: Final = "  "
_WIDEST: Final = 60
"""A column as wide as its longest cell, but no wider: longer cells push out their own line."""


def text_of(scene: Scene) -> str:
    """Sign, name, what it computes, of what, and its value; then why, where a pass left it so."""
    operands: defaultdict[str, list[str]] = defaultdict(list)
    names = {key: box.full_name for key, box in scene.boxes.items()}
    for (source, target), edge in scene.edges.items():
        mark = "" if edge.sign in (Sign.KEPT, scene.boxes[target].sign) else str(edge.sign)
        operands[target].append(f"{mark}{names[source]}")
    rows = {
        key: (
            f"{box.sign} {names[key]}",
            _computes(box),
            ", ".join((*operands[key], *_badges(box))),
            box.value,
            _measured(box, scene),
        )
        for key, box in scene.boxes.items()
    }
    widths = [
        min(max((len(row[n]) for row in rows.values()), default=0), _WIDEST) for n in range(5)
    ]
    lines = [caption_of(scene)]
    for key, row in rows.items():
        cells = (cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        lines.append(_GAP.join(cells).rstrip())
        lines += [f"    {note}" for note in scene.boxes[key].reasons]
    return "\n".join(lines)


def _computes(box: Box) -> str:
    return box.detail if box.is_folded else box.title


def _badges(box: Box) -> list[str]:
    """The constants that came or went; those that stayed are told by the picture alone."""
    return [f"{one.sign}{one.text}" for one in box.badges if one.sign is not Sign.KEPT]


def _measured(box: Box, scene: Scene) -> str:
    if scene.scale is None:
        return ""
    if box.measured is None:
        return f"{scene.scale.name} not measured"
    over = "x " if scene.scale.is_over(box.measured) else ""
    return f"{over}{scene.scale.text_of(box.measured)}"

"""The order of boxes: how deep each stands, and in which column of the picture."""

from collections import Counter, defaultdict
from typing import Final

from fxpasses.diagram.scene import Scene

_ASPECT: Final = 1400 / 900
"""Width to height of the window that a picture should fit."""
_ROW: Final = 60.0
_BOX: Final = 300.0
"""About what a row and a box take, in points, with what lies between them."""
_SHORTEST: Final = 9
"""Rows of a column: fewer are not worth another one."""


def columns_of(scene: Scene) -> dict[str, int]:
    """The column of each box, from 0: what is much longer than wide is told in several."""
    rows = rows_of(scene)
    height = max(rows.values(), default=0) + 1
    starts = _starts(scene, rows, height, _columns(scene, height))
    return {key: sum(row >= start for start in starts) for key, row in rows.items()}


def rows_of(scene: Scene) -> dict[str, int]:
    """How many boxes stand above each at least, as it is drawn; read late, a source stands late."""
    rows: dict[str, int] = {}
    sources: defaultdict[str, list[str]] = defaultdict(list)
    readers: defaultdict[str, list[str]] = defaultdict(list)
    for source, target in scene.edges:
        sources[target].append(source)
        readers[source].append(target)
    for key in scene.boxes:
        # What was folded may read of what comes later; that does not count.
        rows[key] = 1 + max((rows[one] for one in sources[key] if one in rows), default=-1)
    for key in scene.boxes:
        if not sources[key] and readers[key]:
            rows[key] = max(min(rows[one] for one in readers[key]) - 1, 0)
    following = max(rows.values(), default=0)
    for key in reversed(scene.boxes):
        # What reads nothing and is read by nothing stands with what runs next.
        is_alone = not (sources[key] or readers[key])
        following = rows[key] = following if is_alone else rows[key]
    return rows


def _columns(scene: Scene, height: int) -> int:
    """As many as make the picture as wide as its window is."""
    width = max(len(scene.boxes) / height, 1.0)
    best = round((_ASPECT * height * _ROW / (width * _BOX)) ** 0.5)
    return max(min(best, height // _SHORTEST), 1)


def _starts(scene: Scene, rows: dict[str, int], height: int, columns: int) -> list[int]:
    """The first rows of all columns but the first: where little is cut, near to even heights."""
    cut = _cut_above(scene, rows, height)
    reach = height // (4 * columns)
    starts: list[int] = []
    for column in range(1, columns):
        even = round(height * column / columns)
        near = range(max(even - reach, 1), min(even + reach + 1, height))
        starts.append(min(near, key=lambda row: (cut[row], abs(row - even))))
    return starts


def _cut_above(scene: Scene, rows: dict[str, int], height: int) -> list[int]:
    """For each row, what would be cut above it: values that are read below, and modules."""
    values: defaultdict[int, set[str]] = defaultdict(set)
    for source, target in scene.edges:
        for row in range(rows[source] + 1, rows[target] + 1):
            values[row].add(source)
    modules: Counter[int] = Counter()
    spans: dict[object, tuple[int, int]] = {}
    for key, box in scene.boxes.items():
        for depth in range(len(box.modules)):
            around = box.modules[: depth + 1]
            first, last = spans.get(around, (rows[key], rows[key]))
            spans[around] = min(first, rows[key]), max(last, rows[key])
    for first, last in spans.values():
        modules.update(range(first + 1, last + 1))
    # A value that is cut costs a pair of markers; a module, a frame that is drawn twice.
    return [3 * len(values[row]) + modules[row] for row in range(height)]

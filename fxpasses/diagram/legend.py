"""The head of a picture: what it shows, and what its signs and colours mean."""

from collections.abc import Iterable, Iterator

from fxpasses.diagram.caption import numbers_of
from fxpasses.diagram.labels import cell, cut, font, table
from fxpasses.diagram.palette import (
    FAMILIES,
    HEAT,
    OVER,
    QUIET,
    SIGNS,
    UNMEASURED,
    Paint,
)
from fxpasses.diagram.scene import Family, Scene, Sign

_SAID = {
    Sign.ADDED: "added",
    Sign.REMOVED: "removed",
    Sign.CHANGED: "changed",
    Sign.REFUSED: "refused",
    Sign.FAILED: "found wrong, undone",
}
_FAMILIES = {
    Family.LAYER: "layer",
    Family.NORM: "norm",
    Family.ACTIVATION: "activation",
    Family.POOL: "pool",
    Family.VIEW: "view",
    Family.OPAQUE: "opaque module",
}
_TITLE = 60
_COLUMNS = "12"


def legend_of(scene: Scene, drawn_by: str = "") -> str:
    """A table: the caption, the meaning of what is there to be seen, and who drew it."""
    title = font(cut(scene.title, _TITLE), size=15, bold=True)
    numbers = font(f"   {numbers_of(scene)}", size=11, color=QUIET)
    title_and_numbers = f"{title}{numbers}"
    entries = [*_entries(scene), *([_word(f"drawn by {drawn_by}")] if drawn_by else [])]
    scale = "" if scene.scale is None else table("".join(_heat(scene)), CELLSPACING="4")
    meaning = table("".join(entries), CELLSPACING="4") if entries else ""
    # Empty cells take what the other rows are wider, so that no swatch grows.
    return table(
        cell(title_and_numbers, ALIGN="LEFT", COLSPAN=_COLUMNS),
        cell(scale, ALIGN="LEFT", COLSPAN=_COLUMNS) if scale else "",
        cell(meaning, ALIGN="LEFT") + cell("") * (int(_COLUMNS) - 1) if meaning else "",
        CELLSPACING="2",
    )


def _entries(scene: Scene) -> Iterator[str]:
    if scene.scale is None and not scene.is_comparison:
        present = {box.family for box in scene.boxes.values() if not box.is_folded}
        for family, word in _FAMILIES.items():
            if family in present:
                yield _swatch(FAMILIES[family], word)
    present_signs = set(_signs(scene))
    for sign, word in _SAID.items():
        if sign in present_signs:
            yield _swatch(SIGNS[sign], f"{sign} {word}", bold=True)
    if any(box.badges for box in scene.boxes.values()):
        yield _badge()
    if any(box.is_folded for box in scene.boxes.values()):
        yield cell(font(" folded ", size=9), BORDER="3", STYLE="ROUNDED", COLOR="#c3cad1")


def _signs(scene: Scene) -> Iterable[Sign]:
    for box in scene.boxes.values():
        yield box.sign
        yield from (badge.sign for badge in box.badges)
        if box.refused:
            yield Sign.REFUSED


def _heat(scene: Scene) -> Iterator[str]:
    scale = scene.scale
    assert scale is not None, "asked for only where there is one"
    measured = [box.measured for box in scene.boxes.values() if box.measured is not None]
    yield cell(font(f"{cut(scale.name, _TITLE)} from ", size=10, bold=True))
    for step, paint in enumerate(HEAT):
        text = font(f" {scale.text_of(scale.start_of(step))} ", size=9, color=paint.text)
        yield cell(text, BGCOLOR=paint.fill, BORDER="1", COLOR=paint.border)
    more = " and more" if max(measured, default=0.0) > scale.most else ""
    yield _word(f"to {scale.text_of(scale.most)}{more}")
    if any(map(scale.is_over, measured)):
        limit = "NaN, inf" if scale.limit is None else f"over {scale.text_of(scale.limit)}"
        yield cell(font(f" x {limit} ", size=9), BORDER="3", COLOR=OVER)
    if len(measured) < len(scene.boxes):
        # A table cell has no stripes of its own.
        stripes = [cell(" ", BGCOLOR=color) for color in UNMEASURED.fill.split(":")[:8]]
        yield cell(table("".join(stripes), BORDER="1", COLOR=UNMEASURED.border))
        yield _word("not measured")


def _swatch(paint: Paint, word: str, *, bold: bool = False) -> str:
    text = font(f" {word} ", size=9, color=paint.text, bold=bold)
    style = "ROUNDED,DASHED" if paint.dashed else "ROUNDED"
    width = "2" if paint.width > 1.2 else "1"
    return cell(text, BGCOLOR=paint.fill, BORDER=width, COLOR=paint.border, STYLE=style)


def _badge() -> str:
    return cell(font(" 9.4K  parameters ", size=8, color=QUIET), BGCOLOR="#e9edf1")


def _word(text: str) -> str:
    return cell(font(f" {text} ", size=9, color=QUIET))

"""How one box, and one frame round boxes, is drawn."""

from dataclasses import replace
from typing import Final

from fxpasses.diagram.labels import cell, cut, font, label, table, tooltip
from fxpasses.diagram.palette import HEAT, INK, OVER, QUIET, SIGNS, UNMEASURED, Paint, paint_of
from fxpasses.diagram.scale import Scale
from fxpasses.diagram.scene import Badge, Box, Modules, Scene, Sign

_BADGE: Final = ("#e9edf1", QUIET)
_WIDEST: Final = 44
_REASONS_SHOWN: Final = 1


def node_of(box: Box, scene: Scene) -> dict[str, str]:
    """The attributes of a box."""
    paint, kind = _paint(box, scene.scale, is_comparison=scene.is_comparison)
    look = {
        "label": label(_label(box, paint, scene.scale)),
        "tooltip": tooltip(*_told(box)),
        "class": f"{kind} {box.sign.name.lower()}{' refused' if _is_also_refused(box) else ''}",
        "fillcolor": paint.fill,
        "color": paint.border,
        "penwidth": f"{paint.width:g}",
        "style": paint.style,
    }
    if "unmeasured" in kind:
        look["style"] = "striped,dashed" if paint.dashed else "striped"
    if box.is_folded:
        look["peripheries"] = "2"
    return look


def frame_of(modules: Modules, *, continues: bool) -> dict[str, str]:
    """The attributes of the frame round a module; its name counts from the frame around it."""
    path, kind = modules[-1]
    around = f"{modules[-2][0]}." if len(modules) > 1 else ""
    name = path.removeprefix(around)
    more = " ..." if continues else ""
    head = f"{font(cut(name), size=10, bold=True, color=QUIET)}"
    return {
        "label": label(f"{head}{font(f'  {cut(kind)}{more}', size=9, color=QUIET)}"),
        "tooltip": tooltip(f"{path} {kind}"),
        "labeljust": "l",
        "style": "rounded,filled",
        "color": "#d3dae1",
        "fillcolor": "#fbfcfd" if len(modules) % 2 else "#f3f5f7",
        "margin": "8",
    }


def _paint(box: Box, scale: Scale | None, *, is_comparison: bool) -> tuple[Paint, str]:
    """The colours, and the class of the element."""
    kind = "folded" if box.is_folded else str(box.family)
    if scale is None or (box.sign is Sign.FAILED and box.measured is None):
        return paint_of(box.sign, box.family, is_comparison=is_comparison), kind
    if box.measured is None:
        sign = SIGNS.get(box.sign, UNMEASURED)
        return replace(UNMEASURED, border=sign.border, dashed=sign.dashed), f"{kind} unmeasured"
    heat = HEAT[scale.step_of(box.measured)]
    if scale.is_over(box.measured):
        return Paint(heat.fill, OVER, heat.text, width=3.0), f"{kind} over"
    border = SIGNS.get(box.sign, heat).border
    return Paint(heat.fill, border, heat.text, width=2.0 if box.sign in SIGNS else 1.0), kind


def _is_also_refused(box: Box) -> bool:
    return box.refused > 0 and box.sign is not Sign.REFUSED and not box.is_folded


def _told(box: Box) -> list[str]:
    """What a tooltip says: why it stays as it is comes first."""
    return [
        f"{_title(box)} {box.name}",
        *([box.value] if box.value else []),
        *box.reasons,
        *box.notes,
    ]


def _title(box: Box) -> str:
    also = str(Sign.REFUSED) if _is_also_refused(box) else ""
    return f"{box.sign}{also} {box.title}".strip()


def _label(box: Box, paint: Paint, scale: Scale | None) -> str:
    """The title with what it is called and its badges, and lines below it."""
    is_heat = scale is not None and box.measured is not None
    # On a dark fill nothing is told quietly.
    quiet = paint.text if is_heat or paint.text != INK else QUIET
    title = font(cut(_title(box)), bold=True, color=paint.text)
    called = "" if box.is_folded or box.name == box.title else f"  {cut(box.name)}"
    badges = "".join(_badge(one) for one in box.badges)
    # Cells at both ends take what a longer line below leaves over, so that no badge grows.
    head = cell("") + cell(f"{title}{font(called, size=9, color=quiet)} ") + badges + cell("")
    columns = str(3 + len(box.badges))
    below = [font(one, size=9, color=quiet) for one in _folded_lines(box)]
    below += [font(_shortly(one), size=8, color=quiet) for one in box.reasons[:_REASONS_SHOWN]]
    if scale is not None and box.measured is not None:
        mark = "x " if scale.is_over(box.measured) else ""
        below.append(font(f"{mark}{scale.text_of(box.measured)}", size=9, color=paint.text))
    return table(head, *(cell(line, COLSPAN=columns) for line in below))


def _folded_lines(box: Box) -> list[str]:
    return [cut(one, _WIDEST) for one in (box.name, box.detail) if one] if box.is_folded else []


def _shortly(reason: str) -> str:
    """Without the name of the condition, which the tooltip tells."""
    return cut(reason.partition(" [")[0], _WIDEST)


def _badge(badge: Badge) -> str:
    fill, ink = _BADGE
    if badge.sign in SIGNS:
        fill, ink = SIGNS[badge.sign].fill, SIGNS[badge.sign].border
    sign = "" if badge.sign is Sign.KEPT else f"{badge.sign} "
    return cell(font(f" {sign}{badge.text} ", size=8, color=ink), BGCOLOR=fill)

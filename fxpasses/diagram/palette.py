"""The colours of a diagram. Told apart by colour-blind eyes, and each repeated by a sign."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from fxpasses.diagram.scene import Family, Sign

INK: Final = "#1f2933"
QUIET: Final = "#5f6c7b"
LINE: Final = "#8795a4"


@dataclass(frozen=True, slots=True)
class Paint:
    """How a box is painted; `width` of its border in points."""

    fill: str
    border: str
    text: str = INK
    width: float = 1.0
    dashed: bool = False

    @property
    def style(self) -> str:
        return "rounded,filled,dashed" if self.dashed else "rounded,filled"


PALE: Final = Paint("#f7f8fa", "#c3cad1")
"""What was not changed, where changes are shown."""

SIGNS: Final[Mapping[Sign, Paint]] = {
    Sign.ADDED: Paint("#d3f2e3", "#00735a", width=2.2),
    Sign.REMOVED: Paint("#fde4dc", "#c2410c", width=1.5, dashed=True),
    Sign.CHANGED: Paint("#dbe8fd", "#1d5fc4", width=2.0),
    Sign.REFUSED: Paint("#fff1c2", "#a16a00", width=1.6),
    Sign.FAILED: Paint("#f6d5e8", "#a3135f", width=3.0),
}

FAMILIES: Final[Mapping[Family, Paint]] = {
    Family.BORDER: Paint("#3d4852", "#3d4852", "#ffffff"),
    Family.LAYER: Paint("#dbe8fd", "#7ba3d8"),
    Family.NORM: Paint("#ece4f9", "#a78bd4"),
    Family.ACTIVATION: Paint("#fdebd3", "#dda15e"),
    Family.POOL: Paint("#d7f0ee", "#6bb5ae"),
    Family.VIEW: Paint("#f1f3f5", "#b8c1ca"),
    Family.CONSTANT: Paint("#fff8d6", "#d6c05a"),
    Family.OPAQUE: Paint("#ffffff", "#3d4852", width=2.0),
    Family.OTHER: Paint("#fafbfc", "#a6b0ba"),
}

HEAT: Final = (
    Paint("#fff7e6", "#d9c9a3"),
    Paint("#fee3b0", "#cfa95c"),
    Paint("#fdc26b", "#b98632"),
    Paint("#f0943c", "#a05f18"),
    Paint("#c95a2b", "#8a3513", "#ffffff"),
    Paint("#7f2412", "#551408", "#ffffff"),
)
"""From the least to the most; each darker than the one before, so that grey print tells them."""

UNMEASURED: Final = Paint(":".join(("#ffffff", "#eceff2") * 6), "#b3bcc6")
"""Hatched: not to be taken for the least."""
OVER: Final = "#a3135f"

EDGES: Final[Mapping[Sign, Mapping[str, str]]] = {
    Sign.KEPT: {"color": LINE},
    Sign.ADDED: {"color": "#00735a", "penwidth": "1.8"},
    Sign.REMOVED: {"color": "#c2410c", "style": "dashed"},
}


def paint_of(sign: Sign, family: Family, *, is_comparison: bool) -> Paint:
    """The colours of a box by what became of it, else by what kind of node it is."""
    if sign in SIGNS:
        return SIGNS[sign]
    if is_comparison and family is not Family.BORDER:
        return PALE
    return FAMILIES[family]

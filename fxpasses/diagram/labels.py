"""Labels in Graphviz's subset of HTML, with all text escaped."""

from collections.abc import Mapping
from html import escape
from typing import Final

from fxpasses.core.plain import printable

_LONGEST_LINE: Final = 160
_LONGEST: Final = 36
_SPACE: Final = "&#160;"


def cut(text: str, longest: int = _LONGEST) -> str:
    return text if len(text) <= longest else f"{text[: longest - 3]}..."


def escaped(text: str) -> str:
    """Text of which nothing is an element, an entity, or an escape of Graphviz."""
    return escape(printable(text)).replace("\\", "&#92;")


def tooltip(*lines: str) -> str:
    """Lines of a tooltip, which is no HTML but knows its entities."""
    return "&#10;".join(escaped(cut(line, _LONGEST_LINE)) for line in lines)


def font(text: str, *, size: float = 0, color: str = "", bold: bool = False) -> str:
    """Text in a font; nothing for no text, as an empty element is an error in Graphviz."""
    if not text:
        return ""
    inner = _with_its_ends(text)
    inner = f"<B>{inner}</B>" if bold else inner
    look = {"POINT-SIZE": f"{size:g}" if size else "", "COLOR": color}
    given = _attributes(look)
    return f"<FONT{given}>{inner}</FONT>" if given else inner


def _with_its_ends(text: str) -> str:
    """Browsers leave plain spaces at the ends out, and words would touch."""
    inner = text.strip(" ")
    before, _, after = text.partition(inner) if inner else (text, "", "")
    return _SPACE * len(before) + escaped(inner) + _SPACE * len(after)


def cell(inner: str, **look: str) -> str:
    return f"<TD{_attributes(look)}>{inner}</TD>"


def table(*rows: str, **look: str) -> str:
    """A table without lines, of rows of cells."""
    plain = {"BORDER": "0", "CELLBORDER": "0", "CELLSPACING": "0", "CELLPADDING": "0", **look}
    return f"<TABLE{_attributes(plain)}>{''.join(f'<TR>{row}</TR>' for row in rows if row)}</TABLE>"


def label(html: str) -> str:
    return f"<{html}>"


def _attributes(look: Mapping[str, str]) -> str:
    return "".join(f' {name}="{value}"' for name, value in look.items() if value)

"""Text as a picture, for where nothing can lay out a graph."""

from html import escape
from typing import Final

_ADVANCE: Final = 7.3
_LEADING: Final = 16
_MARGIN: Final = 12


def svg_of_text(text: str, said: str) -> str:
    """Lines of a fixed-width font, and in a comment `said`, which no text can end."""
    lines = text.split("\n")
    width = _ADVANCE * max(map(len, lines)) + 2 * _MARGIN
    height = _LEADING * len(lines) + 2 * _MARGIN
    rows = "\n".join(
        f'<text x="{_MARGIN}" y="{_MARGIN + _LEADING * (n + 0.75):.0f}" xml:space="preserve">'
        f"{escape(line)}</text>"
        for n, line in enumerate(lines)
    )
    return (
        f"<!-- {said.replace('--', '- -')} -->\n"
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height}" '
        f'style="width: 100%; max-width: {width:.0f}px; height: auto" '
        'font-family="monospace" font-size="12" fill="#1f2933">\n'
        f'<rect width="100%" height="100%" fill="#ffffff"/>\n{rows}\n</svg>\n'
    )

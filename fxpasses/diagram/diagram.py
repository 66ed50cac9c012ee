"""A diagram in its forms."""

import re
from dataclasses import dataclass
from functools import partial
from os import PathLike
from pathlib import Path
from typing import Any

from fxpasses.core.given import shown
from fxpasses.diagram.data import data_of
from fxpasses.diagram.plain import text_of
from fxpasses.diagram.rendering import Drawn, Form, render
from fxpasses.diagram.scene import Scene
from fxpasses.diagram.texts import svg_of_text
from fxpasses.errors import ArgumentError, DrawingError

SUFFIXES = (".svg", ".png", ".dot", ".gv", ".txt")
_SIZED = re.compile(r'<svg width="([\d.]+)pt" height="[\d.]+pt"')
_FONT = re.compile(r'font-family="Arial"')


@dataclass(frozen=True, slots=True)
class Diagram:
    """One graph, or two as one; `str()` of it is its text."""

    scene: Scene
    renderer: str | None = None
    """The program that draws it; None takes the first that there is."""

    def dot(self) -> str:
        """In the language of Graphviz."""
        return self._dot_by("")

    def text(self) -> str:
        """One line a node; needs no renderer."""
        return text_of(self.scene)

    def as_dict(self) -> dict[str, Any]:
        """What is shown, as plain data: boxes by the id of their element in the SVG, and edges."""
        return data_of(self.scene)

    def svg(self, *, prefix: str = "") -> str:
        """A picture that fits the width it is given; the text, drawn, where no Graphviz is there.

        Its first comment says what drew it. The ids of its boxes are those of `as_dict`, behind
        `prefix`, which tells them from those of another picture in one page.
        """
        drawn = self._drawn("svg", prefix)
        if drawn.picture is None:
            return svg_of_text(self.text(), f"drawn as text: {drawn.by}")
        return _fitted(drawn.picture.decode(), drawn.by)

    def png(self) -> bytes:
        """A picture of dots.

        Raises:
            DrawingError: there is no Graphviz, or it cannot draw this; SVG and text need none.
        """
        return _required(self._drawn("png"))

    def save(self, path: str | PathLike[str]) -> str:
        """Write the form that the suffix names: `.svg`, `.png`, `.dot` or `.txt`.

        Returns:
            What drew it, or why it is text.

        Raises:
            ArgumentError: the suffix is another, or `path` is no path.
            DrawingError: see `png`.
        """
        try:
            file = Path(path)
        except TypeError as error:
            raise ArgumentError(f"path is {shown(path)}: pass the name of a file") from error
        text = "text, which nothing had to draw"
        match file.suffix.lower():
            case ".svg":
                svg = self.svg()
                file.write_text(svg, encoding="utf-8")
                return svg.partition(" -->")[0].removeprefix("<!-- ")
            case ".png":
                drawn = self._drawn("png")
                file.write_bytes(_required(drawn))
                return f"drawn by {drawn.by}"
            case ".dot" | ".gv":
                file.write_text(self.dot(), encoding="utf-8")
                return text
            case ".txt":
                file.write_text(f"{self.text()}\n", encoding="utf-8")
                return text
            case other:
                raise ArgumentError(f"path ends in {other!r}: end it in .svg, .png, .dot or .txt")

    def __str__(self) -> str:
        return self.text()

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, str]:  # noqa: ARG002  the notebook's protocol
        drawn = self._drawn("svg")
        if drawn.picture is None:
            return {"text/plain": f"{self.text()}\n({drawn.by})"}
        return {
            "text/plain": self.text(),
            "image/svg+xml": _fitted(drawn.picture.decode(), drawn.by),
        }

    def _drawn(self, form: Form, prefix: str = "") -> Drawn:
        return render(partial(self._dot_by, prefix=prefix), form, self.renderer)

    def _dot_by(self, drawn_by: str, prefix: str = "") -> str:
        from fxpasses.diagram.dot import dot_of  # noqa: PLC0415  loads graphviz

        return dot_of(self.scene, drawn_by, prefix)


def _required(drawn: Drawn) -> bytes:
    if drawn.picture is None:
        raise DrawingError(f"no PNG can be drawn: {drawn.by}. SVG and text can")
    return drawn.picture


def _fitted(picture: str, by: str) -> str:
    """An SVG that is as wide as there is place, in a font that is there."""
    start = picture.index("<svg")
    fitted = _SIZED.sub(r'<svg style="width: 100%; max-width: \1pt; height: auto"', picture)
    named = _FONT.sub('font-family="Arial,Helvetica,sans-serif"', fitted)
    return f"<!-- drawn by {by} -->\n{named[start:]}"

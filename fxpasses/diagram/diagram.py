"""A diagram in its forms."""

import re
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any

from fxpasses.core.given import shown
from fxpasses.diagram.plain import text_of
from fxpasses.diagram.rendering import render
from fxpasses.diagram.scene import Scene
from fxpasses.diagram.texts import svg_of_text
from fxpasses.errors import ArgumentError, DrawingError

_SIZED = re.compile(r'<svg width="([\d.]+)pt" height="[\d.]+pt"')


@dataclass(frozen=True, slots=True)
class Diagram:
    """One graph, or two as one; `str()` of it is its text."""

    scene: Scene

    def dot(self) -> str:
        """In the language of Graphviz."""
        from fxpasses.diagram.dot import dot_of  # noqa: PLC0415  loads graphviz

        return dot_of(self.scene)

    def text(self) -> str:
        """One line a node; needs no renderer."""
        return text_of(self.scene)

    def svg(self) -> str:
        """A picture that fits the width it is given; the text, drawn, where no Graphviz is there.

        Its first comment says what drew it.
        """
        drawn = render(self.dot(), "svg")
        if drawn.picture is None:
            return svg_of_text(self.text(), f"drawn as text: {drawn.by}")
        picture = drawn.picture.decode()
        start = picture.index("<svg")
        fitted = _SIZED.sub(r'<svg style="width: 100%; max-width: \1pt; height: auto"', picture)
        return f"<!-- drawn by {drawn.by} -->\n{fitted[start:]}"

    def png(self) -> bytes:
        """A picture of dots.

        Raises:
            DrawingError: there is no Graphviz, or it cannot draw this; SVG and text need none.
        """
        drawn = render(self.dot(), "png")
        if drawn.picture is None:
            raise DrawingError(f"no PNG can be drawn: {drawn.by}. SVG and text can")
        return drawn.picture

    def save(self, path: str | PathLike[str]) -> None:
        """Write the form that the suffix names: `.svg`, `.png`, `.dot` or `.txt`.

        Raises:
            ArgumentError: the suffix is another, or `path` is no path.
            DrawingError: see `png`.
        """
        try:
            file = Path(path)
        except TypeError as error:
            raise ArgumentError(f"path is {shown(path)}: pass the name of a file") from error
        match file.suffix.lower():
            case ".svg":
                file.write_text(self.svg(), encoding="utf-8")
            case ".png":
                file.write_bytes(self.png())
            case ".dot" | ".gv":
                file.write_text(self.dot(), encoding="utf-8")
            case ".txt":
                file.write_text(f"{self.text()}\n", encoding="utf-8")
            case other:
                raise ArgumentError(f"path ends in {other!r}: end it in .svg, .png, .dot or .txt")

    def __str__(self) -> str:
        return self.text()

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, str]:  # noqa: ARG002  the notebook's protocol
        return {"text/plain": self.text(), "image/svg+xml": self.svg()}

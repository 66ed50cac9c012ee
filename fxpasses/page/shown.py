"""What can be read as text, on a terminal, in a notebook, as Markdown, HTML and JSON."""

from abc import ABC, abstractmethod
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING

from fxpasses.core.given import shown
from fxpasses.errors import ArgumentError
from fxpasses.page.html import as_document, as_html
from fxpasses.page.markdown import as_markdown
from fxpasses.page.outline import Page
from fxpasses.page.plain import as_text
from fxpasses.page.terminal import as_renderable

if TYPE_CHECKING:
    from rich.console import RenderableType


class Shown(ABC):
    """Every form is made of one `Page`; `details=None` is what the object itself was made with."""

    __slots__ = ()

    @abstractmethod
    def page(self, *, details: bool | None = None) -> Page: ...

    @abstractmethod
    def to_json(self) -> str: ...

    def text(self, *, details: bool | None = None) -> str:
        return as_text(self.page(details=details))

    def to_markdown(self, *, details: bool | None = None) -> str:
        return as_markdown(self.page(details=details))

    def to_html(self, *, details: bool | None = None) -> str:
        """A whole document, which reads nothing from outside."""
        return as_document(self.page(details=details))

    def save(self, path: str | PathLike[str], *, details: bool | None = None) -> None:
        """Write the form that the suffix names: `.txt`, `.md`, `.html` or `.json`.

        Raises:
            ArgumentError: the suffix is another, or `path` is no path.
        """
        try:
            file = Path(path)
        except TypeError as error:
            raise ArgumentError(f"path is {shown(path)}: pass the name of a file") from error
        match file.suffix.lower():
            case ".txt":
                content = f"{self.text(details=details)}\n"
            case ".md":
                content = self.to_markdown(details=details)
            case ".html" | ".htm":
                content = self.to_html(details=details)
            case ".json":
                content = f"{self.to_json()}\n"
            case other:
                known = ".txt, .md, .html or .json"
                raise ArgumentError(f"path ends in {other!r}: end it in {known}")
        file.write_text(content, encoding="utf-8")

    def __str__(self) -> str:
        return self.text()

    def __rich__(self) -> "RenderableType":
        return as_renderable(self.page())

    def _repr_html_(self) -> str:
        return as_html(self.page())

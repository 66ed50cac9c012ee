"""The tree that text, lists and YAML all mean, before names are looked up.

pipeline := item ("," item)*
item     := "-" name | name [ "{" option ("," option)* "}" ] | "(" pipeline ")" "*" integer
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

from fxpasses.core.plain import Plain
from fxpasses.registry.values import INTEGER, Reader

NAME: Final = re.compile(r"[A-Za-z_][\w.]*", re.ASCII)


@dataclass(frozen=True, slots=True)
class Named:
    """A pass or a pipeline by name, with options."""

    name: str
    options: Mapping[str, Plain] = field(default_factory=dict[str, Plain])


@dataclass(frozen=True, slots=True)
class Minus:
    """Removes everything of that name that stands to its left."""

    name: str


@dataclass(frozen=True, slots=True)
class Repeated:
    """Items in order, until nothing changes but at most `repeat` times."""

    items: "tuple[Entry, ...]"
    repeat: int


@dataclass(frozen=True, slots=True)
class Given:
    """A pass that is an object already, with the place it was given at."""

    value: Any
    place: str


Entry: TypeAlias = "Named | Minus | Repeated | Given"


def parse(text: str) -> tuple[Entry, ...]:
    """The items of a pipeline written as text. The empty text is the empty pipeline.

    Raises:
        PipelineError: it does not follow the grammar; the message shows where.
    """
    reader = _Reader(text)
    if reader.at_end():
        return ()
    items = reader.pipeline()
    if not reader.at_end():
        reader.expected("a comma or the end")
    return items


class _Reader(Reader):
    def pipeline(self) -> tuple[Entry, ...]:
        items = [self._item()]
        while self.take(","):
            items.append(self._item())
        return tuple(items)

    def _item(self) -> Entry:
        if self.take("("):
            with self.deeper():
                items = self.pipeline()
            self.need(")")
            self.need("*")
            repeat = self.integer(self.match(INTEGER, "a number of rounds"))
            if repeat < 1:
                self.fail(f"a group is repeated {repeat} times")
            return Repeated(items, repeat)
        if self.take("-"):
            return Minus(self.match(NAME, "the name of a pass to leave out"))
        name = self.match(NAME, "the name of a pass or pipeline, or a group in parentheses")
        return Named(name, self.options() if self.take("{") else {})

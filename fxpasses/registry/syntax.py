"""The tree that text, lists and YAML all mean, before names are looked up.

pipeline := item ("," item)*
item     := "-" name | name [ "{" option ("," option)* "}" ] | "(" pipeline ")" "*" integer
option   := key "=" value
value    := integer | float | true | false | none | word | "text"
          | "[" value,* "]" | "{" key "=" value,* "}"
"""

import json
import re
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final, NoReturn, TypeAlias, TypeVar

from fxpasses.core.plain import Plain
from fxpasses.errors import PipelineError

_T = TypeVar("_T")

NAME: Final = re.compile(r"[A-Za-z_][\w.]*", re.ASCII)
_WORD: Final = re.compile(r"[A-Za-z_][\w.:/+-]*", re.ASCII)
_FLOAT: Final = re.compile(
    r"-?(?:\d+\.\d*(?:[eE][+-]?\d+)?|\d+[eE][+-]?\d+|(?:inf|nan)(?![\w.:/+-]))",
    re.ASCII,
)
_INTEGER: Final = re.compile(r"-?\d+", re.ASCII)
_TEXT: Final = re.compile(r'"(?:[^"\\]|\\.)*"', re.DOTALL)
_SPACE: Final = re.compile(r"\s*")
_CONSTANTS: Final[Mapping[str, Plain]] = {"true": True, "false": False, "none": None}
_NOT_WORDS: Final = frozenset({*_CONSTANTS, "inf", "nan"})


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


DEEPEST: Final = 50
"""Levels of groups, lists and mappings in each other."""


def check_depth(depth: int, what: str) -> None:
    """Refuse what is nested without end, or nearly so.

    Raises:
        PipelineError: it is.
    """
    if depth > DEEPEST:
        raise PipelineError(f"{what} is nested deeper than {DEEPEST} levels")


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


class _Reader:
    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0
        self._depth = 0

    @contextmanager
    def _deeper(self) -> Generator[None]:
        """One level further inside."""
        self._depth += 1
        check_depth(self._depth, "a pipeline")
        yield
        self._depth -= 1

    def pipeline(self) -> tuple[Entry, ...]:
        items = [self._item()]
        while self._take(","):
            items.append(self._item())
        return tuple(items)

    def _item(self) -> Entry:
        if self._take("("):
            with self._deeper():
                items = self.pipeline()
            self._need(")")
            self._need("*")
            repeat = int(self._match(_INTEGER, "a number of rounds"))
            if repeat < 1:
                raise PipelineError(f"a group is repeated {repeat} times in {self._text!r}")
            return Repeated(items, repeat)
        if self._take("-"):
            return Minus(self._match(NAME, "the name of a pass to leave out"))
        name = self._match(NAME, "the name of a pass or pipeline, or a group in parentheses")
        return Named(name, self._options() if self._take("{") else {})

    def _options(self) -> dict[str, Plain]:
        """What stands between braces, the first of which is taken."""
        options: dict[str, Plain] = {}
        for key, value in self._listed("}", self._option):
            if key in options:
                raise PipelineError(f"{key} is given twice in {self._text!r}")
            options[key] = value
        return options

    def _option(self) -> tuple[str, Plain]:
        quoted = self._peek('"')
        key = self._quoted() if quoted else self._match(_WORD, "the name of an option")
        self._need("=")
        return key, self._value()

    def _value(self) -> Plain:
        with self._deeper():
            if self._take("["):
                return self._listed("]", self._value)
            if self._take("{"):
                return self._options()
        if self._peek('"'):
            return self._quoted()
        if (number := self._try(_FLOAT)) is not None:
            return float(number)
        if (number := self._try(_INTEGER)) is not None:
            return int(number)
        word = self._match(_WORD, "a value")
        return _CONSTANTS.get(word, word)

    def _listed(self, end: str, read: Callable[[], _T]) -> list[_T]:
        found: list[_T] = []
        if self._take(end):
            return found
        found.append(read())
        while self._take(","):
            found.append(read())
        self._need(end)
        return found

    def _quoted(self) -> str:
        quoted = self._match(_TEXT, 'a text that ends in "')
        try:
            return json.loads(quoted)
        except json.JSONDecodeError as error:
            raise PipelineError(f"{quoted} is no text: {error.msg}") from error

    # -- characters

    def at_end(self) -> bool:
        self._skip()
        return self._at == len(self._text)

    def _skip(self) -> None:
        space = _SPACE.match(self._text, self._at)
        self._at = space.end() if space else self._at

    def _peek(self, mark: str) -> bool:
        self._skip()
        return self._text.startswith(mark, self._at)

    def _take(self, mark: str) -> bool:
        if self._peek(mark):
            self._at += len(mark)
            return True
        return False

    def _need(self, mark: str) -> None:
        if not self._take(mark):
            self.expected(f"{mark!r}")

    def _try(self, pattern: re.Pattern[str]) -> str | None:
        self._skip()
        found = pattern.match(self._text, self._at)
        if found is None:
            return None
        self._at = found.end()
        return found[0]

    def _match(self, pattern: re.Pattern[str], what: str) -> str:
        found = self._try(pattern)
        if found is None:
            self.expected(what)
        return found

    def expected(self, what: str) -> NoReturn:
        rest = self._text[self._at : self._at + 20] or "the end"
        raise PipelineError(
            f"expected {what} at character {self._at + 1} of {self._text!r}, found {rest!r}"
        )


def text_of_options(options: Mapping[str, Plain]) -> str:
    return ",".join(f"{_key(key)}={text_of_value(value)}" for key, value in options.items())


def text_of_value(value: Plain) -> str:
    """The value as `parse` reads it."""
    if isinstance(value, str):
        return value if _is_word(value) else json.dumps(value)
    if isinstance(value, list):
        return f"[{','.join(map(text_of_value, value))}]"
    if isinstance(value, dict):
        return f"{{{text_of_options(value)}}}"
    return "none" if value is None else repr(value).lower()


def _key(key: str) -> str:
    return key if _WORD.fullmatch(key) else json.dumps(key)


def _is_word(value: str) -> bool:
    return _WORD.fullmatch(value) is not None and value not in _NOT_WORDS

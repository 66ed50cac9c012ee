"""Plain values as the text of a pipeline has them, read and written.

option := key "=" value
value  := integer | float | true | false | none | word | "text"
        | "[" value,* "]" | "{" option,* "}"
"""

import json
import re
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from typing import Final, NoReturn, TypeVar

from fxpasses.core.plain import Plain
from fxpasses.errors import FxPassesError, PipelineError

_T = TypeVar("_T")

INTEGER: Final = re.compile(r"-?\d+", re.ASCII)
FLOAT: Final = re.compile(
    r"-?(?:\d+\.\d*(?:[eE][+-]?\d+)?|\d+[eE][+-]?\d+|(?:inf|nan)(?![\w.:/+-]))",
    re.ASCII,
)
_WORD: Final = re.compile(r"[A-Za-z_][\w.:/+-]*", re.ASCII)
_TEXT: Final = re.compile(r'"(?:[^"\\]|\\.)*"', re.DOTALL)
_SPACE: Final = re.compile(r"\s*")
_CONSTANTS: Final[Mapping[str, Plain]] = {"true": True, "false": False, "none": None}
_NOT_WORDS: Final = frozenset({*_CONSTANTS, "inf", "nan"})

DEEPEST: Final = 50
"""Levels of groups, lists and mappings in each other."""


def check_depth(depth: int, what: str) -> None:
    """Refuse what is nested without end, or nearly so.

    Raises:
        PipelineError: it is.
    """
    if depth > DEEPEST:
        raise PipelineError(f"{what} is nested deeper than {DEEPEST} levels")


class Reader:
    """Reads a text from left to right. What does not follow the grammar is an error with place.

    Grammars that hold such values derive from it.
    """

    def __init__(
        self,
        text: str,
        what: str = "a pipeline",
        error: Callable[[str], FxPassesError] = PipelineError,
    ) -> None:
        self.text = text
        self._what = what
        self._error = error
        self._at = 0
        self._depth = 0

    # -- values

    def value(self) -> Plain:
        with self.deeper():
            if self.take("["):
                return self.listed("]", self.value)
            if self.take("{"):
                return self.options()
        if self.peek('"'):
            return self._quoted()
        if (number := self.find(FLOAT)) is not None:
            return float(number)
        if (number := self.find(INTEGER)) is not None:
            return self.integer(number)
        word = self.match(_WORD, "a value")
        return _CONSTANTS.get(word, word)

    def integer(self, digits: str) -> int:
        try:
            return int(digits)
        except ValueError:
            # Python reads no more than some thousand digits.
            raise self._error(f"a number of {len(digits)} digits is too long") from None

    def options(self) -> dict[str, Plain]:
        """What stands between braces, the first of which is taken."""
        return self.named("}", self.value)

    def named(self, end: str, read: Callable[[], _T]) -> dict[str, _T]:
        """`key=item,...` up to `end`, with what `read` reads as items."""
        found: dict[str, _T] = {}
        for key, item in self.listed(end, lambda: (self._key(), read())):
            if key in found:
                self.fail(f"{key} is given twice")
            found[key] = item
        return found

    def listed(self, end: str, read: Callable[[], _T]) -> list[_T]:
        """`item,...` up to `end`, with what `read` reads as items."""
        found: list[_T] = []
        if self.take(end):
            return found
        found.append(read())
        while self.take(","):
            found.append(read())
        self.need(end)
        return found

    def _key(self) -> str:
        quoted = self.peek('"')
        key = self._quoted() if quoted else self.match(_WORD, "the name of an option")
        self.need("=")
        return key

    def _quoted(self) -> str:
        quoted = self.match(_TEXT, 'a text that ends in "')
        try:
            return json.loads(quoted)
        except json.JSONDecodeError as error:
            raise self._error(f"{quoted} is no text: {error.msg}") from error

    @contextmanager
    def deeper(self) -> Generator[None]:
        """One level further inside."""
        self._depth += 1
        check_depth(self._depth, self._what)
        yield
        self._depth -= 1

    # -- characters

    def at_end(self) -> bool:
        self._skip()
        return self._at == len(self.text)

    def peek(self, mark: str) -> bool:
        """Whether `mark` comes next."""
        self._skip()
        return self.text.startswith(mark, self._at)

    def take(self, mark: str) -> bool:
        """Go past `mark` if it comes next."""
        if self.peek(mark):
            self._at += len(mark)
            return True
        return False

    def need(self, mark: str) -> None:
        if not self.take(mark):
            self.expected(f"{mark!r}")

    def find(self, pattern: re.Pattern[str]) -> str | None:
        """Go past what `pattern` matches, if it comes next."""
        self._skip()
        found = pattern.match(self.text, self._at)
        if found is None:
            return None
        self._at = found.end()
        return found[0]

    def match(self, pattern: re.Pattern[str], what: str) -> str:
        found = self.find(pattern)
        if found is None:
            self.expected(what)
        return found

    def end(self) -> None:
        if not self.at_end():
            self.expected("the end")

    def _skip(self) -> None:
        space = _SPACE.match(self.text, self._at)
        self._at = space.end() if space else self._at

    def expected(self, what: str) -> NoReturn:
        rest = self.text[self._at : self._at + 20] or "the end"
        raise self._error(
            f"expected {what} at character {self._at + 1} of {self.text!r}, found {rest!r}"
        )

    def fail(self, what: str) -> NoReturn:
        raise self._error(f"{what} in {self.text!r}")


def parse_value(text: str) -> Plain:
    """The one value that a text is.

    Raises:
        PipelineError: it does not follow the grammar; the message shows where.
    """
    reader = Reader(text, "a value")
    value = reader.value()
    reader.end()
    return value


def text_of_options(options: Mapping[str, Plain]) -> str:
    return ",".join(f"{_text_of_key(key)}={text_of_value(item)}" for key, item in options.items())


def text_of_value(value: Plain) -> str:
    """The value as `parse_value` reads it."""
    if isinstance(value, str):
        return value if _is_word(value) else json.dumps(value)
    if isinstance(value, list):
        return f"[{','.join(map(text_of_value, value))}]"
    if isinstance(value, dict):
        return f"{{{text_of_options(value)}}}"
    return "none" if value is None else repr(value).lower()


def _text_of_key(key: str) -> str:
    return key if _WORD.fullmatch(key) else json.dumps(key)


def _is_word(value: str) -> bool:
    return _WORD.fullmatch(value) is not None and value not in _NOT_WORDS

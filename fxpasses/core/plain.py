"""Values as plain data: what YAML, JSON and the text of a pipeline can hold."""

from collections.abc import Mapping
from enum import Enum
from typing import Any, TypeAlias, cast

import torch

Plain: TypeAlias = "bool | int | float | str | list[Plain] | dict[str, Plain] | None"


def plain(value: Any) -> Plain:
    """The value as plain data: a dtype is its name, an enumeration its value.

    What has no plain form is its text.
    """
    if isinstance(value, Enum):
        return plain(value.value)
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, torch.dtype):
        return str(value).removeprefix("torch.")
    if isinstance(value, Mapping):
        items = cast("Mapping[Any, Any]", value).items()
        return {str(plain(key)): plain(item) for key, item in items}
    if isinstance(value, list | tuple):
        return [plain(item) for item in cast("list[Any]", value)]
    if isinstance(value, set | frozenset):
        return [plain(item) for item in sorted(cast("set[Any]", value), key=str)]
    return str(value)


def printable(text: str) -> str:
    """One line that moves no cursor and turns no direction, whatever a model calls its parts."""
    if text.isprintable():
        return text
    shown = (c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)
    return "".join(" " if part in ("\\n", "\\r", "\\t") else part for part in shown)


def installed_place(source: str) -> str:
    """A file, or a line in it, without the way to the installed packages."""
    return source.rpartition("site-packages/")[2]

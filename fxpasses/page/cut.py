"""What is shown of a long list."""

from collections.abc import Hashable, Iterable, Sequence
from typing import TypeVar

NAMES_SHOWN = 3

Item = TypeVar("Item")
Key = TypeVar("Key", bound=Hashable)


def cut(items: Sequence[Item], limit: int, *, details: bool) -> tuple[Sequence[Item], int]:
    """The items to show, and how many are left out."""
    if details or len(items) <= limit:
        return items, 0
    return items[:limit], len(items) - limit


def more(rest: int, noun: str = "") -> list[str]:
    return [f"and {rest} more {noun}".rstrip()] if rest else []


def names(all_names: Sequence[str], *, details: bool) -> str:
    shown, rest = cut(all_names, NAMES_SHOWN, details=details)
    return ", ".join([*shown, *more(rest)])


def grouped(pairs: Iterable[tuple[Key, Item]]) -> dict[Key, list[Item]]:
    """Items by their key, keys in the order in which they come first."""
    groups: dict[Key, list[Item]] = {}
    for key, item in pairs:
        groups.setdefault(key, []).append(item)
    return groups

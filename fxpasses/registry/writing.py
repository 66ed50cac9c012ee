"""Pipelines written back: as text, and as lists and mappings that YAML can hold."""

from collections.abc import Iterable

from fxpasses.core import ForeignPass, Group, Item
from fxpasses.core.plain import Plain
from fxpasses.errors import PipelineError
from fxpasses.registry.options import set_options
from fxpasses.registry.syntax import Entry, Given, Minus, Named, Repeated
from fxpasses.registry.values import text_of_options


def entries_of_group(group: Group) -> tuple[Entry, ...]:
    """The tree that resolves to the group; `repeat` of the outermost is a group of its own."""
    items = _entries(group.items)
    return (Repeated(items, group.repeat),) if group.repeat > 1 and items else items


def _entries(items: Iterable[Item]) -> tuple[Entry, ...]:
    found: list[Entry] = []
    for item in items:
        if isinstance(item, Group):
            # A group of nothing cannot be written, and does nothing.
            if inside := _entries(item.items):
                found.append(Repeated(inside, item.repeat))
        elif isinstance(item, ForeignPass):
            found.append(Named(item.name))
        else:
            found.append(Named(item.name, set_options(item)))
    return tuple(found)


def text_of(entries: Iterable[Entry]) -> str:
    """The entries as `parse` reads them."""
    return ",".join(_text(entry) for entry in entries)


def _text(entry: Entry) -> str:
    match entry:
        case Minus(name):
            return f"-{name}"
        case Repeated(items, repeat):
            return f"({text_of(items)})*{repeat}"
        case Named(name, options):
            return f"{name}{{{text_of_options(options)}}}" if options else name
        case Given(value, place):
            raise PipelineError(f"{place} is {value!r}, which has no text")


def data_of(entries: Iterable[Entry]) -> list[Plain]:
    """The entries as a list that `entries_of` reads, and that YAML and JSON can hold."""
    return [_data(entry) for entry in entries]


def _data(entry: Entry) -> Plain:
    match entry:
        case Repeated(items, repeat):
            return {"repeat": repeat, "passes": data_of(items)}
        case Named(name, options) if options:
            return {name: dict(options)}
        case _:
            return _text(entry)

"""Pipelines given as text, lists and mappings, as entries."""

from collections.abc import Mapping, Sequence
from enum import Enum
from typing import Any, cast

import torch

from fxpasses.core.plain import Plain, plain
from fxpasses.errors import PipelineError
from fxpasses.registry.syntax import NAME, Entry, Given, Named, Repeated, parse
from fxpasses.registry.values import check_depth


def entries_of(
    value: Any, place: str, *, plain_only: bool = False, depth: int = 0
) -> tuple[Entry, ...]:
    """The entries that a text, a sequence or one item stands for.

    Args:
        value: what was given.
        place: what to call it in errors.
        plain_only: whether only what YAML can hold is allowed, and no pass as an object.
        depth: how many sequences and mappings it lies in.

    Raises:
        PipelineError: it is nothing of a pipeline, or does not follow the grammar.
    """
    check_depth(depth, place.partition("[")[0])
    if isinstance(value, str):
        try:
            return parse(value)
        except PipelineError as error:
            raise PipelineError(f"{place}: {error}") from error
    if isinstance(value, Mapping):
        item = cast("Mapping[Any, Any]", value)
        return (_of_mapping(item, place, plain_only=plain_only, depth=depth),)
    if isinstance(value, Sequence):
        items = enumerate(cast("Sequence[Any]", value))
        found = [
            entries_of(item, f"{place}[{i}]", plain_only=plain_only, depth=depth + 1)
            for i, item in items
        ]
        return tuple(entry for entries in found for entry in entries)
    if plain_only:
        raise PipelineError(f"{place} is {value!r}, where a name or a mapping is expected")
    return (Given(value, place),)


def _of_mapping(item: Mapping[Any, Any], place: str, *, plain_only: bool, depth: int) -> Entry:
    if set(item) == {"repeat", "passes"}:
        return _of_group(item, place, plain_only=plain_only, depth=depth)
    if len(item) != 1:
        raise PipelineError(
            f"{place} is {dict(item)!r}, where one name with its options, or repeat and passes, "
            "is expected"
        )
    ((name, options),) = item.items()
    if not isinstance(name, str) or NAME.fullmatch(name) is None:
        raise PipelineError(f"{place}: {name!r} is no name of a pass")
    if options is not None and not isinstance(options, Mapping):
        raise PipelineError(f"{place}: the options of {name} are {options!r}, not a mapping")
    given = cast("Mapping[Any, Any]", options or {})
    return Named(
        name, {str(k): _plain(v, f"{place}: option {k} of {name}") for k, v in given.items()}
    )


def _of_group(item: Mapping[Any, Any], place: str, *, plain_only: bool, depth: int) -> Repeated:
    repeat = item["repeat"]
    if type(repeat) is not int or repeat < 1:
        raise PipelineError(f"{place}.repeat is {repeat!r}, where a positive integer is expected")
    passes = entries_of(item["passes"], f"{place}.passes", plain_only=plain_only, depth=depth + 1)
    return Repeated(passes, repeat)


def _plain(value: Any, place: str, depth: int = 0) -> Plain:
    """The value with tuples as lists and dtypes as names; what is no plain data is an error."""
    check_depth(depth, place)
    if isinstance(value, torch.dtype | Enum):
        return plain(value)
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, list | tuple):
        return [_plain(item, place, depth + 1) for item in cast("list[Any]", value)]
    if isinstance(value, Mapping):
        items = cast("Mapping[Any, Any]", value).items()
        return {str(key): _plain(item, place, depth + 1) for key, item in items}
    raise PipelineError(f"{place} is {value!r}, where plain data is expected; give the pass itself")

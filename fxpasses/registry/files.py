"""Reading a `passes_registry.yaml`, strictly: what is not understood is an error with its place."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, NoReturn, cast

import yaml

import fxpasses
from fxpasses.core.nearest import did_you_mean
from fxpasses.core.plain import Plain
from fxpasses.errors import PipelineError, RegistryError
from fxpasses.registry.documents import load
from fxpasses.registry.syntax import NAME, Entry
from fxpasses.registry.tree import entries_of

FILE_NAME: Final = "passes_registry.yaml"
VERSION: Final = 1
Effect = str | tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Pipeline:
    """A pipeline by name, before the names in it are looked up."""

    items: tuple[Entry, ...]
    repeat: int = 1
    summary: str = ""


@dataclass(frozen=True, slots=True)
class Contents:
    """What one registry file says."""

    origin: str
    passes: Mapping[str, str] = field(default_factory=dict[str, str])
    """By name, where each is: `package.module:Class`."""
    pipelines: Mapping[str, Pipeline] = field(default_factory=dict[str, Pipeline])
    effects: Mapping[str, Effect] = field(default_factory=dict[str, Effect])


def own_file() -> Path:
    """The registry of fxpasses: inside the package where a wheel put it, else beside the package.

    In a checkout, where the package is installed editable, it lies at the top level.
    """
    package = Path(fxpasses.__file__).parent
    inside = package / FILE_NAME
    return inside if inside.exists() else package.parent / FILE_NAME


def _told(error: yaml.YAMLError) -> str:
    """What is wrong, and where, in one line: lines and columns count from 1."""
    if not isinstance(error, yaml.MarkedYAMLError):
        return " ".join(str(error).split())
    marks = ((error.context, error.context_mark), (error.problem, error.problem_mark))
    found = [
        " ".join(what.split()) + (f" in line {at.line + 1}, column {at.column + 1}" if at else "")
        for what, at in marks
        if what
    ]
    return ", ".join(found)


def read(path: Path, origin: str = "") -> Contents:
    """What the file says.

    Raises:
        RegistryError: it cannot be read, is no YAML, or says something that is not understood.
    """
    try:
        text = path.read_text(encoding="utf-8")
        data = load(text)
    except OSError as error:
        raise RegistryError(f"{path} cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise RegistryError(f"{path} is no UTF-8 text: {error}") from error
    except yaml.YAMLError as error:
        raise RegistryError(f"{path}: {_told(error)}") from error
    return _Reading(str(path), origin or str(path)).contents(data)


class _Reading:
    def __init__(self, path: str, origin: str) -> None:
        self._path = path
        self._origin = origin

    def contents(self, data: Any) -> Contents:
        if data is None:
            self._fail("the file", "is empty")
        top = self._mapping(data, "the file")
        self._only(top, ("version", "passes", "pipelines", "effects"), "the file")
        if "version" not in top:
            self._fail("the file", f"names no version: put `version: {VERSION}` on its first line")
        if type(top["version"]) is not int or top["version"] != VERSION:
            self._fail("version", f"is {top['version']!r}, where {VERSION} is expected")
        effects = self._section(top, "effects", any_name=True)
        found = Contents(
            self._origin,
            {name: self._location(name, v) for name, v in self._section(top, "passes")},
            {name: self._pipeline(name, v) for name, v in self._section(top, "pipelines")},
            {name: self._effect(name, v) for name, v in effects},
        )
        for name in found.passes.keys() & found.pipelines:
            self._fail(name, "is claimed by a pass and by a pipeline")
        return found

    def _section(
        self, top: Mapping[str, Any], section: str, *, any_name: bool = False
    ) -> Iterator[tuple[str, Any]]:
        for name, value in self._mapping(top.get(section) or {}, section).items():
            if not any_name and NAME.fullmatch(name) is None:
                self._fail(f"{section}.{name}", "is no name: letters, digits, _ and . make one")
            yield name, value

    def _location(self, name: str, value: Any) -> str:
        module, _, attribute = value.partition(":") if isinstance(value, str) else ("", "", "")
        parts = (*module.split("."), *attribute.split("."))
        if not all(part.isidentifier() for part in parts):
            self._fail(f"passes.{name}", f"is {value!r}, where 'package.module:Class' is expected")
        return value

    def _pipeline(self, name: str, value: Any) -> Pipeline:
        place = f"pipelines.{name}"
        if isinstance(value, list | str):
            return Pipeline(self._entries(value, place))
        found = self._mapping(value, place)
        self._only(found, ("summary", "repeat", "passes"), place)
        repeat, summary = found.get("repeat", 1), found.get("summary", "")
        if not isinstance(repeat, int) or isinstance(repeat, bool) or repeat < 1:
            self._fail(f"{place}.repeat", f"is {repeat!r}, where a positive integer is expected")
        if not isinstance(summary, str):
            self._fail(f"{place}.summary", f"is {summary!r}, where a text is expected")
        if "passes" not in found:
            self._fail(place, "has no passes")
        return Pipeline(self._entries(found["passes"], f"{place}.passes"), repeat, summary)

    def _entries(self, value: Any, place: str) -> tuple[Entry, ...]:
        try:
            return entries_of(value, place, plain_only=True)
        except PipelineError as error:
            raise RegistryError(f"{self._path}: {error}") from error

    def _effect(self, name: str, value: Any) -> Effect:
        place = f"effects.{name}"
        if value in ("pure", "random"):
            return str(value)
        written = value.get("writes") if isinstance(value, dict) and len(value) == 1 else None
        if not isinstance(written, list) or not all(isinstance(item, str) for item in written):
            self._fail(place, f"is {value!r}, where pure, random or writes: [argument] is expected")
        return tuple(cast("list[str]", written))

    def _mapping(self, value: Any, place: str) -> dict[str, Plain]:
        if not isinstance(value, dict):
            self._fail(place, f"is {value!r}, where a mapping is expected")
        return cast("dict[str, Plain]", value)

    def _only(self, found: Mapping[str, Any], known: tuple[str, ...], place: str) -> None:
        for key in found:
            if key not in known:
                self._fail(place, f"has the unknown key {key!r}{did_you_mean(key, known)}")

    def _fail(self, place: str, what: str) -> NoReturn:
        raise RegistryError(f"{self._path}: {place} {what}")

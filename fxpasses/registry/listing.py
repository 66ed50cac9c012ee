"""Everything that a registry holds, for people and programs: passes, pipelines, what is broken."""

import inspect
from dataclasses import asdict, dataclass
from typing import Any

from fxpasses.core import ForeignPass, GraphPass
from fxpasses.errors import PipelineError, RegistryError
from fxpasses.registry.entries import EffectEntry, PassEntry, PipelineEntry, Problem
from fxpasses.registry.options import Option, options_of
from fxpasses.registry.registry import Registry
from fxpasses.registry.syntax import Entry, Repeated
from fxpasses.registry.writing import text_of


@dataclass(frozen=True, slots=True)
class ListedPass:
    """A pass as it is shown."""

    name: str
    origin: str
    location: str
    summary: str = ""
    numerics: str = ""
    trains: bool = False
    runs_after: tuple[str, ...] = ()
    options: tuple[Option, ...] = ()
    problem: str = ""
    """Why it cannot be used; empty where it can."""


@dataclass(frozen=True, slots=True)
class ListedPipeline:
    """A pipeline as it is shown."""

    name: str
    origin: str
    text: str
    summary: str = ""
    problem: str = ""


@dataclass(frozen=True, slots=True)
class Listing:
    """What there is, and what is wrong with the rest."""

    passes: tuple[ListedPass, ...] = ()
    pipelines: tuple[ListedPipeline, ...] = ()
    effects: tuple[EffectEntry, ...] = ()
    problems: tuple[Problem, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """Plain data."""
        return asdict(self)


def listed(registry: Registry) -> Listing:
    """All that `registry` holds. Every pass is imported; one that cannot be says why."""
    return Listing(
        tuple(_listed_pass(entry) for entry in registry.passes()),
        tuple(_listed_pipeline(entry, registry) for entry in registry.pipelines()),
        tuple(registry.declared().values()),
        tuple(registry.problems()),
    )


def _listed_pass(entry: PassEntry) -> ListedPass:
    location = entry.location if isinstance(entry.location, str) else entry.origin
    try:
        loaded = entry.load()
        if isinstance(loaded, ForeignPass):
            summary = _first_line(loaded.function)
            return ListedPass(
                entry.name, entry.origin, location, summary, str(loaded.numerics), trains=True
            )
        return _described(loaded, entry, location)
    except (RegistryError, PipelineError) as error:
        return ListedPass(entry.name, entry.origin, location, problem=_one_line(error))


def _described(kind: type[GraphPass], entry: PassEntry, location: str) -> ListedPass:
    return ListedPass(
        entry.name,
        entry.origin,
        location,
        kind.summary(),
        str(kind.numerics),
        kind.trains,
        tuple(kind.runs_after),
        tuple(options_of(kind)),
    )


def _listed_pipeline(entry: PipelineEntry, registry: Registry) -> ListedPipeline:
    pipeline, problem = entry.pipeline, ""
    items: tuple[Entry, ...] = pipeline.items
    if pipeline.repeat > 1:
        items = (Repeated(items, pipeline.repeat),)
    try:
        registry.resolve(entry.name)
    except (RegistryError, PipelineError) as error:
        problem = _one_line(error)
    return ListedPipeline(entry.name, entry.origin, text_of(items), pipeline.summary, problem)


def _first_line(function: object) -> str:
    return (inspect.getdoc(function) or "").partition("\n")[0]


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())

"""Passes, pipelines and effects by name: in layers, and loaded when asked for."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, TypeVar, overload

from fxpasses.core import Group, Numerics, foreign
from fxpasses.core.given import instance, shown
from fxpasses.errors import ArgumentError, RegistryError
from fxpasses.registry.files import Contents, Effect, Pipeline, own_file, read
from fxpasses.registry.importing import Loaded, imported, is_pass_class, undeclared
from fxpasses.registry.matching import did_you_mean
from fxpasses.registry.plugins import plugins
from fxpasses.registry.resolving import Resolving
from fxpasses.registry.syntax import NAME
from fxpasses.registry.writing import text_of_group

_PassT = TypeVar("_PassT", bound=Callable[..., Any])


@dataclass(frozen=True, slots=True)
class PassEntry:
    """A pass by name, and where it comes from."""

    name: str
    location: "str | Loaded"
    """`package.module:Class`, not imported yet, or the pass itself."""
    origin: str
    """The file, plugin or module that says so."""


@dataclass(frozen=True, slots=True)
class PipelineEntry:
    name: str
    pipeline: Pipeline
    origin: str


class Registry:
    """Names of passes and pipelines, and declared effects. A child adds to its parent.

    `Registry.default()` holds what fxpasses and installed plugins bring; `fxpasses.register`
    adds to it. Files and plugins are read at the first look-up, passes imported when asked for.
    """

    def __init__(
        self, parent: "Registry | None" = None, sources: Iterable[Callable[[], Contents]] = ()
    ) -> None:
        self._parent = parent
        self._sources = list(sources)
        self._plugins: Callable[[], Iterable[Contents]] = tuple
        self._passes: dict[str, PassEntry] = {}
        self._pipelines: dict[str, PipelineEntry] = {}
        self._effects: dict[str, Effect] = {}
        self._clashes: dict[str, str] = {}
        """What to say when a name is asked for that two sides claim."""

    @classmethod
    @cache
    def default(cls) -> "Registry":
        """The one registry that is used where none is given."""
        registry = cls(sources=[lambda: read(own_file(), "fxpasses")])
        registry._plugins = plugins
        return registry

    def child(self) -> "Registry":
        """A registry that sees all of this one, and whose own names stay its own."""
        return Registry(self)

    # -- adding

    @overload
    def register(self, item: _PassT) -> _PassT: ...
    @overload
    def register(
        self, *, name: str | None = None, numerics: Numerics = Numerics.ROUNDING
    ) -> Callable[[_PassT], _PassT]: ...
    def register(
        self,
        item: Callable[..., Any] | None = None,
        *,
        name: str | None = None,
        numerics: Numerics = Numerics.ROUNDING,
    ) -> Any:
        """Add a pass class, or a function on a GraphModule. Works as a decorator.

        A class brings its name and numerics along; a function is known by `name` or its own.
        A class or function that is defined again replaces itself.

        Raises:
            ArgumentError: it is neither a pass class nor a function.
            RegistryError: the name is taken, or is no name, or the class declares none.
        """
        instance(numerics, "numerics", Numerics, "a member of fxpasses.Numerics")
        if name is not None:
            instance(name, "name", str, "the name of the pass as text")
        if item is None:
            return lambda given: self._register(given, name, numerics)
        return self._register(item, name, numerics)

    def _register(self, item: Any, name: str | None, numerics: Numerics) -> Any:
        loaded = item if is_pass_class(item) else foreign(item, name=name, numerics=numerics)
        if missing := undeclared(loaded):
            text = f"does not declare its {' and '.join(missing)}: set that on the class"
            raise RegistryError(f"{item.__name__} {text}")
        origin = f"{getattr(item, '__module__', '')}.{getattr(item, '__qualname__', '')}"
        known = self._passes.get(loaded.name)
        if known is not None and known.origin == origin:
            del self._passes[loaded.name]
        self._add_pass(PassEntry(loaded.name, loaded, origin))
        return item

    def declare(self, name: str, effect: Effect) -> None:
        """Say what a custom op or module class does: "pure", "random", or what it writes.

        Raises:
            ArgumentError: the name is no text, or the effect none of these.
            RegistryError: something else was said of it before.
        """
        instance(name, "name", str, "the name of an op or module class as text")
        if effect not in ("pure", "random") and not _is_written(effect):
            raise ArgumentError(
                f'effect={shown(effect)}: pass "pure", "random" or a tuple of the names of the '
                "arguments that are written"
            )
        self._add_effect(name, effect, "a declaration")

    def load(self, path: str | Path) -> None:
        """Add what a registry file says.

        Raises:
            RegistryError: it is not understood, or claims a name that is taken. Then nothing of
                it is added.
        """
        instance(path, "path", (str, Path), "the path of a registry file")
        self._read_sources()
        self._add(read(Path(path)))

    def _add(self, contents: Contents) -> None:
        before = dict(self._passes), dict(self._pipelines), dict(self._effects)
        try:
            for name, location in contents.passes.items():
                self._add_pass(PassEntry(name, location, contents.origin))
            for name, pipeline in contents.pipelines.items():
                self._add_pipeline(PipelineEntry(name, pipeline, contents.origin))
            for name, effect in contents.effects.items():
                self._add_effect(name, effect, contents.origin)
        except RegistryError:
            self._passes, self._pipelines, self._effects = before
            raise

    def _add_pass(self, entry: PassEntry) -> None:
        self._check_free(entry.name, entry.origin)
        self._passes[entry.name] = entry

    def _add_pipeline(self, entry: PipelineEntry) -> None:
        self._check_free(entry.name, entry.origin)
        self._pipelines[entry.name] = entry

    def _add_effect(self, name: str, effect: Effect, origin: str) -> None:
        known = self.effects.get(name)
        if known is not None and known != effect:
            raise RegistryError(f"{origin} says that {name} is {effect}, but it is {known} already")
        self._effects[name] = effect

    def _check_free(self, name: str, origin: str) -> None:
        if NAME.fullmatch(name) is None:
            raise RegistryError(f"{origin} is called {name!r}, which is no name")
        taken_by = self.origin_of(name)
        if taken_by is not None:
            raise RegistryError(f"{name} is claimed by {origin} and by {taken_by}")

    def _read_sources(self) -> None:
        sources, self._sources = self._sources, []
        for source in sources:
            self._add(source())
        find, self._plugins = self._plugins, tuple
        for contents in find():
            self._add_plugin(contents)

    def _add_plugin(self, contents: Contents) -> None:
        """A name that somebody else has too is an error only once it is asked for."""
        for name in (*contents.passes, *contents.pipelines):
            taken_by = self.origin_of(name)
            if taken_by is not None:
                self._clashes[name] = f"{name} is claimed by {contents.origin} and by {taken_by}"
        free = {name: v for name, v in contents.passes.items() if name not in self._clashes}
        groups = {name: v for name, v in contents.pipelines.items() if name not in self._clashes}
        self._add(Contents(contents.origin, free, groups, contents.effects))

    # -- asking

    def passes(self) -> Iterator[PassEntry]:
        """Every pass by name, the parent's first. Nothing is imported."""
        self._read_sources()
        if self._parent is not None:
            yield from self._parent.passes()
        yield from self._passes.values()

    def pipelines(self) -> Iterator[PipelineEntry]:
        """Every pipeline by name, the parent's first."""
        self._read_sources()
        if self._parent is not None:
            yield from self._parent.pipelines()
        yield from self._pipelines.values()

    @property
    def effects(self) -> Mapping[str, Effect]:
        """Declared effects by the name of a custom op or module class."""
        self._read_sources()
        inherited = self._parent.effects if self._parent is not None else {}
        return {**inherited, **self._effects}

    def names(self) -> list[str]:
        """The names of all passes and pipelines."""
        return [*(e.name for e in self.passes()), *(e.name for e in self.pipelines())]

    def find(self, name: str) -> PassEntry | PipelineEntry | None:
        """What is known by that name, if anything.

        Raises:
            RegistryError: two sides claim the name.
        """
        self._read_sources()
        if name in self._clashes:
            raise RegistryError(self._clashes[name])
        found = self._passes.get(name) or self._pipelines.get(name)
        return found or (self._parent.find(name) if self._parent is not None else None)

    def origin_of(self, name: str) -> str | None:
        """Which file, plugin or module claims a name; the first, where several do."""
        self._read_sources()
        found = self._passes.get(name) or self._pipelines.get(name)
        if found is not None:
            return found.origin
        return None if self._parent is None else self._parent.origin_of(name)

    def get(self, name: str) -> Loaded:
        """The pass of that name, imported now if it was not before.

        Raises:
            RegistryError: there is none, or it cannot be imported, or is no pass of that name.
        """
        entry = self.find(name)
        if not isinstance(entry, PassEntry):
            known = [entry.name for entry in self.passes()]
            raise RegistryError(f"there is no pass {name!r}{did_you_mean(name, known)}")
        location = entry.location
        return imported(name, location, entry.origin) if isinstance(location, str) else location

    # -- pipelines

    def resolve(self, passes: Any) -> Group:
        """The pipeline that a text, sequence, pass, callable or Group means.

        Raises:
            PipelineError: a name or option does not exist, a value has the wrong type, or a pass
                stands before one that it has to run after.
            RegistryError: two sides claim a name, or a pass cannot be imported.
        """
        return Resolving(self).resolve(passes)

    def to_text(self, pipeline: Group) -> str:
        """The pipeline as text that `resolve` reads, with every option that is not a default.

        A foreign pass, which has no text, is shown by its name.
        """
        return text_of_group(instance(pipeline, "pipeline", Group, "what `resolve` returns"))


def _is_written(effect: object) -> bool:
    return isinstance(effect, tuple) and all(isinstance(name, str) for name in effect)

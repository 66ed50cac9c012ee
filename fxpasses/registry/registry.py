"""Passes, pipelines and effects by name: in layers, and loaded when asked for."""

import threading
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any, TypeVar, overload

from fxpasses.core import Group, Numerics, foreign
from fxpasses.core.given import instance, shown
from fxpasses.core.nearest import did_you_mean
from fxpasses.core.plain import Plain
from fxpasses.errors import ArgumentError, FxPassesWarning, RegistryError
from fxpasses.registry.documents import dump
from fxpasses.registry.entries import EffectEntry, PassEntry, PipelineEntry, Problem
from fxpasses.registry.files import Contents, Effect, own_file, read
from fxpasses.registry.importing import Loaded, is_pass_class, undeclared
from fxpasses.registry.plugins import plugins
from fxpasses.registry.resolving import Resolving
from fxpasses.registry.syntax import NAME, Entry
from fxpasses.registry.writing import data_of, entries_of_group, text_of

_PassT = TypeVar("_PassT", bound=Callable[..., Any])


class Registry:
    """Names of passes and pipelines, and declared effects. A child adds to its parent.

    `Registry.default()` holds what fxpasses and installed plugins bring; `fxpasses.register`
    adds to it. Files and plugins are read at the first look-up, passes imported when asked for.
    """

    def __init__(self, parent: "Registry | None" = None) -> None:
        self._parent = parent
        self._unread: list[Callable[[], Iterable[Contents | Problem]]] = []
        self._reading = threading.Lock()
        self._passes: dict[str, PassEntry] = {}
        self._pipelines: dict[str, PipelineEntry] = {}
        self._effects: dict[str, EffectEntry] = {}
        self._clashes: dict[str, Problem] = {}
        """By name, what to say when it is asked for and two sides claim it."""
        self._problems: list[Problem] = []

    @classmethod
    @cache
    def default(cls) -> "Registry":
        """The one registry that is used where none is given."""
        registry = cls()
        registry._unread = [lambda: [read(own_file(), "fxpasses")], plugins]
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
        entry = PassEntry(loaded.name, loaded, origin)
        self._read()
        if self._known(entry.name) == entry:
            return item
        known = self._passes.get(entry.name)
        if known is not None and known.origin == origin:
            del self._passes[entry.name]
        self._add_pass(entry)
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
        self._read()
        self._add_effect(EffectEntry(name, effect, "a declaration"))

    def load(self, path: str | Path) -> None:
        """Add what a registry file says.

        Raises:
            RegistryError: it is not understood, or claims a name that is taken. Then nothing of
                it is added.
        """
        instance(path, "path", (str, Path), "the path of a registry file")
        self._read()
        self._add(read(Path(path)))

    def _add(self, contents: Contents) -> None:
        before = dict(self._passes), dict(self._pipelines), dict(self._effects)
        try:
            for name, location in contents.passes.items():
                self._add_pass(PassEntry(name, location, contents.origin))
            for name, pipeline in contents.pipelines.items():
                self._add_pipeline(PipelineEntry(name, pipeline, contents.origin))
            for name, effect in contents.effects.items():
                self._add_effect(EffectEntry(name, effect, contents.origin))
        except RegistryError:
            self._passes, self._pipelines, self._effects = before
            raise

    def _add_pass(self, entry: PassEntry) -> None:
        self._check_free(entry.name, entry.origin)
        self._passes[entry.name] = entry

    def _add_pipeline(self, entry: PipelineEntry) -> None:
        self._check_free(entry.name, entry.origin)
        self._pipelines[entry.name] = entry

    def _add_effect(self, entry: EffectEntry) -> None:
        if (known := self._known_effects().get(entry.name, entry)).effect != entry.effect:
            raise RegistryError(_contradiction(entry, known))
        self._effects[entry.name] = entry

    def _check_free(self, name: str, origin: str) -> None:
        if NAME.fullmatch(name) is None:
            raise RegistryError(f"{origin} is called {name!r}, which is no name")
        if (known := self._known(name)) is not None:
            raise RegistryError(_clash(name, origin, known.origin))

    # -- what is installed

    def _read(self) -> None:
        """Read what is installed, once; what is wrong with it is a warning."""
        if not self._unread:
            return
        with self._reading:
            first = len(self._problems)
            for source in self._unread:
                for found in source():
                    self._take_in(found)
            self._unread = []
            problems = self._problems[first:]
        for problem in problems:
            warnings.warn(str(problem), FxPassesWarning, stacklevel=3)

    def _take_in(self, found: Contents | Problem) -> None:
        """Add what can be added; a name that two sides claim is an error once it is asked for."""
        if isinstance(found, Problem):
            self._problems.append(found)
            return
        for name in (*found.passes, *found.pipelines):
            if (known := self._known(name)) is not None:
                text = _clash(name, found.origin, known.origin)
                self._clashes[name] = Problem(found.origin, f"is left out in part: {text}")
        for name, effect in found.effects.items():
            self._take_in_effect(EffectEntry(name, effect, found.origin))
        passes = {name: v for name, v in found.passes.items() if name not in self._clashes}
        pipelines = {name: v for name, v in found.pipelines.items() if name not in self._clashes}
        self._add(Contents(found.origin, passes, pipelines))

    def _take_in_effect(self, entry: EffectEntry) -> None:
        known = self._effects.get(entry.name, entry)
        if known.effect == entry.effect:
            self._effects[entry.name] = known
            return
        # Nothing known is the safe side: then it is neither removed nor merged.
        del self._effects[entry.name]
        text = f"is left out in part: {_contradiction(entry, known)}; neither counts"
        self._problems.append(Problem(entry.origin, text))

    # -- asking

    def passes(self) -> Iterator[PassEntry]:
        """Every pass by name, the parent's first. Nothing is imported."""
        self._read()
        if self._parent is not None:
            yield from self._parent.passes()
        yield from self._passes.values()

    def pipelines(self) -> Iterator[PipelineEntry]:
        """Every pipeline by name, the parent's first."""
        self._read()
        if self._parent is not None:
            yield from self._parent.pipelines()
        yield from self._pipelines.values()

    @property
    def effects(self) -> Mapping[str, Effect]:
        """Declared effects by the name of a custom op or module class."""
        return {name: entry.effect for name, entry in self.declared().items()}

    def declared(self) -> Mapping[str, EffectEntry]:
        """The declared effects with where they come from."""
        self._read()
        return self._known_effects()

    def problems(self) -> list[Problem]:
        """What is wrong with installed plugins: those that are left out, and names that clash."""
        self._read()
        inherited = self._parent.problems() if self._parent is not None else []
        return [*inherited, *self._problems, *self._clashes.values()]

    def names(self) -> list[str]:
        """The names of all passes and pipelines."""
        return [*(e.name for e in self.passes()), *(e.name for e in self.pipelines())]

    def find(self, name: str) -> PassEntry | PipelineEntry | None:
        """What is known by that name, if anything.

        Raises:
            RegistryError: two sides claim the name.
        """
        self._read()
        if name in self._clashes:
            raise RegistryError(str(self._clashes[name]))
        inherited = self._parent.find(name) if self._parent is not None else None
        own = self._own(name)
        if own is not None and inherited is not None:
            raise RegistryError(_clash(name, own.origin, inherited.origin))
        return own or inherited

    def claimed(self, name: str) -> PassEntry | PipelineEntry | None:
        """What claims a name; the first, where several do."""
        self._read()
        return self._known(name)

    def get(self, name: str) -> Loaded:
        """The pass of that name, imported now if it was not before.

        Raises:
            RegistryError: there is none, or it cannot be imported, or is no pass of that name.
        """
        entry = self.find(name)
        if not isinstance(entry, PassEntry):
            known = [entry.name for entry in self.passes()]
            raise RegistryError(f"there is no pass {name!r}{did_you_mean(name, known)}")
        return entry.load()

    def _own(self, name: str) -> PassEntry | PipelineEntry | None:
        return self._passes.get(name) or self._pipelines.get(name)

    def _known(self, name: str) -> PassEntry | PipelineEntry | None:
        """`claimed`, while this registry itself is being read."""
        own = self._own(name)
        if own is not None or self._parent is None:
            return own
        return self._parent.claimed(name)

    def _known_effects(self) -> dict[str, EffectEntry]:
        inherited = self._parent.declared() if self._parent is not None else {}
        return {**inherited, **self._effects}

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
        return text_of(_entries(pipeline))

    def to_list(self, pipeline: Group) -> list[Plain]:
        """The pipeline as names and mappings that `resolve` reads, as `to_text` shows it."""
        return data_of(_entries(pipeline))

    def to_yaml(self, pipeline: Group) -> str:
        """The pipeline as what stands behind `passes:` in a registry file."""
        return dump(self.to_list(pipeline))


def _entries(pipeline: Group) -> tuple[Entry, ...]:
    return entries_of_group(instance(pipeline, "pipeline", Group, "what `resolve` returns"))


def _is_written(effect: object) -> bool:
    return isinstance(effect, tuple) and all(isinstance(name, str) for name in effect)


def _clash(name: str, origin: str, known: str) -> str:
    return f"{name} is claimed by {origin} and by {known}"


def _contradiction(entry: EffectEntry, known: EffectEntry) -> str:
    said = f"{entry.origin} says that {entry.name} is {_words(entry.effect)}"
    return f"{said}, {known.origin} that it is {_words(known.effect)}"


def _words(effect: Effect) -> str:
    return effect if isinstance(effect, str) else f"a writer of {', '.join(effect) or 'nothing'}"

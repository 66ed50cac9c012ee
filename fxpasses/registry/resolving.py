"""From entries to passes: names looked up, options checked, pipelines expanded."""

import inspect
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeAlias

from fxpasses.core import ForeignPass, GraphPass, Group, Item, check_order, foreign
from fxpasses.core.nearest import did_you_mean
from fxpasses.core.plain import Plain
from fxpasses.errors import PipelineError
from fxpasses.registry.files import Pipeline
from fxpasses.registry.importing import undeclared
from fxpasses.registry.options import made
from fxpasses.registry.syntax import Entry, Given, Minus, Named, Repeated
from fxpasses.registry.tree import entries_of

Pass: TypeAlias = "GraphPass | ForeignPass"


class Lookup(Protocol):
    """What resolving needs of a registry."""

    def names(self) -> list[str]: ...
    def find(self, name: str) -> Any: ...
    def get(self, name: str) -> "type[GraphPass] | ForeignPass": ...


@dataclass(slots=True)
class _Draft:
    """A group that is still being put together, so that passes can be taken out of it."""

    name: str = ""
    repeat: int = 1
    items: "list[Pass | _Draft]" = field(default_factory=list["Pass | _Draft"])

    def without(self, name: str) -> None:
        self.items = [item for item in self.items if item.name != name]
        for item in self.items:
            if isinstance(item, _Draft):
                item.without(name)

    def names(self) -> Iterator[str]:
        for item in self.items:
            yield item.name
            if isinstance(item, _Draft):
                yield from item.names()

    def finished(self) -> Group:
        """The group; groups in it that nothing is left of are dropped."""
        items: list[Item] = []
        for item in self.items:
            if not isinstance(item, _Draft):
                items.append(item)
            elif (group := item.finished()).items:
                items.append(group)
        return Group(tuple(items), self.repeat, self.name)


class Resolving:
    """Turns what a caller gives for passes into a Group."""

    def __init__(self, registry: Lookup) -> None:
        self._registry = registry
        self._root = _Draft()
        self._open: list[str] = []
        """Names of the pipelines that are being expanded."""

    def resolve(self, passes: Any) -> Group:
        if isinstance(passes, Group):
            check_order(passes)
            return passes
        self._fill(self._root, entries_of(passes, "passes"), "passes")
        group = self._root.finished()
        check_order(group)
        return group

    def _fill(self, draft: _Draft, entries: tuple[Entry, ...], place: str) -> None:
        for entry in entries:
            match entry:
                case Minus(name):
                    self._remove(name, place)
                case Repeated(items, repeat):
                    self._fill(self._opened(draft, _Draft(repeat=repeat)), items, place)
                case Given(value, where):
                    self._give(draft, value, where)
                case Named(name, options):
                    self._name(draft, name, options, place)

    def _opened(self, draft: _Draft, inner: _Draft) -> _Draft:
        draft.items.append(inner)
        return inner

    def _remove(self, name: str, place: str) -> None:
        known = {*self._registry.names(), *self._root.names()}
        if name not in known:
            raise PipelineError(
                f"{place}: there is no pass or pipeline {name!r} to leave out"
                f"{did_you_mean(name, known)}"
            )
        self._root.without(name)

    def _name(self, draft: _Draft, name: str, options: Mapping[str, Plain], place: str) -> None:
        entry = self._registry.find(name)
        if entry is None:
            raise PipelineError(
                f"{place}: there is no pass or pipeline {name!r}"
                f"{did_you_mean(name, self._registry.names())}"
            )
        pipeline = getattr(entry, "pipeline", None)
        if isinstance(pipeline, Pipeline):
            self._expand(draft, name, pipeline, options, place)
            return
        loaded = self._registry.get(name)
        if not isinstance(loaded, ForeignPass):
            draft.items.append(made(loaded, options, place))
        elif options:
            raise PipelineError(f"{place}: {name} is a function and takes no options")
        else:
            draft.items.append(loaded)

    def _expand(
        self,
        draft: _Draft,
        name: str,
        pipeline: Pipeline,
        options: Mapping[str, Plain],
        place: str,
    ) -> None:
        if options:
            raise PipelineError(f"{place}: {name} is a pipeline and takes no options")
        if name in self._open:
            chain = " > ".join((*self._open, name))
            raise PipelineError(f"{place}: the pipeline {name} contains itself: {chain}")
        self._open.append(name)
        inner = self._opened(draft, _Draft(name, pipeline.repeat))
        self._fill(inner, pipeline.items, f"the pipeline {name}")
        self._open.pop()

    def _give(self, draft: _Draft, value: Any, place: str) -> None:
        if isinstance(value, Group):
            inner = self._opened(draft, _Draft(value.name, value.repeat))
            for item in value.items:
                self._give(inner, item, place)
        elif isinstance(value, GraphPass | ForeignPass):
            draft.items.append(_declared(value, place))
        elif isinstance(value, type) and issubclass(value, GraphPass):
            if inspect.isabstract(value):
                raise PipelineError(f"{place} is {value.__name__}, which is no pass but their base")
            draft.items.append(_declared(made(value, {}, place), place))
        elif callable(value) and not isinstance(value, type):
            draft.items.append(foreign(value))
        else:
            raise PipelineError(
                f"{place} is {value!r}, which is neither a name, a pass nor a function"
            )


def _declared(item: Pass, place: str) -> Pass:
    """The pass, if it says what every pass must."""
    missing = undeclared(item)
    if missing:
        words = " and ".join(missing)
        raise PipelineError(
            f"{place}: {type(item).__name__} does not declare its {words}: set that on the class"
        )
    return item

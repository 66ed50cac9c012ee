"""What a run is asked to do, checked before anything is traced."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal, cast

from fxpasses.core import Gate
from fxpasses.core.given import instance, shown
from fxpasses.errors import ArgumentError
from fxpasses.manager import Observer
from fxpasses.registry import Registry
from fxpasses.session.dump import Dump
from fxpasses.verify.check import Level

OnFailure = Literal["raise", "skip"]

_LEVELS: dict[Any, Level | None] = {False: None, True: "sites", "each": "each", "full": "full"}


@dataclass(frozen=True, slots=True)
class Settings:
    """How passes are run and checked."""

    training: bool
    target: str | None = None
    """The type of device that the result is for; None: any."""
    level: Level | None = None
    """How the result is verified; None: not at all."""
    on_failure: OnFailure = "raise"
    skip: frozenset[str] = frozenset()
    only: frozenset[str] | None = None
    stop_after: int | None = None
    observers: tuple[Observer, ...] = ()
    history: bool = False
    """Whether the graphs are kept as every pass leaves them."""
    dump: Dump | None = None
    """Where they are written."""

    def tell(self, stage: str) -> None:
        for observer in self.observers:
            observer.stage(stage)

    def tell_progress(self, done: int, known: int) -> None:
        for observer in self.observers:
            observer.progress(done, known)

    def gate(self, undone: Iterable[str] = ()) -> Gate:
        skip = self.skip.union(undone)
        return Gate(skip=skip, only=self.only, stop_after=self.stop_after)


def level_of(verify: object) -> Level | None:
    """The verification level that `verify=` asks for; None for no verification.

    Raises:
        ArgumentError: it is none of True, "each", "full" and False.
    """
    if isinstance(verify, bool | str) and verify in _LEVELS:
        return _LEVELS[verify]
    raise ArgumentError(f'verify={verify!r}: pass True, "each", "full" or False')


def observers_of(given: object) -> tuple[Observer, ...]:
    """Who is told of stages and passes.

    Raises:
        ArgumentError: it is no collection of `Observer`s.
    """
    advice = "a collection of fxpasses.manager.Observer"
    if isinstance(given, str) or not isinstance(given, Iterable):
        raise ArgumentError(f"observers={shown(given)}: pass {advice}")
    found = cast("Iterable[object]", given)
    return tuple(instance(one, "observers", Observer, advice) for one in found)


def registry_of(choice: object) -> Registry:
    """Where names are looked up; the default registry for None.

    Raises:
        ArgumentError: it is no `Registry`.
    """
    if choice is None:
        return Registry.default()
    return instance(choice, "registry", Registry, "a fxpasses.Registry, or None for the default")

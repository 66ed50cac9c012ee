"""What a run is asked to do, checked before anything is traced."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal

from fxpasses.core import Gate
from fxpasses.core.given import instance
from fxpasses.errors import ArgumentError
from fxpasses.registry import Registry
from fxpasses.verify.check import Level

OnFailure = Literal["raise", "skip"]

_LEVELS: dict[Any, Level | None] = {False: None, True: "sites", "each": "each", "full": "full"}


@dataclass(frozen=True, slots=True)
class Settings:
    """How passes are run and checked."""

    training: bool
    level: Level | None = None
    """How the result is verified; None: not at all."""
    on_failure: OnFailure = "raise"
    skip: frozenset[str] = frozenset()
    only: frozenset[str] | None = None
    stop_after: int | None = None

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


def registry_of(choice: object) -> Registry:
    """Where names are looked up; the default registry for None.

    Raises:
        ArgumentError: it is no `Registry`.
    """
    if choice is None:
        return Registry.default()
    return instance(choice, "registry", Registry, "a fxpasses.Registry, or None for the default")

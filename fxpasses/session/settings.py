"""What a run is asked to do, checked before anything is traced."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal, cast

from fxpasses.core import Gate
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


def on_failure_of(choice: object) -> OnFailure:
    """What happens after a failure.

    Raises:
        ArgumentError: it is neither "raise" nor "skip".
    """
    if choice in ("raise", "skip"):
        return choice
    raise ArgumentError(f'on_failure={choice!r}: pass "raise" or "skip"')


def flag(choice: object, argument: str) -> bool:
    """A yes or no.

    Raises:
        ArgumentError: it is neither True nor False; any other value would count as one of them.
    """
    if isinstance(choice, bool):
        return choice
    raise ArgumentError(f"{argument}={choice!r}: pass True or False")


def count_of(choice: object, argument: str) -> int | None:
    """A number of rewrites, or None for no bound.

    Raises:
        ArgumentError: it is no whole number, or a negative one.
    """
    if choice is None or (type(choice) is int and choice >= 0):
        return choice
    raise ArgumentError(f"{argument}={choice!r}: pass a number of rewrites, 0 or more, or None")


def registry_of(choice: object) -> Registry:
    """Where names are looked up; the default registry for None.

    Raises:
        ArgumentError: it is no `Registry`.
    """
    if choice is None:
        return Registry.default()
    if isinstance(choice, Registry):
        return choice
    raise ArgumentError(f"registry={choice!r}: pass a fxpasses.Registry, or None for the default")


def identifiers(names: object, argument: str) -> frozenset[str]:
    """Ids of rewrites.

    Raises:
        ArgumentError: it is one text, or holds something else than text.
    """
    if isinstance(names, str) or not isinstance(names, Iterable):
        raise ArgumentError(f"{argument}={names!r}: pass a collection of rewrite ids")
    found = frozenset(cast("Iterable[object]", names))
    if strangers := [name for name in found if not isinstance(name, str)]:
        raise ArgumentError(f"{argument} holds {strangers[0]!r}: rewrite ids are text")
    return cast("frozenset[str]", found)

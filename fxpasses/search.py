"""Finding what makes a run fail: the first of a series, or the few of a set."""

from collections.abc import Callable, Sequence
from typing import TypeVar

_T = TypeVar("_T")


class Unresolved(Exception):  # noqa: N818  an answer, not an error
    """Raised by a predicate that cannot tell: the run failed in some other way."""


def first_bad(total: int, is_bad: Callable[[int], bool]) -> int:
    """The smallest number, from 1 to `total`, with which a run is bad.

    `is_bad(0)` is taken to be false and `is_bad(total)` to be true. Asks about log2(total)
    times. Where the predicate raises `Unresolved` its neighbours are asked, and where no answer
    can be had the smallest number that is known to be bad is returned. Any other error of the
    predicate is passed on.

    Raises:
        ValueError: there is nothing to search: `total` is below 1.
    """
    if total < 1:
        raise ValueError("there is nothing to search")
    good, bad = 0, total
    while bad - good > 1:
        found = _ask_near((good + bad) // 2, good, bad, is_bad)
        if found is None:
            return bad
        at, answer = found
        good, bad = (good, at) if answer else (at, bad)
    return bad


def _ask_near(
    middle: int, good: int, bad: int, is_bad: Callable[[int], bool]
) -> tuple[int, bool] | None:
    """The answer nearest to the middle that can be had strictly between two numbers."""
    for at in sorted(range(good + 1, bad), key=lambda number: abs(number - middle)):
        try:
            return at, is_bad(at)
        except Unresolved:
            continue
    return None


def ddmin(items: Sequence[_T], fails: Callable[[list[_T]], bool]) -> list[_T]:
    """A smallest part of `items`, in order, with which a run fails: without any one of it, none.

    One culprit is found in at most 2 * log2(n) + 4 runs, a pair that fails only together in at
    most 12 * log2(n), as long as more items never mend a failure; otherwise it takes longer. A
    predicate that raises `Unresolved` counts as not failing. Any other error is passed on.

    Raises:
        ValueError: the run does not fail with all items, or fails without any.
    """
    ask = _Asking(items, fails)
    everything = list(range(len(items)))
    if not ask(everything):
        raise ValueError("the run does not fail with everything: there is nothing to find")
    if ask([]):
        raise ValueError("the run fails without any of the items: none of them is to blame")
    found = _by_prefixes(everything, ask)
    return [items[i] for i in _without_spare(found, ask)]


class _Asking:
    """The predicate on positions, asked once for each set."""

    def __init__(self, items: Sequence[_T], fails: Callable[[list[_T]], bool]) -> None:
        self._answer = lambda positions: fails([items[i] for i in positions])
        self._known: dict[frozenset[int], bool] = {}

    def __call__(self, positions: Sequence[int]) -> bool:
        key = frozenset(positions)
        if key not in self._known:
            try:
                self._known[key] = self._answer(sorted(key))
            except Unresolved:
                self._known[key] = False
        return self._known[key]


def _by_prefixes(items: list[int], ask: _Asking) -> list[int]:
    """Fix one culprit after the other: the last item of the shortest prefix that still fails."""
    culprits: list[int] = []
    while not ask(culprits):
        prefix = first_bad(len(items), lambda n: ask([*items[:n], *culprits]))  # noqa: B023  asked at once
        culprits.insert(0, items[prefix - 1])
        items = items[: prefix - 1]
        if not ask([*items, *culprits]):
            return [*items, *culprits]
    return culprits


def _without_spare(items: list[int], ask: _Asking) -> list[int]:
    """Drop what the failure does not need, larger pieces first."""
    size = max(1, len(items) // 2)
    while True:
        kept = _dropped_once(items, size, ask)
        if kept is not None:
            items = kept
            size = min(size, max(1, len(items) // 2))
        elif size == 1:
            return items
        else:
            size = max(1, size // 2)


def _dropped_once(items: list[int], size: int, ask: _Asking) -> list[int] | None:
    for start in range(0, len(items), size):
        rest = [*items[:start], *items[start + size :]]
        if rest and ask(rest):
            return rest
    return None

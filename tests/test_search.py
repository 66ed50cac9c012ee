"""Searches find what is to blame, in few runs."""

import itertools
import math
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fxpasses.search import Unresolved, ddmin, first_bad

# The same examples every time, and however slow the machine is.
GENERATED = settings(deadline=None, derandomize=True, database=None)


class Counting:
    """A predicate that counts how often it is asked, and never about the same twice."""

    def __init__(self, fails: Callable[[list[int]], bool]) -> None:
        self.fails = fails
        self.asked: list[list[int]] = []

    def __call__(self, items: list[int]) -> bool:
        assert items not in self.asked
        assert items == sorted(items)
        self.asked.append(items)
        return self.fails(items)


SIZES = [1, 2, 3, 5, 8, 13, 64, 100, 257]


@pytest.mark.parametrize("size", SIZES)
def test_one_culprit_is_found_in_few_runs(size: int) -> None:
    for culprit in range(size):
        asked = Counting(lambda items, c=culprit: c in items)
        assert ddmin(range(size), asked) == [culprit]
        assert len(asked.asked) <= 2 * math.log2(size) + 4


@pytest.mark.parametrize("size", [size for size in SIZES if size > 1])
def test_a_pair_is_found_in_few_runs(size: int) -> None:
    for pair in itertools.islice(
        itertools.combinations(range(size), 2), 0, None, max(1, size // 3)
    ):
        asked = Counting(lambda items, p=pair: set(p) <= set(items))
        assert ddmin(range(size), asked) == list(pair)
        assert len(asked.asked) <= 12 * math.log2(size)


@GENERATED
@given(st.sets(st.integers(0, 39), min_size=1, max_size=6))
def test_any_set_of_culprits_is_found(culprits: set[int]) -> None:
    assert ddmin(range(40), Counting(culprits.issubset)) == sorted(culprits)


@GENERATED
@given(st.lists(st.sets(st.integers(0, 9), min_size=1), min_size=1, max_size=5), st.data())
def test_what_is_found_fails_and_nothing_in_it_is_spare(
    causes: list[set[int]], data: st.DataObject
) -> None:
    """Also where a failure has several causes, or some items mend it."""
    cure = data.draw(st.integers(0, 9) | st.none())

    def fails(items: list[int]) -> bool:
        held = set(items)
        mended = cure in held and len(held) < 10
        return not mended and any(cause <= held for cause in causes)

    found = ddmin(range(10), fails)
    assert fails(found)
    assert not any(fails([i for i in found if i != spare]) for spare in found if len(found) > 1)


def test_items_may_be_anything_and_equal() -> None:
    items = ["a", "b", "a", "a"]
    assert ddmin(items, lambda part: part.count("a") >= 3) == ["a", "a", "a"]


@pytest.mark.parametrize(
    ("fails", "message"),
    [(lambda items: False, "nothing to find"), (lambda items: True, "without any of the items")],
)
def test_nothing_to_find_is_an_error(fails: Callable[[list[int]], bool], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ddmin([1, 2, 3], fails)


def test_an_answer_that_cannot_be_had_counts_as_not_failing() -> None:
    def fails(items: list[int]) -> bool:
        if 3 in items and 4 not in items:
            raise Unresolved("4 is missing")
        return 3 in items

    assert ddmin(range(8), fails) == [3, 4]


@pytest.mark.parametrize("error", [ZeroDivisionError, KeyboardInterrupt])
def test_other_errors_of_the_predicate_are_passed_on(error: type[BaseException]) -> None:
    def fails(items: list[int]) -> bool:
        if len(items) == 4:
            raise error
        return True

    with pytest.raises(error):
        ddmin(range(4), fails)
    with pytest.raises(error):
        first_bad(8, lambda number: fails(list(range(number))))


@pytest.mark.parametrize("total", SIZES)
def test_the_first_bad_is_found_in_few_runs(total: int) -> None:
    for first in range(1, total + 1):
        asked: list[int] = []

        def is_bad(number: int, first: int = first, asked: list[int] = asked) -> bool:
            asked.append(number)
            return number >= first

        assert first_bad(total, is_bad) == first
        assert len(asked) <= math.ceil(math.log2(total))
        assert not {0, total} & set(asked)


def test_the_neighbours_of_an_answer_that_cannot_be_had_are_asked() -> None:
    def is_bad(number: int) -> bool:
        if number in {4, 5}:
            raise Unresolved
        return number >= 7

    assert first_bad(8, is_bad) == 7


def test_without_answers_the_smallest_known_bad_is_returned() -> None:
    def is_bad(number: int) -> bool:
        raise Unresolved

    assert first_bad(8, is_bad) == 8
    assert first_bad(1, is_bad) == 1


def test_an_empty_series_is_an_error() -> None:
    with pytest.raises(ValueError, match="nothing to search"):
        first_bad(0, lambda number: True)

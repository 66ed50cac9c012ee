"""Nodes that check, as the graph runs, what the capture took for granted."""

from collections.abc import Sized


class GuardMiss(Exception):
    """A call differs from the example where the graph depends on it: run the module's own code."""


def guard(value: object, expected: object) -> None:
    """Raise `GuardMiss` unless `value`, computed from sizes, is what the capture saw."""
    if value != expected:
        raise GuardMiss(f"{value} where the capture saw {expected}")


def check_len(values: Sized, expected: int) -> None:
    """Raise `GuardMiss` unless there are as many values as the capture saw."""
    if len(values) != expected:
        raise GuardMiss(f"{len(values)} values where the capture saw {expected}")

"""A pipeline as the manager runs it: passes in order, in groups that may repeat."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

from torch.fx import GraphModule

from fxpasses.core.rewrite import GraphPass, Numerics


@dataclass(frozen=True, slots=True)
class ForeignPass:
    """Any callable on a GraphModule. It works on a copy, and may return it, another, or None."""

    name: str
    function: Callable[[GraphModule], Any]
    numerics: Numerics = Numerics.ROUNDING


def foreign(
    function: Callable[[GraphModule], Any],
    *,
    name: str | None = None,
    numerics: Numerics = Numerics.ROUNDING,
) -> ForeignPass:
    """Take a callable on a GraphModule, such as one of torch's own passes, into a pipeline."""
    return ForeignPass(
        name or getattr(function, "__name__", type(function).__name__), function, numerics
    )


Item: TypeAlias = "GraphPass | ForeignPass | Group"


@dataclass(frozen=True, slots=True)
class Group:
    """Passes in order, run until nothing changes but at most `repeat` times."""

    items: tuple[Item, ...]
    repeat: int = 1
    name: str = ""

"""A pipeline as the manager runs it: passes in order, in groups that may repeat."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, TypeAlias

from torch.fx import GraphModule

from fxpasses.core.given import instance, shown
from fxpasses.core.rewrite import GraphPass, Numerics
from fxpasses.errors import ArgumentError, PipelineError


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
    """Take a callable on a GraphModule, such as one of torch's own passes, into a pipeline.

    Raises:
        ArgumentError: `function` cannot be called, or is a class; `name` is no text, or
            `numerics` no `Numerics`.
    """
    given: Any = function
    if isinstance(given, type) or not callable(given):
        what = f"the class {given.__name__}" if isinstance(given, type) else shown(given)
        raise ArgumentError(f"{what} is no pass: pass a GraphPass or a function on a GraphModule")
    if name is not None:
        instance(name, "name", str, "the name of the pass as text")
    instance(numerics, "numerics", Numerics, "a member of fxpasses.Numerics")
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

    def passes(self) -> Iterator["GraphPass | ForeignPass"]:
        """The passes in order, each once, through all nested groups."""
        for item in self.items:
            if isinstance(item, Group):
                yield from item.passes()
            else:
                yield item


def check_order(pipeline: Group) -> None:
    """Check that what each pass declares in `runs_after` comes before it, where it is present.

    Raises:
        PipelineError: a pass stands before one that it has to run after.
    """
    names = [item.name for item in pipeline.passes()]
    earlier: set[str] = set()
    for item in pipeline.passes():
        needed = item.runs_after if isinstance(item, GraphPass) else ()
        for name in needed:
            if name in names and name not in earlier and name != item.name:
                raise PipelineError(f"{item.name} has to run after {name}: put {name} before it")
        earlier.add(item.name)

"""Passes that tell what they ask, beside doing what they do."""

import copy
from collections.abc import Iterator
from dataclasses import dataclass, field, fields, is_dataclass, replace
from typing import Any, cast

from torch.fx import GraphModule, Node

from fxpasses.core import Condition, Facts, GraphPass, Group, Item, Refusal, Step
from fxpasses.debug.explanation import Answer
from fxpasses.debug.patterns import Chain, Listener

_DEEP = 6


@dataclass(slots=True, eq=False)
class Asked:
    """A site whose conditions were asked, several times perhaps."""

    site: Any
    node: str
    nodes: tuple[str, ...]
    source: str | None
    answers: dict[str, Answer] = field(default_factory=dict[str, Answer])

    @property
    def is_admitted(self) -> bool:
        return all(answer.holds for answer in self.answers.values())


@dataclass(slots=True, eq=False)
class Sweep:
    """One pass over one graph."""

    module: GraphModule
    asked: list[Asked] = field(default_factory=list[Asked])
    proposed: list[str] = field(default_factory=list[str])
    """The nodes where rewrites were proposed."""
    chains: list[Chain] = field(default_factory=list[Chain])


class Witness:
    """Stands beside the passes of a pipeline, and keeps what they ask."""

    def __init__(self) -> None:
        self.sweeps: list[Sweep] = []
        """Of the pass that runs, one a graph; whoever looks on takes them away."""

    def beside(self, group: Group) -> Group:
        """The same pipeline of passes that tell; foreign passes do not."""
        return replace(group, items=tuple(map(self._item, group.items)))

    def _item(self, item: Item) -> Item:
        if isinstance(item, Group):
            return self.beside(item)
        return _telling(item, self.sweeps) if isinstance(item, GraphPass) else item


def _telling(graph_pass: GraphPass, sweeps: list[Sweep]) -> GraphPass:
    """A copy that tells: its class is the same, and so is all that it does."""
    told = copy.copy(graph_pass)
    # A pass is frozen, and an attribute of its own comes before a method of its class.
    vars(told).update(steps=_Steps(told, sweeps), refusal=_Refusing(told, sweeps))
    return told


@dataclass(frozen=True, slots=True)
class _Steps:
    graph_pass: GraphPass
    sweeps: list[Sweep]

    def __call__(self, module: GraphModule, facts: Facts) -> Iterator[Step | Refusal]:
        sweep, listener = Sweep(module), Listener()
        self.sweeps.append(sweep)
        sweep.chains = listener.chains
        with listener.listening():
            steps = iter(type(self.graph_pass).steps(self.graph_pass, module, facts))
        while True:
            with listener.listening():
                step = next(steps, None)
            if step is None:
                return
            if isinstance(step, Step):
                sweep.proposed.append(step.at.name)
            yield step


@dataclass(frozen=True, slots=True)
class _Refusing:
    graph_pass: GraphPass
    sweeps: list[Sweep]

    def __call__(
        self,
        node: Node,
        site: Any,
        facts: Facts,
        *,
        legal_if: Any = None,
        worthwhile_if: Any = None,
    ) -> Refusal | None:
        own = self.graph_pass
        legal_if = tuple(own.legal_if if legal_if is None else legal_if)
        worthwhile_if = tuple(own.worthwhile_if if worthwhile_if is None else worthwhile_if)
        asked = self._asked(node, site)
        refusal = GraphPass.refusal(
            own, node, site, facts, legal_if=legal_if, worthwhile_if=worthwhile_if
        )
        holds_so_far = True
        for about_cost, conditions in ((False, legal_if), (True, worthwhile_if)):
            for condition in conditions:
                answer = self._answer(condition, site, facts, holds_so_far, about_cost)
                holds_so_far = holds_so_far and answer.holds is True
                asked.answers[answer.condition] = answer
        return refusal

    def _asked(self, node: Node, site: Any) -> Asked:
        known = self.sweeps[-1].asked
        for asked in known:
            if asked.site is site and asked.node == node.name:
                return asked
        refusal = Refusal.at(node, "", "")
        nodes = dict.fromkeys(one.name for one in (node, *nodes_in(site)))
        known.append(Asked(site, node.name, tuple(nodes), refusal.source))
        return known[-1]

    def _answer(
        self,
        condition: Condition[Any],
        site: Any,
        facts: Facts,
        holds_so_far: bool,
        about_cost: bool,
    ) -> Answer:
        name = condition.__name__
        try:
            reason = condition(site, facts)
        except Exception:
            # What conditions before it rule out, it need not stand; else it is a bug of the pass.
            if holds_so_far:
                raise
            return Answer(name, None, about_cost=about_cost)
        if not reason:
            return Answer(name, True, about_cost=about_cost)
        return Answer(name, False, reason, about_cost, self.graph_pass.remedies.get(condition, ""))


def nodes_in(value: Any, depth: int = _DEEP) -> Iterator[Node]:
    """The nodes that a site is made of, in its fields and theirs."""
    if isinstance(value, Node):
        yield value
    elif depth and isinstance(value, tuple | list):
        for item in cast("list[Any]", value):
            yield from nodes_in(item, depth - 1)
    elif depth and is_dataclass(value) and not isinstance(value, type):
        for one in fields(value):
            yield from nodes_in(getattr(value, one.name), depth - 1)

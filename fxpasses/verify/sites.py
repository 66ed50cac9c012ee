"""Rewrite sites: what is to be compared where, as a graph is walked."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from torch.fx import GraphModule, Node

from fxpasses.analysis.effects import effects_of
from fxpasses.core import Applied, Numerics, Region, Replacement
from fxpasses.core.record import PassRecord
from fxpasses.verify.regions import borders_read


class PassRun(Protocol):
    """One pass of the pipeline as the manager carried it out."""

    @property
    def record(self) -> PassRecord: ...
    @property
    def applied(self) -> Mapping[str, Sequence[Applied]]:
        """The rewrites, by the path of the graph they were made in."""
        ...

    @property
    def numerics(self) -> Numerics: ...
    @property
    def foreign(self) -> bool:
        """Whether it is a callable that edits graphs in its own way, and keeps no rewrites."""
        ...


@dataclass(slots=True, eq=False)
class Site:
    """One value that a rewrite computes in another way, and what was found out about it."""

    pass_name: str
    numerics: Numerics
    applied: Applied
    index: int
    region: Region
    path: str = ""
    error: float = 0.0
    bound: float = 0.0
    failure: str = ""
    failed_on: str = ""
    reached: bool = False
    unverified: str = "no probe changes its value"
    """Why it is not verified as long as `reached` is false."""
    notes: list[str] = field(default_factory=list[str])

    @property
    def replacement(self) -> Replacement:
        return self.applied.replacements[self.index]

    @property
    def strictness(self) -> float:
        """How far the value used up its bound; above 1 it is wrong."""
        if self.error == 0:
            return 0.0
        return self.error / self.bound if self.bound else math.inf

    def note(self, error: float, bound: float) -> None:
        """Keep the worst comparison seen."""
        seen = error / bound if bound else (math.inf if error else 0.0)
        if seen >= self.strictness:
            self.error, self.bound = error, bound

    def fail(self, message: str, probe: str) -> None:
        if not self.failure:
            self.failure, self.failed_on = message, probe


def sites_of(runs: Sequence[PassRun], paths: Sequence[str]) -> list[Site]:
    """All sites of a pipeline that kept its regions, in the order they were made."""
    return [
        Site(run.record.name, run.numerics, applied, index, applied.after, path)
        for run in runs
        for path in paths
        for applied in run.applied.get(path, ())
        if applied.after is not None
        for index in range(len(applied.replacements))
    ]


@dataclass(frozen=True, slots=True, eq=False)
class Visit:
    """When a site is looked at.

    Its new value is computed before or after `node` has run; its old value is that of `old`,
    or where that is None what `region_before` computes.
    """

    site: Site
    node: Node
    runs_first: bool
    """Whether the new value is computed before `node` runs."""
    old: Node | None
    borders: tuple[Node, ...]
    borders_before: tuple[Node, ...] = ()


@dataclass(slots=True, eq=False)
class Itinerary:
    """The visits of one graph, and how long values must live for them."""

    visits: dict[Node, list[Visit]] = field(default_factory=dict[Node, list[Visit]])
    keeps: dict[Node, Node] = field(default_factory=dict[Node, Node])
    constants: frozenset[Node] = frozenset()
    """Nodes that follow from weights alone, whatever the inputs are."""


def plan_visits(graph_module: GraphModule, sites: Sequence[Site]) -> Itinerary:
    """Decide when each site of a graph is looked at."""
    nodes = list(graph_module.graph.nodes)
    names = {node.name: node for node in nodes}
    order = {node: position for position, node in enumerate(nodes)}
    itinerary = Itinerary(constants=frozenset(_constants(nodes)))
    for site in sites:
        visit = _visit(site, nodes, names, order)
        if visit is None:
            site.unverified = "it reads a value that the original graph does not have"
            continue
        itinerary.visits.setdefault(visit.node, []).append(visit)
        read = (*visit.borders, *visit.borders_before, *([visit.old] if visit.old else []))
        for node in read:
            until = itinerary.keeps.get(node, node)
            itinerary.keeps[node] = max(until, visit.node, key=order.__getitem__)
    return itinerary


def _visit(
    site: Site, nodes: list[Node], names: Mapping[str, Node], order: Mapping[Node, int]
) -> Visit | None:
    replacement = site.replacement
    inputs = borders_read(site.region, site.index)
    old_name = replacement.stands_for
    inputs_before: tuple[str, ...] = ()
    if old_name is None:
        if site.applied.before is None:
            return None
        inputs_before = borders_read(*region_before(site))
    wanted = [*inputs, *inputs_before, *([old_name] if old_name else [])]
    if any(name not in names for name in wanted):
        return None
    borders = tuple(names[name] for name in inputs)
    borders_before = tuple(names[name] for name in inputs_before)
    old = names[old_name] if old_name else None
    ready = max((order[node] for node in (*borders, *borders_before)), default=-1)
    if old is not None and ready < order[old] and _may_write(old):
        return Visit(site, old, True, old, borders)
    last = nodes[max(ready, order[old] if old is not None else 0)]
    if last.op != "placeholder":
        return Visit(site, last, False, old, borders, borders_before)
    first = next((node for node in nodes if node.op not in ("placeholder", "output")), None)
    if first is None:
        return None
    return Visit(site, first, True, old, borders, borders_before)


def _may_write(node: Node) -> bool:
    """Whether what stands before a node may be gone after it. If not, less is held afterwards."""
    return node.op not in ("placeholder", "output") and not effects_of(node).none


def region_before(site: Site) -> tuple[Region, int]:
    """What computes the old value of a site that stands for no captured node, and its index."""
    region = site.applied.before
    assert region is not None
    lost = [r for r in site.applied.replacements if r.stands_for is None]
    return region, lost.index(site.replacement)


def _constants(nodes: Sequence[Node]) -> Iterator[Node]:
    moving: set[Node] = set()
    for node in nodes:
        if node.op == "placeholder" or any(n in moving for n in node.all_input_nodes):
            moving.add(node)
        else:
            yield node


def slice_between(old: Node, borders: Sequence[Node]) -> list[Node] | None:
    """The nodes that compute `old` out of `borders`, in order; None if more inputs are needed."""
    stops, found = set(borders), set[Node]()
    stack = [old]
    while stack:
        node = stack.pop()
        if node in found or node in stops:
            continue
        if node.op == "placeholder":
            return None
        found.add(node)
        stack.extend(node.all_input_nodes)
    return sorted(found)

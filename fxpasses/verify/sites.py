"""Rewrite sites: what is to be compared where, as a graph is walked."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from operator import or_
from typing import Protocol

from torch.fx import GraphModule, Node

from fxpasses.analysis.effects import effects_of
from fxpasses.core import Applied, Numerics, Region, Replacement, cut_region
from fxpasses.core.record import PassRecord
from fxpasses.verify.crops import Likeness, likeness_of
from fxpasses.verify.regions import borders_read, only_computes


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

    @property
    def trains(self) -> bool:
        """Whether its result may be trained."""
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
    settled: bool = False
    """Whether it is known to agree on all values, as it is affine and agreed on some."""
    trains: bool = True
    """Whether the pass says that its result may be trained."""
    own_dtypes: bool = True
    """Whether values have the dtypes of the original here: no pass lowered the precision before."""

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
    lowered = list(accumulate((run.numerics is Numerics.PRECISION for run in runs), or_))
    return [
        Site(
            *(run.record.name, run.numerics, applied, index, applied.after, path),
            trains=run.trains,
            own_dtypes=not low,
        )
        for run, low in zip(runs, lowered, strict=True)
        for path in paths
        for applied in run.applied.get(path, ())
        if applied.after is not None
        for index in range(len(applied.replacements))
    ]


@dataclass(frozen=True, slots=True, eq=False)
class Piece:
    """One result of a region, and the nodes of the original whose values it follows from."""

    region: Region
    index: int
    borders: tuple[Node, ...]
    is_pure: bool
    """Whether it is sure to do nothing but compute."""


@dataclass(frozen=True, slots=True, eq=False)
class Visit:
    """When a site is looked at.

    Its new value is computed before or after `node` has run; its old value is that of `old`,
    or where that is None what `before` computes.
    """

    site: Site
    node: Node
    runs_first: bool
    """Whether the new value is computed before `node` runs."""
    old: Node | None
    after: Piece
    """Computes the new value."""
    before: Piece
    """Computes the old value."""
    replaced: frozenset[Node] = frozenset()
    """The nodes of the original that `before` consists of, where `old` is one."""
    alike: Likeness | None = None
    """How old and new value follow from their borders, where they treat all places alike."""


@dataclass(slots=True, eq=False)
class Itinerary:
    """The visits of one graph, and how long values must live for them."""

    visits: dict[Node, list[Visit]] = field(default_factory=dict[Node, list[Visit]])
    keeps: dict[Node, Node] = field(default_factory=dict[Node, Node])
    constants: frozenset[Node] = frozenset()
    """Nodes that follow from weights alone, whatever the inputs are."""


def plan_visits(graph_module: GraphModule, sites: Sequence[Site]) -> Itinerary:
    """Decide when each site of a graph is looked at."""
    planner = _Planner(graph_module)
    itinerary = Itinerary(constants=planner.constants)
    for site in sites:
        visit = planner.visit(site)
        if visit is None:
            site.unverified = "it reads a value that the original graph does not have"
            continue
        itinerary.visits.setdefault(visit.node, []).append(visit)
        read = (*visit.after.borders, *visit.before.borders, *([visit.old] if visit.old else []))
        for node in read:
            until = itinerary.keeps.get(node, node)
            itinerary.keeps[node] = max(until, visit.node, key=planner.order.__getitem__)
    return itinerary


class _Planner:
    """Finds in one graph of the original what the sites read."""

    def __init__(self, graph_module: GraphModule) -> None:
        self.graph_module = graph_module
        self.nodes: list[Node] = list(graph_module.graph.nodes)
        self.names = {node.name: node for node in self.nodes}
        self.order = {node: position for position, node in enumerate(self.nodes)}
        self.constants = frozenset(_constants(self.nodes))

    def visit(self, site: Site) -> Visit | None:
        """None where the original does not have what the site reads or stands for."""
        name = site.replacement.stands_for
        old = None if name is None else self.names.get(name)
        if name is not None and old is None:
            return None
        after = self._piece(site.region, site.index)
        if after is None:
            return None
        replaced = frozenset[Node]() if old is None else self._replaced(site, old, after)
        before = self._before(site, old, replaced)
        if before is None:
            return None
        place = self._place(old, (*after.borders, *before.borders))
        if place is None:
            return None
        alike = self._alike(place, after, before, replaced)
        return Visit(site, *place, old, after, before, replaced, alike)

    def _alike(
        self, place: tuple[Node, bool], after: Piece, before: Piece, replaced: frozenset[Node]
    ) -> Likeness | None:
        """None as well where the borders may be written between their readers and the look."""
        node, runs_first = place
        if runs_first or not replaced:
            return None
        begun = min(self.order[one] for one in replaced)
        between = self.nodes[begun : self.order[node] + 1]
        if not all(effects_of(one).none for one in between):
            return None
        old, new = (likeness_of(piece.region, piece.index) for piece in (before, after))
        return old and new and old.beside(new)

    def _piece(self, region: Region, index: int) -> Piece | None:
        read = borders_read(region, index)
        if not all(name in self.names for name in read):
            return None
        borders = tuple(self.names[name] for name in read)
        return Piece(region, index, borders, only_computes(region, index))

    def _replaced(self, site: Site, old: Node, after: Piece) -> frozenset[Node]:
        """What computes `old` from where the rewrite begins; if more is read, what it absorbed."""
        between = self._between(old, after.borders)
        if between is not None:
            return between
        absorbed = (self.names.get(name) for name in (old.name, *site.applied.absorbed))
        return frozenset(node for node in absorbed if node is not None and node.op != "placeholder")

    def _between(self, old: Node, borders: Sequence[Node]) -> frozenset[Node] | None:
        """The nodes that compute `old` out of `borders`; None if more inputs are needed."""
        first = min((self.order[border] for border in borders), default=len(self.nodes))
        found, stack = set[Node](), [old]
        while stack:
            node = stack.pop()
            if node in found or node in borders:
                continue
            # What comes before all borders does not follow from them.
            if node.op == "placeholder" or self._is_early(node, first):
                return None
            found.add(node)
            stack.extend(node.all_input_nodes)
        return frozenset(found)

    def _is_early(self, node: Node, first: int) -> bool:
        return self.order[node] < first and node not in self.constants

    def _before(self, site: Site, old: Node | None, replaced: frozenset[Node]) -> Piece | None:
        if old is not None:
            return self._piece(cut_region(self.graph_module, [old], inside=replaced), 0)
        return None if site.applied.before is None else self._piece(*region_before(site))

    def _place(self, old: Node | None, read: Sequence[Node]) -> tuple[Node, bool] | None:
        """The node at which all of `read` is known, and whether to look before it runs."""
        ready = max((self.order[node] for node in read), default=-1)
        if old is not None and ready < self.order[old] and _may_write(old):
            return old, True
        last = self.nodes[max(ready, 0 if old is None else self.order[old])]
        if last.op != "placeholder":
            return last, False
        computed = (node for node in self.nodes if node.op not in ("placeholder", "output"))
        first = next(computed, None)
        return None if first is None else (first, True)


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

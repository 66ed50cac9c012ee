"""Walk an original graph in float64 and compare every rewrite with it on the way."""

from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule, Node
from torch.utils._pytree import tree_leaves

from fxpasses.analysis.effects import effects_of
from fxpasses.core import STANDS_FOR, Folds, Numerics
from fxpasses.verify.compare import Difference, differences, worst
from fxpasses.verify.crops import cropped
from fxpasses.verify.dtypes import Kinds
from fxpasses.verify.float64 import Float64, unaffected
from fxpasses.verify.flow import flows_otherwise, stops_gradients
from fxpasses.verify.losses import FACTOR, Loss
from fxpasses.verify.made_up import drawn, is_constant, is_zero, moved
from fxpasses.verify.own_dtype import NotComparableError, Way, precision_lost
from fxpasses.verify.progress import Progress
from fxpasses.verify.regions import in_float64, in_own_dtypes, run_region, tensors_read
from fxpasses.verify.runner import Environment
from fxpasses.verify.sites import Itinerary, Piece, Site, Visit, plan_visits
from fxpasses.verify.state import Autocast, RandomState
from fxpasses.verify.trail import Trail
from fxpasses.verify.unavailable import first_line, is_unavailable

SITE_BOUND = 1e-12
"""Relative L2 that a rewrite may move a value by in float64."""

NOISE = 2.0**-38
"""Relative disturbance by which the conditioning of a computation is measured."""

ROUNDINGS = 2.0**-44
"""What rounding may do in float64, per unit of amplification: 2**8 units in the last place."""

_CALLS_CHECKED = 3


@dataclass(eq=False)
class Walk:
    """What the walks over the graphs of one program have in common."""

    sites: Mapping[str, Sequence[Site]]
    folds: Folds
    own: torch.dtype
    given: frozenset[int]
    """Addresses of the tensors of the original: other constants of a region are a pass's own."""
    kinds: Kinds
    autocast: Autocast
    progress: Progress = field(default_factory=Progress)
    probe: str = "example"
    calls: dict[str, int] = field(default_factory=dict[str, int])
    plans: dict[str, Itinerary] = field(default_factory=dict[str, Itinerary])
    not_compared: dict[str, str] = field(default_factory=dict[str, str])
    """Rewrites that were not run in the model's own dtypes, and why."""
    broken: bool = False
    """Whether what was raised came from the checks and not from the original."""

    def plan(self, path: str, graph_module: GraphModule) -> Itinerary:
        """The itinerary of one graph. The first calls of it are checked, later ones only run."""
        self.calls[path] = self.calls.get(path, 0) + 1
        if self.calls[path] > _CALLS_CHECKED:
            return Itinerary()
        if path not in self.plans:
            self.plans[path] = plan_visits(graph_module, self.sites.get(path, ()))
        return self.plans[path]

    def next_probe(self, probe: str) -> None:
        self.probe = probe
        self.calls.clear()


class Walker:
    """Looks on while one graph of the original runs in float64, and judges its sites."""

    def __init__(
        self, walk: Walk, path: str, graph_module: GraphModule, seen: Float64, trail: Trail
    ) -> None:
        self.walk = walk
        self.graph_module = graph_module
        self.seen = seen
        self.trail = trail
        self.itinerary = walk.plan(path, graph_module)
        self.place = (path, walk.calls.get(path, 0))
        self.drawn: dict[Node, Callable[[], None]] = {}
        self.begun = RandomState.now().restore
        self.early: dict[Visit, _Look | None] = {}
        """What was seen of new values before their node ran."""

    def keeps(self) -> Mapping[Node, Node]:
        return self.itinerary.keeps

    def begins(self) -> None:
        return

    def ends(self, output: Any) -> None:
        if self.place[0]:
            self.trail.add((*self.place, "output"), tree_leaves(self.seen.reads(output)))

    def around(self, node: Node, values: Environment, run: Callable[[], Any]) -> Any:
        visits = self.itinerary.visits.get(node, ())
        with self._checking():
            self.early = {v: self._looked_at(v, values) for v in visits if v.runs_first}
        with self.trail.at((*self.place, str(node.meta.get(STANDS_FOR, node.name)))):
            return self._watching_randomness(node, run)

    def after(self, node: Node, values: Environment) -> None:
        with self._checking():
            for visit in self.itinerary.visits.get(node, ()):
                self.walk.progress.looked_at(visit.site)
                if visit.site.settled or self._agrees_on_a_piece(visit, values):
                    continue
                early = visit.runs_first
                look = self.early.pop(visit) if early else self._looked_at(visit, values)
                self._judge(visit, look, values)

    @contextmanager
    def _checking(self) -> Generator[None]:
        """Inside, what runs is no part of the original's run, and what is raised not its word."""
        with self.trail.paused(), self.seen.paused():
            self.walk.broken = True
            yield
            self.walk.broken = False

    def _watching_randomness(self, node: Node, run: Callable[[], Any]) -> Any:
        effects = effects_of(node)
        if not (effects.random or effects.unknown):
            return run()
        seed = RandomState.now().restore
        before = torch.get_rng_state()
        value = run()
        if not torch.equal(before, torch.get_rng_state()):
            self.drawn[node] = seed
        return value

    # -- one site

    def _looked_at(self, visit: Visit, values: Environment) -> "_Look | None":
        """What the rewritten region makes of the values as they stand; None if that is unknown."""
        try:
            new = self._wide(visit, visit.after, self._at(visit.after, values))
        except Exception as error:  # whatever a rewritten region raises is a finding
            if is_unavailable(error):
                visit.site.unverified = f"no float64: {first_line(error)}"
                return None
            text = f"the rewritten part raises {type(error).__name__}: {first_line(error)}"
            return _Look(raised=text)
        loss = self._precision_lost(visit, values, new)
        return _Look(new, loss=loss, flow=self._flows_otherwise(visit, values))

    def _at(self, piece: Piece, values: Mapping[Node, Any]) -> list[Any]:
        """The values at the border of a piece as they stand, in float64."""
        return self.seen.reads([values[node] for node in piece.borders])

    def _wide(
        self,
        visit: Visit,
        piece: Piece,
        borders: Sequence[Any],
        *,
        noise: float = 0.0,
        trail: Trail | None = None,
    ) -> Any:
        return in_float64(
            piece.region,
            piece.index,
            borders,
            self.walk.folds,
            own=self.walk.own,
            noise=noise,
            trail=trail,
            seed=self._seed(visit),
            is_pure=piece.is_pure,
        )

    def _seed(self, visit: Visit) -> Callable[[], None] | None:
        """Sets the generators as they stood when the original drew what this site draws.

        Where it has drawn nothing like it, some state at which old and new value both begin.
        """
        anywhere = self.begun if visit.old is None else None
        return next((s for node, s in self.drawn.items() if node in visit.replaced), anywhere)

    def _precision_lost(self, visit: Visit, values: Mapping[Node, Any], new: Any) -> Loss:
        """What the rewritten region loses in the model's own dtypes."""
        if not visit.site.own_dtypes:
            return Loss()
        try:
            after = self._way(visit, visit.after, values)
            return precision_lost(after, self._way(visit, visit.before, values), new)
        except NotComparableError as error:
            self.walk.not_compared[visit.site.applied.id] = str(error)
            return Loss()

    def _flows_otherwise(self, visit: Visit, values: Mapping[Node, Any]) -> str:
        """What differs in how gradients pass; they are computed only where something stops them."""
        pieces = (visit.after, visit.before)
        stops = any(stops_gradients(piece.region) for piece in pieces)
        if not stops or not all(piece.is_pure for piece in pieces):
            return ""
        try:
            new, old = (self._computing(visit, piece, values) for piece in pieces)
            names = [piece.borders for piece in pieces]
            return flows_otherwise(new, old, names, may_lose=not visit.site.trains)
        except (RuntimeError, NotComparableError):  # no gradient is defined there
            return ""

    def _computing(
        self, visit: Visit, piece: Piece, values: Mapping[Node, Any]
    ) -> tuple[Callable[[Sequence[Any]], Any], Sequence[Any]]:
        def compute(borders: Sequence[Any]) -> Any:
            with self.walk.autocast.again():
                return run_region(piece.region, piece.index, borders)

        return compute, self._way(visit, piece, values).rounded()

    def _way(self, visit: Visit, piece: Piece, values: Mapping[Node, Any]) -> Way:
        def own(borders: Sequence[Any]) -> Any:
            with self.walk.autocast.again():
                seed = self._seed(visit)
                return in_own_dtypes(
                    piece.region, piece.index, borders, seed, is_pure=piece.is_pure
                )

        return Way(
            self._at(piece, values),
            [self.walk.kinds.find(self.place[0], node.name) for node in piece.borders],
            own,
            lambda borders: self._wide(visit, piece, borders),
        )

    def _agrees_on_a_piece(self, visit: Visit, values: Mapping[Node, Any]) -> bool:
        """Whether a few places show that old and new are equal; if not, nothing is said."""
        if visit.alike is None:
            return False
        read = dict.fromkeys((*visit.before.borders, *visit.after.borders))
        whole = {node: self.seen.reads(values[node]) for node in read}
        small = cropped(whole, visit.alike)
        if small is None:
            return False
        try:
            look = self._looked_at(visit, small)
            old = self._wide(visit, visit.before, self._at(visit.before, small))
        except Exception:  # such values may be outside of what an op takes
            return False
        if look is None or look.raised or look.flow or not look.loss.ratio <= FACTOR / 2:
            return False
        with unaffected():
            found = worst(differences(look.new, old))
        if not found.error <= _bound(visit.site):
            return False
        site = visit.site
        site.note(found.error, _bound(site))
        site.reached = site.reached or self._reaches(visit, small, look.new)
        site.settled = site.reached and visit.alike.is_affine
        return True

    def _judge(self, visit: Visit, look: "_Look | None", values: Environment) -> None:
        site, walk = visit.site, self.walk
        if look is None:
            return
        if look.raised:
            site.fail(look.raised, walk.probe)
            return
        if visit.old is not None:
            old = self.seen.reads(values[visit.old])
        else:
            old = self._wide(visit, visit.before, self._at(visit.before, values))
        with unaffected():
            found = worst(differences(look.new, old))
        bound = _bound(site)
        if found.in_kind:
            if not self._decided_by_rounding(visit, look.new, old, values):
                site.fail(found.message + found.where, walk.probe)
            return
        if found.error > SITE_BOUND and bound:
            bound = max(bound, ROUNDINGS * self._amplification(visit, look.loss, values))
        site.note(found.error, bound)
        if found.error > bound:
            site.fail(self._explain(site, found, bound), walk.probe)
        elif not look.loss.allowed or look.flow:
            site.fail(look.loss.message or look.flow, walk.probe)
        elif not site.reached:
            site.reached = self._reaches(visit, values, look.new)

    def _explain(self, site: Site, found: Difference, bound: float) -> str:
        if not bound:
            return f"declared exact, but moves the value by {found.error:.1e} of its size"
        text = f"the value is off by {found.error:.1e} of its size, the bound is {bound:.1e}"
        if 1e-9 < found.error < 1e-4 and self._constants_of_its_own(site):
            text += "; a constant rounded too early does that: make it with edit.fold"
        return text + (f" ({found.where})" if found.where else "")

    def _constants_of_its_own(self, site: Site) -> bool:
        return any(
            tensor.is_floating_point()
            and tensor.untyped_storage().data_ptr() not in self.walk.given
            and self.walk.folds.find(tensor) is None
            for tensor in tensors_read(site.region)
        )

    def _amplification(self, visit: Visit, loss: Loss, values: Environment) -> float:
        """By how much old and new region enlarge relative disturbances of what they compute with.

        Both enlarge rounding to the size of what they add up, so a sum that cancels is off by more
        than its own size says. Where no coarser dtype tells how much the new region loses, it may
        not enlarge much more than the old one.
        """
        new, old = (self._enlarges(visit, one, values) for one in (visit.after, visit.before))
        is_told = loss.dtype is not torch.float64
        return max(old, new if is_told else min(new, FACTOR * old))

    def _enlarges(self, visit: Visit, piece: Piece, values: Environment) -> float:
        borders = self._at(piece, values)
        # Run again as well: by now the original may have written what the region reads.
        still = self._wide(visit, piece, borders)
        found = worst(differences(self._wide(visit, piece, borders, noise=NOISE), still))
        return 1.0 if found.in_kind else max(1.0, found.error / NOISE)

    def _decided_by_rounding(self, visit: Visit, new: Any, old: Any, values: Environment) -> bool:
        """Whether integers differ only where an op that jumps was undecided."""
        trail, borders = Trail(), self._at(visit.after, values)
        self._wide(visit, visit.after, borders, trail=trail)
        if not trail.jumped:
            return False
        disturbed = self._wide(visit, visit.after, borders, noise=1e-13)
        triples = zip(tree_leaves(new), tree_leaves(old), tree_leaves(disturbed), strict=False)
        return all(_undecided(a, b, c) for a, b, c in triples)

    def _reaches(self, visit: Visit, values: Environment, new: Any) -> bool:
        """Whether this probe would show a fault: the value must depend on what is read."""
        borders = dict(zip(visit.after.borders, self._at(visit.after, values), strict=True))
        inputs = [value for node, value in borders.items() if node not in self.itinerary.constants]
        if not inputs:
            return True
        with unaffected():
            blocked = any(is_zero(border) for border in inputs)
            varies = not all(is_constant(leaf) for leaf in tree_leaves(new))
        if blocked:
            return self._agrees_on_made_up_values(visit, borders)
        if varies:
            return True
        still = self._wide(visit, visit.after, list(borders.values()))
        other = self._wide(visit, visit.after, [moved(border) for border in borders.values()])
        return worst(differences(other, still)).error > 0

    def _agrees_on_made_up_values(self, visit: Visit, borders: Mapping[Node, Any]) -> bool:
        """Compare old and new on random values in place of those that are zero throughout."""
        if visit.old is None or not borders.keys() >= set(visit.before.borders):
            return False
        made_up = {node: drawn(one) if is_zero(one) else one for node, one in borders.items()}
        try:
            old, new = (
                self._wide(visit, piece, [made_up[node] for node in piece.borders])
                for piece in (visit.before, visit.after)
            )
        except (RuntimeError, ValueError, IndexError, KeyError):
            # Made-up values may be outside of what an op takes; then they say nothing.
            return False
        loss = self._precision_lost(visit, made_up, new)
        if not loss.allowed:
            visit.site.fail(loss.message, self.walk.probe)
        return worst(differences(new, old)).error <= SITE_BOUND


@dataclass(frozen=True, slots=True, eq=False)
class _Look:
    """What was seen of the new value of a site."""

    new: Any = None
    raised: str = ""
    loss: Loss = field(default_factory=Loss)
    flow: str = ""
    """Where gradients pass otherwise than in the original."""


def _bound(site: Site) -> float:
    return 0.0 if site.numerics is Numerics.EXACT else SITE_BOUND


def _undecided(new: Any, old: Any, moved: Any) -> bool:
    """Whether two values of an op that jumps differ only where a disturbance changes it, too."""
    if not isinstance(new, Tensor) or not isinstance(old, Tensor) or new.shape != old.shape:
        return False
    if new.is_floating_point():
        return True
    changes = moved.shape == new.shape and bool((moved != new).any())
    return changes or torch.equal(new, old)

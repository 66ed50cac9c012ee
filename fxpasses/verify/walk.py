"""Walk an original graph in float64 and compare every rewrite with it on the way."""

from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule, Node
from torch.utils._pytree import tree_leaves, tree_map_only

from fxpasses.core import STANDS_FOR, Folds, Numerics, cut_region
from fxpasses.verify.compare import Difference, differences, worst
from fxpasses.verify.float64 import Float64, unaffected
from fxpasses.verify.regions import borders_read, in_float64, tensors_read
from fxpasses.verify.runner import Environment
from fxpasses.verify.sites import (
    Itinerary,
    Site,
    Visit,
    plan_visits,
    region_before,
    slice_between,
)
from fxpasses.verify.state import RandomState
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
    probe: str = "example"
    calls: dict[str, int] = field(default_factory=dict[str, int])
    plans: dict[str, Itinerary] = field(default_factory=dict[str, Itinerary])

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
        self.early: dict[Visit, Any] = {}
        """New values that were computed before their node ran."""

    def keeps(self) -> Mapping[Node, Node]:
        return self.itinerary.keeps

    def begins(self) -> None:
        return

    def ends(self, output: Any) -> None:
        if self.place[0]:
            self.trail.add((*self.place, "output"), tree_leaves(self.seen.reads(output)))

    def around(self, node: Node, values: Environment, run: Callable[[], Any]) -> Any:
        visits = self.itinerary.visits.get(node, ())
        with self._paused():
            self.early = {v: self._new_value(v, values) for v in visits if v.runs_first}
        with self.trail.at((*self.place, str(node.meta.get(STANDS_FOR, node.name)))):
            return self._watching_randomness(node, run)

    def after(self, node: Node, values: Environment) -> None:
        with self._paused():
            for visit in self.itinerary.visits.get(node, ()):
                early = visit.runs_first
                new = self.early.pop(visit) if early else self._new_value(visit, values)
                self._judge(visit, new, values)

    @contextmanager
    def _paused(self) -> Generator[None]:
        """Inside, what runs is no part of the original's run."""
        with self.trail.paused(), self.seen.paused():
            yield

    def _watching_randomness(self, node: Node, run: Callable[[], Any]) -> Any:
        seed = RandomState.now().restore
        before = torch.get_rng_state()
        value = run()
        if not torch.equal(before, torch.get_rng_state()):
            self.drawn[node] = seed
        return value

    # -- one site

    def _new_value(self, visit: Visit, values: Environment) -> Any:
        """What the rewritten region makes of the values as they stand; an error as such."""
        site = visit.site
        try:
            return self._run(visit, self.seen.reads([values[node] for node in visit.borders]))
        except Exception as error:  # whatever a rewritten region raises is a finding
            if is_unavailable(error):
                site.unverified = f"no float64: {first_line(error)}"
                return _UNKNOWN
            return _Raised(f"{type(error).__name__}: {first_line(error)}")

    def _run(
        self,
        visit: Visit,
        borders: Sequence[Any],
        *,
        noise: float = 0.0,
        trail: Trail | None = None,
    ) -> Any:
        return in_float64(
            visit.site.region,
            visit.site.index,
            borders,
            self.walk.folds,
            own=self.walk.own,
            noise=noise,
            trail=trail,
            seed=self._seed(visit),
        )

    def _seed(self, visit: Visit) -> Callable[[], None] | None:
        """Sets the generators as they stood when the original drew what this site draws."""
        if not self.drawn or visit.old is None:
            return None
        part = set(slice_between(visit.old, visit.borders) or ())
        return next((seed for node, seed in self.drawn.items() if node in part), None)

    def _old_value(self, visit: Visit, values: Environment) -> Any:
        if visit.old is not None:
            return self.seen.reads(values[visit.old])
        borders = self.seen.reads([values[node] for node in visit.borders_before])
        region, index = region_before(visit.site)
        return in_float64(region, index, borders, self.walk.folds, own=self.walk.own)

    def _judge(self, visit: Visit, new: Any, values: Environment) -> None:
        site, walk = visit.site, self.walk
        if new is _UNKNOWN:
            return
        if isinstance(new, _Raised):
            site.fail(f"the rewritten part raises {new.text}", walk.probe)
            return
        old = self._old_value(visit, values)
        borders = self.seen.reads([values[node] for node in visit.borders])
        with unaffected():
            found = worst(differences(new, old))
        bound = 0.0 if site.numerics is Numerics.EXACT else SITE_BOUND
        if found.in_kind:
            if not self._decided_by_rounding(visit, borders, new, old):
                site.fail(found.message + found.where, walk.probe)
            return
        if found.error > SITE_BOUND and bound:
            bound = max(bound, ROUNDINGS * self._amplification(visit, borders))
        site.note(found.error, bound)
        if found.error > bound:
            site.fail(self._explain(site, found, bound), walk.probe)
        elif not site.reached:
            site.reached = self._reaches(visit, borders, new)

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

    def _amplification(self, visit: Visit, borders: Sequence[Any]) -> float:
        """By how much the region enlarges relative disturbances of what it reads and computes."""
        # Run again as well: by now the original may have written what the region reads.
        still = self._run(visit, borders)
        found = worst(differences(self._run(visit, borders, noise=NOISE), still))
        return 1.0 if found.in_kind else found.error / NOISE

    def _decided_by_rounding(
        self, visit: Visit, borders: Sequence[Any], new: Any, old: Any
    ) -> bool:
        """Whether integers differ only where an op that jumps was undecided."""
        trail = Trail()
        self._run(visit, borders, trail=trail)
        if not trail.jumped:
            return False
        moved = self._run(visit, borders, noise=1e-13)
        triples = zip(tree_leaves(new), tree_leaves(old), tree_leaves(moved), strict=False)
        return all(_undecided(a, b, c) for a, b, c in triples)

    def _reaches(self, visit: Visit, borders: Sequence[Any], new: Any) -> bool:
        """Whether this probe would show a fault: the value must depend on what is read."""
        inputs = [
            border
            for node, border in zip(visit.borders, borders, strict=True)
            if node not in self.itinerary.constants
        ]
        if not inputs:
            return True
        with unaffected():
            blocked = any(_is_zero(border) for border in inputs)
            varies = not all(_is_constant(leaf) for leaf in tree_leaves(new))
        if blocked:
            return self._agrees_on_made_up_values(visit, borders)
        if varies:
            return True
        still = self._run(visit, borders)
        moved = self._run(visit, [_moved(border) for border in borders])
        return worst(differences(moved, still)).error > 0

    def _agrees_on_made_up_values(self, visit: Visit, borders: Sequence[Any]) -> bool:
        """Compare old and new on random values in place of those that are zero throughout."""
        between = None if visit.old is None else slice_between(visit.old, visit.borders)
        if visit.old is None or between is None:
            return False
        region = cut_region(self.graph_module, [visit.old], inside=set(between))
        names = {node.name: i for i, node in enumerate(visit.borders)}
        made_up = [_random(border) if _is_zero(border) else border for border in borders]
        try:
            needed = [made_up[names[name]] for name in borders_read(region, 0)]
            seed = self._seed(visit)
            old = in_float64(region, 0, needed, self.walk.folds, own=self.walk.own, seed=seed)
            new = self._run(visit, made_up)
        except (RuntimeError, ValueError, IndexError, KeyError):
            # Made-up values may be outside of what an op takes; then they say nothing.
            return False
        return worst(differences(new, old)).error <= SITE_BOUND


@dataclass(frozen=True, slots=True)
class _Raised:
    text: str


_UNKNOWN = object()


def _floats(value: Any) -> list[Tensor]:
    leaves = (leaf for leaf in tree_leaves(value) if isinstance(leaf, Tensor))
    return [leaf for leaf in leaves if leaf.is_floating_point() and leaf.numel()]


def _is_zero(value: Any) -> bool:
    floats = _floats(value)
    return bool(floats) and not any(bool(one.any()) for one in floats)


def _is_constant(value: Any) -> bool:
    return all(_has_one_value(one) for one in _floats(value))


def _has_one_value(tensor: Tensor) -> bool:
    first, last = tensor[(0,) * tensor.dim()], tensor[(-1,) * tensor.dim()]
    # The two are told apart at once; most tensors end here.
    return bool(first == last) and bool((tensor == first).all())


def _moved(value: Any) -> Any:
    """Floats moved by a thousandth, each by another share."""

    def move(tensor: Tensor) -> Tensor:
        if not tensor.is_floating_point():
            return tensor
        generator = torch.Generator(tensor.device).manual_seed(1)
        shares = torch.rand(tensor.shape, generator=generator, device=tensor.device)
        return tensor * (1 + 1e-3 * shares)

    return tree_map_only(Tensor, move, value)


def _random(value: Any) -> Any:
    def draw(tensor: Tensor) -> Tensor:
        if not tensor.is_floating_point():
            return tensor
        generator = torch.Generator(tensor.device).manual_seed(2)
        drawn = torch.randn(tensor.shape, generator=generator, device=tensor.device)
        return drawn.to(tensor.dtype)

    return tree_map_only(Tensor, draw, value)


def _undecided(new: Any, old: Any, moved: Any) -> bool:
    """Whether two values of an op that jumps differ only where a disturbance changes it, too."""
    if not isinstance(new, Tensor) or not isinstance(old, Tensor) or new.shape != old.shape:
        return False
    if new.is_floating_point():
        return True
    changes = moved.shape == new.shape and bool((moved != new).any())
    return changes or torch.equal(new, old)

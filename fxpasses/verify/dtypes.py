"""Shapes, dtypes and devices at the sites, in the model's own dtype.

A walk in float64 cannot see that a cast was dropped, or that values pass through a coarser dtype
on the way. Fake tensors can, at no cost.
"""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx import GraphModule
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map_only

from fxpasses.core import VALUE, Program, Region, TensorInfo
from fxpasses.verify.probes import Probe
from fxpasses.verify.regions import borders_read, run_region
from fxpasses.verify.runner import Environment, NoVisitor, Visitor, modules_of, run_program
from fxpasses.verify.sites import Site, region_before
from fxpasses.verify.state import untouched
from fxpasses.verify.unavailable import first_line


class Kinds:
    """What kind of value each node of a program has."""

    def __init__(self, program: Program, example: Probe) -> None:
        self._program = program
        self._example = example
        self._seen: dict[str, dict[str, Any]] | None = None

    def of(self, path: str, name: str) -> Any:
        """The TensorInfo, or structure of it, of a captured node.

        Raises:
            KeyError: it is not known.
        """
        return self._graph(path)[name]

    def find(self, path: str, name: str) -> Any:
        """What `of` gives, or None where that is not known."""
        return self._graph(path).get(name)

    def prepare(self) -> None:
        """Find out now what the front end has not noted, by a run on fake tensors."""
        if self._seen is None:
            self._seen = {p: _noted(one) for p, one in self._program}
            if any(value is None for one in self._seen.values() for value in one.values()):
                self._propagate(self._seen)

    def _graph(self, path: str) -> Mapping[str, Any]:
        self.prepare()
        assert self._seen is not None
        return {k: v for k, v in self._seen[path].items() if v is not None}

    def _propagate(self, seen: dict[str, dict[str, Any]]) -> None:
        """Run the program on fake tensors, for graphs whose front end noted nothing."""
        real = self._example.call()
        # Modules that run their own code may keep what they see, and fakes write real numbers.
        kept = untouched(modules_of(self._program))
        with kept, FakeTensorMode(allow_non_fake_inputs=True) as mode, torch.no_grad():
            args, kwargs = tree_map_only(Tensor, mode.from_tensor, real)

            def visitor(path: str, graph_module: GraphModule) -> Visitor:
                return _Notes(graph_module, seen[path])

            try:
                run_program(self._program, args, kwargs, visitor)
            except Exception:  # an op that fakes cannot run: what came before it is known
                return


class _Notes(NoVisitor):
    def __init__(self, graph_module: GraphModule, notes: dict[str, Any]) -> None:
        self.graph_module = graph_module
        self.notes = notes
        self.waiting = True

    def around(self, node: Any, values: Environment, run: Any) -> Any:
        if self.waiting:
            self.waiting = False
            for known, value in values.items():
                self.notes[known.name] = _kind(value)
        value = run()
        self.notes[node.name] = _kind(value)
        return value


def _noted(graph_module: GraphModule) -> dict[str, Any]:
    return {
        node.name: node.meta.get(VALUE) for node in graph_module.graph.nodes if node.op != "output"
    }


def _kind(value: Any) -> Any:
    return tree_map_only(Tensor, TensorInfo.of, value)


def check_dtypes(sites: Sequence[Site], kinds: Kinds) -> list[str]:
    """Fail the sites whose results have other dtypes, shapes or devices; notes on the rest."""
    notes = list[str]()
    for site in sites:
        if not site.own_dtypes:
            continue
        try:
            mismatch = _mismatch(site, kinds)
        except Exception as error:  # fakes cannot run everything: the walk sees what is wrong
            notes.append(f"dtypes at {site.applied.id} are not checked: {first_line(error)}")
            continue
        if mismatch:
            site.fail(mismatch, "dtypes")
    return notes


def _mismatch(site: Site, kinds: Kinds) -> str | None:
    new, coarsest = _kind_of_result(site.region, site.index, site.path, kinds)
    old_name = site.replacement.stands_for
    if old_name is not None:
        old, allowed = kinds.of(site.path, old_name), _coarsest_before(site, kinds)
    else:
        region, index = region_before(site)
        old, allowed = _kind_of_result(region, index, site.path, kinds)
    for a, b in zip(tree_leaves(new), tree_leaves(old), strict=True):
        if isinstance(a, TensorInfo) and isinstance(b, TensorInfo):
            for word in ("dtype", "device", "example_shape"):
                if getattr(a, word) != getattr(b, word):
                    name = word.removeprefix("example_")
                    return f"the {name} is {getattr(a, word)}, not {getattr(b, word)}"
    if coarsest is not None and _eps(coarsest) > max(_eps(allowed), *map(_eps, _dtypes(old)), 0):
        return f"values pass through {coarsest} on the way, which the original's do not"
    return None


def _kind_of_result(
    region: Region, index: int, path: str, kinds: Kinds
) -> tuple[Any, torch.dtype | None]:
    """The kind of the result, and the coarsest dtype on the way where it is new to the region.

    What goes into the region, and what it holds, may be as coarse as it is.
    """
    borders = [kinds.of(path, name) for name in borders_read(region, index)]
    modules = [value for value in region.attributes.values() if isinstance(value, nn.Module)]
    coarsest = _Coarsest()
    with (
        untouched(modules),
        FakeTensorMode(allow_non_fake_inputs=True) as mode,
        torch.no_grad(),
    ):
        held = tree_map_only(Tensor, mode.from_tensor, dict(region.attributes))
        faked = replace(region, attributes=held)
        made = [_made(kind) for kind in borders]
        with coarsest:
            kind = _kind(run_region(faked, index, made))
    own = [t for module in modules for t in (*module.parameters(), *module.buffers())]
    known = max((_eps(d) for d in _dtypes([made, held, own])), default=0.0)
    return kind, coarsest.dtype if _eps(coarsest.dtype) > known else None


class _Coarsest(TorchDispatchMode):
    """Notes the floating dtype of the least precision that an op returned."""

    def __init__(self) -> None:
        super().__init__()
        self.dtype: torch.dtype | None = None

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        self.dtype = max((self.dtype, *_dtypes(out)), key=_eps)
        return out


def _coarsest_before(site: Site, kinds: Kinds) -> torch.dtype | None:
    """The coarsest dtype of the captured nodes that the rewrite put something in the place of."""
    names = {*site.applied.absorbed, *(one.old for one in site.applied.replacements)}
    known: list[Any] = []
    for name in names:
        with suppress(KeyError):
            known.append(kinds.of(site.path, name))
    return max(_dtypes(known), key=_eps, default=None)


def _dtypes(values: Any) -> list[torch.dtype]:
    leaves = tree_leaves(values)
    return [leaf.dtype for leaf in leaves if isinstance(leaf, Tensor | TensorInfo)]


def _eps(dtype: torch.dtype | None) -> float:
    """The relative precision of a floating dtype; 0 for others, which round in their own way."""
    real = dtype is not None and (dtype.is_floating_point or dtype.is_complex)
    return torch.finfo(dtype).eps if dtype is not None and real else 0.0


def _made(kind: Any) -> Any:
    """A value of a kind, as fake as the mode that is active."""
    if isinstance(kind, TensorInfo):
        return torch.empty_strided(
            kind.example_shape, kind.example_stride, dtype=kind.dtype, device=kind.device
        )
    if isinstance(kind, tuple | list):
        return type(kind)(_made(part) for part in kind)
    if isinstance(kind, dict):
        return {key: _made(part) for key, part in kind.items()}
    return kind

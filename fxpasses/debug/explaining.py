"""`explain`: the passes run on a fork that is thrown away, and tell what they ask."""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from torch import nn

from fxpasses.core import GraphPass, Group
from fxpasses.core.given import instance
from fxpasses.core.nearest import did_you_mean
from fxpasses.debug.explanation import Explanation, NearMiss, Site
from fxpasses.debug.nodes import NodeFacts
from fxpasses.debug.watching import Watching
from fxpasses.debug.witness import Witness
from fxpasses.errors import ArgumentError
from fxpasses.registry import Registry
from fxpasses.session import plan
from fxpasses.session.settings import registry_of

_NEAR_SHOWN: Final = 2
"""Near misses of one pass at one node: those that came nearest."""


def explain(  # noqa: PLR0913  the options of a plan, and what to explain
    model: nn.Module,
    passes: Any,
    example_inputs: Any = None,
    example_kwargs: Mapping[str, Any] | None = None,
    *,
    node: str | None = None,
    pass_name: str | None = None,
    target: str | None = None,
    training: bool | None = None,
    registry: Registry | None = None,
    skip: Iterable[str] = (),
    only: Iterable[str] | None = None,
) -> Explanation:
    """Which conditions each place of `model` meets and which it does not, pass by pass.

    The passes run on a fork that is thrown away, with every condition asked at every place where
    a pass finds its pattern; where it finds only some of it, that is told as a near miss.

    Args:
        model: Any module; nothing of it is changed.
        passes: A pipeline, as for `run`.
        example_inputs: The positional arguments of one call; without an example less is known.
        example_kwargs: The keyword arguments of that call.
        node: Explain this node alone, and what comes in its place: a name as reports and diagrams
            show it, `path/name` in the graph of a module below.
        pass_name: Explain this pass alone.
        target: As for `plan`.
        training: What the result would be for; by default the mode of `model`.
        registry: Where names are looked up; the default registry if None.
        skip: Ids of rewrites that do not happen.
        only: Ids of the only rewrites that happen.

    Raises:
        ArgumentError: there is no such node or pass, or an argument is of another kind.
        FxPassesError: as `plan` raises it.
    """
    known = registry_of(registry)
    pipeline = known.resolve(passes)
    chosen = _passes_of(pipeline, pass_name)
    witness = Witness()
    watching = Watching(witness)
    record = plan(
        model,
        witness.beside(pipeline),
        example_inputs,
        example_kwargs,
        target=target,
        training=training,
        registry=known,
        skip=skip,
        only=only,
        observers=(watching,),
    )
    found = _everything(watching) if node is None else _about(watching, node)
    return Explanation(
        record.model,
        record.pipeline,
        chosen,
        found.node,
        tuple(_once(site for site in found.sites if site.pass_name in chosen)),
        tuple(one for one in found.near if one.pass_name in chosen),
        tuple(_notes(pipeline, chosen)),
    )


def _passes_of(pipeline: Group, pass_name: str | None) -> tuple[str, ...]:
    names = tuple(dict.fromkeys(one.name for one in pipeline.passes()))
    if pass_name is None:
        return names
    instance(pass_name, "pass_name", str, "the name of a pass of the pipeline")
    if pass_name not in names:
        hint = did_you_mean(pass_name, names)
        raise ArgumentError(f"pass_name={pass_name!r}: the pipeline has no such pass{hint}")
    return (pass_name,)


def _notes(pipeline: Group, chosen: Collection[str]) -> Iterator[str]:
    of_others = [one.name for one in pipeline.passes() if not isinstance(one, GraphPass)]
    if foreign := [name for name in of_others if name in chosen]:
        yield f"known by their results alone: {', '.join(foreign)}"


@dataclass(frozen=True, slots=True)
class _Found:
    node: NodeFacts | None
    sites: Sequence[Site]
    near: Sequence[NearMiss]


def _everything(watching: Watching) -> _Found:
    """Near misses only at nodes of the model: those at what passes made say little."""
    near = [one for one in watching.near if watching.is_captured(one.path, one.node)]
    return _Found(None, watching.sites, list(_ranked(near)))


def _about(watching: Watching, name: str) -> _Found:
    node, heirs = watching.lineage_of(name)
    sites = [site for site in watching.sites if _is_there(site, node.path, heirs)]
    near = [one for one in watching.near if _is_there(one, node.path, {node.name})]
    by_pass: dict[str, list[NearMiss]] = {}
    for miss in _ranked(near):
        by_pass.setdefault(miss.pass_name, []).append(miss)
    return _Found(node, sites, [one for few in by_pass.values() for one in few[:_NEAR_SHOWN]])


def _is_there(one: Site | NearMiss, path: str, names: Collection[str]) -> bool:
    is_of_all = one.nodes == ("",)  # such as that the result is to be trained
    return is_of_all or (one.path == path and not set(one.nodes).isdisjoint(names))


def _ranked(near: Iterable[NearMiss]) -> Iterator[NearMiss]:
    """Each once, those that have more of the pattern first."""
    yield from sorted(dict.fromkeys(near), key=lambda miss: -len(miss.matched))


def _once(sites: Iterable[Site]) -> Iterator[Site]:
    """What is the same in a later round is told once."""
    seen: set[Any] = set()
    for site in sites:
        key = site.position, site.path, site.node, site.nodes, site.outcome, site.answers
        if key not in seen:
            seen.add(key)
            yield site

"""Joins what passes asked with what the record says they did."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace

from torch.fx import Node

from fxpasses.core import Program
from fxpasses.core.described import full_name
from fxpasses.core.given import instance, with_article
from fxpasses.core.nearest import did_you_mean
from fxpasses.core.record import PassRecord, RefusalRecord, RewriteRecord
from fxpasses.debug.explanation import Answer, NearMiss, Outcome, Site
from fxpasses.debug.nodes import BORDERS, NodeFacts, facts_of, place_of
from fxpasses.debug.witness import Sweep, Witness
from fxpasses.errors import ArgumentError
from fxpasses.manager import Observer

Nodes = dict[tuple[str, str], NodeFacts]
"""By the path of the graph and the name."""


class Watching(Observer):
    """Looks on while passes run that tell what they ask."""

    def __init__(self, witness: Witness) -> None:
        self._witness = witness
        self._nodes: Nodes = {}
        self._captured: frozenset[tuple[str, str]] = frozenset()
        self._rewrites: list[tuple[str, RewriteRecord]] = []
        """With the names of the passes, in the order in which they ran."""
        self.sites: list[Site] = []
        self.near: list[NearMiss] = []

    def started(self, record: PassRecord, program: Program) -> None:  # noqa: ARG002  an observer
        self._witness.sweeps.clear()
        self._see(program)
        self._captured = self._captured or frozenset(self._nodes)

    def finished(self, record: PassRecord, program: Program) -> None:
        self._see(program)
        self._rewrites += [(record.name, rewrite) for rewrite in record.rewrites]
        paths = {id(module): path for path, module in program}
        sites: list[Site] = []
        for sweep in self._witness.sweeps:
            path = paths[id(sweep.module)]
            sites += _sites(record, path, sweep)
            self.near += _near_misses(record, path, sweep, self._nodes)
        told = {(site.path, site.node, site.outcome) for site in sites}
        recorded = _recorded(record)
        sites += [one for one in recorded if (one.path, one.node, one.outcome) not in told]
        self.sites += sites

    def _see(self, program: Program) -> None:
        for path, module in program:
            for node in module.graph.nodes:
                if (path, node.name) not in self._nodes:
                    self._nodes[path, node.name] = facts_of(path, node)

    def is_captured(self, path: str, name: str) -> bool:
        """Whether the node is one of those that no pass has made."""
        return (path, name) in self._captured

    def lineage_of(self, name: str) -> tuple[NodeFacts, frozenset[str]]:
        """The node of that name, and the names of it and of all that came in its place.

        Raises:
            ArgumentError: there is none, or there are several.
        """
        path, inner = self._key(name)
        names, became = {inner}, list[str]()
        for by, rewrite in self._rewrites:
            if rewrite.path == path and not names.isdisjoint(rewrite.replaced):
                names.update(rewrite.created)
                heirs = ", ".join(rewrite.created) or "no node of its own"
                became.append(f"{heirs}, by {by} ({rewrite.id})")
        return replace(self._nodes[path, inner], became=tuple(became)), frozenset(names)

    def _key(self, name: str) -> tuple[str, str]:
        instance(name, "node", str, "the name of a node")
        path, _, inner = name.rpartition("/")
        if (path, inner) in self._nodes:
            return path, inner
        found = [key for key in self._nodes if key[1] == name]
        if len(found) == 1:
            return found[0]
        if found:
            raise ArgumentError(f"node={name!r}: pass {' or '.join(sorted(_full(found)))}")
        hint = did_you_mean(name, _full(self._nodes))
        raise ArgumentError(f"node={name!r}: no graph has such a node{hint}")


def _full(keys: Iterable[tuple[str, str]]) -> Iterator[str]:
    return (full_name(path, name) for path, name in keys)


# -- of one pass


def _sites(record: PassRecord, path: str, sweep: Sweep) -> Iterator[Site]:
    """What was asked, and what became of it."""
    made = {one.node: one for one in record.rewrites if one.path == path}
    refused = {one.node: one for one in record.refusals if one.path == path}
    # Of several at one node, such as a growing group, the last that may be rewritten is.
    last = {one.node: one for one in sweep.asked if one.is_admitted}
    for asked in sweep.asked:
        answers = dict(asked.answers)
        rewrite, refusal = made.get(asked.node), refused.get(asked.node)
        if refusal is not None and rewrite is None:
            # Some reasons are no conditions, such as that there is no room left.
            answers.setdefault(refusal.condition, _answer(refusal))
        site = _site(record, path, asked.node, asked.nodes, asked.source)
        site = replace(site, answers=tuple(answers.values()))
        if site.failed:
            yield replace(site, outcome=Outcome.REFUSED, why=site.failed[0].reason)
        elif rewrite is not None and asked is last[asked.node]:
            yield replace(site, outcome=Outcome.REWRITTEN, why=rewrite.why, rewrite=rewrite.id)
        else:
            is_left_out = asked.node in sweep.proposed and rewrite is None
            yield replace(site, outcome=Outcome.LEFT_OUT if is_left_out else Outcome.ADMITTED)


def _recorded(record: PassRecord) -> Iterator[Site]:
    """What the record has, also of passes that ask no conditions."""
    for one in record.rewrites:
        nodes = dict.fromkeys((one.node, *one.replaced, *one.erased))
        site = _site(record, one.path, one.node, tuple(nodes), one.source)
        yield replace(site, outcome=Outcome.REWRITTEN, why=one.why, rewrite=one.id)
    for one in record.refusals:
        site = _site(record, one.path, one.node, (one.node,), one.source)
        yield replace(site, outcome=Outcome.REFUSED, why=one.reason, answers=(_answer(one),))


def _site(
    record: PassRecord, path: str, node: str, nodes: tuple[str, ...], source: str | None
) -> Site:
    return Site(
        pass_name=record.name,
        position=record.position,
        round=record.round,
        path=path,
        node=node,
        nodes=nodes,
        source=source,
    )


def _answer(refusal: RefusalRecord) -> Answer:
    return Answer(refusal.condition, False, refusal.reason, refusal.legal, refusal.remedy)


def _near_misses(
    record: PassRecord, path: str, sweep: Sweep, known: Mapping[tuple[str, str], NodeFacts]
) -> Iterator[NearMiss]:
    """Where some of the pattern is, and no site came of it."""
    told = {name for asked in sweep.asked for name in asked.nodes} | set(sweep.proposed)
    for chain in sweep.chains:
        if chain.root.name not in told and (missing := chain.missing):
            last, wanted = missing
            yield NearMiss(
                pass_name=record.name,
                path=path,
                node=chain.root.name,
                matched=tuple(
                    f"{one.node.name} is {with_article(one.found)}" for one in chain.matched
                ),
                missing=f"{last.name} is no {' or '.join(wanted)}{_instead(known, path, last)}",
                nodes=tuple(dict.fromkeys(one.node.name for one in chain.questions)),
                source=place_of(chain.root),
            )


def _instead(known: Mapping[tuple[str, str], NodeFacts], path: str, node: Node) -> str:
    facts = known.get((path, node.name))
    if facts is None:
        return ""
    readers = f", and {len(facts.readers)} nodes read it" if len(facts.readers) > 1 else ""
    is_call = facts.computes not in BORDERS.values()
    return f": it {'computes' if is_call else 'is'} {facts.computes}{readers}"

"""Whether the sites tell all that the passes have changed."""

from collections.abc import Iterator, Sequence

from fxpasses.analysis.effects import effects_of
from fxpasses.core import Applied, Program
from fxpasses.verify.sites import PassRun, Site


def told_by_sites(
    passes: Sequence[PassRun], sites: Sequence[Site], programs: Sequence[Program]
) -> bool:
    """Whether every rewrite was compared in float64 at its sites, and agreed.

    What took away nothing but nodes that only compute, and what no node names, needs no site: it
    would be missing where it is read. What foreign passes do nothing tells.

    Args:
        passes: all that were carried out.
        sites: of their rewrites.
        programs: those that the rewrites are compared with.
    """
    changed = [one for one in passes if one.record.status == "changed"]
    if not changed or any(one.foreign or not any(one.applied.values()) for one in changed):
        return False
    if any(not site.reached or site.failure for site in sites):
        return False
    compared = {site.applied.id for site in sites}
    silent = silent_rewrites(changed, programs)
    return all(
        applied.id in silent and (applied.id in compared or not applied.replacements)
        for _, applied in _made(changed)
    )


def silent_rewrites(passes: Sequence[PassRun], programs: Sequence[Program]) -> set[str]:
    """The rewrites that took away nothing but what only computes, or what no node names."""
    acting = set(_acting_nodes(programs)) | {
        (path, name) for path, applied in _made(passes) for name in applied.created
    }
    return {
        applied.id
        for path, applied in _made(passes)
        if acting.isdisjoint((path, name) for name in applied.erased)
    }


def _made(passes: Sequence[PassRun]) -> Iterator[tuple[str, Applied]]:
    for one in passes:
        for path, several in one.applied.items():
            yield from ((path, applied) for applied in several)


def _acting_nodes(programs: Sequence[Program]) -> Iterator[tuple[str, str]]:
    """The nodes that do more than compute their value, by path and name."""
    for program in programs:
        for path, graph_module in program:
            nodes = (node for node in graph_module.graph.nodes if node.op != "output")
            yield from ((path, node.name) for node in nodes if not effects_of(node).none)

"""From graphs to a scene."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from torch.fx import Graph, GraphModule, Node

from fxpasses.core.described import full_name, value_of
from fxpasses.diagram.constants import badge_of, own_constants
from fxpasses.diagram.describing import box_of, origin_of
from fxpasses.diagram.findings import Findings
from fxpasses.diagram.matching import Matching, merged
from fxpasses.diagram.scale import Scale
from fxpasses.diagram.scene import Badge, Box, Edge, Modules, Scene, Sign

_NO_GRAPH = Graph()
_SAYS_NOTHING = Findings()


def scene_of(title: str, graphs: Mapping[str, GraphModule], scale: Scale | None = None) -> Scene:
    """One scene of all graphs of a program."""
    built = _Building(Scene(title, {}, {}, scale=scale), _SAYS_NOTHING)
    for path, module in graphs.items():
        # Against itself, everything is kept.
        built.add(path, module, module)
    return built.scene


def comparison_of(
    title: str,
    before: Mapping[str, GraphModule],
    after: Mapping[str, GraphModule],
    findings: Findings = _SAYS_NOTHING,
    scale: Scale | None = None,
) -> Scene:
    """The graphs before and after as one, graph by graph at the same path."""
    built = _Building(Scene(title, {}, {}, is_comparison=True, scale=scale), findings)
    for path in dict.fromkeys((*before, *after)):
        built.add(path, before.get(path), after.get(path))
    return built.scene


class _Building:
    def __init__(self, scene: Scene, findings: Findings) -> None:
        self.scene = scene
        self.findings = findings

    def add(self, path: str, before: GraphModule | None, after: GraphModule | None) -> None:
        old = _NO_GRAPH if before is None else before.graph
        new = _NO_GRAPH if after is None else after.graph
        matching = Matching(old, new)
        order = list(merged(old.nodes, new.nodes, matching))
        signs = {node: _sign(node, new, matching) for node in order}
        badges = {node: sign for node, sign in signs.items() if _is_told_where_it_is_read(node)}
        self.scene.constants.update(badges.values())
        # An edge of the graph before may start at a constant that is still there.
        same = {old: badges[now] for now, old in matching.before_of.items() if now in badges}
        where: Modules = ((path, type(after or before).__name__),) if path else ()
        place = _Place(where, _called_modules((old, new)))
        heirs = _heirs(new)
        keys: dict[Node, str] = {}
        for node in order:
            if node in badges:
                continue
            box = box_of(node, signs[node], badges=_badges(node, badges | same))
            box = _with_fate(box, heirs.get(node.name)) if box.sign is Sign.REMOVED else box
            box = _with_change(box, matching.before_of.get(node))
            keys[node] = f"n{len(self.scene.boxes)}"
            placed = place.put(box, node)
            self.scene.boxes[keys[node]] = self._judged(self._measured(placed, node))
        keys.update({was: keys[now] for now, was in matching.before_of.items() if now in keys})
        self._connect(_edges(old, keys), _edges(new, keys))

    def _connect(
        self, was: Mapping[tuple[str, str], str], now: Mapping[tuple[str, str], str]
    ) -> None:
        for edge, value in was.items():
            kept = edge in now
            sign = Sign.KEPT if kept else Sign.REMOVED
            self.scene.edges[edge] = Edge(sign, now[edge] if kept else value)
        for edge, value in now.items():
            self.scene.edges.setdefault(edge, Edge(Sign.ADDED, value))

    def _judged(self, box: Box) -> Box:
        """The box with what passes and verifier found out about its node."""
        name, findings = box.full_name, self.findings
        refused, failed = findings.refused.get(name, ()), findings.failed.get(name, ())
        sign = box.sign
        if sign is Sign.KEPT and (refused or failed):
            sign = Sign.FAILED if failed else Sign.REFUSED
        return replace(
            box,
            sign=sign,
            notes=(*box.notes, *findings.rewritten.get(name, ())),
            reasons=(*failed, *refused),
            refused=int(bool(refused)),
        )

    def _measured(self, box: Box, node: Node) -> Box:
        """The box with what was measured of its node, as it is after."""
        scale = self.scene.scale
        if scale is None or box.sign is Sign.REMOVED:
            return box
        value = scale.values.get(box.full_name, scale.values.get(node.name))
        if value is None:
            return replace(box, notes=(*box.notes, f"{scale.name} was not measured"))
        notes = (*box.notes, f"{scale.name} {scale.text_of(value)}")
        return replace(box, measured=float(value), notes=notes)


@dataclass(frozen=True, slots=True)
class _Place:
    """Where the boxes of one graph stand."""

    where: Modules
    """The module whose graph it is, where that is not the whole model."""
    called: frozenset[str]
    """Modules that are called as one node, so that nothing stands in them, whatever replaced it."""

    def put(self, box: Box, node: Node) -> Box:
        """The box with names that count from the whole model."""
        path = self.where[0][0] if self.where else ""
        inside = tuple(
            (f"{path}.{inner}" if path else inner, kind)
            for inner, kind in box.modules
            if inner not in self.called
        )
        modules = (*self.where, *inside)
        return replace(box, modules=modules, full_name=full_name(path, node.name))


def _called_modules(graphs: Iterable[Graph]) -> frozenset[str]:
    return frozenset(
        str(node.target) for graph in graphs for node in graph.nodes if node.op == "call_module"
    )


def _sign(node: Node, after: Graph, matching: Matching) -> Sign:
    if node.graph is not after:
        return Sign.REMOVED
    if node not in matching.before_of:
        return Sign.ADDED
    return Sign.CHANGED if matching.changed(node) else Sign.KEPT


def _is_told_where_it_is_read(node: Node) -> bool:
    return node.op == "get_attr" and bool(node.users)


def _badges(node: Node, told: Mapping[Node, Sign]) -> tuple[Badge, ...]:
    read = {one: told[one] for one in node.all_input_nodes if one in told}
    moved = [Badge(badge_of(one), sign) for one, sign in read.items() if sign is not Sign.KEPT]
    kept = [one for one, sign in read.items() if sign is Sign.KEPT]
    own = own_constants(node, kept)
    return (*([Badge(own)] if own else []), *moved)


def _edges(graph: Graph, keys: Mapping[Node, str]) -> dict[tuple[str, str], str]:
    """Each once, in order, with its value; without those to what has no box."""
    return {
        (keys[operand], keys[node]): value_of(operand)
        for node in graph.nodes
        for operand in node.all_input_nodes
        if operand in keys and node in keys
    }


def _heirs(after: Graph) -> dict[str, Node]:
    """By the name of each node that was replaced: the node that stands in its place."""
    return {old: node for node in after.nodes for old in origin_of(node)[1:]}


def _with_fate(box: Box, heir: Node | None) -> Box:
    if heir is None:
        return replace(box, notes=(*box.notes, "removed"))
    by = origin_of(heir)[0]
    return replace(box, notes=(*box.notes, f"replaced by {heir.name}, which {by} made"))


def _with_change(box: Box, before: Node | None) -> Box:
    """The box of a node, with both where it gives a value of another kind than it did."""
    was = "" if before is None else value_of(before)
    if box.sign is not Sign.CHANGED or not was or was == box.value:
        return box
    return replace(box, value=f"{was} -> {box.value}")

"""From graphs to a scene."""

from collections.abc import Mapping
from dataclasses import replace

from torch.fx import Graph, GraphModule, Node

from fxpasses.diagram.describing import box_of, origin_of
from fxpasses.diagram.matching import Matching, merged
from fxpasses.diagram.scene import Box, Modules, Scene, Sign

_NO_GRAPH = Graph()


def scene_of(title: str, graphs: Mapping[str, GraphModule]) -> Scene:
    """One scene of all graphs of a program."""
    built = _Building(title)
    for path, module in graphs.items():
        # Against itself, everything is kept.
        built.add(path, module, module)
    return built.scene


def comparison_of(
    title: str, before: Mapping[str, GraphModule], after: Mapping[str, GraphModule]
) -> Scene:
    """The graphs before and after as one, graph by graph at the same path."""
    built = _Building(title, is_comparison=True)
    for path in dict.fromkeys((*before, *after)):
        built.add(path, before.get(path), after.get(path))
    return built.scene


class _Building:
    def __init__(self, title: str, *, is_comparison: bool = False) -> None:
        self.scene = Scene(title, {}, {}, is_comparison)

    def add(self, path: str, before: GraphModule | None, after: GraphModule | None) -> None:
        old = _NO_GRAPH if before is None else before.graph
        new = _NO_GRAPH if after is None else after.graph
        matching = Matching(old, new)
        order = list(merged(old.nodes, new.nodes, matching))
        signs = {node: _sign(node, new, matching) for node in order}
        badges = {node for node, sign in signs.items() if _is_badge(node, sign)}
        keys: dict[Node, str] = {}
        where: Modules = ((path, type(after or before).__name__),) if path else ()
        heirs = _heirs(new)
        for node in order:
            read = tuple(str(one.target) for one in node.all_input_nodes if one in badges)
            box = box_of(node, signs[node], badges=read)
            if signs[node] is Sign.REMOVED:
                box = _with_fate(box, heirs.get(node.name))
            if node not in badges:
                keys[node] = f"n{len(self.scene.boxes)}"
                self.scene.boxes[keys[node]] = _placed(box, node, where)
        keys.update({old: keys[new] for new, old in matching.before_of.items() if new in keys})
        was, now = _edges(old, keys), _edges(new, keys)
        for edge in was:
            self.scene.edges[edge] = Sign.KEPT if edge in now else Sign.REMOVED
        for edge in now:
            self.scene.edges.setdefault(edge, Sign.ADDED)


def _placed(box: Box, node: Node, where: Modules) -> Box:
    """The box with names that count from the whole model."""
    if not where:
        return replace(box, full_name=node.name)
    path = where[0][0]
    inside = tuple((f"{path}.{inner}", kind) for inner, kind in box.modules)
    return replace(box, modules=(*where, *inside), full_name=f"{path}/{node.name}")


def _sign(node: Node, after: Graph, matching: Matching) -> Sign:
    if node.graph is not after:
        return Sign.REMOVED
    if node not in matching.before_of:
        return Sign.ADDED
    return Sign.CHANGED if matching.changed(node) else Sign.KEPT


def _is_badge(node: Node, sign: Sign) -> bool:
    """Weights that stay as they are are told of where they are read."""
    return node.op == "get_attr" and sign is Sign.KEPT and bool(node.users)


def _edges(graph: Graph, keys: Mapping[Node, str]) -> dict[tuple[str, str], None]:
    """Each once, in order, without those to what has no box."""
    return dict.fromkeys(
        (keys[operand], keys[node])
        for node in graph.nodes
        for operand in node.all_input_nodes
        if operand in keys and node in keys
    )


def _heirs(after: Graph) -> dict[str, Node]:
    """By the name of each node that was replaced: the node that stands in its place."""
    return {old: node for node in after.nodes for old in origin_of(node)[1:]}


def _with_fate(box: Box, heir: Node | None) -> Box:
    if heir is None:
        return replace(box, notes=(*box.notes, "removed"))
    by = origin_of(heir)[0]
    return replace(box, notes=(*box.notes, f"replaced by {heir.name}, which {by} made"))

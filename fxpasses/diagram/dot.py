"""A scene in the language of Graphviz.

Plain boxes and plain labels only, so that every renderer draws them, and text that is escaped, so
that no name of a model is read as anything else.
"""

from collections import defaultdict
from typing import Any, Final

from graphviz import Digraph, nohtml

from fxpasses.core.plain import printable
from fxpasses.diagram.scene import Box, Family, Modules, Scene, Sign

_FONT: Final = "Helvetica,Arial,sans-serif"
_INK: Final = "#1f2933"

_GRAPH: Final = {
    "rankdir": "TB",
    "nodesep": "0.22",
    "ranksep": "0.30",
    "bgcolor": "#ffffff",
    "fontname": _FONT,
    "fontsize": "13",
    "fontcolor": _INK,
    "pad": "0.25",
    "labelloc": "t",
    "labeljust": "l",
}
_NODES: Final = {
    "shape": "box",
    "style": "rounded,filled",
    "fontname": _FONT,
    "fontsize": "11",
    "fontcolor": _INK,
    "margin": "0.14,0.06",
    "height": "0.3",
}
_ARROWS: Final = {"arrowsize": "0.55"}
_CLUSTER: Final = {
    "labeljust": "l",
    "style": "rounded,filled",
    "color": "#d3dae1",
    "fontcolor": "#66727f",
    "fontsize": "10",
    "margin": "10",
}

# Fill and border. Of what was not changed, where changes are shown, only the grey ones.
_FAMILIES: Final = {
    Family.BORDER: ("#3d4852", "#3d4852"),
    Family.LAYER: ("#dbe9fb", "#7ba3d8"),
    Family.NORM: ("#ebe3fa", "#a78bd4"),
    Family.ACTIVATION: ("#fdebd3", "#dda15e"),
    Family.POOL: ("#d9f0ee", "#6bb5ae"),
    Family.VIEW: ("#f1f3f5", "#b8c1ca"),
    Family.CONSTANT: ("#fff8d6", "#d6c05a"),
    Family.OPAQUE: ("#ffffff", "#4a5560"),
    Family.OTHER: ("#f8f9fa", "#a6b0ba"),
}
_PALE: Final = ("#f6f7f8", "#c3cad1")
_SIGNS: Final[dict[Sign, tuple[str, str]]] = {
    Sign.ADDED: ("#d7f5dd", "#1a7f37"),
    Sign.REMOVED: ("#fde3e1", "#cf222e"),
    Sign.CHANGED: ("#d8e8ff", "#0a58ca"),
}
_STYLES: Final = {
    Sign.KEPT: {"penwidth": "1"},
    Sign.ADDED: {"penwidth": "2.2"},
    Sign.REMOVED: {"penwidth": "1.4", "style": "rounded,filled,dashed"},
    Sign.CHANGED: {"penwidth": "1.8"},
}
_EDGES: Final = {
    Sign.KEPT: {"color": "#9aa5b1"},
    Sign.ADDED: {"color": "#1a7f37", "penwidth": "1.8"},
    Sign.REMOVED: {"color": "#cf222e", "style": "dashed"},
    Sign.CHANGED: {"color": "#0a58ca"},
}


def dot_of(scene: Scene) -> str:
    look = {**_GRAPH, "label": _label(f"{scene.caption()}\n ")}
    graph = Digraph("fxpasses", graph_attr=look, node_attr=_NODES, edge_attr=_ARROWS)
    inside = _inside(scene)
    numbers = {modules: number for number, modules in enumerate(inside)}

    def fill(part: Digraph, modules: Modules) -> None:
        for held in inside[modules]:
            if isinstance(held, str):
                part.node(held, **_node(scene.boxes[held], scene))
                continue
            cluster = Digraph(f"cluster_{numbers[held]}", graph_attr=_cluster(held))
            fill(cluster, held)
            part.subgraph(cluster)

    fill(graph, ())
    for (source, target), sign in scene.edges.items():
        graph.edge(source, target, **_EDGES[sign], **{"class": sign.name.lower()})
    return graph.source


def _inside(scene: Scene) -> dict[Modules, list[str | Modules]]:
    """What stands directly in each module: keys of boxes, and modules."""
    found: dict[Modules, dict[str | Modules, None]] = defaultdict(dict, {(): {}})
    for key, box in scene.boxes.items():
        for depth in range(len(box.modules)):
            found[box.modules[:depth]][box.modules[: depth + 1]] = None
        found[box.modules][key] = None
    return {modules: list(held) for modules, held in found.items()}


def _cluster(modules: Modules) -> dict[str, str]:
    path, kind = modules[-1]
    shade = "#fbfcfd" if len(modules) % 2 else "#f4f6f8"
    return {**_CLUSTER, "label": _label(f"{path}  {kind}".strip()), "fillcolor": shade}


def _node(box: Box, scene: Scene) -> dict[str, str]:
    fill, border = _FAMILIES[box.family]
    if scene.is_comparison and box.family is not Family.BORDER:
        fill, border = _PALE
    fill, border = _SIGNS.get(box.sign, (fill, border))
    kind = "folded" if box.is_folded else str(box.family)
    look: dict[str, Any] = {"fillcolor": fill, "color": border, **_STYLES[box.sign]}
    if box.family is Family.BORDER and box.sign is Sign.KEPT:
        look["fontcolor"] = "#ffffff"
    if box.family is Family.OPAQUE and box.sign is Sign.KEPT:
        look |= {"style": "rounded,filled,bold"}
    if box.is_folded:
        look |= {"shape": "box", "peripheries": "2"}
    return {
        "label": _label(_text(box)),
        "tooltip": _label("\n".join((_text(box), *box.notes))),
        "class": f"{kind} {box.sign.name.lower()}",
        **look,
    }


def _text(box: Box) -> str:
    sign = "" if box.sign is Sign.KEPT else f"{box.sign} "
    name = "" if box.name == box.title else f" \u00b7 {box.name}"
    return "\n".join(line for line in (f"{sign}{box.title}{name}", box.value) if line)


def _label(text: str) -> str:
    """Text as a label: nothing in it is an escape of Graphviz, a port, or HTML."""
    lines = (printable(line).replace("\\", "\\\\") for line in text.split("\n"))
    return nohtml("\\n".join(lines))

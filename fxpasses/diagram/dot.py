"""A scene in the language of Graphviz.

A picture that would be much longer than wide is laid out in columns. An edge between two columns
ends at a numbered mark and starts again at the mark of the same number.
"""

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from graphviz import Digraph

from fxpasses.diagram.boxes import frame_of, node_of
from fxpasses.diagram.labels import cut, font, label, tooltip
from fxpasses.diagram.legend import legend_of
from fxpasses.diagram.ordering import columns_of
from fxpasses.diagram.palette import EDGES, INK, LINE, QUIET
from fxpasses.diagram.scene import Box, Edge, Modules, Scene, Sign

# One name: a renderer without fonts knows the widths of this one.
_FONT: Final = "Arial"
_GRAPH: Final = {
    "rankdir": "TB",
    "nodesep": "0.18",
    "ranksep": "0.22",
    "bgcolor": "#ffffff",
    "fontname": _FONT,
    "fontcolor": INK,
    "pad": "0.2",
    "labelloc": "t",
    "labeljust": "l",
}
_NODES: Final = {
    "shape": "box",
    "style": "rounded,filled",
    "fontname": _FONT,
    "fontsize": "11",
    "fontcolor": INK,
    "margin": "0.09,0.035",
    "height": "0.28",
    "width": "0.4",
}
_ARROWS: Final = {"arrowsize": "0.5", "fontname": _FONT, "fontsize": "8.5", "fontcolor": QUIET}
_COLUMN: Final = {"label": "", "peripheries": "0", "margin": "10"}
_MARK: Final = {
    "shape": "circle",
    "style": "filled",
    "fillcolor": "#ffffff",
    "color": LINE,
    "fontsize": "8",
    "fontcolor": QUIET,
    "width": "0.2",
    "fixedsize": "true",
    "margin": "0",
    "class": "mark",
}
_DEEPEST: Final = 12
"""Frames in frames: beyond that many, nothing is told by one more."""
_UNSEEN: Final = {"style": "invis", "label": "", "width": "0", "height": "0", "class": "unseen"}


def dot_of(scene: Scene, drawn_by: str = "", prefix: str = "") -> str:
    """The text of the graph; `drawn_by` is written on it, and ids begin with `prefix`."""
    look = {**_GRAPH, "label": label(legend_of(scene, drawn_by))}
    graph = Digraph("fxpasses", graph_attr=look, node_attr=_NODES, edge_attr=_ARROWS)
    drawing = _Drawing(scene, graph, columns_of(scene), prefix)
    drawing.connect()
    drawing.place()
    return graph.source


@dataclass(slots=True)
class _Drawing:
    scene: Scene
    graph: Digraph
    columns: Mapping[str, int]
    prefix: str
    numbers: dict[str, int] = field(default_factory=dict[str, int])
    """Of each value that is read in another column."""
    marks: defaultdict[int, dict[str, int]] = field(default_factory=lambda: defaultdict(dict))
    """In each column: the names of marks, those where a value comes from another first, and their
    numbers."""
    labelled: set[tuple[str, str]] = field(default_factory=set[tuple[str, str]])
    read: defaultdict[str, set[str]] = field(default_factory=lambda: defaultdict(set))
    """By box: shapes and dtypes of what it reads."""

    def connect(self) -> None:
        for (_, target), edge in self.scene.edges.items():
            self.read[target].add(edge.value)
        for (source, target), edge in self.scene.edges.items():
            if self.columns[source] == self.columns[target]:
                self.graph.edge(source, target, **self._look(source, edge))
            else:
                come = self._arrival(source, self.columns[target])
                self.graph.edge(come, target, **self._look(source, edge, is_labelled=False))
        for source in self.numbers:
            self._leave(source)

    def _arrival(self, source: str, column: int) -> str:
        """The mark in a column that stands for a box in another."""
        number = self.numbers.setdefault(source, len(self.numbers) + 1)
        name = f"{source}at{column}"
        self.marks[column][name] = number
        return name

    def _leave(self, source: str) -> None:
        """An edge to the mark that says where a value is read: gone only where all readers are."""
        column = self.columns[source]
        edges = [
            edge
            for (start, end), edge in self.scene.edges.items()
            if start == source and self.columns[end] != column
        ]
        signs = {edge.sign for edge in edges}
        edge = Edge(signs.pop() if len(signs) == 1 else Sign.KEPT, edges[0].value)
        name = f"{source}on"
        self.marks[column][name] = self.numbers[source]
        self.graph.edge(source, name, **{**self._look(source, edge), "class": "continued"})

    def _look(self, source: str, edge: Edge, *, is_labelled: bool = True) -> dict[str, str]:
        """Each value is written once, and only where it is of another kind than what it is of."""
        look = {**EDGES[edge.sign], "class": edge.sign.name.lower()}
        if edge.value:
            look["edgetooltip"] = look["labeltooltip"] = tooltip(edge.value)
        is_new = edge.value not in self.read[source] and (source, edge.value) not in self.labelled
        if edge.value and is_labelled and is_new:
            self.labelled.add((source, edge.value))
            look["label"] = label(font(f" {cut(edge.value)}"))
        return look

    def place(self) -> None:
        """Each column beside the one before it, all of them from the top."""
        count = max(self.columns.values(), default=0) + 1
        if count == 1:
            self._fill(self.graph, 0)
            return
        heads = Digraph(graph_attr={"rank": "same"})
        for column in range(count):
            heads.node(f"head{column}", **_UNSEEN)
        for column in range(1, count):
            heads.edge(f"head{column - 1}", f"head{column}", style="invis", weight="100")
        self.graph.subgraph(heads)
        for column in range(count):
            part = Digraph(f"cluster_column{column}", graph_attr=_COLUMN)
            first = self._fill(part, column)
            self.graph.subgraph(part)
            self.graph.edge(f"head{column}", first, style="invis", weight="10")

    def _fill(self, part: Digraph, column: int) -> str:
        """Draw what stands in a column; the name of what stands first."""
        for name, number in self.marks[column].items():
            part.node(name, label=str(number), **_MARK)
        boxes = {key: box for key, box in self.scene.boxes.items() if self.columns[key] == column}
        self._frames(part, (), _inside(boxes), column)
        return next(iter((*self.marks[column], *boxes)) if column else iter(boxes))

    def _frames(
        self,
        part: Digraph,
        modules: Modules,
        inside: Mapping[Modules, list[str | Modules]],
        column: int,
    ) -> None:
        numbers = {one: number for number, one in enumerate(inside)}
        for held in inside[modules]:
            if isinstance(held, str):
                look = node_of(self.scene.boxes[held], self.scene)
                part.node(held, **{"id": f"{self.prefix}{held}", **look})
                continue
            look = frame_of(held, continues=self._began_before(held, column))
            frame = Digraph(f"cluster_{column}_{numbers[held]}", graph_attr=look)
            self._frames(frame, held, inside, column)
            part.subgraph(frame)

    def _began_before(self, modules: Modules, column: int) -> bool:
        depth = len(modules)
        return any(
            self.columns[key] < column and box.modules[:depth] == modules
            for key, box in self.scene.boxes.items()
        )


def _inside(boxes: Mapping[str, Box]) -> dict[Modules, list[str | Modules]]:
    """What stands directly in each module: keys of boxes, and modules."""
    found: dict[Modules, dict[str | Modules, None]] = defaultdict(dict, {(): {}})
    for key, box in boxes.items():
        modules = box.modules[:_DEEPEST]
        for depth in range(len(modules)):
            found[modules[:depth]][modules[: depth + 1]] = None
        found[modules][key] = None
    return {modules: list(held) for modules, held in found.items()}

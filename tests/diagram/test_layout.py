"""What is shown of a graph, and in how many columns; nothing of it is lost on the way to DOT."""

import re
import shutil
from collections import Counter

import pytest
import torch
from torch import Tensor, nn
from torch.fx import symbolic_trace

import fxpasses
from fxpasses import draw
from fxpasses.diagram.ordering import columns_of, rows_of
from fxpasses.errors import ArgumentError

ROW = torch.ones(2, 4)


class Chain(nn.Module):
    """So long that it takes several columns, with a value that is read in all of them."""

    def __init__(self, length: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(*(nn.Linear(4, 4) for _ in range(length)))

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x).tanh()
        return x


class Reread(Chain):
    def forward(self, x: Tensor) -> Tensor:
        y = x.sin()
        for layer in self.layers:
            x = layer(x).tanh() + y
        return x


class Two(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = Chain(3), Chain(2)

    def forward(self, x: Tensor) -> Tensor:
        return self.second(self.first(x))


def edges(diagram: fxpasses.Diagram) -> Counter[str]:
    """In the DOT: of the classes that edges have."""
    return Counter(re.findall(r"-> \S+ \[.*?class=(\w+)", diagram.dot()))


def test_a_short_graph_has_one_column_and_no_marks() -> None:
    diagram = draw(Chain(4), ROW)
    assert set(columns_of(diagram.scene).values()) == {0}
    assert "class=mark" not in diagram.dot()
    assert edges(diagram) == {"kept": len(diagram.scene.edges)}


@pytest.mark.parametrize("model", [Chain(40), Reread(20)])
def test_a_long_graph_is_cut_where_little_is_read_across(model: nn.Module) -> None:
    diagram = draw(model, ROW, most_boxes=None)
    scene, columns = diagram.scene, columns_of(diagram.scene)
    count = max(columns.values()) + 1
    assert count > 1
    rows = rows_of(scene)
    assert all(rows[source] < rows[target] for source, target in scene.edges)
    assert [columns[key] for key in sorted(rows, key=rows.__getitem__)] == sorted(columns.values())
    crossing = {
        (source, columns[target])
        for source, target in scene.edges
        if columns[source] != columns[target]
    }
    left = {source for source, _ in crossing}
    assert diagram.dot().count("class=mark") == len(crossing) + len(left)
    assert edges(diagram) == {"kept": len(scene.edges), "continued": len(left)}


@pytest.mark.skipif(shutil.which("dot") is None, reason="Graphviz is not installed")
def test_all_columns_are_drawn() -> None:
    diagram = draw(Reread(20), ROW, most_boxes=None)
    svg = diagram.svg()
    assert set(re.findall(r'<g id="(n\d+)"', svg)) == set(diagram.scene.boxes)
    assert svg.count('class="edge kept"') == len(diagram.scene.edges)
    width, height = map(float, re.findall(r'viewBox="0\S* 0\S* (\S+) (\S+)"', svg)[0])
    assert 0.5 < width / height < 2.5


def test_a_value_is_written_once_and_only_where_it_is_of_another_kind() -> None:
    graph = symbolic_trace(Chain(3))
    for node, size in zip(graph.graph.nodes, (1, 1, 2, 2, 2, 3, 3), strict=False):
        node.meta["val"] = torch.empty(size)
    assert re.findall(r"label=<&#160;(\S+) f32>", draw(graph).dot()) == ["1", "2", "3"]


def test_of_a_focus_only_what_is_near_is_shown_and_the_rest_counted() -> None:
    whole = draw(Chain(10), ROW)
    diagram = draw(Chain(10), ROW, focus="tanh_4", hops=2)
    assert len(diagram.scene.boxes) == 5
    assert diagram.scene.counted() == whole.scene.counted()
    assert "22 nodes, showing 5 of 22, 2 hops round tanh_4" in diagram.text()
    assert len(draw(Chain(10), ROW, focus="tanh_4", hops=0).scene.boxes) == 1


def test_a_module_can_be_looked_at() -> None:
    diagram = draw(Two(), ROW, focus="second", hops=1)
    inside = [box for box in diagram.scene.boxes.values() if ("second", "Chain") in box.modules]
    assert len(inside) == 4
    assert len(diagram.scene.boxes) == 6


def test_what_is_not_there_cannot_be_looked_at() -> None:
    with pytest.raises(ArgumentError, match=r"no node or module 'tanh_44'; did you mean tanh_4\?"):
        draw(Chain(10), ROW, focus="tanh_44")


def test_a_module_that_is_called_as_one_node_is_no_frame() -> None:
    model = nn.Sequential(nn.Conv2d(3, 3, 1), nn.BatchNorm2d(3)).eval()
    image = torch.ones(1, 3, 4, 4)
    diagram = fxpasses.diff(model, fxpasses.run(model, "fuse_conv_bn", image), image)
    assert all(box.modules == () for box in diagram.scene.boxes.values())

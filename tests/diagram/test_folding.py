"""Many nodes in few boxes: nothing is lost, and what was changed stays in sight."""

import pytest
import torch
from torch import Tensor, nn

import fxpasses
from fxpasses import diff, draw
from fxpasses.diagram.scene import Sign

ROW = torch.ones(2, 4)


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear, self.act = nn.Linear(4, 4), nn.ReLU()

    def forward(self, x: Tensor) -> Tensor:
        return self.act(self.linear(x)) + x


class Stages(nn.Module):
    def __init__(self, depth: int) -> None:
        super().__init__()
        self.first = nn.Sequential(*(Block() for _ in range(depth)))
        self.second = nn.Sequential(*(Block() for _ in range(depth)))

    def forward(self, x: Tensor) -> Tensor:
        return self.second(self.first(x).sigmoid())


class Flat(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        for number in range(300):
            x = torch.relu(x) + number
        return x


def one_change(model: nn.Module, at: int) -> fxpasses.Diagram:
    before, after = (torch.fx.symbolic_trace(model) for _ in range(2))
    node = list(after.graph.nodes)[at]
    with after.graph.inserting_after(node):
        new = after.graph.call_method("tanh", (node,))
    node.replace_all_uses_with(new, delete_user_cb=lambda user: user is not new)
    after.recompile()
    return diff(before, after, most_boxes=40)


def test_few_boxes_are_left_as_they_are() -> None:
    diagram = draw(Stages(4), ROW)
    assert not any(box.is_folded for box in diagram.scene.boxes.values())
    assert "showing" not in diagram.text()


@pytest.mark.parametrize("most", [1, 7, 40, 150])
@pytest.mark.parametrize("model", [Stages(60), Flat()], ids=["modules", "flat"])
def test_no_node_is_lost(model: nn.Module, most: int) -> None:
    whole, small = draw(model, ROW, most_boxes=None), draw(model, ROW, most_boxes=most)
    assert len(whole.scene.boxes) > 150
    assert len(small.scene.boxes) <= most
    assert small.scene.counted() == whole.scene.counted()
    folded_boxes = [box for box in small.scene.boxes.values() if box.is_folded]
    single = len(small.scene.boxes) - len(folded_boxes)
    assert f"showing {single} of {len(whole.scene.boxes)}, the rest in " in small.text()
    names = [name for box in small.as_dict()["boxes"].values() for name in box["nodes"]]
    assert names == [box.full_name for box in whole.scene.boxes.values()]
    assert all(a in small.scene.boxes and b in small.scene.boxes for a, b in small.scene.edges)


def test_neighbours_built_alike_are_one_box() -> None:
    text = draw(Stages(60), ROW).text()
    assert "first.1 ... first.59 (59 x Block)" in text
    assert "177 nodes, as first.0" in text
    assert "first_0_linear" in text


def test_what_is_built_alike_elsewhere_is_one_box() -> None:
    text = draw(Stages(60), ROW).text()
    assert "second (Sequential)" in text
    assert "180 nodes, as first" in text


def test_a_change_stays_in_sight_among_many_nodes() -> None:
    diagram = one_change(Stages(60), at=100)
    (new,) = [box for box in diagram.scene.boxes.values() if box.sign is Sign.ADDED]
    assert (new.title, new.is_folded) == ("tanh", False)
    assert len(diagram.scene.boxes) <= 40
    assert "+ 1 added" in diagram.text()


def test_neighbours_far_from_all_changes_are_one_box() -> None:
    diagram = one_change(Stages(60), at=100)
    assert "first.35 ... first.59 (25 x Block)" in diagram.text()
    assert "second (Sequential)" in diagram.text()


def test_what_would_read_of_its_reader_is_told_in_pieces() -> None:
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.block = nn.Sequential(*(nn.Linear(4, 4) for _ in range(3)))

        def forward(self, x: Tensor) -> Tensor:
            return self.block(self.block(x).tanh())

    scene = draw(Twice(), ROW, most_boxes=5).scene
    order = list(scene.boxes)
    assert len(order) <= 5
    assert all(order.index(source) < order.index(target) for source, target in scene.edges)


def test_a_change_stays_in_sight_in_a_row() -> None:
    diagram = one_change(Flat(), at=100)
    (new,) = [box for box in diagram.scene.boxes.values() if box.sign is Sign.ADDED]
    assert (new.title, new.is_folded) == ("tanh", False)


def test_a_box_says_what_was_changed_inside_of_it() -> None:
    diagram = one_change(Flat(), at=100)
    everything = diff(*(torch.fx.symbolic_trace(Flat()) for _ in range(2)), most_boxes=1)
    assert [box.sign for box in everything.scene.boxes.values()] == [Sign.KEPT]
    (box,) = one_box(diagram)
    assert box.sign is Sign.CHANGED
    assert "+1" in box.detail


def one_box(diagram: fxpasses.Diagram) -> list[object]:
    from fxpasses.diagram.folding import folded

    return list(folded(diagram.scene, 1).boxes.values())


def test_folding_is_the_same_each_time() -> None:
    assert len({draw(Stages(60), ROW).dot() for _ in range(3)}) == 1


def test_what_was_folded_reads_nothing_of_itself() -> None:
    scene = draw(Stages(60), ROW).scene
    assert not any(source == target for source, target in scene.edges)

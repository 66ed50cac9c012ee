"""Colours that show numbers: what is not measured is hatched, what is too much is marked."""

import json
import math
import re
from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks

import fxpasses
from fxpasses import diff, draw
from fxpasses.diagram.palette import HEAT
from fxpasses.diagram.scale import Scale, count_text, fitted
from fxpasses.errors import ArgumentError

IMAGE = torch.randn(2, 3, 8, 8, generator=torch.Generator().manual_seed(0))


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm, self.pool = nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.MaxPool2d(2)
        self.head = nn.Linear(72, 10)

    def forward(self, x: Tensor) -> Tensor:
        y = self.pool(self.norm(self.conv(x)).relu())
        return self.head(y.flatten(1)).sigmoid()


def classes(diagram: fxpasses.Diagram) -> dict[str, str]:
    """The class of the element of each node."""
    found = re.findall(r"^\s*(n\d+) \[.*?class=\"?([^\"\]]+?)\"? color=", diagram.dot(), re.M)
    return {diagram.scene.boxes[key].full_name: text for key, text in found}


def measured(diagram: fxpasses.Diagram) -> dict[str, float | None]:
    return {box.full_name: box.measured for box in diagram.scene.boxes.values()}


def test_what_is_not_measured_is_hatched() -> None:
    diagram = draw(Net(), IMAGE, color="time", values={"conv": 0.0021, "norm": 4e-5})
    found = classes(diagram)
    assert {name for name, text in found.items() if "unmeasured" not in text} == {"conv", "norm"}
    assert diagram.dot().count("style=striped") == len(found) - 2
    assert "2.1 ms" in diagram.dot()
    assert "40 us" in diagram.text()
    assert "time not measured" in diagram.text()
    assert "not measured" in diagram.dot().partition("\n\tn")[0], "the legend tells"


def test_what_is_above_the_limit_or_no_number_is_marked() -> None:
    values = {"conv": 1e-9, "norm": 2e-5, "relu": math.nan, "pool": math.inf}
    diagram = draw(Net(), IMAGE, color="error", values=values, limit=1e-5)
    over = {name for name, text in classes(diagram).items() if "over" in text}
    assert over == {"norm", "relu", "pool"}
    for text in ("x NaN", "x inf", "x 2.0e-05"):
        assert text in diagram.text()
    assert "over 1.0e-05" in diagram.dot()


def test_the_record_can_be_written_whatever_was_measured() -> None:
    diagram = draw(Net(), IMAGE, color="error", values={"conv": 1e-9, "norm": math.nan})
    boxes = json.loads(json.dumps(diagram.as_dict(), allow_nan=False))["boxes"]
    assert [box["measured"] for box in boxes.values()][:3] == [None, 1e-9, "nan"]


def test_any_numbers_under_any_name() -> None:
    text = draw(Net(), IMAGE, color="FLOPs", values={"conv": 15552, "head": 1440}).text()
    assert "15.6K" in text
    assert "FLOPs not measured" in text


def test_nodes_of_an_inner_graph_are_named_with_its_path() -> None:
    class Outer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = Net()

        def forward(self, x: Tensor) -> Tensor:
            return self.inner(x) if x.sum() > -1e9 else x

    model = Outer().eval()
    found = draw(model, IMAGE, color="time", values={"inner/conv": 1.0})
    assert measured(found)["inner/conv"] == 1.0


def test_a_folded_box_shows_the_sum_and_of_errors_the_worst() -> None:
    model = nn.Sequential(*(nn.Sequential(nn.Linear(2, 2), nn.ReLU()) for _ in range(40)))
    x = torch.ones(1, 2)
    nodes = [name for name in measured(draw(model, x, most_boxes=None)) if name != "output"]
    one, worst = (
        draw(model, x, color=color, values=dict.fromkeys(nodes, 2.0), most_boxes=1)
        for color in ("time", "error")
    )
    assert list(measured(one).values()) == [2.0 * len(nodes)]
    assert list(measured(worst).values()) == [2.0]


def test_memory_is_that_of_the_results() -> None:
    found = measured(draw(Net(), IMAGE, color="memory"))
    assert found["conv"] == 2 * 8 * 6 * 6 * 4
    assert found["flatten"] == 0
    assert found["output"] is None


def test_saved_bytes_are_what_autograd_keeps_of_the_results() -> None:
    model = Net().train()
    found = measured(draw(model, IMAGE, color="saved"))
    kept: dict[int, int] = {}

    def keep(tensor: Tensor) -> Tensor:
        place = tensor.untyped_storage()
        kept[place.data_ptr()] = place.nbytes()
        return tensor

    with saved_tensors_hooks(keep, lambda tensor: tensor):
        model(IMAGE)
    for tensor in (*model.parameters(), *model.buffers()):
        kept.pop(tensor.untyped_storage().data_ptr(), None)
    statistics, indices = 2 * 8 * 4, 2 * 8 * 3 * 3 * 8
    told = sum(value for value in found.values() if value is not None)
    assert told == sum(kept.values()) - statistics - indices


def test_errors_are_those_that_the_verifier_found() -> None:
    model = Net().eval()
    result = fxpasses.run(model, "fuse_conv_bn", IMAGE)
    (made,) = result.meta["fxpasses"]["passes"][0]["rewrites"]
    diagram = diff(model, result, IMAGE, color="error")
    found = {name: value for name, value in measured(diagram).items() if value is not None}
    assert found == dict.fromkeys(made["created"], made["error"])
    assert diagram.scene.scale is not None
    assert diagram.scene.scale.limit == made["bound"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"color": "time"}, "pass values="),
        ({"color": "memroy"}, "did you mean memory"),
        ({"color": 3}, "color is 3"),
        ({"values": {"conv": 1.0}}, "say what they are by color="),
        ({"renderer": "netron"}, '"dot" or "graphviz-pure" or "text"'),
        ({"focus": 3}, "name of a node"),
        ({"hops": -1}, "hops"),
    ],
)
def test_what_cannot_be_shown(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ArgumentError, match=re.escape(message)):
        draw(Net(), IMAGE, **options)


# -- scales


@pytest.mark.parametrize("name", ["error", "time"])
def test_steps_go_from_the_least_to_the_most(name: str) -> None:
    values = [1e-12, 1e-9, 1e-6, 1e-3, 1.0]
    scale = fitted(Scale(name, {}), values)
    steps = [scale.step_of(value) for value in values]
    assert steps == sorted(steps)
    assert (steps[0], steps[-1]) == (0, len(HEAT) - 1)
    assert scale.step_of(math.nan) == len(HEAT) - 1
    assert [scale.step_of(scale.start_of(step) * 1.001) for step in range(scale.steps)] == list(
        range(scale.steps)
    )


@pytest.mark.parametrize("values", [[], [0.0], [0.0, 0.0], [3.0], [math.nan]])
@pytest.mark.parametrize("name", ["error", "time", "other"])
def test_a_scale_of_little(name: str, values: list[float]) -> None:
    scale = fitted(Scale(name, {}), values)
    assert all(0 <= scale.step_of(value) < scale.steps for value in values)
    assert all(scale.text_of(scale.start_of(step)) for step in range(scale.steps))


@pytest.mark.parametrize(
    ("number", "text"), [(8, "8"), (999, "999"), (9408, "9.4K"), (2.4e6, "2.4M"), (0.25, "0.25")]
)
def test_counts_are_short(number: float, text: str) -> None:
    assert count_text(number) == text


def test_each_step_is_darker_than_the_one_before() -> None:
    def light(color: str) -> float:
        red, green, blue = (int(color[n : n + 2], 16) for n in (1, 3, 5))
        return 0.2126 * red + 0.7152 * green + 0.0722 * blue

    lights = [light(paint.fill) for paint in HEAT]
    assert all(one - other > 15 for one, other in pairwise(lights))

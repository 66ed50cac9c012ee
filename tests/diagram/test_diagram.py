"""Graphs as text and pictures: signs, names that mean harm, folding, and every renderer."""

import re
import shutil
import stat
import xml.etree.ElementTree as ET
from collections import Counter
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.fx import GraphModule, symbolic_trace

import fxpasses
from fxpasses import diff, draw
from fxpasses.diagram import rendering
from fxpasses.diagram.scene import Sign
from fxpasses.errors import ArgumentError, DrawingError

IMAGE = torch.randn(2, 3, 8, 8, generator=torch.Generator().manual_seed(0))
HOSTILE = '"];evil[x="<script>alert(1)</script>{|}\\N\\" -> n1 & \n\x1b[31m\u202e' + "x" * 300

needs_dot = pytest.mark.skipif(shutil.which("dot") is None, reason="Graphviz is not installed")


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU())
        self.head = nn.Linear(8, 10)
        self.scale = nn.Parameter(torch.ones(8))

    def forward(self, x: Tensor) -> Tensor:
        return self.head((self.stem(x).mean((2, 3)) * self.scale).relu())


class Branching(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(8, 8), nn.ReLU())

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x) if x.sum() > -1e9 else x


def fused() -> tuple[nn.Module, GraphModule]:
    model = Net().eval()
    return model, fxpasses.run(model, "fuse_conv_bn", IMAGE, verify=False)


def signs(diagram: fxpasses.Diagram) -> dict[str, str]:
    return {box.full_name: str(box.sign) for box in diagram.scene.boxes.values()}


# -- what it says


def test_the_text_of_a_comparison() -> None:
    model, fast = fused()
    assert str(diff(model, fast, IMAGE)) == (
        "Net, 10 -> 9 nodes, + 1 added, - 2 removed\n"
        "  x       input                     2x3x8x8 f32\n"
        "- stem_0  conv        x             2x8x6x6 f32\n"
        "- stem_1  batch_norm  stem_0        2x8x6x6 f32\n"
        "+ _0      conv        x             2x8x6x6 f32\n"
        "  stem_2  relu        -stem_1, +_0  2x8x6x6 f32\n"
        "  mean    mean        stem_2        2x8 f32\n"
        "  mul     mul         mean          2x8 f32\n"
        "  relu    relu        mul           2x8 f32\n"
        "  head    linear      relu          2x10 f32\n"
        "  output  output      head"
    )


def test_the_text_of_one_graph() -> None:
    lines = draw(Net().eval(), IMAGE).text().splitlines()
    assert lines[0] == "Net, 10 nodes"
    assert lines[1].split() == ["x", "input", "2x3x8x8", "f32"]
    assert not any(line.startswith(("+", "-", "~")) for line in lines)


def test_what_replaced_a_node_is_told() -> None:
    model, fast = fused()
    dot = diff(model, fast, IMAGE).dot()
    assert "replaced by _0, which fuse_conv_bn made" in dot
    assert "made by fuse_conv_bn of stem_1, stem_0" in dot
    assert "test_diagram.py:" in dot


def test_weights_that_stay_are_told_where_they_are_read() -> None:
    diagram = draw(Net().eval(), IMAGE)
    assert "scale" not in signs(diagram)
    (mul,) = [box for box in diagram.scene.boxes.values() if box.title == "mul"]
    assert "reads scale 8" in mul.notes
    assert [badge.text for badge in mul.badges] == ["8"]
    assert diagram.scene.counted().total() == 10


def test_a_graph_of_which_nothing_is_known() -> None:
    graph = symbolic_trace(Net())
    text = draw(graph).text()
    assert "stem_0" in text
    assert "f32" not in text


def test_a_foreign_graph_with_the_metadata_of_torch() -> None:
    program = torch.export.export(Net().eval(), (IMAGE,)).module()
    assert "2x8x6x6 f32" in draw(program).text()


def test_a_broken_graph_can_be_looked_at() -> None:
    graph = symbolic_trace(nn.Sequential(nn.Linear(2, 2)))
    del graph._modules["0"]
    assert "missing module" in draw(graph).text()
    assert draw(graph).dot()


def test_of_several_values_also_those_that_nobody_knows_are_told() -> None:
    graph = symbolic_trace(Net().eval())
    mean = next(node for node in graph.graph.nodes if node.name == "mean")
    mean.meta["val"] = (torch.ones(2), None)
    assert "(2 f32, ?)" in draw(graph).text()


# -- what became of a node


def changed(edit: str) -> fxpasses.Diagram:
    before, after = symbolic_trace(Net().eval()), symbolic_trace(Net().eval())
    nodes = {node.name: node for node in after.graph.nodes}
    match edit:
        case "argument":
            nodes["mean"].args = (nodes["stem_2"], 2)
        case "operand":
            nodes["mean"].args = (nodes["stem_1"], (2, 3))
        case "settings":
            after.get_submodule("stem.0").stride = (2, 2)
        case "value":
            nodes["mean"].meta["val"] = torch.empty(3, dtype=torch.float16)
        case "name":
            nodes["mean"].name = "average"
        case "target":
            nodes["relu"].target = "sigmoid"
    after.recompile()
    return diff(before, after)


@pytest.mark.parametrize(
    ("edit", "name", "sign"),
    [
        ("argument", "mean", Sign.CHANGED),
        ("operand", "mean", Sign.CHANGED),
        ("settings", "stem_0", Sign.CHANGED),
        ("value", "mean", Sign.CHANGED),
        ("name", "average", Sign.KEPT),
        ("nothing", "mean", Sign.KEPT),
    ],
)
def test_a_node_that_is_still_there(edit: str, name: str, sign: Sign) -> None:
    found = signs(changed(edit))
    assert found.pop(name) == sign
    assert set(found.values()) == {Sign.KEPT}


def test_another_function_under_the_same_name_is_another_node() -> None:
    diagram = changed("target")
    assert Counter(box.sign for box in diagram.scene.boxes.values()) == {
        Sign.KEPT: 7,
        Sign.ADDED: 1,
        Sign.REMOVED: 1,
        Sign.CHANGED: 1,  # reads another value, for all that is known
    }


def test_an_edge_that_moved_has_a_sign() -> None:
    diagram = changed("operand")
    assert sorted(str(edge.sign) for edge in diagram.scene.edges.values()) == [*" " * 7, "+", "-"]


def test_two_alike_have_no_difference() -> None:
    assert "no difference" in changed("nothing").text()
    model, fast = fused()
    assert "no difference" in diff(fast, fast).text()
    assert model.training is False


def test_an_unverified_round_trip_keeps_every_node() -> None:
    model = Net().eval()
    assert "no difference" in diff(model, fxpasses.run(model, [], IMAGE), IMAGE).text()


def test_graphs_inside_of_opaque_modules_are_drawn() -> None:
    model = nn.Sequential(nn.Linear(8, 8), Branching()).eval()
    x = torch.ones(2, 8)
    for subject in (model, fxpasses.capture(model, x), fxpasses.run(model, [], x)):
        text = draw(subject, x).text()
        assert "Branching" in text
        assert "1.inner/" in text


def test_a_model_that_is_opaque_as_a_whole() -> None:
    model, x = Branching().eval(), torch.ones(2, 8)
    result = fxpasses.run(model, [], x)
    assert "inner/" in draw(result).text()
    assert "original" not in draw(result).text()
    assert "no difference" in diff(model, result, x).text()


def test_drawing_changes_nothing() -> None:
    model = Net()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    state = torch.get_rng_state()
    draw(model, IMAGE).dot()
    assert model.training
    assert torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())


@pytest.mark.parametrize("thing", [None, 3, "model", torch.ones(2), Net])
def test_what_cannot_be_drawn(thing: object) -> None:
    for call in (draw, lambda one: diff(Net(), one), lambda one: diff(one, Net())):
        with pytest.raises(ArgumentError, match=r"pass a torch\.nn\.Module"):
            call(thing)
    with pytest.raises(ArgumentError, match="most_boxes"):
        draw(Net(), most_boxes=-1)


# -- names that mean harm


def hostile() -> GraphModule:
    """Every name that a graph can hold."""
    root = nn.Module()
    root._modules[HOSTILE.replace(".", "")] = nn.Linear(2, 2)

    def called(x: Tensor) -> Tensor:
        return x

    called.__name__ = HOSTILE
    graph = torch.fx.Graph()
    x = graph.placeholder("x")
    y = graph.call_module(HOSTILE.replace(".", ""), (x,))
    y.meta["nn_module_stack"] = {"a": (HOSTILE, HOSTILE), "b": (f"{HOSTILE}.b", HOSTILE)}
    y.meta["origin"] = (HOSTILE, HOSTILE)
    y.name = HOSTILE
    z = graph.create_node("call_function", called, (y,), name="z")
    graph.output(z)
    made = GraphModule(nn.Module(), torch.fx.Graph())
    made._modules.update(root._modules)
    made._graph = graph
    graph.owning_module = made
    type(made).__name__ = HOSTILE
    return made


def test_modules_in_modules_without_end_can_be_drawn() -> None:
    model: nn.Module = nn.Linear(2, 2)
    for _ in range(60):
        model = nn.Sequential(model)
    dot = draw(model, torch.ones(1, 2)).dot()
    assert dot.count("subgraph cluster_") == 12


def test_hostile_names_are_text() -> None:
    diagram = draw(hostile())
    for form in (diagram.text(), diagram.dot()):
        assert "\x1b" not in form
        assert "\u202e" not in form
    assert len(diagram.text().splitlines()) == 5


@needs_dot
def test_hostile_names_make_no_element() -> None:
    svg = draw(hostile()).svg()
    root = ET.fromstring(svg)
    tags = {element.tag.rpartition("}")[2] for element in root.iter()}
    assert tags <= {"svg", "g", "a", "title", "path", "polygon", "text", "polyline"}
    texts = " ".join(element.text or "" for element in root.iter())
    assert "<script>alert(1)</script>" in texts
    assert "\\N" in texts
    assert len(re.findall(r'class="node ', svg)) == 4


# -- renderers


def drawn(svg: str) -> Counter[str]:
    """Boxes and edges of each sign in a picture."""
    return Counter(
        re.findall(r'class="(?:node \S+|edge) (kept|added|removed|changed|refused)', svg)
    )


@needs_dot
def test_every_box_and_edge_is_drawn() -> None:
    model, fast = fused()
    diagram = diff(model, fast, IMAGE)
    svg = diagram.svg()
    assert svg.startswith("<!-- drawn by Graphviz dot -->\n<svg ")
    assert 'style="width: 100%; max-width:' in svg
    record = diagram.as_dict()
    assert drawn(svg) == Counter(
        one["sign"] for one in (*record["boxes"].values(), *record["edges"])
    )
    assert set(re.findall(r'<g id="(n\d+)"', svg)) == set(record["boxes"])
    assert diagram.png().startswith(b"\x89PNG")


@needs_dot
def test_ids_of_two_pictures_in_one_page_are_told_apart() -> None:
    diagram = draw(Net().eval(), IMAGE)
    ids = re.findall(r'<g id="(second_n\d+)"', diagram.svg(prefix="second_"))
    assert [one.removeprefix("second_") for one in ids] == list(diagram.as_dict()["boxes"])


@pytest.mark.skipif(shutil.which("graphviz-pure") is None, reason="graphviz-pure is not installed")
@needs_dot
def test_the_other_renderer_draws_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    diagram = draw(Net().eval(), IMAGE)
    first = diagram.svg()
    monkeypatch.setattr(
        rendering,
        "find_renderer",
        lambda choice: rendering.Renderer("graphviz-pure", str(shutil.which("graphviz-pure"))),
    )
    second = diagram.svg()
    assert second.startswith("<!-- drawn by graphviz-pure -->")
    assert first.count('class="node ') == second.count('class="node ')
    assert first.count('class="edge ') == second.count('class="edge ')


def without_renderers(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    monkeypatch.setenv("PATH", str(folder))
    monkeypatch.setattr(rendering.sys, "executable", str(folder / "python"))


def install(folder: Path, name: str, script: str) -> None:
    file = folder / name
    file.write_text(f"#!/bin/sh\n{script}\n")
    file.chmod(file.stat().st_mode | stat.S_IEXEC)


def test_without_a_renderer_the_text_is_the_picture(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    without_renderers(monkeypatch, tmp_path)
    diagram = draw(hostile())
    svg = diagram.svg()
    assert svg.startswith("<!-- drawn as text: no Graphviz was found: install `dot`")
    tags = {element.tag.rpartition("}")[2] for element in ET.fromstring(svg).iter()}
    assert tags == {"svg", "rect", "text"}
    with pytest.raises(DrawingError, match=r"install `dot`.*SVG and text can"):
        diagram.png()


@pytest.mark.parametrize(
    ("installed", "expected"),
    [
        (("dot", "graphviz-pure"), "drawn by Graphviz dot"),
        (("graphviz-pure",), "drawn by graphviz-pure"),
    ],
)
def test_which_renderer_is_taken(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    installed: tuple[str, ...],
    expected: str,
) -> None:
    without_renderers(monkeypatch, tmp_path)
    for name in installed:
        install(tmp_path, name, 'echo \'<svg width="9pt" height="9pt"></svg>\'')
    assert expected in draw(Net(), IMAGE).svg()


@pytest.mark.parametrize(
    ("script", "said"),
    [
        ("echo 'no such shape' >&2; exit 1", "Graphviz dot failed: no such shape"),
        ("/bin/sleep 5", "Graphviz dot took longer"),
        ("", "Graphviz dot failed: it drew nothing"),
    ],
)
def test_a_renderer_that_fails_is_no_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str, said: str
) -> None:
    without_renderers(monkeypatch, tmp_path)
    if "sleep" in script:
        monkeypatch.setattr(rendering, "_SECONDS", 0.2)
    install(tmp_path, "dot", script)
    assert draw(Net(), IMAGE).svg().startswith(f"<!-- drawn as text: {said}")


def test_what_takes_too_long_gets_straight_edges(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    without_renderers(monkeypatch, tmp_path)
    install(tmp_path, "dot", "echo '<svg></svg>'")
    run = rendering.subprocess.run

    def slow(command: list[str], **how: object) -> object:
        if "-Gsplines=line" in command:
            return run(command, **how)
        raise rendering.subprocess.TimeoutExpired(command, 10)

    monkeypatch.setattr(rendering.subprocess, "run", slow)
    assert "drawn by Graphviz dot, straight edges" in draw(Net(), IMAGE).svg()


# -- files and notebooks


@needs_dot
@pytest.mark.parametrize(
    ("name", "start"),
    [("d.svg", b"<!-- drawn"), ("d.png", b"\x89PNG"), ("d.dot", b"digraph"), ("d.txt", b"Net,")],
)
def test_the_suffix_names_the_form(tmp_path: Path, name: str, start: bytes) -> None:
    draw(Net(), IMAGE).save(tmp_path / name)
    assert (tmp_path / name).read_bytes().startswith(start)


@pytest.mark.parametrize("path", ["diagram", "diagram.pdf", 7])
def test_what_is_no_path_of_a_diagram(path: object) -> None:
    with pytest.raises(ArgumentError, match=r"path (ends in .*: end it in \.svg|is .*pass the)"):
        draw(Net(), IMAGE).save(path)


def test_a_notebook_gets_text_and_a_picture_where_one_can_be_drawn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    without_renderers(monkeypatch, tmp_path)
    diagram = draw(Net(), IMAGE)
    (text,) = diagram._repr_mimebundle_().items()
    assert text == ("text/plain", f"{diagram.text()}\n({rendering.HOW_TO_DRAW})")
    install(tmp_path, "dot", "echo '<svg></svg>'")
    bundle = diagram._repr_mimebundle_()
    assert bundle["text/plain"] == diagram.text()
    assert "<svg" in bundle["image/svg+xml"]

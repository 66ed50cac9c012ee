"""What `profile` measures, and that it leaves everything as it was. No time is compared."""

import copy
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode
from typer.testing import CliRunner

import fxpasses
from fxpasses.cli import app
from fxpasses.debug import Profile
from fxpasses.debug.spans import Spans
from fxpasses.errors import ArgumentError
from fxpasses.verify.activations import peak_activations
from tests.test_session import IMAGE, ConvNet


def profiled(model: nn.Module, *inputs: Tensor, **options: Any) -> Profile:
    return fxpasses.profile(model, inputs, repeats=1, **options)


class Opaque(nn.Module):
    """Decides on data, in the middle of a graph."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(8, 8), nn.ReLU())

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x) if x.sum() < 1e9 else x


class Around(nn.Module):
    """Calls what is opaque twice."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.opaque = nn.Linear(8, 8), Opaque()

    def forward(self, x: Tensor) -> Tensor:
        return self.opaque(self.opaque(self.first(x))) + 1


ROWS = torch.ones(4, 8)


# -- what is measured


def test_every_node_is_measured_in_order() -> None:
    profile = profiled(ConvNet(), IMAGE)

    names = ["conv", "norm", "relu", "second", "second_norm"]
    assert list(profile.seconds) == names
    assert all(seconds > 0 for seconds in profile.seconds.values())
    assert profile.total_seconds == pytest.approx(sum(profile.seconds.values()))
    for mapping in (profile.flops, profile.output_bytes, profile.peak_bytes):
        assert list(mapping) == names
        assert all(type(value) is float for value in mapping.values())


def test_operations_are_those_of_torchs_counter() -> None:
    model = ConvNet()
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        model(IMAGE)

    profile = profiled(model, IMAGE)

    assert profile.total_flops == counter.get_total_flops() > 0
    assert [name for name, flops in profile.flops.items() if flops] == ["conv", "second"]


class Small(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        y = x + 1  # 128 bytes
        z = y.view(-1)  # a view
        z.mul_(2)
        return z.double()  # 256 bytes


def test_memory_counts_what_is_new_and_what_is_held() -> None:
    profile = profiled(Small(), ROWS)

    assert list(profile.output_bytes.values()) == [128, 0, 0, 256]
    assert list(profile.peak_bytes.values()) == [128, 128, 128, 384]
    assert profile.held_bytes == 384
    captured = fxpasses.capture(Small(), (ROWS,))
    assert captured.arguments is not None
    assert peak_activations(captured.program, captured.arguments) == 384


def test_graphs_that_a_node_calls_are_measured_apart() -> None:
    profile = profiled(Around().eval(), ROWS)

    costs = {one.full_name: one for one in profile.nodes}
    inner = costs["opaque.inner/_0"]
    assert (inner.calls, inner.node.module) == (2, "opaque.inner.0")
    one_product = 2 * 4 * 8 * 8
    assert costs["first"].flops == one_product
    assert inner.flops == 2 * one_product
    assert costs["opaque"].flops == costs["opaque_1"].flops == 0
    assert profile.total_flops == 3 * one_product


def test_what_is_measured_is_measured_of_the_sizes_that_are_given() -> None:
    fast = fxpasses.run(Around().eval(), "dce", (ROWS,))

    values = {one.full_name: one.node.value for one in profiled(fast, torch.ones(9, 8)).nodes}

    assert values["first"] == "9x8 f32"


def test_modules_add_up_what_lies_inside() -> None:
    profile = profiled(Around().eval(), ROWS)

    modules = {one.path: one for one in profile.modules}
    inside = ("opaque", "opaque.inner", "opaque.inner.0", "opaque.inner.1")
    assert {"first", *inside} == modules.keys()
    assert modules["opaque"].flops == profile.total_flops - modules["first"].flops
    seconds = [one.seconds for one in profile.nodes if one.node.module.startswith("opaque")]
    assert modules["opaque"].seconds == pytest.approx(sum(seconds))


def test_spans_leave_out_what_runs_inside() -> None:
    class Ticks:
        now = 0

        def stamp(self) -> int:
            Ticks.now += 1
            return Ticks.now

        def between(self, begin: int, end: int) -> float:
            return end - begin

    spans = Spans(Ticks())
    for _ in range(2):
        spans.around(("", "outer"), lambda: spans.around(("inner", "x"), lambda: None))

    assert spans.own() == {("", "outer"): 4, ("inner", "x"): 2}


def test_everything_that_has_graphs_can_be_measured() -> None:
    model = ConvNet()
    fast = fxpasses.run(model, "fuse_conv_bn", (IMAGE,), history=True)
    captured = fxpasses.capture(model, (IMAGE,))
    stage = fxpasses.report(fast).history.at("captured")

    assert list(profiled(fast, IMAGE).seconds) == ["conv_1", "relu", "second_1"]
    assert list(fxpasses.profile(captured, repeats=1).seconds) == list(
        profiled(stage, IMAGE).seconds
    )
    plain = torch.fx.symbolic_trace(nn.Sequential(nn.Linear(8, 8), nn.ReLU()))
    assert list(profiled(plain, ROWS).seconds) == ["_0", "_1"]
    assert len(fxpasses.profile(nn.Sequential(nn.Linear(8, 8)), repeats=1).nodes) == 1


def test_arguments_by_name_and_several() -> None:
    class Two(nn.Module):
        def forward(self, x: Tensor, *, scale: Tensor) -> Tensor:
            return x * scale

    profile = fxpasses.profile(Two(), (ROWS,), {"scale": ROWS}, repeats=1)

    assert list(profile.output_bytes.values()) == [128]


# -- what is not finite


class Overflows(nn.Module):
    """Infinite from `exp` on, and no number from `sub` on."""

    def forward(self, x: Tensor) -> Tensor:
        y = (x * 100).exp()
        z = y + 1
        return (z - y).sum()


def test_the_first_that_is_not_finite_is_named() -> None:
    profile = profiled(Overflows(), ROWS, finite=True)

    first = profile.first_nonfinite
    assert first is not None
    assert (first.full_name, first.nan, first.inf, first.largest_operand) == ("exp", 0, 32, 100.0)
    assert first.node.source is not None
    assert "test_profile.py:" in first.node.source
    assert profile.nonfinite == (first,)
    assert "first: exp (exp) makes 32 Inf, of values up to 100" in str(profile)


def test_what_only_passes_it_on_does_not_make_it() -> None:
    class Divides(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return (torch.relu(x / 0) + 1, torch.log(x - 2))

    found = profiled(Divides(), ROWS, finite=True).nonfinite

    assert found is not None
    assert [(one.full_name, one.nan, one.inf) for one in found] == [
        ("truediv", 0, 32),
        ("log", 32, 0),
    ]


def test_inputs_that_are_not_finite_are_named_themselves() -> None:
    profile = profiled(Overflows(), torch.full((4, 8), torch.nan), finite=True)

    assert profile.first_nonfinite is not None
    assert profile.first_nonfinite.full_name == "x"


def test_weights_that_are_not_finite_show_where_they_are_used() -> None:
    model = nn.Sequential(nn.Linear(8, 8), nn.ReLU())
    model[0].bias.data[0] = torch.inf

    first = profiled(model.eval(), ROWS, finite=True).first_nonfinite

    assert first is not None
    assert first.full_name == "_0"


def test_a_model_that_is_finite_says_so_and_nobody_is_asked_in_vain() -> None:
    assert profiled(ConvNet(), IMAGE, finite=True).first_nonfinite is None
    with pytest.raises(ArgumentError, match="finite=True"):
        _ = profiled(ConvNet(), IMAGE).first_nonfinite


# -- everything stays as it was


class Remembers(nn.Module):
    """Draws numbers, writes a buffer, an argument and statistics."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.drop = nn.BatchNorm1d(8), nn.Dropout(0.5)
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        self.calls.add_(1)
        x.add_(1)
        return self.drop(self.norm(x)) + torch.rand(())


@pytest.mark.parametrize("optimised", [False, True])
def test_nothing_is_changed(optimised: bool, tmp_path: Path) -> None:
    model: nn.Module = Remembers().train()
    rows = ROWS.clone()
    if optimised:
        model = fxpasses.run(model, "dce", (rows,), training=True)
    state, calls = copy.deepcopy(model.state_dict()), model.calls
    versions = [tensor._version for tensor in model.state_dict(keep_vars=True).values()]
    torch.manual_seed(3)
    random = torch.get_rng_state()
    reported = fxpasses.report(model).calls if optimised else None

    profiled(model, rows, finite=True).save_trace(tmp_path / "trace.json")

    torch.testing.assert_close(model.state_dict(), state, rtol=0, atol=0)
    assert model.calls is calls
    assert [t._version for t in model.state_dict(keep_vars=True).values()] == versions
    assert torch.equal(torch.get_rng_state(), random)
    assert torch.equal(rows, ROWS)
    assert model.training
    assert reported == (fxpasses.report(model).calls if optimised else None)


def test_nothing_is_changed_where_the_model_raises() -> None:
    class Raises(Remembers):
        def forward(self, x: Tensor) -> Tensor:
            super().forward(x)
            return x.view(3, -1)

    traced = torch.fx.symbolic_trace(Raises())
    state = copy.deepcopy(traced.state_dict())

    with pytest.raises(ArgumentError, match="on these inputs the model raises RuntimeError"):
        profiled(traced, ROWS)
    torch.testing.assert_close(traced.state_dict(), state, rtol=0, atol=0)


def test_a_call_that_the_graph_does_not_hold_for_is_told() -> None:
    class Branches(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x + 1 if x.shape[0] > 2 else x - 1

    fast = fxpasses.run(Branches().eval(), "dce", (ROWS,))

    with pytest.raises(ArgumentError, match="the graph does not hold for these inputs"):
        profiled(fast, torch.ones(1, 8))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: fxpasses.profile(fxpasses.run(ConvNet(), "dce", IMAGE)), "pass example_inputs"),
        (lambda: fxpasses.profile(Small()), "pass example_inputs"),
        (lambda: fxpasses.profile(Small(), ROWS, repeats=0), "repeats=0: pass 1 or more"),
        (lambda: fxpasses.profile(Small(), ROWS, repeats="2"), "repeats='2'"),
        (lambda: fxpasses.profile(Small(), ROWS, finite="yes"), "finite='yes': pass True"),
        (lambda: profiled(Small(), ROWS).save_trace("trace.txt"), "end it in .json or .json.gz"),
        (lambda: profiled(Small(), ROWS).save_trace(3), "path=3: pass the name of a file"),
    ],
)
def test_wrong_use_is_told(call: Any, message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        call()


# -- traces and text


def test_a_trace_names_every_node(tmp_path: Path) -> None:
    profile = profiled(Around().eval(), ROWS)

    profile.save_trace(tmp_path / "trace.json")

    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    ranges = [one["name"] for one in events if one.get("cat") == "user_annotation"]
    assert set(profile.seconds) <= set(ranges)
    assert ranges.count("opaque.inner/_0") == 2


def test_its_text_is_one_screen_and_its_details_are_all() -> None:
    layers = [layer for _ in range(40) for layer in (nn.Linear(8, 8), nn.ReLU())]
    profile = profiled(nn.Sequential(*layers).eval(), ROWS)

    assert len(str(profile).splitlines()) < 45
    assert "and 65 more nodes" in str(profile)
    rows = [line for line in profile.text(details=True).splitlines() if " linear " in line]
    assert len(rows) == 40


def test_its_json_is_plain() -> None:
    data = json.loads(profiled(ConvNet(), IMAGE, finite=True).to_json())

    assert data["version"] == 1
    assert data["nodes"][0]["node"]["name"] == "conv"
    assert data["nonfinite"] == []


def test_what_no_graph_holds_is_told() -> None:
    assert "what is in no graph is not measured" in str(profiled(Opaque().eval(), ROWS))


def test_it_colours_a_drawing_by_names() -> None:
    model = Around().eval()
    seconds = profiled(model, ROWS).seconds

    drawn = fxpasses.draw(model, ROWS, color="time", values=seconds)

    assert set(seconds) <= {box.full_name for box in drawn.scene.boxes.values()}


def test_the_command_profiles_a_model_and_what_passes_make_of_it(tmp_path: Path) -> None:
    arguments = ["profile", "tests.cli.models:ConvNorm", "-i", "2x3x6x6", "--repeats", "1"]
    plain = CliRunner().invoke(app, [*arguments, "--json"])
    trace = str(tmp_path / "t.json")
    made = CliRunner().invoke(
        app, [*arguments, "-p", "fuse_conv_bn", "--json", "--finite", "--trace", trace]
    )

    assert (plain.exit_code, made.exit_code) == (0, 0)
    names = [[one["node"]["name"] for one in json.loads(d.stdout)["nodes"]] for d in (plain, made)]
    assert names == [["conv", "norm", "relu"], ["conv_1", "relu"]]
    assert json.loads(Path(trace).read_text())["traceEvents"]

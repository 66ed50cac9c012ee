"""The commands: what they print, write and return, and how they say what is wrong."""

import json
import sys
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from typer.testing import CliRunner

import fxpasses
from fxpasses.cli import app
from fxpasses.cli.files import REPORTS
from fxpasses.core import Editor, Facts, Numerics, Rewrite
from fxpasses.registry import Registry
from fxpasses.views import Activation

HERE = "tests.cli.models"
CONV_NORM = (f"{HERE}:ConvNorm", "-p", "fuse_conv_bn,dce", "-i", "2x3x6x6")


def call(*arguments: str) -> Any:
    return CliRunner().invoke(app, [str(one) for one in arguments])


class DropsActivations(Rewrite[Activation]):
    """Leaves out activations, which is wrong."""

    name = "drop_activations"
    numerics = Numerics.EXACT

    def match(self, node: Any, facts: Facts) -> Activation | None:
        return Activation.at(node)

    def rewrite(self, site: Activation, edit: Editor) -> None:
        edit.replace(site.node, site.input)


class Raises(DropsActivations):
    """Raises."""

    name = "raises"

    def match(self, node: Any, facts: Facts) -> Activation | None:
        raise RuntimeError("of its own")


def no_graph_pass(module: nn.Module) -> None:
    raise KeyboardInterrupt


@pytest.fixture
def extra(tmp_path: Path) -> Path:
    """A registry file that names the passes above."""
    path = tmp_path / "extra.yaml"
    path.write_text(
        "version: 1\npasses:\n"
        f"  drop_activations: '{__name__}:DropsActivations'\n"
        f"  raises: '{__name__}:Raises'\n"
        f"  interrupted: '{__name__}:no_graph_pass'\n"
        "  gone: 'no.such.module:Pass'\n"
        "pipelines: {mine: {summary: Mine., passes: [fuse_conv_bn, dce]}}\n"
        "effects: {'lib::norm': pure}\n"
    )
    return path


# -- run


def test_run_reports_and_returns_0_where_the_result_is_verified() -> None:
    done = call("run", *CONV_NORM)
    assert done.exit_code == 0, done.output
    assert "ConvNorm, eval mode" in done.stdout
    assert "yes (level sites" in done.stdout
    assert done.stderr == ""
    assert "\x1b" not in done.stdout


def test_run_infers_the_example_where_that_is_unambiguous() -> None:
    done = call("run", f"{HERE}:ConvNorm")
    assert done.exit_code == 0, done.output
    assert "example inferred: 1x3x32x32:float32" in done.stdout


def test_run_prints_the_report_as_json() -> None:
    done = call("run", *CONV_NORM, "--json", "--verify", "full")
    data = json.loads(done.stdout)
    assert data["verification"]["level"] == "full"
    assert [one["name"] for one in data["passes"]] == ["fuse_conv_bn", "dce"]


def test_seeds_decide_on_weights_and_inputs() -> None:
    def errors(seed: str) -> Any:
        data = json.loads(call("run", *CONV_NORM, "--json", "--seed", seed).stdout)
        return [check["error"] for check in data["verification"]["checks"]]

    assert errors("1") == errors("1")
    assert errors("1") != errors("2")


def test_options_reach_the_run() -> None:
    options = ["--skip", "1:fuse_conv_bn@/norm", "--on-failure", "skip", "--stop-after", "3"]
    data = json.loads(call("run", *CONV_NORM, "--json", "--train").stdout)
    assert data["training"] is True
    data = json.loads(call("run", *CONV_NORM, *options, "--json").stdout)
    assert data["training"] is False
    assert data["passes"][0]["rewrites"] == []
    data = json.loads(call("run", *CONV_NORM, "--json", "--only", "1:fuse_conv_bn@/norm").stdout)
    assert len(data["passes"][0]["rewrites"]) == 1
    data = json.loads(call("run", *CONV_NORM, "--json", "--stop-after", "0").stdout)
    assert data["passes"][0]["rewrites"] == []


def test_arguments_of_all_kinds_reach_the_model() -> None:
    inputs = ("4:int64[1,9]", "scale=scalar", "images=[3x2x2,2x2]", "power==2")
    done = call("run", f"{HERE}:Many", "-p", "dce", *(f"--input={one}" for one in inputs))
    assert done.exit_code == 0, done.output


def test_a_target_is_where_the_result_is() -> None:
    data = json.loads(call("run", *CONV_NORM, "--json", "--target", "cpu").stdout)
    assert data["target"] == "cpu"


TALKATIVE = """
from torch import nn
from fxpasses.core import foreign
print("of the file")

class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        print("of the factory")

    def forward(self, x):
        print("of the model")
        return x + 1 if x.sum() > 0 else x
"""


def test_what_a_model_prints_is_no_part_of_the_output(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "talkative.py").write_text(TALKATIVE)
    monkeypatch.setattr(sys, "path", list(sys.path))
    model = f"{tmp_path}/talkative.py:Net"
    done = call("run", model, "-p", "dce", "-i", "4", "--json", "--verify", "off")
    del sys.modules["talkative"]
    assert json.loads(done.stdout)["model"] == "Net"
    for speaker in ("file", "factory", "model"):
        assert f"of the {speaker}" in done.stderr


# -- what is wrong


def test_what_is_not_verified_returns_1_and_says_what_to_pass() -> None:
    done = call("run", f"{HERE}:Takes2", "-p", "dce")
    assert done.exit_code == 1
    assert "warning: the result is not verified" in done.stderr
    assert "give the example by --input" in done.stderr
    assert call("run", f"{HERE}:Takes2", "-p", "dce", "--verify", "off").exit_code == 0


def test_a_wrong_result_returns_1_and_names_the_rewrite(extra: Path) -> None:
    arguments = [f"{HERE}:ConvNorm", "-i", "1x3x6x6", "--registry", extra, "-p"]
    done = call("run", *arguments, "drop_activations,dce")
    assert done.exit_code == 1
    assert "1:drop_activations@/" in done.stderr
    assert done.stdout == ""
    skipping = call("run", *arguments, "drop_activations,dce", "--on-failure", "skip")
    assert skipping.exit_code == 0, skipping.output
    assert "undone" in skipping.stdout


def test_a_pass_that_raises_returns_1_and_shows_where_only_with_debug(extra: Path) -> None:
    arguments = ["run", *CONV_NORM, "--registry", str(extra), "-p", "raises"]
    done = call(*arguments)
    assert (done.exit_code, done.stdout) == (1, "")
    (line,) = done.stderr.splitlines()
    assert line.startswith("error: raises raised RuntimeError")
    debugged = call(*arguments, "--debug")
    assert debugged.exit_code == 1
    assert "Traceback" in debugged.stderr
    assert debugged.stderr.splitlines()[-1] == line


def test_a_bug_is_one_line_too(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object, **__: object) -> None:
        raise ZeroDivisionError("division by zero")

    monkeypatch.setattr(fxpasses, "run", broken)
    done = call("run", *CONV_NORM)
    assert done.exit_code == 1
    message = "error: ZeroDivisionError: division by zero (--debug shows where)"
    assert done.stderr.splitlines() == [message]


def test_an_interrupt_returns_130_in_one_line(extra: Path) -> None:
    done = call("run", *CONV_NORM, "--registry", str(extra), "-p", "interrupted")
    assert (done.exit_code, done.stdout, done.stderr) == (130, "", "interrupted\n")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["run", "resnet50"], "MODEL='resnet50': pass torchvision:NAME"),
        (["run", f"{HERE}:ConvNorm", "-p", "fuse_conv_bm"], "did you mean fuse_conv_bn?"),
        (["run", f"{HERE}:ConvNorm", "-p", "dce{x=1}"], "dce has no option 'x'"),
        (["run", f"{HERE}:ConvNorm", "-i", "axb"], "--input 'axb': expected a shape"),
        (["run", *CONV_NORM, "--registry", "no.yaml"], "no.yaml cannot be read"),
        (["run", *CONV_NORM, "--report", "a.pdf"], "--report a.pdf: end it in .txt, .md, .html"),
        (["run", *CONV_NORM, "-o", "a.onnx"], "--output a.onnx: end it in .pt, .pth, .py"),
        (["run", *CONV_NORM, "-o", "no/folder/a.pt"], "there is no folder"),
        (["run", *CONV_NORM, "--target", "tpu"], "target='tpu'"),
        (["run", *CONV_NORM, "--skip", "2:dce@/x"], "no pass proposes the rewrite '2:dce@/x'"),
        (["capture", f"{HERE}:ConvNorm", "--leaf", "no.such"], "leaf_functions"),
        (["passes", "dcee"], "there is no pass or pipeline 'dcee'; did you mean dce?"),
        (["run"], "Missing argument"),
        (["run", *CONV_NORM, "--verify", "some"], "'some' is not one of"),
        (["run", *CONV_NORM, "--stop-after", "-1"], "--stop-after"),
        (["runn"], "No such command"),
    ],
)
def test_wrong_use_returns_2_and_says_what_is_right(arguments: list[str], message: str) -> None:
    done = call(*arguments)
    assert done.exit_code == 2
    assert message in done.stderr
    assert "Traceback" not in done.stderr


def test_a_result_for_a_gpu_that_is_not_there_returns_2(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    done = call("run", *CONV_NORM, "--target", "cuda")
    assert done.exit_code == 2
    assert "torch finds no GPU here" in done.stderr
    assert call("plan", *CONV_NORM, "--target", "cuda").exit_code == 0


def test_warnings_of_ours_are_lines_and_no_filter_hides_or_raises_them() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        done = call("run", f"{HERE}:ConvNorm", "--train", "-i", "2x3x6x6")
    assert "warning: the model is in training mode" in done.stderr


# -- files


@pytest.mark.parametrize("suffix", REPORTS)
def test_the_report_is_written_in_the_form_of_its_suffix(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"report{suffix}"
    done = call("run", *CONV_NORM, "--report", path)
    assert done.exit_code == 0
    assert done.stderr == f"written: {path}\n"
    content = path.read_text(encoding="utf-8")
    assert "1:fuse_conv_bn@/norm" in content
    if suffix == ".json":
        assert json.loads(content)["model"] == "ConvNorm"


def test_a_result_that_was_saved_computes_the_same(tmp_path: Path) -> None:
    path = tmp_path / "fast.pt"
    done = call("run", *CONV_NORM, "-o", path)
    assert done.exit_code == 0
    assert "weights_only=False" in done.stderr
    loaded = torch.load(path, weights_only=False)
    assert [one.name for one in tmp_path.iterdir()] == ["fast.pt"]
    assert len(fxpasses.report(loaded).record.passes) == 2
    torch.manual_seed(0)
    model = pytest.importorskip(HERE).ConvNorm().eval()
    x: Tensor = torch.randn(2, 3, 6, 6)
    torch.testing.assert_close(loaded(x), model(x))


def test_what_cannot_be_saved_leaves_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(result: object, path: Path) -> None:
        path.write_text("half")
        raise AttributeError("cannot pickle it")

    monkeypatch.setattr(torch, "save", fails)
    done = call("run", *CONV_NORM, "-o", tmp_path / "fast.pt")
    assert done.exit_code == 1
    assert "cannot pickle it" in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_the_code_of_every_graph_is_written(tmp_path: Path) -> None:
    path = tmp_path / "code.py"
    assert call("run", f"{HERE}:Branches", "-p", "dce", "-i", "1x4[1,2]", "-o", path).exit_code == 0
    code = path.read_text()
    compile(code, "code.py", "exec")
    assert "# the model\n" in code
    assert "# inner\n" in code


# -- plan, capture, passes


def test_plan_shows_what_would_be_done_and_verifies_nothing() -> None:
    done = call("plan", *CONV_NORM)
    assert done.exit_code == 0
    assert "a plan: nothing was changed" in done.stdout
    assert json.loads(call("plan", *CONV_NORM, "--json").stdout)["dry_run"] is True


def test_capture_shows_what_runs_its_own_code_and_why() -> None:
    done = call("capture", f"{HERE}:Branches", "-i", "1x4[1,2]")
    assert done.exit_code == 0
    assert "Branches, eval mode" in done.stdout
    assert "control_flow" in done.stdout
    data = json.loads(call("capture", f"{HERE}:Branches", "-i", "1x4[1,2]", "--json").stdout)
    assert list(data["graphs"]) == ["inner"]
    assert 0 < data["calls_covered"] < 1


def test_capture_shows_the_code_of_the_graphs() -> None:
    done = call("capture", f"{HERE}:ConvNorm", "--code", "--sizes", "kinds")
    assert done.exit_code == 0
    assert "# the model\ndef forward(self, x):" in done.stdout


def test_advise_shows_what_costs_speed_and_what_to_do(tmp_path: Path) -> None:
    path = tmp_path / "advice.md"
    done = call("advise", f"{HERE}:Branches", "-i", "1x4[1,2]", "--report", path)
    assert done.exit_code == 0, done.output
    assert "models.py" in done.stdout
    assert "what to do: " in done.stdout
    assert "models.py" in path.read_text(encoding="utf-8")
    assert json.loads(call("advise", f"{HERE}:Branches", "-i", "1x4[1,2]", "--json").stdout)


def test_passes_lists_all_with_numerics_options_and_origin() -> None:
    done = call("passes")
    assert done.exit_code == 0
    lines = {line.split()[0]: line for line in done.stdout.splitlines()[1:]}
    assert "largest_bytes=1048576" in done.stdout
    for entry in Registry.default().passes():
        assert entry.name in done.stdout
    assert "exact" in lines["dce"]
    assert lines["dce"].endswith("fxpasses")


def test_passes_shows_more_where_it_is_asked_for_and_what_is_broken(extra: Path) -> None:
    done = call("passes", "--registry", extra, "--details")
    assert done.exit_code == 0
    assert "gone: the pass gone of" in done.stdout
    assert "No module named 'no'" in done.stdout
    assert "lib::norm: pure, says" in done.stdout
    assert "largest_bytes takes an integer" in done.stdout
    (mine,) = [line for line in done.stdout.splitlines() if " mine " in line]
    assert mine.split() == ["mine", "Mine.", "fuse_conv_bn,dce", str(extra)]


def test_passes_lists_only_what_is_named() -> None:
    data = json.loads(call("passes", "dce", "inference", "--json").stdout)
    assert [one["name"] for one in data["passes"]] == ["dce"]
    assert [one["name"] for one in data["pipelines"]] == ["inference"]


# -- help


def test_every_command_has_its_help_in_plain_text() -> None:
    for command in ("run", "plan", "passes", "capture", "advise", "draw", "diff"):
        done = call(command, "--help")
        assert done.exit_code == 0
        assert f"{command} [OPTIONS]" in done.stdout
    assert "Exit codes: 0 verified, 1 failed" in " ".join(call("--help").stdout.split())


def test_the_version_is_shown() -> None:
    assert call("--version").stdout == f"fxpasses {fxpasses.__version__}\n"


def test_the_graphs_between_passes_are_written(tmp_path: Path) -> None:
    done = call("run", *CONV_NORM, "--dump", tmp_path / "all")
    changed = call("run", *CONV_NORM, "--dump", tmp_path / "some", "--dump-changed")

    assert (done.exit_code, changed.exit_code) == (0, 0)
    names = ["00_captured.py", "01_fuse_conv_bn.py", "02_dce.py"]
    assert sorted(path.name for path in (tmp_path / "all").iterdir()) == names
    assert {path.name for path in (tmp_path / "some").iterdir()} <= set(names)


def test_a_folder_that_cannot_be_written_is_wrong_use(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")

    done = call("run", *CONV_NORM, "--dump", tmp_path / "file")

    assert done.exit_code == 2
    assert "it cannot be written to" in done.output

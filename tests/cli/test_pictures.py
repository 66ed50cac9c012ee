"""`draw` and `diff`: what they print and write, and that nothing has to be there that draws."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from fxpasses.cli import app

MODEL = ("tests.cli.models:ConvNorm", "-i", "2x3x6x6")


def call(*arguments: object) -> Any:
    return CliRunner().invoke(app, [str(one) for one in arguments])


def test_draw_prints_the_graph() -> None:
    shown = call("draw", *MODEL)
    assert shown.exit_code == 0
    assert shown.stdout.startswith("ConvNorm, ")
    assert "batch_norm" in shown.stdout


def test_draw_infers_the_example_where_that_is_unambiguous() -> None:
    assert "f32" in call("draw", "tests.cli.models:ConvNorm").stdout


def test_diff_prints_what_became_of_each_node() -> None:
    shown = call("diff", *MODEL, "-p", "fuse_conv_bn,dce")
    assert shown.exit_code == 0
    first, *lines = shown.stdout.splitlines()
    assert "+ 1 added, - 2 removed" in first
    assert {line[0] for line in lines} == {" ", "+", "-"}


def test_the_record_is_printed() -> None:
    data = json.loads(call("diff", *MODEL, "-p", "fuse_conv_bn,dce", "--json").stdout)
    assert (data["counts"]["added"], data["counts"]["removed"]) == (1, 2)
    signs = [box["sign"] for box in data["boxes"].values()]
    assert signs.count("removed") == 2


def test_only_what_is_near_is_shown() -> None:
    shown = call("draw", *MODEL, "--focus", "norm", "--hops", "0")
    assert len(shown.stdout.splitlines()) == 2
    wrong = call("draw", *MODEL, "--focus", "nomr")
    assert wrong.exit_code == 2
    assert "did you mean norm" in wrong.stderr


@pytest.mark.parametrize("option", ["--color", "--colour"])
def test_colours_show_bytes_and_errors(option: str) -> None:
    assert "864 B" in call("draw", *MODEL, option, "memory").stdout
    assert "not measured" in call("draw", *MODEL, option, "saved").stdout
    errors = call("diff", *MODEL, option, "error", "-p", "fuse_conv_bn").stdout
    (new,) = [line for line in errors.splitlines() if line.startswith("+")]
    assert "not measured" not in new


def test_the_picture_is_written_and_what_drew_it_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dot = tmp_path / "dot"
    dot.write_text("#!/bin/sh\necho '<svg></svg>'\n")
    dot.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    shown = call("draw", *MODEL, "-o", tmp_path / "net.svg")
    assert (shown.exit_code, shown.stdout) == (0, "")
    assert f"written: {tmp_path / 'net.svg'}, drawn by Graphviz dot" in shown.stderr
    assert (tmp_path / "net.svg").read_text().startswith("<!-- drawn by Graphviz dot -->")


@pytest.mark.parametrize(("suffix", "written"), [(".svg", ".svg"), (".png", ".txt")])
def test_without_a_renderer_the_text_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, suffix: str, written: str
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    shown = call("draw", *MODEL, "-o", tmp_path / f"net{suffix}")
    assert shown.exit_code == 0
    assert "no Graphviz was found: install `dot`" in shown.stderr
    assert "batch_norm" in (tmp_path / f"net{written}").read_text()


def test_a_picture_of_no_known_form_is_wrong_use(tmp_path: Path) -> None:
    shown = call("draw", *MODEL, "-o", tmp_path / "net.pdf")
    assert shown.exit_code == 2
    assert "end it in .svg, .png" in shown.stderr


@pytest.mark.parametrize("command", [("draw",), ("diff", "-p", "fuse_conv_bn,dce")])
def test_time_is_measured_for_its_colours(command: tuple[str, ...]) -> None:
    name, *options = command
    boxes = json.loads(call(name, *MODEL, *options, "--color", "time", "--json").stdout)["boxes"]
    computing = [box for box in boxes.values() if box["title"] not in ("input", "output")]
    measured = [box for box in computing if box["sign"] != "removed"]
    assert measured
    assert all(box["measured"] > 0 for box in measured)

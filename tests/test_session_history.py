"""The stages of a run: kept by `history=True`, written by `dump=`."""

import ast
import copy
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.fx import GraphModule

import fxpasses
from fxpasses.core import History, Stage
from fxpasses.errors import ArgumentError, PassError, ResultError, VerificationError
from fxpasses.session import dump as dumping
from tests.test_session import IMAGE, ConvNet, Raises, Wrong

GROUP = "(constant_fold,fuse_conv_bn,dce)*3"


def history_of(model: nn.Module, passes: Any, x: Tensor, **options: Any) -> History:
    return fxpasses.report(fxpasses.run(model, passes, (x,), history=True, **options)).history


class Opaque(nn.Module):
    """Decides on data, so that its child is a graph of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = ConvNet()

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x) if x.sum() > 0 else self.inner(-x)


# -- kept


def test_a_stage_is_had_by_name_number_and_occurrence() -> None:
    history = history_of(ConvNet(), GROUP, IMAGE)

    names = ["constant_fold", "fuse_conv_bn", "dce"]
    assert [stage.name for stage in history] == ["captured", *names, *names]
    assert [stage.number for stage in history] == list(range(7))
    assert history.at("fuse_conv_bn") is history.at(2) is history.at("fuse_conv_bn", 1)
    assert history.at("fuse_conv_bn", 2) is history.at("fuse_conv_bn", -1) is history.at(-2)
    assert history.before("fuse_conv_bn") is history.at("constant_fold")
    assert history.at("captured").record is None
    assert str(history).splitlines()[2] == "2 fuse_conv_bn: changed, 2 rewrites, 5 nodes"


def test_a_stage_is_what_its_pass_left() -> None:
    model = ConvNet()
    history = history_of(model, "fuse_conv_bn,swap_activation{mapping={relu=silu}}", IMAGE)
    captured, fused, swapped = history

    expected = model(IMAGE)
    torch.testing.assert_close(captured.graph_module(IMAGE), expected, rtol=0, atol=0)
    torch.testing.assert_close(fused.graph_module(IMAGE), expected)
    assert not torch.allclose(swapped.graph_module(IMAGE), expected, atol=1e-3)
    assert captured.nodes == fused.nodes + 2


def test_a_stage_is_printed_drawn_and_compared() -> None:
    history = history_of(ConvNet(), "fuse_conv_bn", IMAGE)
    captured, fused = history

    assert "self.norm(" in captured.code
    assert "self.norm(" not in fused.code
    (line,) = [one for one in fused.code.splitlines() if " relu = " in one]
    assert line.startswith("    relu = torch.relu(conv_1)  # 2x4x6x6 f32; ")
    assert "test_session.py:" in line
    assert "fuse_conv_bn of norm, conv" in fused.code
    assert str(fused).startswith("# 1 fuse_conv_bn: changed")
    assert "relu" in fxpasses.draw(fused).text()
    assert "+ 2 added, - 4 removed" in fxpasses.diff(captured, fused).text()


def test_the_graphs_below_an_opaque_model_are_in_every_stage() -> None:
    model = Opaque().eval()
    history = history_of(model, "fuse_conv_bn", IMAGE)

    assert "# inner" in history.at("fuse_conv_bn").code
    assert "- inner/norm" in fxpasses.diff(*history).text()
    for stage in history:
        torch.testing.assert_close(stage.graph_module(IMAGE), model(IMAGE))


def test_stages_share_their_tensors() -> None:
    model = ConvNet()
    fast = fxpasses.run(model, GROUP, (IMAGE,), history=True)

    storages = [storages_of(stage.graph_module) for stage in fxpasses.report(fast).history]
    known = storages_of(model) | storages_of(fast) | storages[0]
    assert set().union(*storages) <= known
    parameters = {one.untyped_storage().data_ptr() for one in model.parameters()}
    assert parameters <= storages[0]


def storages_of(module: nn.Module) -> set[int]:
    tensors = [*module.parameters(), *module.buffers()]
    return {tensor.untyped_storage().data_ptr() for tensor in tensors}


def test_calling_a_stage_changes_nothing_of_the_model() -> None:
    model = ConvNet().train()
    before = copy.deepcopy(model.state_dict())

    for stage in history_of(model, "dce", IMAGE):
        stage.graph_module(IMAGE)

    torch.testing.assert_close(model.state_dict(), before, rtol=0, atol=0)


@pytest.mark.parametrize("verify", [False, True, "each"])
def test_how_it_is_verified_changes_no_stage(verify: Any) -> None:
    history = history_of(ConvNet(), GROUP, IMAGE, verify=verify)

    assert [stage.name for stage in history][:3] == ["captured", "constant_fold", "fuse_conv_bn"]
    assert len(history) == 7


def test_what_was_undone_is_in_no_stage() -> None:
    passes = ["fuse_conv_bn", Wrong()]
    history = history_of(ConvNet(), passes, IMAGE, on_failure="skip")

    assert [stage.status for stage in history] == ["captured", "changed", "unchanged"]
    assert "mul" not in history.at("wrong").code


def test_a_pass_that_failed_has_left_what_it_found() -> None:
    history = history_of(ConvNet(), [Raises(), "fuse_conv_bn"], IMAGE, on_failure="skip")

    assert history.at("raises").status == "failed"
    assert history.at("raises").code == history.at("captured").code


def test_without_passes_there_is_what_was_captured() -> None:
    (only,) = history_of(ConvNet(), [], IMAGE)

    assert only.name == "captured"


def test_foreign_passes_are_stages_too() -> None:
    def drop_norms(module: GraphModule) -> None:
        for node in module.graph.nodes:
            if node.target == "second_norm":
                node.replace_all_uses_with(node.args[0])
        module.graph.eliminate_dead_code()
        module.recompile()

    history = history_of(ConvNet(), [drop_norms], IMAGE, verify=False)

    assert "second_norm(" in history.at("captured").code
    assert "second_norm(" not in history.at("drop_norms").code


@pytest.mark.parametrize(
    ("ask", "message"),
    [
        (lambda h: h.at("fuse_conv"), "no stage 'fuse_conv': there is captured, constant_fold"),
        (lambda h: h.at(7), "no stage 7: there are 0 to 6"),
        (lambda h: h.at("dce", 3), "occurrence=3: dce ran 2 times"),
        (lambda h: h.at("dce", 0), "occurrence=0"),
        (lambda h: h.at(None), "no stage None"),
        (lambda h: h.before("captured"), "nothing comes before"),
    ],
)
def test_what_is_not_there_is_told(ask: Callable[[History], Stage], message: str) -> None:
    history = history_of(ConvNet(), GROUP, IMAGE, verify=False)

    with pytest.raises(ArgumentError, match=message):
        ask(history)


def test_without_history_the_report_says_how_to_have_one() -> None:
    report = fxpasses.report(fxpasses.run(ConvNet(), "dce", (IMAGE,)))

    with pytest.raises(ResultError, match="history=True"):
        _ = report.history


@pytest.mark.parametrize(
    "copied", [copy.deepcopy, lambda result: pickle.loads(pickle.dumps(result))]
)
def test_pickles_and_deep_copies_are_without(copied: Callable[[Any], Any]) -> None:
    plain = fxpasses.run(ConvNet(), GROUP, (IMAGE,))
    fast = fxpasses.run(ConvNet(), GROUP, (IMAGE,), history=True)

    with pytest.raises(ResultError, match="without"):
        _ = fxpasses.report(copied(fast)).history
    sizes = len(pickle.dumps(fast)), len(pickle.dumps(plain))
    assert abs(sizes[0] - sizes[1]) < 500
    assert len(fxpasses.report(copy.copy(fast)).history) == 7


# -- written


def files_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_every_stage_is_a_file(tmp_path: Path) -> None:
    fxpasses.run(ConvNet(), GROUP, (IMAGE,), dump=tmp_path / "a" / "b")

    assert files_in(tmp_path / "a" / "b") == [
        "00_captured.py",
        "01_constant_fold.py",
        "02_fuse_conv_bn.py",
        "03_dce.py",
        "04_constant_fold.py",
        "05_fuse_conv_bn.py",
        "06_dce.py",
    ]
    text = (tmp_path / "a" / "b" / "02_fuse_conv_bn.py").read_text()
    assert text.startswith("# fxpasses, stage 2 fuse_conv_bn: changed, 2 rewrites, 5 nodes\n")
    assert "# rewrite 2:fuse_conv_bn@/norm: " in text
    ast.parse(text)


def test_only_the_changed_ones(tmp_path: Path) -> None:
    fxpasses.run(ConvNet(), GROUP, (IMAGE,), dump=str(tmp_path), dump_changed=True)

    assert files_in(tmp_path) == ["00_captured.py", "02_fuse_conv_bn.py", "03_dce.py"]


def test_files_of_an_earlier_run_go_and_others_stay(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("x = 1\n")
    (tmp_path / "07_mine.py").write_text("")
    fxpasses.run(ConvNet(), GROUP, (IMAGE,), dump=tmp_path)

    fxpasses.run(ConvNet(), "dce", (IMAGE,), dump=tmp_path)

    assert files_in(tmp_path) == ["00_captured.py", "01_dce.py", "07_mine.py", "mine.py"]


def test_numbers_have_as_many_digits_as_the_last_needs(tmp_path: Path) -> None:
    fxpasses.run(ConvNet(), "(dce)*100", (IMAGE,), dump=tmp_path, verify=False)

    assert files_in(tmp_path) == ["000_captured.py", "001_dce.py"]


def test_a_pass_of_any_name_makes_a_file_of_a_plain_name(tmp_path: Path) -> None:
    hostile = fxpasses.foreign(lambda module: None, name="../x y\n" + "z" * 300)

    fxpasses.run(ConvNet(), [hostile], (IMAGE,), dump=tmp_path)

    assert files_in(tmp_path) == ["00_captured.py", f"01_x_y_{'z' * 55}.py"]
    ast.parse((tmp_path / files_in(tmp_path)[1]).read_text())


def test_what_a_failing_run_came_to_is_there(tmp_path: Path) -> None:
    with pytest.raises(PassError):
        fxpasses.run(ConvNet(), ["fuse_conv_bn", Raises()], (IMAGE,), dump=tmp_path)

    assert files_in(tmp_path) == ["00_captured.py", "01_fuse_conv_bn.py", "02_raises.py"]
    assert "# failed: " in (tmp_path / "02_raises.py").read_text()


def test_verifying_each_leaves_the_stages_up_to_the_wrong_one(tmp_path: Path) -> None:
    passes = ["fuse_conv_bn", Wrong(), "dce"]
    with pytest.raises(VerificationError):
        fxpasses.run(ConvNet(), passes, (IMAGE,), dump=tmp_path, verify="each")

    assert files_in(tmp_path) == ["00_captured.py", "01_fuse_conv_bn.py", "02_wrong.py"]


def test_an_interrupted_run_leaves_whole_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fxpasses.run(ConvNet(), GROUP, (IMAGE,), dump=tmp_path / "whole")
    write_text, writes = Path.write_text, []

    def interrupted(path: Path, text: str, **options: Any) -> int:
        writes.append(path)
        if len(writes) < 4:
            return write_text(path, text, **options)
        write_text(path, text[: len(text) // 2], **options)
        raise KeyboardInterrupt

    monkeypatch.setattr(dumping.Path, "write_text", interrupted)
    with pytest.raises(KeyboardInterrupt):
        fxpasses.run(ConvNet(), GROUP, (IMAGE,), dump=tmp_path / "cut")
    monkeypatch.undo()

    assert files_in(tmp_path / "cut") == ["00_captured.py", "01_constant_fold.py"]
    for name in files_in(tmp_path / "cut"):
        assert (tmp_path / "cut" / name).read_text() == (tmp_path / "whole" / name).read_text()


class Untouchable(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        raise AssertionError("it was run")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"dump": "file/below"}, "dump='file/below': it cannot be written to, Not a directory"),
        ({"dump": "file"}, "it cannot be written to, File exists"),
        ({"dump": 3}, "dump=3: pass the name of a folder"),
        ({"dump_changed": True}, "dump_changed=True without dump"),
        ({"dump": "folder", "dump_changed": 1}, "dump_changed=1: pass True or False"),
        ({"history": "yes"}, "history='yes': pass True or False"),
    ],
)
def test_wrong_use_is_told_before_anything_runs(
    options: dict[str, Any],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("file").write_text("")

    with pytest.raises(ArgumentError, match=message):
        fxpasses.run(Untouchable(), "dce", (IMAGE,), **options)

"""On a terminal there is colour, and a bar once it lasts; else everything is plain text."""

import io
import operator
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from torch import nn
from typer.testing import CliRunner

import fxpasses
from fxpasses.cli import app
from fxpasses.cli.progress import Bar
from fxpasses.registry import Registry

CHECKOUT = Path(__file__).resolve().parents[2]
ESCAPE = "\x1b["


@pytest.mark.parametrize(
    ("environment", "plain"),
    [
        ({}, True),
        ({"FORCE_COLOR": "1"}, False),
        ({"FORCE_COLOR": "1", "NO_COLOR": "1"}, True),
        ({"FORCE_COLOR": "1", "TERM": "dumb"}, True),
    ],
)
def test_output_is_plain_without_a_terminal_or_colour(
    environment: dict[str, str], plain: bool
) -> None:
    unset = {"NO_COLOR": None, "FORCE_COLOR": None, "TERM": "xterm"}
    for arguments in (["passes"], ["passes", "--details"], ["passes", "--json"]):
        done = CliRunner().invoke(app, arguments, env={**unset, **environment}, color=True)
        assert done.exit_code == 0
        assert (ESCAPE in done.stdout) is (not plain and "--json" not in arguments)
        assert "fuse_conv_bn" in done.stdout


def shown_by(bar: Bar, console: Console) -> str:
    """What a run shows on a terminal with this bar."""
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4)).eval()
    seen: list[Any] = []

    class Looking(Bar):
        def __init__(self) -> None: ...

        def stage(self, name: str) -> None:
            bar.stage(name)
            seen.append(name)

        def started(self, record, program) -> None:
            bar.started(record, program)
            bar._progress.refresh()

        def progress(self, done, known) -> None:
            bar.progress(done, known)
            (task,) = bar._progress.tasks
            assert (task.completed, task.total) == (done, known)
            seen.append((done, known))

    with bar:
        fxpasses.run(model, "inference", observers=[Looking()])
    assert seen[0] == "capture"
    assert {"passes", "verify"} <= set(seen)
    steps = seen[seen.index("verify") + 1 :]
    done, known = zip(*steps, strict=True)
    assert done == tuple(range(1, len(steps) + 1))
    assert all(map(operator.le, done, known))
    # Six forwards as a rule, and one rewrite: known from the beginning.
    assert known == (7,) * 7
    return console.file.getvalue()


def terminal() -> Console:
    return Console(file=io.StringIO(), force_terminal=True, width=80, _environ={"TERM": "xterm"})


def test_a_bar_shows_what_is_done_and_goes_away() -> None:
    console = terminal()
    bar = Bar("preparing", Registry.default().resolve("inference"), console=console, patience=0)
    shown = shown_by(bar, console)
    assert "fuse_conv_bn" in shown
    assert "round 2" in shown
    assert shown.endswith("\x1b[2K")  # the line of the bar is cleared


def test_no_bar_is_shown_where_nobody_has_to_wait() -> None:
    console = terminal()
    assert "fuse_conv_bn" not in shown_by(Bar("preparing", console=console, patience=60), console)


def test_no_bar_is_shown_without_a_terminal() -> None:
    console = Console(file=io.StringIO(), force_terminal=False)
    assert shown_by(Bar("preparing", console=console, patience=0), console) == ""


def test_observers_are_observers() -> None:
    with pytest.raises(fxpasses.errors.ArgumentError, match="observers='x': pass a collection"):
        fxpasses.run(nn.ReLU(), "dce", observers="x")
    with pytest.raises(fxpasses.errors.ArgumentError, match="observers is the class Bar"):
        fxpasses.run(nn.ReLU(), "dce", observers=[Bar])


# -- as a program

SLOW = """
import os, time
from torch import nn

class Slow(nn.Module):
    def forward(self, x):
        os.write(1, b"running\\n")
        time.sleep(60)
        return x
"""


def environment(**more: str) -> dict[str, str]:
    return os.environ | {"PYTHONPATH": str(CHECKOUT), **more}


def test_an_interrupt_ends_a_program_with_130_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "slow.py").write_text(SLOW)
    command = [sys.executable, "-m", "fxpasses", "run", "slow.py:Slow", "-p", "dce", "-i", "2"]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, cwd=tmp_path, env=environment(), **pipes) as program:
        assert program.stdout.readline() == "running\n"
        program.send_signal(signal.SIGINT)
        _, errors = program.communicate(timeout=60)
    assert (program.returncode, errors) == (130, "interrupted\n")


def test_help_and_version_do_not_wait_for_torch() -> None:
    code = (
        "import sys\nfrom fxpasses.cli import app\n"
        "for arguments in (['--version'], ['--help'], ['run', '--help']):\n"
        "    app(arguments, standalone_mode=False)\n"
        "assert 'torch' not in sys.modules\n"
    )
    command = [sys.executable, "-c", code]
    subprocess.run(command, check=True, env=environment(), stdout=subprocess.DEVNULL)


def test_a_module_of_the_folder_is_found_by_the_program(tmp_path: Path) -> None:
    (tmp_path / "nets.py").write_text("from torch import nn\nNet = nn.Tanh\n")
    code = "import sys; sys.path.remove(''); from fxpasses.cli import main; main()"
    command = [sys.executable, "-c", code, "plan", "nets:Net", "-p", "dce", "--json"]
    done = subprocess.run(
        command, cwd=tmp_path, env=environment(), capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert '"model": "Tanh"' in done.stdout

"""The example plugin, installed as a user would: found, listed, run, and its own tests pass."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

CHECKOUT = Path(__file__).resolve().parent.parent
PLUGIN = CHECKOUT / "tests" / "plugin"


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the plugin, and with others that are broken, as pip leaves them."""
    folder = tmp_path_factory.mktemp("installed")
    flags = ["--quiet", "--no-deps", "--no-build-isolation", "--no-index"]
    command = [sys.executable, "-m", "pip", "install", *flags, "--target", folder, PLUGIN]
    subprocess.run(command, check=True, cwd=folder)
    return folder


def broken(folder: Path, name: str, yaml: str | None) -> None:
    """An installed package whose entry point leads nowhere, or to a file that is not understood."""
    info = folder / f"{name}-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[fxpasses.registry]\n{name} = {name}\n")
    if yaml is not None:
        (folder / name).mkdir()
        (folder / name / "__init__.py").write_text("raise SystemExit('imported')\n")
        (folder / name / "passes_registry.yaml").write_text(yaml)


def python(code: str, *folders: Path) -> str:
    done = subprocess.run(
        [sys.executable, "-c", code],
        check=False,
        capture_output=True,
        text=True,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(map(str, (CHECKOUT, *folders)))},
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_nothing_of_a_plugin_is_imported_before_a_pass_is_asked_for(installed: Path) -> None:
    code = """
import sys, fxpasses
loaded = lambda: sorted(name for name in sys.modules if name.startswith("example_passes"))
print(fxpasses.registry.names()[:2] != [], "leaner" in fxpasses.registry.names(), loaded())
fxpasses.registry.resolve("cleanup")
print(loaded())
fxpasses.registry.resolve("fuse_silu")
print(loaded())
"""
    assert python(code, installed).splitlines() == [
        "True True []",
        "[]",
        "['example_passes', 'example_passes.fuse_silu']",
    ]


def test_broken_plugins_are_one_line_each_and_break_nothing(
    installed: Path, tmp_path: Path
) -> None:
    broken(tmp_path, "gone", None)
    broken(tmp_path, "untidy", "version: 1\npases: {}\n")
    broken(tmp_path, "no_yaml", "version: [")
    broken(tmp_path, "grabbing", "version: 1\npasses: {share_sizes: 'grabbing:Pass'}\n")
    broken(tmp_path, "exiting", "version: 1\npasses: {leave: 'exiting:Pass'}\n")
    code = """
import warnings, torch, fxpasses
from fxpasses.registry import listed
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    listing = listed(fxpasses.registry)
for line in (*(str(one.message) for one in caught), "--", *listing.problems):
    print(line)
from typer.testing import CliRunner
from fxpasses.cli import app
print(" ".join(CliRunner().invoke(app, ["passes"]).output.split()))
model = torch.nn.Sequential(torch.nn.Linear(2, 2)).eval()
print(len(fxpasses.run(model, "fuse_silu,cleanup", torch.randn(1, 2)).graph.nodes))
"""
    *lines, shown, nodes = python(code, installed, tmp_path).splitlines()
    warned, problems = lines[: lines.index("--")], lines[lines.index("--") + 1 :]
    assert [line.partition(" is left out")[0] for line in problems] == [
        "the plugin gone",
        "the plugin no_yaml",
        "the plugin untidy",
        "the plugin grabbing (grabbing)",
    ]
    assert warned == problems[:3]
    assert "has the unknown key 'pases'; did you mean passes?" in problems[2]
    assert "share_sizes is claimed by the plugin grabbing (grabbing) and by" in problems[3]
    assert "leave: the pass leave of the plugin exiting (exiting) cannot be imported" in shown
    assert "fuse_silu rounding Compute a value times its own sigmoid as one SiLU." in shown
    assert "fuse_silu,share_sizes,dce the plugin example (example_passes)" in shown
    assert all(problem in shown for problem in problems)
    assert nodes == "3"


def test_its_own_tests_pass(installed: Path) -> None:
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", PLUGIN]
    path = os.pathsep.join(map(str, (CHECKOUT, installed)))
    done = subprocess.run(
        command,
        cwd=installed,
        check=False,
        capture_output=True,
        text=True,
        env=os.environ | {"PYTHONPATH": path, "PYTHONDONTWRITEBYTECODE": "1"},
    )
    assert done.returncode == 0, done.stdout

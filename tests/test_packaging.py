"""An installed wheel, away from the checkout, finds its registry; an editable install does too."""

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

CHECKOUT = Path(__file__).resolve().parent.parent
PROBE = """
import fxpasses, torch
print(fxpasses.__file__)
print(sorted(entry.name for entry in fxpasses.registry.passes()))
model = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), torch.nn.BatchNorm2d(4)).eval()
fast = fxpasses.run(model, "fuse_conv_bn,dce", torch.randn(1, 3, 6, 6))
print(len(fast.meta["fxpasses"]["passes"][0]["rewrites"]))
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    _python("-m", "build", "--wheel", "--no-isolation", "--outdir", str(folder), cwd=CHECKOUT)
    (path,) = folder.glob("*.whl")
    return path


def _python(*arguments: str, cwd: Path, path: Path | None = None) -> str:
    # `-P` keeps the current folder off the path, so that only what is installed is found.
    command = [sys.executable, "-P", *arguments]
    environment = {"PYTHONPATH": str(path)} if path else {}
    done = subprocess.run(
        command,
        cwd=cwd,
        env={"PATH": "/usr/bin:/bin", "HOME": str(cwd), **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_wheel_carries_what_it_needs(wheel: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    assert {"fxpasses/passes_registry.yaml", "fxpasses/py.typed"} <= names
    assert not [name for name in names if name.startswith(("tests/", "benchmarks/"))]


def test_an_installed_wheel_finds_its_registry(wheel: Path, tmp_path: Path) -> None:
    installed = tmp_path / "installed"
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    install = ["-m", "pip", "install", "--quiet", "--no-deps", "--no-index"]
    _python(*install, "--target", str(installed), str(wheel), cwd=elsewhere)

    file, passes, rewrites = _python("-c", PROBE, cwd=elsewhere, path=installed).splitlines()

    assert Path(file).is_relative_to(installed)
    assert "'fuse_conv_bn'" in passes
    assert rewrites == "1"
    script = str(installed / "bin" / "fxpasses")
    assert _python(script, "--version", cwd=elsewhere, path=installed).startswith("fxpasses ")


def test_an_editable_install_finds_its_registry(tmp_path: Path) -> None:
    # The command that runs these tests has installed the checkout so.
    file, passes, rewrites = _python("-c", PROBE, cwd=tmp_path).splitlines()
    assert Path(file).is_relative_to(CHECKOUT)
    assert "'fuse_conv_bn'" in passes
    assert rewrites == "1"

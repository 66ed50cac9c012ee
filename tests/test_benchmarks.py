"""The benchmark scripts run: the half of the GPU check that needs none, on one small model."""

import json
import re
import subprocess
import sys
from pathlib import Path

BENCHMARKS = Path(__file__).resolve().parent.parent / "benchmarks"


def _lines(script: str, *arguments: str) -> list[str]:
    command = [sys.executable, str(BENCHMARKS / script), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout.splitlines()


def test_the_gpu_check_without_a_gpu() -> None:
    small = ["--target", "cpu", "--models", "mobilenet_v3_large", "--batch", "1", "--size", "64"]
    *table, data = _lines("cuda_check.py", *small)
    assert len(table) == 2
    (outcome,) = json.loads(data)["outcomes"]
    assert outcome["ok"] is True
    assert outcome["rewrites"] >= 46
    assert outcome["difference"] < 1e-4


def test_the_main_job_writes_its_report(tmp_path: Path) -> None:
    small = ["--batch", "1", "--size", "64", "--rounds", "1"]
    lines = _lines("main_job.py", str(tmp_path), *small)
    assert lines[-1] == f"written: {tmp_path / 'report.json'}"
    report = (tmp_path / "report.txt").read_text()
    assert re.search(r"1  fuse_conv_bn +changed +53 ", report)
    assert json.loads((tmp_path / "report.json").read_text())["verification"]["ok"] is True


def test_fewer_operations_are_dispatched() -> None:
    (row,) = _lines("bench_dispatched.py", "--dry", "--models", "mobilenet_v2")
    _, name, before, fuse, ours, *_ = (cell.strip() for cell in row.split("|"))
    kernels = [int(cell.rpartition("(")[2].rstrip(")")) for cell in (before, fuse, ours)]
    assert name == "mobilenet_v2"
    assert kernels[2] <= kernels[1] < kernels[0]

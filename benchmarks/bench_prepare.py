"""What preparation costs: time against torch's own tracing and fusion, growth, memory, forwards.

Run it as `python benchmarks/bench_prepare.py [--quick] [--only NAME ...]`; it prints its rows and
writes benchmarks/results/prepare.md. Ratios are of medians measured in turn.
"""

import argparse
import gc
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from memory import (
    bytes_of_float64_forward,
    bytes_of_largest_region,
    peak_bytes,
    verification_of,
)
from models import built, images
from torch import Tensor, nn
from torch.fx import symbolic_trace
from torch.fx.experimental.optimization import fuse
from torchvision import models

import fxpasses
from fxpasses.core import Fold, Folds

PASSES = "fuse_conv_bn,dce"
RESULTS = Path(__file__).resolve().parent / "results" / "prepare.md"


@dataclass(frozen=True)
class Row:
    """One measured figure and what it must not exceed."""

    what: str
    value: float
    unit: str
    limit: float | None = None

    def __str__(self) -> str:
        limit = "" if self.limit is None else f"{self.limit:g} {self.unit}".strip()
        met = "" if self.limit is None else ("yes" if self.value <= self.limit else "NO")
        return f"| {self.what} | {self.value:.3g} {self.unit} | {limit} | {met} |"


def main() -> None:
    arguments = _arguments()
    if arguments.measure_memory:
        print(_extra_memory(arguments.measure_memory))
        return
    torch.set_num_threads(1)
    rounds = 3 if arguments.quick else 9
    sections: dict[str, Callable[[], Iterator[Row]]] = {
        "time": lambda: times(rounds),
        "growth": lambda: growth(2 if arguments.quick else 5),
        "memory": memory,
        "verification": verification,
    }
    rows: list[Row] = []
    for name, section in sections.items():
        if arguments.only and name not in arguments.only:
            continue
        for row in section():
            print(row, flush=True)
            rows.append(row)
    if not arguments.only:
        RESULTS.parent.mkdir(parents=True, exist_ok=True)
        RESULTS.write_text(_page(rows), encoding="utf-8")
        print(f"written: {RESULTS}")


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="fewer rounds")
    parser.add_argument("--only", nargs="+", choices=["time", "growth", "memory", "verification"])
    parser.add_argument("--measure-memory", metavar="MODEL", help=argparse.SUPPRESS)
    return parser.parse_args()


def _page(rows: list[Row]) -> str:
    head = f"torch {torch.__version__}, one thread, medians of pairs measured in turn"
    table = ["| what | measured | at most | met |", "|---|---|---|---|", *map(str, rows)]
    return "\n".join(["# Preparation", "", head, "", *table, ""])


# -- time


def times(rounds: int) -> Iterator[Row]:
    """Preparation without and with an example, in units of torch's own tools and of forwards."""
    for name in ("resnet152", "efficientnet_b7"):
        yield from _times_of(name, built(getattr(models, name)), images(1, 224), rounds)


def _times_of(name: str, model: nn.Module, example: Tensor, rounds: int) -> Iterator[Row]:
    def run(*example: Tensor) -> nn.Module:
        return fxpasses.run(model, PASSES, example or None, verify=False)

    trace, rest, whole, torch_fuse = _in_turn(
        rounds,
        lambda: symbolic_trace(model),
        _without_arithmetic(run),
        run,
        lambda: fuse(model),
    )
    yield Row(f"{name}: run less its weight arithmetic / symbolic_trace", rest / trace, "x", 3)
    yield Row(f"{name}: run / torch's fuse", whole / torch_fuse, "x", 1.5)
    with torch.no_grad():
        forward, with_example = _in_turn(rounds, lambda: model(example), lambda: run(example))
    extra = (with_example - whole) / forward
    yield Row(f"{name}: what the example adds", extra, "forwards", 2)
    seconds = {"symbolic_trace": trace, "fuse": torch_fuse, "run": whole, "forward": forward}
    for what, value in {**seconds, "run without weight arithmetic": rest}.items():
        yield Row(f"{name}: {what}", 1e3 * value, "ms")


def _without_arithmetic(run: Callable[[], object]) -> Callable[[], object]:
    """The same run, given the weights that it folded before in place of computing them.

    Timing the folds and taking that away would count as preparation what the arithmetic does to
    the caches of all that runs between two folds.
    """
    fold, values = Folds.fold, list[Tensor]()

    def recorded(*arguments: Any, **options: Any) -> Fold:
        made = fold(*arguments, **options)
        values.append(made.value)
        return made

    with patch.object(Folds, "fold", recorded):
        run()

    def replayed() -> object:
        left = iter(values)

        def given(self: Folds, formula: Any, sources: Any, *_: Any, **__: Any) -> Fold:
            return self.add(Fold(next(left), formula, tuple(sources)))

        with patch.object(Folds, "fold", given):
            return run()

    return replayed


def _in_turn(rounds: int, *works: Callable[[], object]) -> list[float]:
    """Median seconds of each, measured in turn so that all see the same machine.

    Each starts after a garbage collection, so that none pays for what another has dropped.
    """
    seconds: list[list[float]] = [[] for _ in works]
    for work in works:
        work()
    for _ in range(rounds):
        for work, times_of_work in zip(works, seconds, strict=True):
            gc.collect()
            start = time.perf_counter()
            work()
            times_of_work.append(time.perf_counter() - start)
    return [statistics.median(one) for one in seconds]


# -- growth


class Chain(nn.Module):
    """A chain of additions: one node each."""

    def __init__(self, length: int) -> None:
        super().__init__()
        self.length = length

    def forward(self, x: Tensor) -> Tensor:
        for _ in range(self.length):
            x = torch.add(x, 1.0)
        return x


def growth(rounds: int) -> Iterator[Row]:
    """From 1,000 to 20,000 nodes, against torch's trace with lint and recompilation."""

    def ours(model: nn.Module) -> object:
        return fxpasses.run(model, PASSES, verify=False)

    def torchs(model: nn.Module) -> object:
        traced = symbolic_trace(model)
        traced.graph.lint()
        return traced.recompile()

    small, large = Chain(1_000), Chain(20_000)
    ours_small, torchs_small = _in_turn(3 * rounds, lambda: ours(small), lambda: torchs(small))
    ours_large, torchs_large = _in_turn(rounds, lambda: ours(large), lambda: torchs(large))
    yield Row("growth from 1,000 to 20,000 nodes, ours", ours_large / ours_small, "x")
    yield Row("growth from 1,000 to 20,000 nodes, torch's", torchs_large / torchs_small, "x")
    relative = (ours_large / ours_small) / (torchs_large / torchs_small)
    yield Row("growth against torch's", relative, "x", 1.3)


# -- memory


def memory() -> Iterator[Row]:
    """Peak extra memory of an unverified run, each in a process of its own."""
    for name in ("resnet50", "regnet_y_32gf"):
        command = [sys.executable, __file__, "--measure-memory", name]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        peak, rewritten = map(int, done.stdout.split())
        limit = 1.2 * rewritten + 64 * 2**20
        yield Row(
            f"{name}: peak extra memory of run(verify=False)", peak / 2**20, "MiB", limit / 2**20
        )
        yield Row(f"{name}: weights rewritten", rewritten / 2**20, "MiB")


def _extra_memory(name: str) -> str:
    """Peak of what the allocator held above the start, and the bytes rewritten."""
    model = built(getattr(models, name))
    rewritten = 0

    def run() -> None:
        nonlocal rewritten
        fast = fxpasses.run(model, PASSES, verify=False)
        rewritten = fast.meta["fxpasses"]["bytes_rewritten"]

    return f"{peak_bytes(run)} {rewritten}"


# -- verification


def verification() -> Iterator[Row]:
    """Forwards that default verification of a ResNet-50 counts, and what it takes in all."""
    model, example = built(models.resnet50), images(1, 224)
    fast = fxpasses.run(model, PASSES, example)
    record = fast.meta["fxpasses"]
    with torch.no_grad():
        (forward,) = _in_turn(5, lambda: model(example))
    yield Row(
        "resnet50: forwards of verification", record["verification"]["forwards"], "forwards", 8
    )
    yield Row(
        "resnet50: time of verification, in forwards",
        record["seconds"]["verify"] / forward,
        "forwards",
    )
    for batch in (1, 4):
        yield from _memory_of_verification(model, batch)


def _memory_of_verification(model: nn.Module, batch: int) -> Iterator[Row]:
    """Peak over what original and result hold: at most one forward and one region in float64.

    Further inputs are tried in a batch of three, so that may be the largest forward.
    """
    what, example = f"resnet50, batch {batch}", images(batch, 224)
    largest = images(max(batch, 3), 224)
    forward, region = (
        measure(model, largest) for measure in (bytes_of_float64_forward, bytes_of_largest_region)
    )
    peak = peak_bytes(verification_of(model, example))
    limit = (forward + region) / 2**20
    yield Row(f"{what}: peak extra memory of verification", peak / 2**20, "MiB", limit)
    over = peak - bytes_of_float64_forward(model, example)
    yield Row(f"{what}: that over one float64 forward of the example", over / 2**20, "MiB")
    yield Row(f"{what}: largest region in float64", region / 2**20, "MiB")


if __name__ == "__main__":
    main()

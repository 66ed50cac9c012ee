"""The main job: ResNet-50 optimised, verified, timed against the original, and reported.

Run it as `python benchmarks/main_job.py [FOLDER]`; it writes report.txt and report.json there
(by default into benchmarks/results/main_job) and says where they are.
"""

import argparse
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import torch
from models import built, images
from torch import Tensor, nn
from torchvision.models import resnet50

import fxpasses

PASSES = "fuse_conv_bn,constant_fold,dce"
HERE = Path(__file__).resolve().parent


def main() -> None:
    arguments = _arguments()
    model = built(resnet50, images(2, 64, seed=7))
    example = images(arguments.batch, arguments.size)

    fast = fxpasses.run(model, PASSES, (example,))
    before, after = timed(model, fast, example, rounds=arguments.rounds)

    with torch.no_grad():
        difference = float((fast(example) - model(example)).norm() / model(example).norm())
    timing = (
        f"a forward of {tuple(example.shape)} on {torch.get_num_threads()} threads: "
        f"{1e3 * before:.1f} ms before, {1e3 * after:.1f} ms after, {before / after:.2f} x\n"
        f"relative difference of the outputs: {difference:.1e}"
    )
    report = fxpasses.report(fast)
    print(report, timing, sep="\n")
    _write(arguments.folder, f"{report}\n{timing}\n", report.to_json())


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("folder", nargs="?", type=Path, default=HERE / "results" / "main_job")
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--size", type=int, default=224)
    parser.add_argument("--rounds", type=int, default=15)
    return parser.parse_args()


def timed(
    original: nn.Module, optimised: nn.Module, example: Tensor, *, rounds: int
) -> tuple[float, float]:
    """Median seconds of a forward of both, measured in turn so that both see the same machine."""
    before: list[float] = []
    after: list[float] = []
    with torch.inference_mode():
        for module in (original, optimised):
            module(example)
        for _ in range(rounds):
            before.append(_seconds(lambda: original(example)))
            after.append(_seconds(lambda: optimised(example)))
    return statistics.median(before), statistics.median(after)


def _seconds(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def _write(folder: Path, text: str, json: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in (("report.txt", text), ("report.json", json)):
        path = folder / name
        path.write_text(content, encoding="utf-8")
        print(f"written: {path}")


if __name__ == "__main__":
    main()

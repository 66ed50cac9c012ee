"""The passes on a GPU: models moved there, optimised, verified on the device, and timed.

Run it as `python benchmarks/cuda_check.py [--target cpu] [--models NAME ...] [--json PATH]`.
Without a GPU it runs the half that needs none, on the CPU. It prints one table and, at the end,
one line of JSON.
"""

import argparse
import json
import statistics
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from models import built, images
from torch import Tensor, nn
from torchvision import models

import fxpasses

PASSES = "fuse_conv_bn,constant_fold,dce"
FACTORIES: dict[str, Callable[[], nn.Module]] = {
    name: getattr(models, name)
    for name in ("resnet50", "mobilenet_v3_large", "efficientnet_b0", "convnext_tiny", "swin_t")
}


@dataclass(frozen=True)
class Outcome:
    """What happened to one model."""

    model: str
    target: str
    ok: bool | None
    rule: str
    rewrites: int
    difference: float
    before_ms: float
    after_ms: float
    prepare_s: float
    error: str = ""

    def row(self) -> str:
        if self.error:
            return f"{self.model:<20}{self.target:<8}{self.error}"
        return (
            f"{self.model:<20}{self.target:<8}{self.ok!s:<6}{self.rewrites:>9}{self.difference:>12.1e}"
            f"{self.before_ms:>10.2f}{self.after_ms:>10.2f}{self.prepare_s:>10.1f}"
        )


def main() -> None:
    arguments = _arguments()
    target = arguments.target or ("cuda" if torch.cuda.is_available() else "cpu")
    print(f"{'model':<20}{'target':<8}{'ok':<6}{'rewrites':>9}{'difference':>12}"
          f"{'before ms':>10}{'after ms':>10}{'prepare s':>10}")  # fmt: skip
    outcomes = []
    for name in arguments.models:
        outcomes.append(checked(name, target, batch=arguments.batch, size=arguments.size))
        print(outcomes[-1].row(), flush=True)
    data = json.dumps({"torch": torch.__version__, "device": _device(target),
                       "outcomes": [asdict(one) for one in outcomes]})  # fmt: skip
    print(data)
    if arguments.json:
        arguments.json.write_text(data, encoding="utf-8")
    if not all(one.ok for one in outcomes):
        raise SystemExit(1)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--target", help="cuda or cpu; by default what there is")
    parser.add_argument("--models", nargs="+", choices=list(FACTORIES), default=list(FACTORIES))
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--size", type=int, default=224)
    parser.add_argument("--json", type=Path)
    return parser.parse_args()


def _device(target: str) -> str:
    return torch.cuda.get_device_name() if target.startswith("cuda") else "cpu"


def checked(name: str, target: str, *, batch: int, size: int) -> Outcome:
    """Optimise one model for `target`, and hold the result against the original there."""
    model, example = built(FACTORIES[name]), images(batch, size)
    start = time.perf_counter()
    try:
        fast = fxpasses.run(model, PASSES, example, target=target)
    except fxpasses.errors.FxPassesError as error:
        return Outcome(name, target, False, "", 0, 0, 0, 0, 0, f"{type(error).__name__}: {error}")
    prepare = time.perf_counter() - start

    stayed = all(parameter.device.type == "cpu" for parameter in model.parameters())
    assert stayed, "the caller's model was moved"
    original, example = model.to(target), example.to(target)
    record = fast.meta["fxpasses"]
    with torch.inference_mode():
        expected, found = original(example), fast(example)
        difference = float((found - expected).norm() / expected.norm())
        before, after = _timed(original, example), _timed(fast, example)
    return Outcome(
        model=name,
        target=target,
        ok=record["verification"]["ok"],
        rule=record["verification"]["rule"],
        rewrites=sum(len(one["rewrites"]) for one in record["passes"]),
        difference=difference,
        before_ms=before,
        after_ms=after,
        prepare_s=prepare,
    )


def _timed(module: nn.Module, example: Tensor, rounds: int = 10) -> float:
    """Median milliseconds of a forward, waited for."""
    milliseconds = []
    for _ in range(rounds + 2):
        start = time.perf_counter()
        module(example)
        if example.is_cuda:
            torch.cuda.synchronize()
        milliseconds.append(1e3 * (time.perf_counter() - start))
    return statistics.median(milliseconds[2:])


if __name__ == "__main__":
    main()

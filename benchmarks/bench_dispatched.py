"""Torch operations that one forward dispatches: the model's, torch's `fuse`'s and ours.

Run it as `python benchmarks/bench_dispatched.py [--models NAME ...] [--pipeline TEXT]`; it prints
its rows and, of all models, writes benchmarks/results/dispatched.md. A view moves no data and
launches no kernel: it counts among the operations, not among the kernels.
"""

import argparse
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from models import images, randomised
from torch import nn
from torch.fx.experimental.optimization import fuse
from torch.utils._python_dispatch import TorchDispatchMode
from torchvision import models

import fxpasses

RESULTS = Path(__file__).resolve().parent / "results" / "dispatched.md"
Call = tuple[tuple[Any, ...], dict[str, Any]]


@dataclass(frozen=True)
class Count:
    """Operations that one forward dispatches."""

    operations: int
    kernels: int
    """Those that are no views."""

    def __str__(self) -> str:
        return f"{self.operations} ({self.kernels})"


class _Counting(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.operations = self.kernels = 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        self.operations += 1
        self.kernels += not func.is_view
        return func(*args, **(kwargs or {}))


def counted(model: Callable[..., Any], call: Call) -> Count:
    """What one forward of `model` dispatches, without gradients."""
    args, kwargs = call
    with torch.no_grad(), _Counting() as counting:
        model(*args, **kwargs)
    return Count(counting.operations, counting.kernels)


def main() -> None:
    arguments = _arguments()
    warnings.simplefilter("ignore", fxpasses.errors.FxPassesWarning)
    lines = [
        "# Operations dispatched by one forward",
        "",
        f"torch {torch.__version__}, pipeline `{arguments.pipeline}`, batch 1, no gradients; in "
        "brackets without views.",
        "",
        "| model | as it is | torch's fuse | fxpasses | kernels less |",
        "|---|---|---|---|---|",
    ]
    for name in arguments.models:
        lines.append(_row(name, arguments.pipeline))
        print(lines[-1], flush=True)
    if arguments.models == list(SUBJECTS) and not arguments.dry:
        RESULTS.write_text("\n".join(lines) + "\n")
        print(f"written: {RESULTS}")


def _row(name: str, pipeline: str) -> str:
    build, call = SUBJECTS[name]
    model = build()
    before = counted(model, call())
    ours = fxpasses.run(model, pipeline, call()[0], call()[1])
    after = counted(ours, call())
    saved = 1 - after.kernels / before.kernels
    return f"| {name} | {before} | {_of_fuse(model, call())} | {after} | {saved:.0%} |"


def _of_fuse(model: nn.Module, call: Call) -> str:
    try:
        return str(counted(fuse(model), call))
    except Exception as error:  # whatever torch's tracing raises is its result
        return f"fails: {type(error).__name__}"


def _vision(name: str) -> tuple[Callable[[], nn.Module], Callable[[], Call]]:
    def build() -> nn.Module:
        return randomised(getattr(models, name)(weights=None))

    return build, lambda: ((images(1, 224, 1),), {})


def _bert(attention: str) -> tuple[Callable[[], nn.Module], Callable[[], Call]]:
    """Twelve layers of 768 channels and twelve heads, as BERT-base has."""

    def build() -> nn.Module:
        from transformers import BertConfig, BertModel

        torch.manual_seed(0)
        return randomised(BertModel(BertConfig(attn_implementation=attention)))

    def call() -> Call:
        words = torch.arange(128).reshape(1, 128)
        return (), {"input_ids": words, "attention_mask": torch.ones_like(words)}

    return build, call


SUBJECTS: dict[str, tuple[Callable[[], nn.Module], Callable[[], Call]]] = {
    **{name: _vision(name) for name in ("resnet50", "mobilenet_v2", "vit_b_16", "swin_t")},
    "bert_base": _bert("sdpa"),
    "bert_base, attention written out": _bert("eager"),
}


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--models", nargs="+", choices=list(SUBJECTS), default=list(SUBJECTS))
    parser.add_argument("--pipeline", default="inference")
    parser.add_argument("--dry", action="store_true", help="write no file")
    return parser.parse_args()


if __name__ == "__main__":
    main()

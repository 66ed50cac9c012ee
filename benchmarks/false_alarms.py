"""Right results that verification must not doubt: twelve models, three dtypes, other kernels.

Run it in a clone as `python -m benchmarks.false_alarms [--models ...] [--dtypes ...]`; it prints a
line a run and, at the end, the number of false alarms.
"""

import argparse
import itertools
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map_only

import fxpasses
from tests.zoo.models import SUBJECTS, Subject

PASSES = "fuse_conv_bn,constant_fold,dce"
DTYPES = {"f32": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16}


def main() -> None:
    arguments = _arguments()
    # Torch says so whenever oneDNN's flags are set on a machine without such a GPU.
    warnings.filterwarnings("ignore", message="TF32 acceleration on top of oneDNN")
    alarms = runs = 0
    settings = list(itertools.product(arguments.dtypes, (1, 2), (True, False)))
    for subject in SUBJECTS:
        if arguments.models and subject.name not in arguments.models:
            continue
        for dtype, threads, onednn in settings:
            with kernels(threads=threads, onednn=onednn):
                outcome = _outcome(subject, DTYPES[dtype])
            runs += 1
            alarms += outcome.startswith("ALARM")
            kernel = "oneDNN" if onednn else "no oneDNN"
            print(
                f"{subject.name:<26}{dtype:<6}{threads} threads, {kernel:<10}{outcome}", flush=True
            )
    print(f"{alarms} false alarms in {runs} runs")
    if alarms:
        raise SystemExit(1)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    names = [subject.name for subject in SUBJECTS]
    parser.add_argument("--models", nargs="+", choices=names, default=[])
    parser.add_argument("--dtypes", nargs="+", choices=list(DTYPES), default=list(DTYPES))
    return parser.parse_args()


@contextmanager
def kernels(*, threads: int, onednn: bool) -> Iterator[None]:
    """A number of threads, and oneDNN's kernels or torch's own, inside the block."""
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        with torch.backends.mkldnn.flags(enabled=onednn):
            yield
    finally:
        torch.set_num_threads(before)


def _outcome(subject: Subject, dtype: torch.dtype) -> str:
    model: nn.Module = subject.build().to(dtype)
    example = tree_map_only(Tensor, lambda tensor: tensor.to(dtype), subject.example())
    try:
        with torch.no_grad():
            model(*example)
    except RuntimeError as error:
        return f"not run: {error}".partition("\n")[0]
    try:
        result = fxpasses.run(model, PASSES, example)
    except fxpasses.errors.VerificationError as error:
        return f"ALARM: {error}"
    verification = fxpasses.report(result).record.verification
    return {True: "verified", None: f"not comparable: {verification.notes}"}[verification.ok]


if __name__ == "__main__":
    main()

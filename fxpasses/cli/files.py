"""What a command writes, checked before anything that takes long is done."""

from collections.abc import Iterable
from pathlib import Path
from typing import Final

import torch
from torch.fx import GraphModule

from fxpasses.capture import graphs_of
from fxpasses.cli.outcome import say
from fxpasses.core.code import plain_code
from fxpasses.core.files import whole_file
from fxpasses.errors import ArgumentError
from fxpasses.page.shown import Shown

REPORTS: Final = (".txt", ".md", ".html", ".json")
_MODULES: Final = (".pt", ".pth")
RESULTS: Final = (*_MODULES, ".py")
TRACES: Final = (".json", ".gz")
_ON_LOADING: Final = (
    "  torch.load(..., weights_only=False) loads it and runs code in it: load only what you trust.",
    "  The model's own code is not in it: a call that no graph holds for raises GuardError.",
)


def require(path: Path | None, option: str, suffixes: Iterable[str]) -> None:
    """Refuse what cannot be written.

    Raises:
        ArgumentError: the suffix says no form, or there is no such folder.
    """
    if path is None:
        return
    if path.suffix.lower() not in suffixes:
        raise ArgumentError(f"{option} {path}: end it in {', '.join(suffixes)}")
    if not path.parent.is_dir():
        raise ArgumentError(f"{option} {path}: there is no folder {path.parent}")


def write_report(report: Shown, path: Path | None) -> None:
    if path is not None:
        report.save(path, details=True)
        say(f"written: {path}")


def write_result(result: GraphModule, path: Path | None) -> None:
    """Save the module, or its code, whole or not at all."""
    if path is None:
        return
    if path.suffix.lower() not in _MODULES:
        path.write_text(plain_code(graphs_of(result)), encoding="utf-8")
        say(f"written: {path}")
        return
    with whole_file(path) as unfinished:
        torch.save(result, unfinished)
    say(f"written: {path}")
    for line in _ON_LOADING:
        say(line)

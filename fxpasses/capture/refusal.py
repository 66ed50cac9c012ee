"""How the tracer refuses what it cannot represent, inside the model's code."""

import sys
from functools import cache
from pathlib import Path
from types import FrameType, TracebackType

import torch

import fxpasses
from fxpasses.capture.request import OpaqueKind
from fxpasses.core.values import Source

_OURS = str(Path(fxpasses.__file__).parent) + "/"
_TORCH = str(Path(torch.__file__).parent) + "/"
_PLUMBING = ("/contextlib.py", "/functools.py", "<frozen")


class Refusal(Exception):  # noqa: N818 - a signal to the tracer; no user ever sees it
    """The module whose code runs now cannot be part of the graph."""

    def __init__(
        self, kind: OpaqueKind, reason: str, where: Source | None = None, path: str = ""
    ) -> None:
        super().__init__(reason)
        self.kind = kind
        self.reason = reason
        self.where = where
        self.path = path


@cache
def is_model_file(name: str) -> bool:
    """Whether code of file `name` is the model's, neither torch's nor ours nor mere plumbing."""
    return not name.startswith((_OURS, _TORCH)) and not name.endswith(_PLUMBING)


def model_frame() -> FrameType | None:
    """The innermost running frame of the model's code."""
    frame = sys._getframe(1)  # noqa: SLF001 - the only way to a frame that costs nothing
    while frame is not None:
        if is_model_file(frame.f_code.co_filename):
            return frame
        frame = frame.f_back
    return None


def here() -> Source | None:
    """The line of the model's code that runs now."""
    frame = model_frame()
    return None if frame is None else Source(frame.f_code.co_filename, frame.f_lineno)


def where_raised(traceback: TracebackType | None) -> Source | None:
    """The innermost line of the model's code in `traceback`."""
    found: Source | None = None
    while traceback is not None:
        file = traceback.tb_frame.f_code.co_filename
        if is_model_file(file):
            found = Source(file, traceback.tb_lineno)
        traceback = traceback.tb_next
    return found


def explain(error: Exception) -> tuple[OpaqueKind, str, Source | None]:
    """Kind, reason and line of what a module raised while it was traced."""
    source = where_raised(error.__traceback__)
    if isinstance(error, Refusal):
        return error.kind, error.reason, error.where or source
    first_line = (str(error).splitlines() or [""])[0][:160]
    return OpaqueKind.ERROR, f"{type(error).__name__}: {first_line}", source

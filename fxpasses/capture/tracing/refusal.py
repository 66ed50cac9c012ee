"""How the tracer refuses what it cannot represent, inside the model's code."""

import inspect
import re
from functools import cache, lru_cache
from pathlib import Path
from types import FrameType, TracebackType

import torch
from torch import nn

import fxpasses
from fxpasses.capture.tracing.internals import frame
from fxpasses.capture.tracing.request import OpaqueKind
from fxpasses.core.values import Source

_OURS = str(Path(fxpasses.__file__).parent) + "/"
_MODELS = _OURS + "testing/"  # the models of the kit for pass authors are models as any other
_TORCH = str(Path(torch.__file__).parent) + "/"
TRACE_BEGINS = "run_the_trace"  # the function whose callers are no code of the model
_PLUMBING = ("/contextlib.py", "/functools.py", "<frozen")


_TRACED = (
    "(Made|Held|Attribute|Item|Field|Size)"  # the types of traced values, as messages name them
)
_UNBOUND = re.compile(
    r"descriptor '(\w+)' (?:for '[\w.]*' objects doesn't apply to|requires a '[\w.]*' object but "
    rf"received) a '{_TRACED}'"
)
_WEAK = re.compile(rf"cannot create weak reference to '{_TRACED}'")
# As Python and torch name the type of what they are given.
_NAMED = re.compile(
    rf"(?:\ban? )?(?:<class )?'(?:fxpasses[\w.]+\.)?{_TRACED}'>?(?: objects?)?"
    rf"|(?<=\bnot ){_TRACED}\b|(?<=\bgot ){_TRACED}\b"
)
_REFUSED_BY_SCRIPT = re.compile(
    rf"^\w+\(\) Expected a value of type .* instead found type '{_TRACED}'"
)


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
    is_own = name.startswith((_OURS, _TORCH)) and not name.startswith(_MODELS)
    return not is_own and not name.endswith(_PLUMBING)


def model_frame() -> FrameType | None:
    """The innermost running frame of the model's code."""
    running: FrameType | None = frame(1)
    while running is not None and running.f_code.co_name != TRACE_BEGINS:
        if is_model_file(running.f_code.co_filename):
            return running
        running = running.f_back
    return None


def here() -> Source | None:
    """The line of the model's code that runs now."""
    running = model_frame()
    return None if running is None else _line(running.f_code.co_filename, running.f_lineno)


@lru_cache(maxsize=1024)
def _line(file: str, number: int) -> Source:
    """One object for all nodes that a line makes."""
    return Source(file, number)


def where_raised(traceback: TracebackType | None) -> Source | None:
    """The innermost line of the model's code in `traceback`."""
    found: Source | None = None
    while traceback is not None:
        file = traceback.tb_frame.f_code.co_filename
        if is_model_file(file):
            found = Source(file, traceback.tb_lineno)
        traceback = traceback.tb_next
    return found


def definition_of(module: nn.Module) -> Source | None:
    """The line where the forward of `module` is defined."""
    code = getattr(inspect.unwrap(type(module).forward), "__code__", None)
    return None if code is None else Source(code.co_filename, code.co_firstlineno)


def unbound_method(error: Exception) -> str | None:
    """The name of the method of Tensor that refused a traced value as `Tensor.name(x)`."""
    found = _UNBOUND.match(str(error)) if isinstance(error, TypeError) else None
    return None if found is None else found.group(1)


def explain(error: Exception, module: nn.Module) -> tuple[OpaqueKind, str, Source | None]:
    """Kind, reason and line of what `module` raised while it was traced."""
    source = where_raised(error.__traceback__) or definition_of(module)
    if isinstance(error, Refusal):
        return error.kind, error.reason, error.where or source
    if _REFUSED_BY_SCRIPT.search(str(error)):
        return OpaqueKind.COMPILED, "calls a TorchScript function", source
    if _WEAK.search(str(error)):
        return OpaqueKind.UNTRACEABLE_VALUE, "keeps a weak reference to a tensor", source
    first_line = _NAMED.sub("a traced value", (str(error).splitlines() or [""])[0])[:160]
    return OpaqueKind.ERROR, f"{type(error).__name__}: {first_line}", source

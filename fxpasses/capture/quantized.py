"""Finds the modules whose weights are quantised: they are kept as they are, and that is said."""

from collections.abc import Iterator
from itertools import chain, takewhile
from typing import Any, Final

import torch
from torch import Tensor, nn

from fxpasses.capture.tracing.request import Note, NoteKind

_PLAIN_LAYERS: Final = "torch.nn.modules."
"""torch's own float layers, which hold weights in no packed form."""
_SHOWN: Final = 3
_REMEDY: Final = "run the passes on the float model, before it is quantised"


def quantized_notes(model: nn.Module) -> Iterator[Note]:
    """One note on all modules of `model` that hold quantised weights, if there are any."""
    paths = (path for path, module in model.named_modules() if _is_quantized(module))
    found = list(dict.fromkeys(map(_layer, paths)))
    if not found:
        return
    shown = ", ".join(path or "the model itself" for path in found[:_SHOWN])
    rest = f", and {len(found) - _SHOWN} more" if len(found) > _SHOWN else ""
    holds = "module holds" if len(found) == 1 else "modules hold"
    text = f"{len(found)} {holds} quantised weights, which no pass rewrites: {shown}{rest}"
    yield Note(NoteKind.QUANTIZED, text, _REMEDY)


def _layer(path: str) -> str:
    """The layer itself, where it keeps its weights in a part with a private name."""
    return ".".join(takewhile(lambda part: not part.startswith("_"), path.split(".")))


def _is_quantized(module: nn.Module) -> bool:
    state = vars(module)
    tensors = chain(*(state.get(name, {}).values() for name in ("_parameters", "_buffers")))
    if any(tensor is not None and tensor.is_quantized for tensor in tensors):
        return True
    if type(module).__module__.startswith(_PLAIN_LAYERS):
        return False
    return any(map(_holds_quantized, state.values()))


def _holds_quantized(value: Any) -> bool:
    if isinstance(value, Tensor):
        return value.is_quantized
    # torch keeps weights for its quantised kernels in objects such as `Conv2dPackedParamsBase`.
    if not isinstance(value, torch.ScriptObject):
        return False
    return ".quantized." in value._type().qualified_name()  # noqa: SLF001  no public way to ask

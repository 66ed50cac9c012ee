"""What Python may ask of a tensor that a call gives, and how each answer is kept true.

A graph does not ask again. An answer must therefore be the same for every call that the graph
takes: because every pattern fixes it, because it is put into the pattern once the model has asked,
or because a guard compares it at each call. Whoever asks anything else runs its own code.
"""

from collections.abc import Mapping
from enum import StrEnum, auto
from types import MappingProxyType
from typing import Any, Final

import torch
from torch import Tensor, nn


class Kept(StrEnum):
    """How the answer to a question about a tensor is kept true."""

    BY_EVERY_PATTERN = auto()  # follows from type, rank, dtype, device and layout
    WHERE_READ = auto()  # is put into the pattern when the model asks
    BY_GUARD = auto()  # a number of the graph: a branch on it is compared at each call
    NOT = auto()  # whoever asks runs its own code


_ROWS: Final[tuple[tuple[Kept, str], ...]] = (
    (
        Kept.BY_EVERY_PATTERN,
        "dtype layout itemsize element_size is_floating_point is_complex is_signed is_cuda is_cpu "
        "is_mps is_xpu is_meta is_sparse is_sparse_csr is_quantized is_mkldnn is_vulkan is_ipu "
        "is_maia is_mtia type",
    ),
    (Kept.WHERE_READ, "class .attribute device get_device is_nested is_conj is_neg"),
    (
        Kept.BY_GUARD,
        "shape size ndim dim ndimension numel nelement nbytes stride is_contiguous "
        "storage_offset __len__",
    ),
    (
        Kept.NOT,
        "requires_grad is_leaf grad grad_fn retains_grad output_nr _version _base _backward_hooks "
        "names has_names is_inference is_shared is_pinned data_ptr numpy untyped_storage storage "
        "__array__ __dlpack__ repr id",
    ),
)

QUESTIONS: Final[Mapping[str, Kept]] = MappingProxyType(
    {name: kept for kept, names in _ROWS for name in names.split()}
)
"""Names of attributes and methods, of builtins that ask (`repr`, `id`), and two kinds: `class` is
what `type` and `isinstance` tell, `.attribute` any attribute that Python code has put there."""


def asked_as(kept: Kept) -> frozenset[str]:
    """The names of the questions whose answers are kept in this way."""
    return frozenset(name for name, how in QUESTIONS.items() if how is kept)


class Missing:
    """The answer where a tensor has no attribute of a name."""

    def __repr__(self) -> str:
        return "missing"

    def __eq__(self, other: object) -> bool:
        return type(other) is Missing

    def __hash__(self) -> int:
        return hash(Missing)


MISSING: Final = Missing()


def answer_of(tensor: Tensor, question: str) -> Any:
    """The answer to a question that is part of a pattern where it is read.

    `.name` asks for the attribute of that name that Python code has put on the tensor.
    """
    if question == "class":
        return class_of(tensor)
    if question.startswith("."):
        return tensor.__dict__.get(question[1:], MISSING)
    found = getattr(tensor, question)
    return found() if callable(found) else found


def same_answer(mine: Any, other: Any) -> bool:
    return type(mine) is type(other) and bool(mine == other)


def class_of(tensor: Tensor) -> str:
    """What `type` and `isinstance` can tell of an ordinary tensor.

    Torch marks a tensor of another class as a Parameter or a Buffer by an attribute.
    """
    marks = [word for mark, word in _MARKS.items() if tensor.__dict__.get(mark)]
    return " ".join((*marks, type(tensor).__name__))


_MARKS: Final = MappingProxyType({"_is_param": "parameter", "_is_buffer": "buffer"})
PLAIN_CLASS: Final = "Tensor"


def _like(name: str) -> Tensor:
    made = nn.Parameter(torch.empty(0)) if name.endswith("Parameter") else torch.empty(0)
    for mark, word in _MARKS.items():
        if word in name.split():
            setattr(made, mark, True)
    return made


CLASSES: Final[Mapping[str, Tensor]] = MappingProxyType(
    {
        f"{marks}{kind}": _like(f"{marks}{kind}")
        for marks in ("", "parameter ", "buffer ", "parameter buffer ")
        for kind in ("Tensor", "Parameter")
    }
)
"""For each class that an ordinary tensor may have, one that answers for it."""


def said(question: str, answer: Any) -> str:
    """The answer as part of a sentence that begins with the tensor's name."""
    if question == "class":
        return f"is a {answer}"
    if question.startswith("."):
        return f"has no {question}" if answer == MISSING else f"has {question} = {answer!r}"
    return f"has {question} {answer}"

"""What is known of the value that a node computes, and the keys it is kept under in `Node.meta`."""

from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import torch
from torch import Tensor
from torch.fx import Node

# Keys in `Node.meta`. The last two are torch's own, read where a foreign front end set them.
VALUE: Final = "value"  # Known: a TensorInfo, or a tuple, list or dict of them
SOURCE: Final = "source"  # Source: the line of the model that made the node
ORIGIN: Final = "origin"  # tuple of text: the pass that made the node and the nodes it stands for
STANDS_FOR: Final = "stands_for"  # str: the captured node whose value this node has
REPLACED: Final = "replaced"  # set while a node awaits its removal at commit
MODULE_STACK: Final = "nn_module_stack"


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """A tensor as the capture saw it.

    `dtype`, `device` and, where not None, `rank` hold for every call that the graph accepts.
    `example_shape` and `example_stride` are the example's: they serve cost alone, never legality.
    """

    dtype: torch.dtype
    device: torch.device
    rank: int | None
    example_shape: tuple[int, ...]
    example_stride: tuple[int, ...]

    @classmethod
    def of(cls, tensor: Tensor, *, rank_is_fixed: bool = True) -> "TensorInfo":
        strided = tensor.layout is torch.strided
        return cls(
            dtype=tensor.dtype,
            device=tensor.device,
            rank=tensor.dim() if rank_is_fixed else None,
            example_shape=tuple(tensor.shape),
            example_stride=tuple(tensor.stride()) if strided else (),
        )


Known: TypeAlias = "TensorInfo | tuple[Known, ...] | list[Known] | dict[Any, Known] | None"


@dataclass(frozen=True, slots=True)
class Source:
    """A line of the model's code."""

    file: str
    line: int

    def __str__(self) -> str:
        return f"{self.file}:{self.line}"


def source_of(node: Node) -> Source | None:
    """The line of the model that made `node`, where the capture noted one."""
    return node.meta.get(SOURCE)


def is_replaced(node: Node) -> bool:
    """Whether a rewrite has replaced `node`, which then only waits for the commit to be erased."""
    return REPLACED in node.meta

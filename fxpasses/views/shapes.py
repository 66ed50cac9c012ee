"""Views and copies, joins and splits, casts, reductions."""

from dataclasses import dataclass
from typing import Any, ClassVar, Final

import torch

from fxpasses.ops import REDUCTIONS, Op
from fxpasses.views.base import View

_UNNAMED_DTYPES: Final = {"char": torch.int8, "byte": torch.uint8}


@dataclass(frozen=True)
class Reshape(View):
    """The same elements in the same order, in another shape."""

    ops: ClassVar[frozenset[Op] | None] = frozenset((Op.VIEW, Op.RESHAPE))

    @property
    def size(self) -> Any:
        """Numbers and nodes, or one node for all; None where `view` is given a dtype."""
        return self.operand("size")


@dataclass(frozen=True)
class Flatten(View):
    ops: ClassVar[frozenset[Op] | None] = frozenset((Op.FLATTEN,))

    @property
    def start_dim(self) -> int:
        return self.operand("start_dim", 0)

    @property
    def end_dim(self) -> int:
        return self.operand("end_dim", -1)


@dataclass(frozen=True)
class Permute(View):
    """Axes in another order."""

    ops: ClassVar[frozenset[Op] | None] = frozenset((Op.PERMUTE, Op.TRANSPOSE, Op.T))

    def order(self, rank: int) -> tuple[int, ...]:
        """For each axis of the result the axis of the input, all counted from the front."""
        if rank == 0:  # of which torch takes the axes 0 and -1 all the same
            return ()
        if self.op is Op.PERMUTE:
            return tuple(dim % rank for dim in self.operand("dims"))
        order = list(range(rank))
        if self.op is Op.T:
            return tuple(reversed(order))
        first, second = self.operand("dim0") % rank, self.operand("dim1") % rank
        order[first], order[second] = second, first
        return tuple(order)


@dataclass(frozen=True)
class Clone(View):
    """The same values in memory of their own."""

    ops: ClassVar[frozenset[Op] | None] = frozenset((Op.CLONE,))

    @property
    def memory_format(self) -> torch.memory_format | None:
        """How the copy is to be laid out; None: as what is copied."""
        given = self.operand("memory_format")
        return None if given is torch.preserve_format else given


@dataclass(frozen=True)
class Cat(View):
    """Tensors joined along an axis: an old one (`cat`) or a new one (`stack`)."""

    ops: ClassVar[frozenset[Op] | None] = frozenset((Op.CAT, Op.STACK))

    @property
    def tensors(self) -> Any:
        """A list of nodes, or one node whose value is such a list."""
        return self.operand("tensors")

    @property
    def dim(self) -> int:
        return self.operand("dim", 0)


@dataclass(frozen=True)
class Split(View):
    """A tensor cut along an axis."""

    ops: ClassVar[frozenset[Op] | None] = frozenset((Op.SPLIT, Op.CHUNK, Op.UNBIND))

    @property
    def dim(self) -> int:
        return self.operand("dim", 0)

    @property
    def split_size(self) -> Any:
        """One size for all, or each; None in `chunk` and `unbind`."""
        return self.operand("split_size")

    @property
    def chunks(self) -> Any:
        """Of `chunk`: how many."""
        return self.operand("chunks")


@dataclass(frozen=True)
class Cast(View):
    """The same values in another dtype, on another device, or both."""

    ops: ClassVar[frozenset[Op] | None] = frozenset((Op.CAST,))

    @property
    def dtype(self) -> torch.dtype | None:
        """The dtype that is asked for; None where it is kept, or that of `like`."""
        given = self.operand("dtype")
        if given is not None:
            return given if isinstance(given, torch.dtype) else None
        target = self.node.target
        name = str(getattr(target, "__name__", target))
        found = _UNNAMED_DTYPES.get(name, getattr(torch, name, None))
        return found if isinstance(found, torch.dtype) else None

    @property
    def device(self) -> Any:
        """The device that is asked for; None where it is kept, or that of `like`."""
        if self.node.target in ("cpu", torch.Tensor.cpu):
            return "cpu"
        if self.node.target in ("cuda", torch.Tensor.cuda):
            return self.operand("device") or "cuda"
        return self.operand("device")

    @property
    def like(self) -> Any:
        """The tensor whose dtype (and, in `to`, device) the result takes."""
        return self.operand("other")

    @property
    def is_named(self) -> bool:
        """Whether what is asked for is known: `type("torch.FloatTensor")` is not."""
        return self.operand("dtype") is None or self.dtype is not None


@dataclass(frozen=True)
class Reduce(View):
    """Fewer elements out of all, or of those along some axes."""

    ops: ClassVar[frozenset[Op] | None] = REDUCTIONS

    @property
    def dim(self) -> tuple[int, ...] | None:
        """The axes; None: all of them."""
        dim = self.operand("dim")
        if dim is None or dim in ([], ()):
            return None
        return tuple(dim) if isinstance(dim, (tuple, list)) else (dim,)

    @property
    def keepdim(self) -> bool:
        return bool(self.operand("keepdim"))

    @property
    def dtype(self) -> torch.dtype | None:
        """What the input is cast to first."""
        return self.operand("dtype")

"""What can be said of a constant value before it is computed, and whether computing it is safe."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor
from torch.fx import Node
from torch.utils._pytree import tree_leaves

from fxpasses.analysis.aliasing import storage_key
from fxpasses.analysis.constants import Become, Recipe
from fxpasses.core import widened


@dataclass(frozen=True, eq=False)
class ConstantValue:
    """The value of a call that reads nothing but what the module holds."""

    recipe: Recipe
    saved: Mapping[int, bool]
    """The module's parameters and buffers by identity, and whether a `state_dict` holds them."""
    is_constant: bool = True
    """Whether the call does nothing but compute, so that its value is always the same."""

    @property
    def node(self) -> Node:
        return self.recipe.node

    @cached_property
    def state(self) -> list[Tensor]:
        """The sources that follow `.to()` and `.half()`: parameters and buffers."""
        return [t for t in self.recipe.sources if id(t) in self.saved]

    @property
    def is_saved(self) -> bool:
        """Whether a `state_dict` holds any of the sources."""
        return any(self.saved[id(tensor)] for tensor in self.state)

    @cached_property
    def fakes(self) -> Mapping[Node, Any] | None:
        """All values on the way, without data; None where a shape or a type hangs on data."""
        return self._dry_run(lambda tensor: (tensor.dtype, tensor.device))

    @property
    def fake(self) -> Tensor:
        """The value, without data."""
        assert self.fakes is not None
        return self.fakes[self.node]

    @property
    def bytes(self) -> int:
        return _bytes(self.fake)

    @property
    def most_bytes(self) -> int:
        """Of the largest value on the way."""
        return max(_bytes(v) for v in tree_leaves(self.fakes) if isinstance(v, Tensor))

    @property
    def source_bytes(self) -> dict[int, int]:
        """The sizes of the storages that it is made of."""
        return {storage_key(t): t.untyped_storage().nbytes() for t in self.recipe.sources}

    @property
    def is_new_tensor(self) -> bool:
        """Whether it is a tensor, and no view: a view costs nothing."""
        assert self.fakes is not None
        fake = self.fakes[self.node]
        if not isinstance(fake, Tensor) or fake.layout is not torch.strided:
            return False
        memory = fake.untyped_storage()
        read = (self.fakes[step.node] for step in self.recipe.steps if step.op == "get_attr")
        return not _overlaps(fake) and all(t.untyped_storage() is not memory for t in read)

    @property
    def is_cast_with_the_model(self) -> bool:
        """Whether a buffer that holds it keeps the dtype that the call would have.

        That is so of integers, and of floats that are as narrow as the model's are made.
        """
        narrow = _another_dtype(self.state)
        cast = self._dry_run(lambda t: (narrow if t.is_floating_point() else t.dtype, t.device))
        dtype = narrow if self.fake.is_floating_point() else self.fake.dtype
        return cast is not None and cast[self.node].dtype is dtype

    @property
    def moves_with_the_model(self) -> bool:
        """Whether a buffer that holds it stays on the device that the call would use."""
        away = torch.device("cpu" if self.fake.device.type != "cpu" else "cuda")
        moved = self._dry_run(lambda t: (t.dtype, away))
        # Where it cannot be computed there, the model cannot be moved there either.
        return moved is None or moved[self.node].device.type == away.type

    @property
    def narrowing(self) -> Node | None:
        """A step that rounds floats to a narrower dtype, if there is one."""
        fakes = self.fakes
        assert fakes is not None
        for step in self.recipe.steps:
            read = max((_precision(fakes[n]) for n in step.node.all_input_nodes), default=0)
            if 0 < _precision(fakes[step.node]) < read:
                return step.node
        return None

    def survives_rounding(self) -> bool:
        """Whether it comes out the same in float64, but for rounding.

        Behind a comparison or a cast to integers, float64 may decide otherwise. Computes it.
        """
        sources = self.recipe.sources
        eager = widened(self.recipe.made_of(*sources))
        wide = self.recipe.made_wide(*map(widened, sources))
        return _agree(eager, wide, self.fake.dtype)

    def _dry_run(self, become: Become) -> Mapping[Node, Any] | None:
        """The values as they would be if parameters and buffers had become something else."""
        changed = {id(t) for t in self.state}
        try:
            return self.recipe.dry_run(
                lambda t: become(t) if id(t) in changed else (t.dtype, t.device)
            )
        except (RuntimeError, TypeError, ValueError):  # what torch raises without data to read
            return None


def _bytes(tensor: Tensor) -> int:
    return tensor.numel() * tensor.element_size()


def _overlaps(tensor: Tensor) -> bool:
    """Whether elements lie in the same place, as in an expanded tensor."""
    sizes = zip(tensor.shape, tensor.stride(), strict=True)
    return any(stride == 0 and size > 1 for size, stride in sizes)


def _another_dtype(tensors: Iterable[Tensor]) -> torch.dtype:
    """A narrow float dtype that none of the tensors has."""
    has_half = any(tensor.dtype is torch.float16 for tensor in tensors)
    return torch.bfloat16 if has_half else torch.float16


def _precision(value: Any) -> float:
    """The bits of the finest float in `value`; 0 where there is none."""
    floats = [v for v in tree_leaves(value) if isinstance(v, Tensor) and v.is_floating_point()]
    return max((-math.log2(torch.finfo(v.dtype).eps) for v in floats), default=0)


def _agree(eager: Tensor, wide: Tensor, dtype: torch.dtype) -> bool:
    """Whether two ways to compute a value differ by no more than rounding."""
    if not (dtype.is_floating_point or dtype.is_complex):
        return torch.equal(eager, wide)
    finite = torch.isfinite(wide)
    if not torch.equal(finite, torch.isfinite(eager)):
        return False
    bound = min(2**10 * torch.finfo(dtype).eps, 2**-3)
    scale = torch.linalg.vector_norm(wide[finite])
    return bool(torch.linalg.vector_norm((eager - wide)[finite]) <= bound * scale)

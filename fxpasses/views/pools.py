"""Pooling."""

from dataclasses import dataclass
from typing import Any, ClassVar

from fxpasses.ops import POOLS, Op
from fxpasses.views.spatial import Spatial

_ADAPTIVE = frozenset(
    {Op.ADAPTIVE_AVG_POOL, Op.ADAPTIVE_MAX_POOL, Op.ADAPTIVE_MAX_POOL_WITH_INDICES}
)


@dataclass(frozen=True)
class Pool(Spatial):
    """A pool of any kind and rank."""

    ops: ClassVar[frozenset[Op] | None] = POOLS

    @property
    def is_adaptive(self) -> bool:
        """Whether it is told the size of its output, in place of a window."""
        return self.op in _ADAPTIVE

    @property
    def output_size(self) -> tuple[Any, ...]:
        """Of an adaptive pool; None stands for an axis that is kept."""
        return self.each("output_size", None)

    @property
    def kernel_size(self) -> tuple[Any, ...]:
        return self.each("kernel_size", None)

    @property
    def stride(self) -> tuple[Any, ...]:
        """The window's own size where none is given."""
        return self.each("stride", self.operand("kernel_size"))

    @property
    def padding(self) -> tuple[Any, ...]:
        return self.each("padding", 0)

    @property
    def dilation(self) -> tuple[Any, ...]:
        return self.each("dilation", 1)

    @property
    def ceil_mode(self) -> bool:
        return bool(self.operand("ceil_mode", default=False))

    @property
    def count_include_pad(self) -> bool:
        """Whether an average counts the padding."""
        return bool(self.operand("count_include_pad", default=True))

    @property
    def divisor_override(self) -> Any:
        return self.operand("divisor_override")

"""Matrix products and attention."""

from dataclasses import dataclass
from typing import Any, ClassVar, Final

import torch.nn.functional as F
from torch.fx import Node

from fxpasses.core import Editor
from fxpasses.ops import Op
from fxpasses.views.base import View

_FACTORS: Final = {
    **dict.fromkeys((Op.MATMUL, Op.MM, Op.BMM, Op.MV), ("input", "other")),
    Op.ADDMM: ("mat1", "mat2"),
    Op.ADDMV: ("mat", "vec"),
    **dict.fromkeys((Op.BADDBMM, Op.ADDBMM), ("batch1", "batch2")),
}


@dataclass(frozen=True)
class Matmul(View):
    """`alpha * left @ right + beta * addend`."""

    ops: ClassVar[frozenset[Op] | None] = frozenset(_FACTORS)

    @property
    def left(self) -> Any:
        return self.operand(_FACTORS[self.op][0])

    @property
    def right(self) -> Any:
        return self.operand(_FACTORS[self.op][1])

    @property
    def addend(self) -> Any:
        """None where nothing is added."""
        return None if _FACTORS[self.op][0] == "input" else self.operand("input")

    @property
    def alpha(self) -> Any:
        return self.operand("alpha", 1)

    @property
    def beta(self) -> Any:
        return self.operand("beta", 1)


@dataclass(frozen=True)
class Attention(View):
    """Scaled dot-product attention."""

    ops: ClassVar[frozenset[Op] | None] = frozenset((Op.SDPA,))

    @staticmethod
    def create(
        edit: Editor, query: Node, key: Node, value: Node, *, mask: Node | None, scale: Any
    ) -> Node:
        """A call of it. Queries, keys and values are (..., length, features)."""
        masked = {} if mask is None else {"attn_mask": mask}
        function = F.scaled_dot_product_attention
        return edit.call_function(function, query, key, value, **masked, scale=scale)

    @property
    def query(self) -> Any:
        return self.operand("query")

    @property
    def key(self) -> Any:
        return self.operand("key")

    @property
    def value(self) -> Any:
        return self.operand("value")

    @property
    def mask(self) -> Any:
        """Added to the scores, or True where they count; None where there is none."""
        return self.operand("attn_mask")

    @property
    def is_causal(self) -> bool:
        return bool(self.operand("is_causal"))

    @property
    def scale(self) -> Any:
        """None: one over the root of the head's size."""
        return self.operand("scale")

    @property
    def dropout_p(self) -> Any:
        return self.operand("dropout_p", 0.0)

"""Constants that the graph looks at in another shape: `mean[None, :, None, None]`."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch import Tensor
from torch.fx import Node
from torch.utils._pytree import tree_leaves

from fxpasses.ops import Op, op_of
from fxpasses.views.base import View, constant

_LOOKS: Final = frozenset(
    {
        *(Op.VIEW, Op.RESHAPE, Op.FLATTEN, Op.UNFLATTEN, Op.SQUEEZE, Op.UNSQUEEZE),
        *(Op.PERMUTE, Op.TRANSPOSE, Op.T, Op.SELECT, Op.NARROW, Op.GETITEM),
    }
)


@dataclass(frozen=True, slots=True)
class _Look:
    """One call that looks at a tensor in another shape."""

    target: Any
    args: tuple[Any, ...]
    """All but the tensor."""
    kwargs: Mapping[str, Any]

    def of(self, tensor: Tensor) -> Tensor:
        call = getattr(torch.Tensor, self.target) if isinstance(self.target, str) else self.target
        return call(tensor, *self.args, **self.kwargs)


@dataclass(frozen=True, slots=True, eq=False)
class ConstantView:
    """A tensor that is sure to be the same at run time, and how the graph looks at it."""

    tensor: Tensor
    seen: object = None
    """The operand."""
    is_held: bool = True
    """Whether the model holds it; if not it is made of numbers, in every call anew."""
    looks: tuple[_Look, ...] = ()

    @classmethod
    def at(cls, value: object) -> "ConstantView | None":
        """What an operand shows, if that is known; nothing is made for it."""
        seen, looks = value, list[_Look]()
        while isinstance(value, Node) and _only_looks(value):
            looks.insert(0, _Look(value.target, value.args[1:], dict(value.kwargs)))
            value = value.args[0]
        held = constant(value)
        found = _made_of_numbers(value) if held is None else held
        return None if found is None else cls(found, seen, held is not None, tuple(looks))

    def of(self, tensor: Tensor) -> Tensor:
        """What would be seen of another tensor of that shape."""
        for look in self.looks:
            tensor = look.of(tensor)
        return tensor

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.of(self.tensor.detach()).shape)


def _made_of_numbers(value: object) -> Tensor | None:
    """The tensor that a call makes of numbers that stand in the code, wherever it is to lie."""
    made = View.at(value)
    if made is None or made.op not in (Op.TENSOR, Op.AS_TENSOR):
        return None
    data, dtype = made.operand("data"), made.operand("dtype")
    is_dtype = dtype is None or isinstance(dtype, torch.dtype)
    is_numbers = all(type(one) in (bool, int, float) for one in tree_leaves(data))
    return torch.tensor(data, dtype=dtype) if is_dtype and is_numbers else None


def _only_looks(node: Node) -> bool:
    """Whether a call shows the elements of its first operand, all or some, and knows which."""
    name = node.target if isinstance(node.target, str) else getattr(node.target, "__name__", "_")
    reinterprets = any(isinstance(arg, torch.dtype) for arg in (*node.args, *node.kwargs.values()))
    is_alone = node.args[:1] == tuple(node.all_input_nodes)
    return op_of(node) in _LOOKS and is_alone and not reinterprets and not name.endswith("_")

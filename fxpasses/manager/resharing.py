"""Puts the original's tensors and modules back where a foreign pass left their copies as they were.

What a pass did not change then costs no memory, stays tied, and follows the original's weights.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor, nn
from torch.fx import GraphModule

from fxpasses.manager.sameness import bits_equal, same, same_kind
from fxpasses.manager.slots import Slot, module_slots, tensor_slots


class Resharing:
    def __init__(
        self,
        original: GraphModule,
        result: GraphModule,
        memo: Mapping[int, Any],
        keep: Sequence[nn.Module],
    ) -> None:
        """`memo` tells the copies; what is in `keep` is put back whatever its copies became."""
        self._result = result
        self._tensors = {slot.path: slot.value for slot in tensor_slots(original, every_path=True)}
        self._modules = dict(original.named_modules(remove_duplicate=False))
        everything = (*self._tensors.values(), *self._modules.values())
        copies = ((memo.get(id(value)), value) for value in everything)
        self._by_copy = {id(made): value for made, value in copies if made is not None}
        self._keep = {id(module) for module in keep}
        self._claimed: set[int] = set()

    def share(self) -> None:
        left = [slot for slot in list(tensor_slots(self._result)) if not self._share_tensor(slot)]
        self._share_by_content(left)
        for slot in module_slots(self._result):
            original = self._original_of(slot.value, slot.path)
            if id(original) in self._keep:
                slot.fill(original)
        self._share_modules(self._result, "", {id(self._result)})

    def _share_tensor(self, slot: Slot) -> bool:
        tensor = slot.value
        original = self._by_copy.get(id(tensor), self._tensors.get(slot.path))
        if not isinstance(original, Tensor) or not _equal(tensor, original):
            return False
        slot.fill(original)
        self._claimed.add(id(original))
        return True

    def _share_by_content(self, slots: Sequence[Slot]) -> None:
        """A renamed tensor is taken for the one original that is equal and in no other place.

        Where several are equal nothing tells which it was, and ties must not be made up.
        """
        free = {id(t): t for t in self._tensors.values() if id(t) not in self._claimed}
        for slot in slots:
            equal = [t for t in free.values() if _equal(slot.value, t)]
            if len(equal) == 1:
                slot.fill(free.pop(id(equal[0])))

    def _share_modules(self, module: nn.Module, path: str, seen: set[int]) -> None:
        children = vars(module)["_modules"]
        for name, child in children.items():
            if child is None:
                continue
            below = f"{path}.{name}" if path else name
            original = self._original_of(child, below)
            if original is not None and same(original, child):
                children[name] = original
            elif id(child) not in seen:
                seen.add(id(child))
                self._share_modules(child, below, seen)

    def _original_of(self, child: nn.Module, path: str) -> nn.Module | None:
        original = self._by_copy.get(id(child), self._modules.get(path))
        if isinstance(original, nn.Module) and same_kind(original, child):
            return original
        return None


def _equal(a: Tensor, b: Tensor) -> bool:
    return type(a) is type(b) and bits_equal(a, b)

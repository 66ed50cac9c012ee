"""How a model is called, and copies of the arguments that it may write."""

import copy
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor, nn

from fxpasses.capture.inside import attributes_of, memory_of
from fxpasses.capture.result.forms import tensors_of


@dataclass(frozen=True, slots=True, eq=False)
class Arguments:
    """How a model is called."""

    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]

    def copied(self) -> "Arguments":
        """The same arguments over memory of their own; what was one tensor or memory stays so."""
        memo = _copied_tensors(tensors_of((self.args, dict(self.kwargs))))
        try:
            args, kwargs = copy.deepcopy((self.args, dict(self.kwargs)), memo)
        except Exception:
            # Whatever an object raises that cannot be copied: the containers at least are new.
            args, kwargs = _rebuilt(self.args, memo), _rebuilt(dict(self.kwargs), memo)
        return Arguments(args, kwargs)

    def same_tensors(self) -> "Arguments":
        """The same tensors without their history, in containers of their own."""
        tensors = tensors_of((self.args, dict(self.kwargs)))
        plain = {id(t): t.detach() if t.requires_grad else t for t in tensors}
        return Arguments(_rebuilt(self.args, plain), _rebuilt(dict(self.kwargs), plain))


def _copied_tensors(tensors: list[Tensor]) -> dict[int, Any]:
    distinct = {id(tensor): tensor for tensor in tensors}
    users = Counter(memory_of(tensor) for tensor in distinct.values())
    storages: dict[int, torch.UntypedStorage] = {}
    copies: dict[int, Any] = {}
    for key, tensor in distinct.items():
        memory = memory_of(tensor)
        with torch.no_grad():
            if memory is None or users[memory] == 1 or type(tensor) is not Tensor:
                made = tensor.detach().clone()
            else:
                if memory not in storages:
                    storages[memory] = tensor.untyped_storage().clone()
                made = torch.empty(0, dtype=tensor.dtype, device=tensor.device)
                made.set_(storages[memory], tensor.storage_offset(), tensor.size(), tensor.stride())
        copies[key] = _like(tensor, made.requires_grad_(tensor.requires_grad))
    return copies


def _like(tensor: Tensor, made: Tensor) -> Tensor:
    """A copy with what Python can tell of the tensor besides its values."""
    if type(tensor) is nn.Parameter:
        made = nn.Parameter(made.detach(), tensor.requires_grad)
    attributes_of(made).update(attributes_of(tensor))
    return made


def _rebuilt(value: Any, copies: Mapping[int, Any]) -> Any:
    if id(value) in copies:
        return copies[id(value)]
    if isinstance(value, dict):
        items = cast("dict[Any, Any]", value).items()
        return {key: _rebuilt(item, copies) for key, item in items}
    if type(value) in (tuple, list):
        return type(value)(_rebuilt(item, copies) for item in value)
    return value

"""Conversion of a result, such as `.half()`, that does not reach the model it was made from."""

import copy
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn

from fxpasses.capture.inside import (
    all_modules,
    attributes_of,
    buffers_of,
    is_sealed,
    memory_of,
    modules_of,
    parameters_of,
)

Slot = tuple[dict[str, Any], str]


def slots_of(roots: Iterable[nn.Module]) -> dict[int, tuple[Tensor, list[Slot]]]:
    """Where each parameter and buffer is registered, by the identity of the tensor."""
    seen: set[int] = set()
    found: dict[int, tuple[Tensor, list[Slot]]] = {}
    for root in roots:
        for module in all_modules(root):
            if is_sealed(module):
                continue
            for held in (parameters_of(module), buffers_of(module)):
                if id(held) in seen:
                    continue
                seen.add(id(held))
                for name, tensor in held.items():
                    if tensor is not None:
                        found.setdefault(id(tensor), (tensor, []))[1].append((held, name))
    return found


def convert(
    roots: Iterable[nn.Module],
    fn: Callable[[Tensor], Tensor],
    apply: Callable[[], object],
    *,
    clone: bool = False,
) -> dict[int, Tensor]:
    """Give all trees Parameters of their own, then convert them so that ties are kept.

    Torch's conversions write into the Parameter objects, which the caller's model holds too.

    Args:
        roots: The trees that are converted, which may share tensors and dicts.
        fn: What is done to each tensor.
        apply: Does it to all trees.
        clone: Copy the values as well, for conversions that move the memory itself.

    Returns:
        What each tensor has become, by the identity of the old one.
    """
    roots = list(roots)
    _copy_sealed(roots)
    groups = slots_of(roots)
    for tensor, places in groups.values():
        if isinstance(tensor, nn.Parameter):
            made = _own(tensor, fn, clone=clone)
            for held, name in places:
                held[name] = made
    apply()
    became: dict[int, Tensor] = {}
    for key, (_, places) in groups.items():
        (first, name), *others = places
        became[key] = first[name]
        for held, other in others:
            held[other] = first[name]
    return became


def _own(parameter: nn.Parameter, fn: Callable[[Tensor], Tensor], *, clone: bool) -> nn.Parameter:
    if clone:
        values = parameter.detach().clone()
    else:
        # Only values that stay where they are go on counting the caller's writes.
        values = parameter.data if _moves(parameter, fn) else parameter.detach()
    made = nn.Parameter(values, parameter.requires_grad)
    if parameter.grad is not None:
        made.grad = parameter.grad.detach()
    attributes_of(made).update(attributes_of(parameter))
    return made


def _moves(parameter: nn.Parameter, fn: Callable[[Tensor], Tensor]) -> bool:
    """Whether a conversion makes new values for tensors such as `parameter`."""
    probe = torch.empty((2,) * parameter.dim(), dtype=parameter.dtype, device=parameter.device)
    return memory_of(fn(probe)) != memory_of(probe)


def _copy_sealed(roots: Iterable[nn.Module]) -> None:
    """Copy the modules that results share with the caller whole, before they are converted."""
    memo: dict[int, Any] = {}
    for root in roots:
        for module in list(all_modules(root)):
            if is_sealed(module):
                continue
            children = modules_of(module)
            for name, child in children.items():
                if child is not None and is_sealed(child):
                    children[name] = _sealed_copy(child, memo)


def _sealed_copy(module: nn.Module, memo: dict[int, Any]) -> nn.Module:
    # TorchScript records the copying of its parameters, which then would be no leaves.
    with torch.no_grad():
        made = copy.deepcopy(module, memo)
    for new, old in zip(made.parameters(), module.parameters(), strict=True):
        new.requires_grad_(old.requires_grad)
    return made

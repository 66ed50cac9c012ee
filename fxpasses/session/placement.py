"""Where a result is to run: a copy of the model that lives on the target."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map_only

from fxpasses.capture.twins.twin import twin
from fxpasses.core.given import shown
from fxpasses.errors import ArgumentError, TargetError


def device_of(target: object) -> torch.device | None:
    """The device that a target names; None where none was asked for.

    Raises:
        ArgumentError: `target` is none of None, "auto", "cpu", "cuda" and "cuda:INDEX".
        TargetError: the device is not on this machine.
    """
    if target is None:
        return None
    device = named_device(target)
    if device.type == "cuda":
        _require_gpu(device)
    return device


def named_device(target: object) -> torch.device:
    """The device that a text names, whether this machine has it or not.

    Raises:
        ArgumentError: as `device_of`.
    """
    if target == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    advice = f'target={shown(target)}: pass None, "auto", "cpu", "cuda" or "cuda:0"'
    if not isinstance(target, str | torch.device):
        raise ArgumentError(advice)
    try:
        device = torch.device(target)
    except RuntimeError as error:
        raise ArgumentError(advice) from error
    if device.type not in ("cpu", "cuda"):
        raise ArgumentError(advice)
    return device


def _require_gpu(device: torch.device) -> None:
    if not torch.cuda.is_available():
        raise TargetError(
            f'target="{device}": torch finds no GPU here. Leave target out for a portable '
            "result, or use fxpasses.plan, which needs no GPU"
        )
    # Without an index it is the current one.
    if device != torch.device("cuda") and device.index >= torch.cuda.device_count():
        raise TargetError(f'target="{device}": there are {torch.cuda.device_count()} GPUs here')


def lives_on(model: nn.Module, device: torch.device) -> bool:
    """Whether every weight and buffer of `model` is on `device` already."""
    wanted = torch.empty(0, device=device).device
    tensors = (*model.parameters(), *model.buffers())
    return all(tensor.device == wanted for tensor in tensors)


def detached(model: nn.Module, device: torch.device | None = None) -> nn.Module:
    """A copy of `model` that shares no weight with it, on `device` if one is given.

    Ties stay, and so do modes, hooks and plain attributes. The model itself is not touched.
    """
    copy, _ = twin(model)
    own: dict[int, Tensor] = {}
    for module in copy.modules():
        for table in (module._parameters, module._buffers):  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]  torch has no public way to rebind tied entries
            for name, tensor in table.items():
                if tensor is None:
                    continue
                if id(tensor) not in own:
                    own[id(tensor)] = _own(tensor, device)
                table[name] = own[id(tensor)]  # pyright: ignore[reportArgumentType]  a Parameter stays one
    # Modules that keep more than tensors, such as the recurrent ones, follow by their own `to`.
    return copy if device is None else copy.to(device)


def _own(tensor: Tensor, device: torch.device | None) -> Tensor:
    value = tensor.detach()
    value = value.clone() if device in (None, value.device) else value.to(device)
    if isinstance(tensor, nn.Parameter):
        return nn.Parameter(value, requires_grad=tensor.requires_grad)
    return value


def moved(value: Any, device: torch.device) -> Any:
    """`value` with the tensors in its containers on `device`."""
    return tree_map_only(Tensor, lambda tensor: tensor.to(device), value)

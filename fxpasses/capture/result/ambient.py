"""Torch's thread-wide state, as far as a graph depends on it."""

from collections.abc import Callable
from dataclasses import dataclass

import torch

from fxpasses.capture.result.forms import Difference


@dataclass(frozen=True, slots=True)
class Ambient:
    """What of torch's thread-wide state a graph depends on."""

    autocast: tuple[tuple[str, bool, torch.dtype], ...]
    grad: bool | None
    """Compared only where the model read it."""
    inference: bool
    """A graph recorded outside of inference mode holds inside it too."""

    @classmethod
    def now(cls, devices: tuple[str, ...], *, grad_matters: bool) -> "Ambient":
        states = tuple(
            (device, torch.is_autocast_enabled(device), torch.get_autocast_dtype(device))
            for device in devices
        )
        grad = torch.is_grad_enabled() if grad_matters else None
        return cls(states, grad, torch.is_inference_mode_enabled())

    def difference(self) -> Difference:
        for device, enabled, dtype in self.autocast:
            if torch.is_autocast_enabled(device) != enabled:
                return f"autocast for {device} is {'off' if enabled else 'on'}"
            if enabled and torch.get_autocast_dtype(device) != dtype:
                return f"autocast for {device} is to another dtype than {dtype}"
        if self.grad not in (None, torch.is_grad_enabled()):
            return f"gradients are {'off' if self.grad else 'on'}"
        if self.inference and not torch.is_inference_mode_enabled():
            return "inference mode is off"
        return None

    def compiled(self) -> Callable[[], bool]:
        autocast_on = torch.is_autocast_enabled
        devices = tuple(device for device, _, _ in self.autocast)
        plain = self.grad is None and not self.inference
        if plain and not any(enabled for _, enabled, _ in self.autocast):
            if len(devices) == 1:
                (only,) = devices
                return lambda: not autocast_on(only)
            first, second = devices[0], devices[-1]
            if len(devices) == 2:
                return lambda: not (autocast_on(first) or autocast_on(second))
        return lambda: self.difference() is None

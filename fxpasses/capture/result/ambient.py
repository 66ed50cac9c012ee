"""Torch's thread-wide state, as far as a graph depends on it."""

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from typing import Any, Final

import torch

from fxpasses.capture.result.forms import Difference

SETTINGS: Final = (
    "are_deterministic_algorithms_enabled",
    "is_deterministic_algorithms_warn_only_enabled",
    "get_deterministic_debug_mode",
    "get_num_threads",
    "get_num_interop_threads",
    "get_float32_matmul_precision",
    "is_anomaly_enabled",
    "initial_seed",
)
"""Functions of torch that tell of what is set for the process; a pattern holds what was read."""


def _settings(names: Iterable[str]) -> tuple[tuple[str, Any], ...]:
    return tuple((name, getattr(torch, name)()) for name in sorted(names))


@dataclass(frozen=True, slots=True)
class Ambient:
    """What of torch's thread-wide state a graph depends on."""

    autocast: tuple[tuple[str, bool, torch.dtype], ...]
    grad: bool | None
    """Compared only where the model read it."""
    inference: bool
    """A graph recorded outside of inference mode holds inside it too."""
    default: torch.dtype
    """What factories make where no dtype is given, and constants were made in."""
    settings: tuple[tuple[str, Any], ...]
    """Those that the model read, and their values."""

    @classmethod
    def now(
        cls, devices: tuple[str, ...], *, grad_matters: bool, settings: Collection[str] = ()
    ) -> "Ambient":
        states = tuple(
            (device, torch.is_autocast_enabled(device), torch.get_autocast_dtype(device))
            for device in devices
        )
        grad = torch.is_grad_enabled() if grad_matters else None
        inference, default = torch.is_inference_mode_enabled(), torch.get_default_dtype()
        return cls(states, grad, inference, default, _settings(settings))

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
        if (default := torch.get_default_dtype()) is not self.default:
            return f"the default dtype is {default} instead of {self.default}"
        for name, value in self.settings:
            if (now := getattr(torch, name)()) != value:
                return f"torch.{name}() is {now} instead of {value}"
        return None

    def compiled(self) -> Callable[[], bool]:
        autocast_on, default_now, default = (
            torch.is_autocast_enabled,
            torch.get_default_dtype,
            self.default,
        )
        devices = tuple(device for device, _, _ in self.autocast)
        plain = self.grad is None and not self.inference and not self.settings
        if plain and not any(enabled for _, enabled, _ in self.autocast):
            if len(devices) == 1:
                (only,) = devices
                return lambda: default_now() is default and not autocast_on(only)
            first, second = devices[0], devices[-1]
            if len(devices) == 2:
                return lambda: (
                    default_now() is default and not (autocast_on(first) or autocast_on(second))
                )
        return lambda: self.difference() is None

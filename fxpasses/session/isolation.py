"""What a run leaves as it found it: random numbers, modes and torch's settings."""

import random
import sys
from collections.abc import Callable, Generator, Iterable
from contextlib import contextmanager
from typing import Any

import torch
from torch.backends import cuda, cudnn

_FLAGS: tuple[tuple[Any, str], ...] = (
    (cudnn, "enabled"),
    (cudnn, "benchmark"),
    (cudnn, "deterministic"),
    (cudnn, "allow_tf32"),
    (cuda.matmul, "allow_tf32"),
)
Restore = Callable[[], object]


@contextmanager
def untouched_globals() -> Generator[None]:
    """Put random states, modes and flags back at the end, also when an error leaves the block."""
    restores = [*_random_states(), *_modes(), *_flags()]
    try:
        yield
    finally:
        for restore in restores:
            restore()


def _random_states() -> Iterable[Restore]:
    yield _putting_back(torch.get_rng_state, torch.set_rng_state)
    yield _putting_back(random.getstate, random.setstate)
    # Asking a GPU that was never used for its state would make a context on it.
    if torch.cuda.is_initialized():
        yield _putting_back(torch.cuda.get_rng_state_all, torch.cuda.set_rng_state_all)
    # A model can draw from NumPy only if somebody has imported it.
    if (numpy := sys.modules.get("numpy")) is not None and hasattr(numpy, "random"):
        yield _putting_back(numpy.random.get_state, numpy.random.set_state)


def _modes() -> Iterable[Restore]:
    yield _putting_back(torch.is_grad_enabled, torch.set_grad_enabled)
    yield _putting_back(torch.get_default_dtype, torch.set_default_dtype)
    yield _putting_back(torch.get_num_threads, _set_threads)
    yield _deterministic()


def _deterministic() -> Restore:
    enabled = torch.are_deterministic_algorithms_enabled()
    warn_only = torch.is_deterministic_algorithms_warn_only_enabled()

    def restore() -> None:
        now = (
            torch.are_deterministic_algorithms_enabled(),
            torch.is_deterministic_algorithms_warn_only_enabled(),
        )
        if now != (enabled, warn_only):
            torch.use_deterministic_algorithms(enabled, warn_only=warn_only)

    return restore


def _flags() -> Iterable[Restore]:
    for owner, name in _FLAGS:
        yield _flag(owner, name)


def _flag(owner: Any, name: str) -> Restore:
    value = getattr(owner, name)

    def restore() -> None:
        if getattr(owner, name) != value:
            setattr(owner, name, value)

    return restore


def _set_threads(number: int) -> None:
    # Setting the number, even to what it is, starts the pool anew.
    if torch.get_num_threads() != number:
        torch.set_num_threads(number)


def _putting_back(get: Callable[[], Any], put: Callable[[Any], object]) -> Restore:
    value = get()
    return lambda: put(value)

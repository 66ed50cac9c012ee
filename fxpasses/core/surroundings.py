"""What is global to a process and a pass must leave alone: random states, modes, torch's flags.

Grad mode, autocast and the default device are a thread's own. The rest is the process's: it is put
back only where it has changed, which code of the model or of a pass must have done. That another
thread did it in this very moment, nothing shows; it is put back as well. The CPU's random state is
missing here: see `core.randomness`.
"""

from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, Final

import torch
from torch import Tensor
from torch.autograd.grad_mode import _unsafe_preserve_version_counter  # pyright: ignore[reportPrivateUsage]  no public way to keep a counter
from torch.backends import cuda, cudnn, mkldnn

from fxpasses.core.randomness import PythonNumbers

Restore = Callable[[], object]

_FLAGS: Final[tuple[tuple[Any, str], ...]] = (
    (cudnn, "enabled"),
    (cudnn, "benchmark"),
    (cudnn, "deterministic"),
    (cudnn, "allow_tf32"),
    (cuda.matmul, "allow_tf32"),
    (cuda.matmul, "allow_fp16_reduced_precision_reduction"),
    (cuda.matmul, "allow_bf16_reduced_precision_reduction"),
    (mkldnn, "enabled"),
)


@contextmanager
def surroundings_kept() -> Generator[None]:
    """Put random states, modes and flags back at the end, also when an error leaves the block.

    Inside, autocast keeps no casts of weights: made of stand-ins, or under modes of torch, they
    would be what the next call of the model reads.
    """
    restores = [*_random_states(), *_modes(), *_flags()]
    torch.set_autocast_cache_enabled(False)
    try:
        yield
    finally:
        for restore in restores:
            restore()


@contextmanager
def tensors_kept(tensors: Iterable[Tensor]) -> Generator[None]:
    """Put back what is written to the memory of these tensors, and how often it was written."""
    kept = list(tensors)
    whole = [_bytes_of(tensor) for tensor in kept if tensor.layout is torch.strided]
    memory = {one.data_ptr(): one for one in whole if one.data_ptr()}
    saved = {key: one.clone() for key, one in memory.items()}
    counted = tuple(tensor for tensor in kept if not tensor.is_inference())
    with _unsafe_preserve_version_counter(counted):
        try:
            yield
        finally:
            for key, one in memory.items():
                if not torch.equal(one, saved[key]):
                    one.copy_(saved[key])


def _bytes_of(tensor: Tensor) -> Tensor:
    """All the memory that a tensor lies in, in bytes."""
    return torch.empty(0, dtype=torch.uint8, device=tensor.device).set_(tensor.untyped_storage())


def _random_states() -> Iterator[Restore]:
    yield PythonNumbers().restore
    # Asking a GPU that was never used for its state would make a context on it.
    if torch.cuda.is_initialized():
        yield _kept(torch.cuda.get_rng_state_all, torch.cuda.set_rng_state_all, _all_equal)


def _modes() -> Iterator[Restore]:
    yield _kept(torch.is_grad_enabled, torch.set_grad_enabled)
    yield _kept(torch.get_default_dtype, torch.set_default_dtype)
    yield _kept(torch.get_num_threads, torch.set_num_threads)
    yield _kept(torch.get_float32_matmul_precision, torch.set_float32_matmul_precision)
    yield _kept(torch.is_anomaly_enabled, torch.set_anomaly_enabled)
    yield _kept(torch.get_default_device, _set_default_device)
    yield _kept(
        _deterministic, lambda now: torch.use_deterministic_algorithms(now[0], warn_only=now[1])
    )
    yield _kept(torch.is_autocast_cache_enabled, torch.set_autocast_cache_enabled)
    for device in ("cpu", "cuda"):
        yield _autocast(device)


def _deterministic() -> tuple[bool, bool]:
    return (
        torch.are_deterministic_algorithms_enabled(),
        torch.is_deterministic_algorithms_warn_only_enabled(),
    )


def _autocast(device: str) -> Restore:
    enabled, dtype = torch.is_autocast_enabled(device), torch.get_autocast_dtype(device)

    def restore() -> None:
        torch.set_autocast_enabled(device, enabled)
        torch.set_autocast_dtype(device, dtype)

    return restore


def _set_default_device(device: torch.device) -> None:
    # "cpu" is what holds without any setting, which costs less than an explicit one.
    torch.set_default_device(None if device == torch.device("cpu") else device)


def _flags() -> Iterator[Restore]:
    for owner, name in _FLAGS:
        yield _kept(
            lambda o=owner, n=name: getattr(o, n), lambda v, o=owner, n=name: setattr(o, n, v)
        )


def _kept(
    get: Callable[[], Any],
    put: Callable[[Any], object],
    same: Callable[[Any, Any], bool] = lambda a, b: a == b,
) -> Restore:
    """Puts back only what has changed: setting a value to what it is can have costs of its own."""
    value = get()
    return lambda: None if same(get(), value) else put(value)


def _all_equal(a: list[torch.Tensor], b: list[torch.Tensor]) -> bool:
    return len(a) == len(b) and all(map(torch.equal, a, b))

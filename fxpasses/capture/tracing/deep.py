"""Deep module trees: a higher recursion limit, and beyond some depth a thread with more stack."""

import contextvars
import sys
import threading
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any, Final, TypeVar

import torch

T = TypeVar("T")

_SHALLOW: Final = 30  # levels that the usual recursion limit holds for sure
_NEEDS_THREAD: Final = 250  # levels beyond which the usual stack of a thread may not do
_FRAMES_A_LEVEL: Final = 12
_STACK_A_LEVEL: Final = 128 * 1024  # bytes
_LARGEST_STACK: Final = 2**30


def run_deep(depth: int, function: Callable[[], T]) -> T:
    """Run `function`, which recurses into `depth` nested modules."""
    if depth <= _SHALLOW:
        return function()
    # The limit is the process's. Other threads may recurse deeper for a while, which harms nothing
    # that ends; captures hold a lock, so that none puts back another's.
    limit = sys.getrecursionlimit()
    raised = max(limit, 1000 + depth * _FRAMES_A_LEVEL)
    sys.setrecursionlimit(raised)
    try:
        return function() if depth <= _NEEDS_THREAD else _in_thread(depth, function)
    finally:
        if sys.getrecursionlimit() == raised:
            sys.setrecursionlimit(limit)


def _in_thread(depth: int, function: Callable[[], T]) -> T:
    """Run `function` in a thread with a big stack, under the caller's torch state."""
    result: list[T] = []
    errors: list[BaseException] = []
    carry = _carried_state()
    context = contextvars.copy_context()

    def work() -> None:
        try:
            with carry():
                result.append(context.run(function))
        except BaseException as error:
            errors.append(error)

    # The size is the process's, too: a thread that another one starts just now gets as much room.
    size = min(_LARGEST_STACK, 16 * 2**20 + depth * _STACK_A_LEVEL)
    before = threading.stack_size(size)
    try:
        thread = threading.Thread(target=work, name="fxpasses capture", daemon=True)
        thread.start()
    finally:
        threading.stack_size(before)
    thread.join()
    if errors:
        raise errors[0]
    return result[0]


def _carried_state() -> Callable[[], Any]:
    """What enters the grad mode, inference mode and autocast of this thread in another one."""
    grad, inference = torch.is_grad_enabled(), torch.is_inference_mode_enabled()
    threads = torch.get_num_threads()
    autocast = [
        (device, torch.get_autocast_dtype(device), torch.is_autocast_enabled(device))
        for device in ("cpu", "cuda")
    ]
    cache = torch.is_autocast_cache_enabled()

    def enter() -> Any:
        stack = ExitStack()
        # OpenMP counts for each thread. For the process this is the number that it has already.
        torch.set_num_threads(threads)
        stack.enter_context(torch.inference_mode(inference))
        stack.enter_context(torch.set_grad_enabled(grad))
        for device, dtype, enabled in autocast:
            if enabled:
                stack.enter_context(torch.autocast(device, dtype=dtype, cache_enabled=cache))
        return stack

    return enter

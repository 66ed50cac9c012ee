"""Random numbers of this thread's own: the process's generator stays where it is, for everybody.

Torch has one default generator on the CPU for all threads. A model that is run to be looked at
draws from it; if it were set back afterwards, whoever trains beside us would see numbers twice.
So this thread draws from a copy. The generators of GPUs, of Python and of NumPy are everybody's;
they are put back, but only where they moved.
"""

import random
import sys
import threading
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache
from typing import Any, Final

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

_OWN: Final[ContextVar[torch.Generator | None]] = ContextVar("own generator", default=None)


def default_generator() -> torch.Generator:
    """What this thread draws from on the CPU where nothing else is said."""
    return _OWN.get() or torch.default_generator


@contextmanager
def own_generator() -> Generator[None]:
    """In the block this thread has a copy of its default generator.

    Torch's functions for the random state speak of the copy. Operations draw from it if they are
    run by `drawn`, as in `own_draws`.
    """
    token = _OWN.set(default_generator().clone_state())
    try:
        with _torch_asks_each_thread():
            yield
    finally:
        _OWN.reset(token)


@contextmanager
def own_draws() -> Generator[None]:
    """In the block this thread draws from a copy of its default generator."""
    with own_generator(), _Draws():
        yield


class _Draws(TorchDispatchMode):
    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        run = drawn if may_draw(func) else _plainly
        return run(func, args, kwargs or {})


def _plainly(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    return func(*args, **kwargs)


# -- operations


@cache
def may_draw(func: Any) -> bool:
    """Whether an operation may draw random numbers. What packages bring need not say so."""
    return func.namespace != "aten" or torch.Tag.nondeterministic_seeded in func.tags


def drawn(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """Run an operation that may draw; what it draws on the CPU comes from `default_generator`."""
    generator = _OWN.get()
    if generator is None or _device(args, kwargs).type != "cpu" or func in _NEVER_ON_CPU:
        return func(*args, **kwargs)
    form = _with_generator(func)
    if form is None:
        return _swapped(lambda: func(*args, **kwargs), generator)
    position = _names(form).index("generator")
    given = args[position] if position < len(args) else kwargs.get("generator")
    if given is not None:
        return func(*args, **kwargs)
    return form(*args[:position], **{**kwargs, "generator": generator})


# Has a parameter for dropout that it takes on other devices only.
_NEVER_ON_CPU: Final = frozenset(
    [torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default]  # noqa: SLF001  its name
)


def _device(args: Sequence[Any], kwargs: Mapping[str, Any]) -> torch.device:
    asked = kwargs.get("device")
    tensors = (value.device for value in (*args, *kwargs.values()) if isinstance(value, Tensor))
    return asked or next(tensors, torch.device("cpu"))


@cache
def _with_generator(func: Any) -> Any:
    """The form of an operation that takes a generator; None where there is none."""
    names = _names(func)
    if "generator" in names:
        return func
    overloads = (getattr(func.overloadpacket, name) for name in func.overloadpacket.overloads())
    return next((form for form in overloads if _adds_generator(_names(form), names)), None)


def _adds_generator(longer: list[str], names: list[str]) -> bool:
    return "generator" in longer and [name for name in longer if name != "generator"] == names


def _names(func: Any) -> list[str]:
    return [argument.name for argument in func._schema.arguments]  # noqa: SLF001  torch has no public name


def _swapped(run: Callable[[], Any], generator: torch.Generator) -> Any:
    """Run what takes no generator, with the state of `generator` in the process's own.

    Other threads draw from that state as long as it runs. Only operations of other packages, and
    a few of torch's that are hardly called directly, need it.
    """
    process = torch.default_generator
    before = process.get_state()
    process.set_state(generator.get_state())
    try:
        return run()
    finally:
        generator.set_state(process.get_state())
        process.set_state(before)


# -- functions


class _EachThreads:
    """Stands where torch's functions find the default generator: each thread has its own."""

    def __getattr__(self, name: str) -> Any:
        return getattr(default_generator(), name)


_STAND_IN: Final = _EachThreads()
_RANDOM: Final[Any] = torch.random
# Threads that need it come and go; the last one takes it away.
_USERS: Final[list[object]] = []
_LOCK: Final = threading.Lock()


@contextmanager
def _torch_asks_each_thread() -> Generator[None]:
    """`torch.manual_seed` and its kin act on `default_generator`."""
    user = object()
    with _LOCK:
        _USERS.append(user)
        _RANDOM.default_generator = _STAND_IN
    try:
        yield
    finally:
        with _LOCK:
            _USERS.remove(user)
            if not _USERS:
                _RANDOM.default_generator = torch.default_generator


# -- Python's and NumPy's


class PythonNumbers:
    """Where the global generators of Python and NumPy stand at one moment.

    No thread has its own. What others draw between now and `restore`, they may draw again, if that
    finds the generators moved.
    """

    def __init__(self) -> None:
        self._python = random.getstate()
        self._numpy = _numpy_state()

    def changed(self) -> bool:
        return self._python_moved() or self._numpy_moved()

    def restore(self) -> None:
        if self._python_moved():
            random.setstate(self._python)
        numpy = _numpy_random()
        if numpy is not None and self._numpy is not None and self._numpy_moved():
            numpy.set_state(self._numpy)

    def _python_moved(self) -> bool:
        return random.getstate() != self._python

    def _numpy_moved(self) -> bool:
        return _digest(_numpy_state()) != _digest(self._numpy)


def _numpy_random() -> Any:
    # Numbers can have been drawn from NumPy only if somebody has imported it.
    return getattr(sys.modules.get("numpy"), "random", None)


def _numpy_state() -> Any:
    numpy = _numpy_random()
    return None if numpy is None else numpy.get_state()


def _digest(state: Any) -> Any:
    return None if state is None else (state[1].tobytes(), *state[2:])

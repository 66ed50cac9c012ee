"""The two modes that are on during a trace: one sees torch's functions, one its operations."""

from collections.abc import Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from fxpasses.capture.tracing.internals import (
    generator_states,
    innermost_function_mode,
    modes_off,
    schema_of,
    set_generator_states,
    without_innermost_function_mode,
)
from fxpasses.capture.tracing.memory import Memory
from fxpasses.capture.tracing.refusal import Refusal
from fxpasses.capture.tracing.request import OpaqueKind
from fxpasses.core.randomness import drawn, may_draw


class Host(Protocol):
    """What the modes need of the tracer."""

    evaluating: int
    memory: Memory
    sizes_from_data: bool  # set where an operation's output sizes depend on data
    squeezed: bool  # set where an operation drops dimensions of size one

    def torch_function(
        self, function: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> Any: ...
    def refuse(self, kind: OpaqueKind, reason: str) -> Refusal: ...


class FunctionMode(TorchFunctionMode):
    """Shows the tracer every torch function that the model calls, with or without proxies."""

    def __init__(self, host: Host) -> None:
        super().__init__()
        self._host = host

    def __torch_function__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        if self._host.evaluating:
            return func(*args, **(kwargs or {}))
        return self._host.torch_function(func, args, kwargs or {})


@contextmanager
def functions_unseen() -> Generator[None]:
    """Code in this block runs as in eager, where no mode looks on.

    Layers of torch ask for one, and have other kernels where there is none.
    """
    if not isinstance(innermost_function_mode(), FunctionMode):
        yield
        return
    with without_innermost_function_mode():
        yield


@dataclass(frozen=True, slots=True)
class _Rule:
    """What an operation does besides computing its outputs."""

    writes: tuple[tuple[int, str], ...]
    statistics: tuple[tuple[int, str], ...]  # written when training, which no schema says
    fresh: tuple[bool, ...]  # of each output: whether its memory is new
    is_random: bool
    sizes_from_data: bool
    squeezes: bool


@cache
def _rule_of(func: Any) -> _Rule:
    schema = schema_of(func)
    arguments = list(enumerate(schema.arguments))
    writes = tuple((i, a.name) for i, a in arguments if a.alias_info and a.alias_info.is_write)
    running = ("running_mean", "running_var")
    return _Rule(
        writes=writes,
        statistics=tuple((i, a.name) for i, a in arguments if a.name in running),
        fresh=tuple(a.alias_info is None for a in schema.returns),
        is_random=torch.Tag.nondeterministic_seeded in func.tags,
        sizes_from_data=torch.Tag.dynamic_output_shape in func.tags,
        squeezes=schema.name == "aten::squeeze",
    )


class DispatchMode(TorchDispatchMode):
    """Lets the example run along on memory that is ours, and nothing real run beside it."""

    def __init__(self, host: Host) -> None:
        super().__init__()
        self._host = host

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        rule = _rule_of(func)
        host = self._host
        self._before(func, rule, args, kwargs)
        host.evaluating += 1
        try:
            out = self._draw(func, args, kwargs) if may_draw(func) else func(*args, **kwargs)
        finally:
            host.evaluating -= 1
        if rule.squeezes:
            host.squeezed = True
        if rule.sizes_from_data and not _is_index_by_integers(func, args):
            host.sizes_from_data = True
        is_made = any(rule.fresh) or func is torch.ops.aten.lift_fresh.default
        if is_made:
            host.memory.adopt(out)
        return out

    def _before(
        self, func: Any, rule: _Rule, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> None:
        written = [
            tensor
            for position, name in _written(rule, args, kwargs)
            for tensor in _listed(args[position] if position < len(args) else kwargs.get(name))
        ]
        host = self._host
        if rule.is_random and not host.evaluating:
            raise host.refuse(OpaqueKind.RANDOM_STATE, f"{func} draws random numbers")
        if written and not host.evaluating and not all(map(host.memory.is_made_here, written)):
            raise host.refuse(OpaqueKind.PYTHON_STATE, f"{func} writes a tensor of the program")
        for tensor in written:
            host.memory.before_write(tensor)

    def _draw(self, func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """Run an operation that may draw random numbers, and note if it did."""
        host = self._host
        before = GeneratorStates()
        out = drawn(func, args, kwargs)
        if before.differ():
            host.memory.before_random(before.restore)
        return out


class GeneratorStates:
    """The states of this thread's random generators at one moment."""

    def __init__(self) -> None:
        with modes_off():
            self._states = generator_states()

    def differ(self) -> bool:
        with modes_off():
            return not all(map(torch.equal, self._states, generator_states()))

    def restore(self) -> None:
        with modes_off():
            set_generator_states(self._states)


def _written(
    rule: _Rule, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> tuple[tuple[int, str], ...]:
    if not rule.statistics or rule.writes:
        return rule.writes
    flags = [value for value in (*args, *kwargs.values()) if isinstance(value, bool)]
    return rule.statistics if any(flags[:1]) else ()


def _listed(value: Any) -> list[Tensor]:
    if isinstance(value, Tensor):
        return [value]
    if isinstance(value, (tuple, list)):
        return [item for item in value if isinstance(item, Tensor)]
    return []


def _is_index_by_integers(func: Any, args: tuple[Any, ...]) -> bool:
    masks = (torch.bool, torch.uint8)
    is_index = func is torch.ops.aten.index.Tensor
    return is_index and not any(isinstance(i, Tensor) and i.dtype in masks for i in args[1])

"""No pass writes a weight: torch's in-place operations on them are stopped before they happen."""

from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from fxpasses.core import Program
from fxpasses.errors import PassError


@dataclass(frozen=True, slots=True)
class _State:
    """What can be set on a tensor object without an operation of torch."""

    name: str
    tensor: Tensor
    data: Tensor
    requires_grad: bool

    @classmethod
    def of(cls, name: str, tensor: Tensor) -> "_State":
        return cls(name, tensor, tensor.detach(), tensor.requires_grad)

    def restore(self) -> bool:
        """Put the state back; whether it had changed."""
        moved = _storage(self.tensor) != _storage(self.data)
        if moved:
            self.tensor.data = self.data
        switched = self.tensor.requires_grad != self.requires_grad
        if switched:
            self.tensor.requires_grad_(self.requires_grad)
        return moved or switched


class WeightsProtected(TorchDispatchMode):
    """Inside, an operation of torch that would write a tensor of the program is an error.

    The graphs share their tensors with the caller's model, and a write through `.data` leaves no
    trace, so it must not happen at all. What is set on a tensor object itself is put back.
    """

    def __init__(self, program: Program) -> None:
        super().__init__()
        modules = (program.root, *(module for _, module in program))
        named = {id(t): (n, t) for m in modules for n, t in _named_tensors(m) if _is_strided(t)}
        self._names = {_storage(tensor): name for name, tensor in named.values()}
        self._states = [_State.of(name, tensor) for name, tensor in named.values()]
        self._writes: dict[Any, tuple[int | str, ...]] = {}

    @contextmanager
    def around_a_pass(self) -> Generator[None]:
        """Put back what the block sets on the tensor objects.

        Raises:
            PassError: it has set something, and nothing else was raised.
        """
        try:
            with self:
                yield
        except BaseException:
            self._restore()
            raise
        if changed := self._restore():
            raise PassError(f"set .data or requires_grad of {changed[0]}, which the model shares")

    def _restore(self) -> list[str]:
        return [state.name for state in self._states if state.restore()]

    def __torch_dispatch__(
        self,
        func: Any,
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        writes = self._writes.get(func)
        if writes is None:
            writes = self._writes[func] = tuple(_written_arguments(func))
        for place in writes:
            self._refuse(func, _argument(place, args, kwargs))
        return func(*args, **kwargs)

    def _refuse(self, func: Callable[..., Any], value: Any) -> None:
        for tensor in _tensors(value):
            name = self._names.get(_storage(tensor))
            if name is not None:
                raise PassError(
                    f"{func} would write {name} in place, which the model shares: a pass adds new "
                    "tensors, with edit.constant or edit.fold, and leaves weights as they are"
                )


def _written_arguments(func: Any) -> Iterator[int | str]:
    """Where the operation has arguments that it writes: a position, and a name."""
    for position, argument in enumerate(func._schema.arguments):  # noqa: SLF001  the schema has no public name
        if argument.alias_info is not None and argument.alias_info.is_write:
            yield argument.name if argument.kwarg_only else position


def _argument(place: int | str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    if isinstance(place, str):
        return kwargs.get(place)
    return args[place] if place < len(args) else None


def _tensors(value: Any) -> Iterable[Tensor]:
    values = value if isinstance(value, list | tuple) else (value,)
    return [one for one in values if isinstance(one, Tensor) and _is_strided(one)]


def _is_strided(tensor: Tensor) -> bool:
    return tensor.layout is torch.strided


def _storage(tensor: Tensor) -> int:
    # By the storage itself: tensors without memory, such as fake ones, have storages too.
    return tensor.untyped_storage()._cdata  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]  torch has no public identity of a storage


def _named_tensors(module: nn.Module) -> Iterator[tuple[str, Tensor]]:
    yield from module.named_parameters()
    yield from module.named_buffers()

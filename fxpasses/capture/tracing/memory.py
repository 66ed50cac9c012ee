"""Which memory the example may write while it runs along, and how writes are taken back."""

import copy
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from fxpasses.capture.inside import attributes_of
from fxpasses.capture.tracing.internals import functions_off, modes_off, set_version, version_of
from fxpasses.capture.tracing.refusal import Refusal
from fxpasses.capture.tracing.request import OpaqueKind


def key_of(tensor: Tensor) -> int | None:
    """The identity of a tensor's memory; None where it has none of its own to protect."""
    try:
        with functions_off():  # our own question, not the model's
            if tensor.layout is not torch.strided or tensor.is_meta:
                return None
            return tensor.untyped_storage().data_ptr() or None
    except (NotImplementedError, RuntimeError):  # a wrapper without memory
        return None


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A point in time. Memory of this serial number or a later one was made after it."""

    serial: int
    entries: int
    effect: str
    lasting: str


@dataclass(frozen=True, slots=True)
class _Entry:
    """How one change is undone, and the serial number of the memory that was changed."""

    undo: Callable[[], None]
    serial: int = 0


class _Outside:
    """Memory of the program around the model, as it was before the trace wrote it."""

    def __init__(self, tensor: Tensor) -> None:
        self.tensor = tensor
        self._version = version_of(tensor)
        with modes_off():
            self._saved = tensor.untyped_storage().clone()

    def restore(self) -> None:
        _refill(self.tensor.untyped_storage(), self._saved)
        set_version(self.tensor, self._version)


class Memory:
    """The memory that the run along owns, and the log by which its writes are taken back.

    Parameters are the caller's and never written. What the trace makes, and its copies of buffers,
    plain tensors and inputs, may be written; what was there before a checkpoint is saved first.
    Memory that nothing stands in for (tensors in globals, in closures, in objects that cannot be
    copied) is written where a module's own code writes it, and put back as the trace ends.
    """

    def __init__(self) -> None:
        self.effect = ""  # what a second run of the module's own code would repeat
        self.lasting = ""  # that part of it which cannot be taken back before such a run
        self._owned: dict[int, int] = {}
        self._foreign: dict[int, nn.Parameter] = {}
        self._serial = 1
        self._log: list[_Entry] = []
        self._points: list[Checkpoint] = []
        self._saved: list[set[int]] = [set()]  # per checkpoint: memory saved since
        self._copies: dict[int, tuple[Tensor, Tensor]] = {}
        self._given: set[int | None] = set()
        self.writes_given = False
        self._memo: dict[int, Any] = {}
        self._originals: dict[int, Tensor] = {}
        self._outside: dict[int, _Outside] = {}
        self._lends_parameters = False

    # -- what is whose

    def take(self, copies: Iterable[tuple[Tensor, Tensor]]) -> None:
        """Own the second of each pair, which the root holds in place of the first."""
        for original, made in copies:
            self._copies[id(original)] = (original, made)
            self._copies[id(made)] = (made, made)
            self._originals[id(made)] = original
            self._own(made, serial=0)

    def original_of(self, tensor: Tensor) -> Tensor:
        """The caller's tensor that a copy was taken of; any other stands for itself."""
        return self._originals.get(id(tensor), tensor)

    def protect(self, parameter: nn.Parameter) -> None:
        key = key_of(parameter)
        if key is not None:
            self._foreign[key] = parameter

    def copy_of(self, tensor: Tensor) -> Tensor:
        """A copy to run on; ties and shared storage stay. A view of a parameter stays as it is."""
        found = self._copies.get(id(tensor))
        if found is None:
            with modes_off():
                made = self._copied(tensor)
            found = self._copies[id(tensor)] = (tensor, made)
            self._copies.setdefault(id(made), (made, made))
        return found[1]

    def _copied(self, tensor: Tensor) -> Tensor:
        detached = tensor.detach()
        if key_of(tensor) in self._foreign:
            return detached
        made = copy.deepcopy(detached, self._memo)
        self._own(made, serial=0)
        attributes_of(made).update(attributes_of(tensor))
        return made.requires_grad_() if tensor.requires_grad else made

    def give(self, tensor: Tensor) -> None:
        """Note that this is the copy of a tensor which the call gives."""
        self._given.add(key_of(tensor))

    def lend(self, tensor: Tensor) -> None:
        """Allow writes to a tensor that stands for a parameter."""
        self._own(tensor, serial=0)

    def has_copy(self, tensor: Tensor) -> bool:
        return id(tensor) in self._copies

    def is_made_here(self, tensor: Tensor) -> bool:
        """Whether the trace made this tensor's memory, so that eager makes it at each call."""
        key = key_of(tensor)
        return key is not None and self._owned.get(key, 0) > 0

    def is_parameter(self, value: object) -> bool:
        return isinstance(value, Tensor) and key_of(value) in self._foreign

    def adopt(self, made: object) -> None:
        """Take over the memory of tensors that an operation has just made."""
        for tensor in _tensors(made):
            key = key_of(tensor)
            if key is not None and key not in self._foreign:
                self._own(tensor, self._serial)

    def _own(self, tensor: Tensor, serial: int) -> None:
        key = key_of(tensor)
        if key is not None:
            self._owned[key] = serial

    # -- writes

    def before_write(self, tensor: Tensor) -> None:
        """Save `tensor`'s memory if it must be taken back; refuse if it is a parameter's."""
        key = key_of(tensor)
        if key is None:
            return
        serial = self._owned.get(key)
        if serial is None or key in self._given:
            self.lasting = self.lasting or "a write to an input or to memory outside of the model"
        if serial is None:
            if key in self._foreign and not self._lends_parameters:
                raise Refusal(OpaqueKind.WRITES_PARAMETER, "writes a parameter in place")
            serial = 0
            if key not in self._outside:
                self._outside[key] = _Outside(tensor)
        self.writes_given |= key in self._given
        if serial == 0:
            self.effect = self.effect or "a write to a buffer or an input"
        is_older = bool(self._points) and serial < self._points[-1].serial
        if is_older and key not in self._saved[-1]:
            self._saved[-1].add(key)
            storage = tensor.untyped_storage()
            with modes_off():
                saved = storage.clone()
            self._log.append(_Entry(lambda: _refill(storage, saved), serial))

    @contextmanager
    def parameters_lent(self) -> Generator[None]:
        """What runs in this block may write parameters: they are put back as the trace ends."""
        self._lends_parameters = True
        try:
            yield
        finally:
            self._lends_parameters = False

    def written_outside(self) -> list[Tensor]:
        """The tensors of the program around the model that its own code writes."""
        return [outside.tensor for outside in self._outside.values()]

    def restore_outside(self) -> None:
        """Put back what the model's own code wrote outside of the model."""
        for outside in self._outside.values():
            outside.restore()

    def before_random(self, restore: Callable[[], None]) -> None:
        """Note that random numbers were drawn; `restore` puts the generator back."""
        self.effect = self.effect or "a random draw"
        self.also_undo(restore)

    def also_undo(self, undo: Callable[[], None]) -> None:
        if self._points:
            self._log.append(_Entry(undo))

    # -- taking back

    def checkpoint(self) -> Checkpoint:
        self._serial += 1
        self._saved.append(set())
        point = Checkpoint(self._serial, len(self._log), self.effect, self.lasting)
        self._points.append(point)
        return point

    def keep(self, point: Checkpoint) -> None:
        """The module ended well. Its writes stay, but an outer module may still undo them."""
        self._points.pop()
        saved = self._saved.pop()
        self._saved[-1] |= saved
        since = self._log[point.entries :]
        outer = self._points[-1].serial if self._points else 0
        self._log[point.entries :] = [entry for entry in since if entry.serial < outer]

    def undo(self, point: Checkpoint) -> None:
        """Take back every write since `point`, also in modules that ended by an error."""
        index = self._points.index(point)
        del self._points[index:]
        del self._saved[index + 1 :]
        while len(self._log) > point.entries:
            self._log.pop().undo()
        self.effect, self.lasting = point.effect, point.lasting


def _refill(storage: torch.UntypedStorage, saved: torch.UntypedStorage) -> None:
    with modes_off():
        storage.copy_(saved, non_blocking=False)


def _tensors(value: object) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, (tuple, list)):
        for item in value:
            yield from _tensors(item)

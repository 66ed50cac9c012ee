"""Attributes of modules: what a read or a write by the model's code must be seen of."""

from collections.abc import Generator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from fxpasses.capture.tracing.internals import parameters_of
from fxpasses.capture.tracing.journal import AttributeWrites, is_registry, is_same_write
from fxpasses.capture.tracing.paths import Paths
from fxpasses.capture.tracing.proxies import Value
from fxpasses.capture.tracing.recorder import Recorder
from fxpasses.capture.tracing.request import OpaqueKind, Request
from fxpasses.capture.tracing.values import UNKNOWN
from fxpasses.capture.twins.sealed import ScriptBuffers
from fxpasses.ops import plain_tensors


class AttributeTracer(Recorder):
    """The part of the tracer that reads and writes of modules' attributes reach."""

    def __init__(self, request: Request, paths: Paths) -> None:
        super().__init__(request, paths)
        self.reads_training: list[str] = []
        self.writes = AttributeWrites()
        self._hidden: dict[tuple[int, str], tuple[nn.Module, Any]] = {}
        self._scripted = ScriptBuffers()
        self._live: dict[nn.Module, set[str]] = {}

    def prepare(self) -> None:
        """Copy what may be written, protect what may not, and hide what a read must be seen of."""
        self.region = self.region_at_entry()
        self.memory.take(self.request.copies)
        for module in self.paths.modules():
            for parameter in parameters_of(module).values():
                if parameter is not None:
                    self.memory.protect(parameter)
        if self.has_example:
            self.evaluating += 1
            self._own_buffers()
            self.evaluating -= 1
        self._hide_attributes()

    def _own_buffers(self) -> None:
        for module in self.paths.modules():
            if isinstance(module, torch.jit.ScriptModule):
                for buffer in self._scripted.save(module):
                    self.memory.lend(buffer)
                continue
            buffers = module.__dict__["_buffers"]
            for name, buffer in buffers.items():
                if buffer is not None:
                    buffers[name] = self.memory.copy_of(buffer)
                    self.paths.add_tensor(buffers[name], module, name)

    def _hide_attributes(self) -> None:
        """Move what a read must be seen of out of the modules, so that it comes to us."""
        live: dict[str, set[str]] = {}
        for attribute in self.request.live:
            path, _, name = attribute.rpartition(".")
            live.setdefault(path, set()).add(name)
        for module, path in self.paths.modules().items():
            if isinstance(module, torch.jit.ScriptModule):
                continue
            state = module.__dict__
            hidden = plain_tensors(module)
            if "training" in state:
                hidden.append(("training", state["training"]))
            for name, value in hidden:
                del state[name]
                self._hidden[id(module), name] = (module, self._hide(module, name, value))
            own = {name for name in live.get(path, ()) if not is_registry(name)}
            if own:
                self._live[module] = own
        self._hide_live()

    def _hide_live(self) -> None:
        """Hide the Python state of the modules whose forward changes it."""
        for module, names in self._live.items():
            for name in names & module.__dict__.keys():
                self._hidden[id(module), name] = (module, module.__dict__.pop(name))

    @contextmanager
    def live_shown(self) -> Generator[None]:
        """Code that runs for real sees, and changes, the state where it belongs."""
        for module, names in self._live.items():
            for name in names:
                _, value = self._hidden.pop((id(module), name), (module, UNKNOWN))
                if value is not UNKNOWN:
                    module.__dict__[name] = value
        try:
            yield
        finally:
            self._hide_live()

    def _hide(self, module: nn.Module, name: str, value: Any) -> Any:
        if not isinstance(value, Tensor):
            return value
        self.paths.add_tensor(value, module, name)
        if not self.has_example:
            return value
        own = self.memory.copy_of(value)
        self.paths.add_tensor(own, module, name)
        return own

    def show_attributes(self) -> None:
        """Put the hidden attributes back, and what cannot be hidden as it was."""
        self._scripted.restore()
        for (_, name), (module, value) in self._hidden.items():
            module.__dict__.setdefault(name, value)

    def read_attribute(self, module: nn.Module, name: str) -> Any:
        """The attribute of a module as model code sees it, UNKNOWN if it is none of ours."""
        found = self._hidden.get((id(module), name))
        if self.evaluating:
            return UNKNOWN if found is None else found[1]
        if name in self._live.get(module, ()):
            reason = f"reads .{name}, which the forward of an opaque module changes"
            raise self.refuse(OpaqueKind.READS_CHANGING_STATE, reason)
        if found is None:
            return self._registered(module, name)
        value = found[1]
        if isinstance(value, Tensor):
            return self.lift(value)
        self.reads_training.append(self.paths.find(module) or "")
        return value

    def _registered(self, module: nn.Module, name: str) -> Any:
        state = module.__dict__
        for registry in ("_parameters", "_buffers"):
            tensor = (state.get(registry) or {}).get(name)
            if tensor is not None:
                return self.lift(tensor) if self.paths.has_tensor(tensor) else tensor
        return UNKNOWN

    def before_attribute_write(self, module: nn.Module, name: str, value: Any) -> bool:
        """Note a write to a module of the model. True if it is done, or changes nothing."""
        if not self.paths.is_of_the_model(module):
            return False
        hidden = self._hidden.get((id(module), name))
        state = module.__dict__
        had, old = (True, hidden[1]) if hidden and name not in state else _current(state, name)
        if is_same_write(had, old, value):
            return True
        self.writes.note(module, name)
        if not isinstance(value, Value):
            return False
        # `Module.__setattr__` would refuse a proxy where a buffer is registered.
        for registry in ("_buffers", "_parameters", "_modules"):
            state[registry].pop(name, None)
        state[name] = value
        return True

    def before_attribute_delete(self, module: nn.Module, name: str) -> None:
        if self.paths.is_of_the_model(module):
            self.writes.note(module, name)


def _current(state: Mapping[str, Any], name: str) -> tuple[bool, Any]:
    for registry in (state["_parameters"], state["_buffers"], state["_modules"], state):
        if name in registry:
            return True, registry[name]
    return False, None

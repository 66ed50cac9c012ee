"""Calls of modules: inlined, kept as one node, or taken back and kept as an opaque one."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch import nn
from torch.fx import Node

from fxpasses.capture.result.guards import check_structure, require_structure, structure_of
from fxpasses.capture.tracing.attributes import AttributeTracer
from fxpasses.capture.tracing.internals import (
    is_grad_enabled,
    last_node,
    set_grad_enabled,
)
from fxpasses.capture.tracing.journal import ModuleState
from fxpasses.capture.tracing.memory import Checkpoint
from fxpasses.capture.tracing.names import is_identifier
from fxpasses.capture.tracing.paths import Paths, is_compiled, is_leaf, is_parametrized
from fxpasses.capture.tracing.refusal import Refusal, definition_of, explain, unbound_method
from fxpasses.capture.tracing.request import Call, Opaque, OpaqueKind, Request
from fxpasses.capture.tracing.running import as_called, keep_call, run_module
from fxpasses.capture.tracing.structures import Held, stateful
from fxpasses.capture.tracing.values import UNKNOWN, is_leaf_tensor_module
from fxpasses.capture.tracing.watch import Readers, World, stored_attributes
from fxpasses.core.randomness import PythonNumbers

_HOOKS: Final = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
# Running such a module again would change something that the trace cannot put back.
_EFFECTFUL: Final = frozenset(
    (
        OpaqueKind.PYTHON_STATE,
        OpaqueKind.RANDOM_STATE,
        OpaqueKind.WRITES_PARAMETER,
        OpaqueKind.HOOKED,
        OpaqueKind.CHANGES_ARGUMENT,
    )
)


def has_hooks(module: nn.Module) -> bool:
    return any(module.__dict__.get(name) for name in _HOOKS)


def is_made_of_layers(module: nn.Module) -> bool:
    """Such a layer of torch may have a kernel for the whole of it, without gradients alone."""
    return bool(module.__dict__.get("_modules"))


@dataclass(slots=True)
class _Mark:
    """Where the trace stood when a module was entered."""

    tail: Node
    stack: int
    writes: int
    refusals: int
    opaque: int
    calls: int
    constants: int
    unregistered: int
    guards: tuple[int, int]
    reads_training: int
    num_calls: int
    memory: Checkpoint
    grad_mode: bool
    reads_grad_mode: bool
    state: ModuleState
    arguments: Held


class ModuleTracer(AttributeTracer):
    """The part of the tracer that the model's calls of modules reach."""

    def __init__(self, request: Request, paths: Paths, world: World) -> None:
        super().__init__(request, paths)
        self.opaque: dict[str, Opaque] = {}
        self.calls: dict[str, Call] = {}
        self.changing: set[str] = set()
        self.world = world
        self.random = PythonNumbers()
        self._num_calls: dict[str, int] = {}
        self._called: list[str] = []  # in order, to take back
        # Lets `Tensor.name(x)` take traced values, where it does not yet.
        self.allow_unbound: Callable[[str], bool] = lambda _: False
        self._readers = Readers(world, request.places) if request.strict else None

    # -- calls

    def call_module(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        path = self._path_of(module)
        if is_leaf(module):
            return self._leaf(module, path, args, kwargs, None)
        opaque = self.opaque.get(path) or self.request.force_opaque.get(path)
        opaque = opaque or self._runs_own_code(module, path)
        if opaque is not None:
            return self._emit(module, opaque, args, kwargs)
        return self._try_inline(module, path, args, kwargs)

    def _path_of(self, module: nn.Module) -> str:
        path = self.paths.find(module)
        if path is not None:
            return path
        has_weights = any(True for _ in module.parameters()) or any(True for _ in module.buffers())
        if has_weights and not self.paths.is_of_the_model(module):
            raise self.refuse(OpaqueKind.NEW_MODULE, "makes a module with weights in forward")
        return self.paths.register(module)

    def _runs_own_code(self, module: nn.Module, path: str) -> Opaque | None:
        """Why a module is not even tried."""
        name = type(module).__name__
        if is_compiled(module):
            what = "TorchScript" if isinstance(module, torch.jit.ScriptModule) else "torch.compile"
            return Opaque(path, name, OpaqueKind.COMPILED, what)
        if isinstance(module, nn.parallel.DistributedDataParallel):
            return Opaque(path, name, OpaqueKind.PYTHON_STATE, "is wrapped for distributed runs")
        if has_hooks(module) or has_global_hooks():
            return Opaque(path, name, OpaqueKind.HOOKED, "has hooks", definition_of(module))
        if is_parametrized(module):
            reason = "its parameters are computed"
            return Opaque(path, name, OpaqueKind.PARAMETRIZED, reason, definition_of(module))
        return None

    def _try_inline(
        self, module: nn.Module, path: str, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        mark = self.mark(module, (args, kwargs))
        name: str | None = None
        try:
            odd = stateful((args, kwargs))
            if odd is not None:
                reason = f"is given a {odd} object"
                raise self.refuse(OpaqueKind.STATEFUL_ARGUMENT, reason)
            out = self._inline(module, path, args, kwargs)
            self.check_exit(module, mark, out)
        except Exception as error:
            opaque = self._opaque_for(module, path, error)
            self.roll_back(mark)
            name = unbound_method(error)
        else:
            self.memory.keep(mark.memory)
            return out
        if name is not None and self.allow_unbound(name):
            return self._try_inline(module, path, args, kwargs)
        return self._emit(module, opaque, args, kwargs)

    def _inline(
        self, module: nn.Module, path: str, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        key = self._enter(module, path)
        out = module.forward(*args, **kwargs)
        self._leave(key)
        return out

    def _enter(self, module: nn.Module, path: str) -> str:
        count = self._num_calls.get(path, 0)
        key = f"{path}@{count}" if count else path
        self._num_calls[path] = count + 1
        self._called.append(path)
        self.module_stack[key] = (path, type(module))
        self.stack_meta = None
        return key

    def _leave(self, key: str) -> None:
        del self.module_stack[key]
        self.stack_meta = None

    def _opaque_for(self, module: nn.Module, path: str, error: Exception) -> Opaque:
        kind, reason, source = explain(error, module)
        return Opaque(path, type(module).__name__, kind, reason, source)

    def _leaf(
        self,
        module: nn.Module,
        path: str,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        opaque: Opaque | None,
    ) -> Any:
        """Make a `call_module` node, and run the module on the example."""
        if not all(map(is_identifier, kwargs)):
            reason = "a keyword that is no identifier"
            raise self.refuse(OpaqueKind.UNTRACEABLE_VALUE, reason)
        key = self._enter(module, path)
        try:
            node = self.create_node(
                "call_module",
                self.paths.target(module),
                tuple(map(self.argument, args)),
                {name: self.argument(value) for name, value in kwargs.items()},
            )
            return self._result(module, node, args, kwargs, opaque)
        finally:
            self._leave(key)

    def _result(
        self,
        module: nn.Module,
        node: Node,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        opaque: Opaque | None,
    ) -> Any:
        if not self.has_example:
            made = self._unknown(node, args)
            made.is_tensor = opaque is None and is_leaf_tensor_module(module)
            return made
        if opaque is None:
            asks = has_hooks(module) or is_made_of_layers(module)
            run = as_called(self, module) if asks else module
            outcome = self.evaluate(module, lambda: run, args, kwargs)
            if has_hooks(module):
                self.guard_after("a hooked module")
            return self.give(node, outcome)
        run = self._runner_of(module, opaque)
        outcome = self.evaluate(run, lambda: run, args, kwargs)
        if opaque.kind in _EFFECTFUL:
            self.guard_after("a module that changes state")
        if outcome.known is not UNKNOWN:
            self._check_structure(node, outcome.known)
        return self.give(node, outcome)

    def _check_structure(self, node: Node, known: Any) -> None:
        expected = structure_of(known)
        arguments = (node, self.argument(expected))
        if self.memory.lasting:
            self.create_node("call_function", require_structure, arguments, {})
            self.guards += 1
        else:
            self.add_guard(check_structure, arguments)

    def _runner_of(self, module: nn.Module, opaque: Opaque) -> Callable[..., Any]:
        """Runs the module's own code on the example, noting the calls below it."""

        def run(*args: Any, **kwargs: Any) -> Any:
            held = Held((args, kwargs))
            if opaque.kind is OpaqueKind.REGION:  # it may have a graph of its own
                keep_call(self.calls, opaque.path, args, kwargs)
            out, changed = run_module(self, module, opaque.path, args, kwargs)
            self.changing |= changed
            if changed:
                self.guard_after("a module that changes state")
            if self.request.strict:
                self.world.take()
                self.random = PythonNumbers()
            if held.changed():
                reason = f"{opaque.path or 'a module'} changes a list or dict that it is given"
                raise Refusal(OpaqueKind.CHANGES_ARGUMENT, reason)
            return out

        run.__module__ = type(module).__module__
        run.__name__ = type(module).__name__
        return run

    def _emit(
        self, module: nn.Module, opaque: Opaque, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        self.opaque.setdefault(opaque.path, opaque)
        if not self.has_example:
            if Held((args, tuple(kwargs.values()))):
                reason = f"{opaque.path or 'a module'} may change a list or dict that it is given"
                raise self.refuse(OpaqueKind.CHANGES_ARGUMENT, reason)
            prefix = f"{opaque.path}." if opaque.path else ""
            self.changing |= {prefix + name for name in stored_attributes(module)}
        return self._leaf(module, opaque.path, args, kwargs, opaque)

    # -- entry, exit, taking back

    def mark(self, module: nn.Module, arguments: Any) -> _Mark:
        return _Mark(
            tail=last_node(self.graph),
            stack=len(self.module_stack),
            writes=len(self.writes),
            refusals=len(self.refusals),
            opaque=len(self.opaque),
            calls=len(self.calls),
            constants=len(self.constants),
            unregistered=len(self.paths.unregistered),
            guards=(self.guards, self.late_guards),
            reads_training=len(self.reads_training),
            num_calls=len(self._called),
            memory=self.memory.checkpoint(),
            grad_mode=is_grad_enabled(),
            reads_grad_mode=self.reads_grad_mode,
            state=ModuleState(module),
            arguments=Held(arguments),
        )

    def check_exit(self, module: nn.Module, mark: _Mark, out: Any) -> None:
        """Refuse a module whose forward ended well but did what a graph does not repeat."""
        if len(self.refusals) > mark.refusals:
            reason = f"catches an error of the tracer: {self.refusals[-1].reason}"
            raise Refusal(OpaqueKind.CAUGHT_REFUSAL, reason, self.refusals[-1].where)
        changed = mark.state.changed_names()
        self._note_changes(module, mark, changed)
        if len(self.writes) > mark.writes:
            raise Refusal(OpaqueKind.PYTHON_STATE, f"writes .{self.writes.last_name()}")
        if changed:
            raise Refusal(OpaqueKind.PYTHON_STATE, f"changes .{', .'.join(sorted(changed))}")
        if mark.arguments.changed() and not self._is_of_the_trace(module, mark.arguments):
            reason = "changes a list or dict that it is given"
            raise Refusal(OpaqueKind.CHANGES_ARGUMENT, reason)
        if hasattr(type(out), "__next__"):
            raise Refusal(OpaqueKind.UNTRACEABLE_VALUE, "returns a generator")
        if self.request.strict:
            self._check_world(module)

    def _is_of_the_trace(self, module: nn.Module, arguments: Held) -> bool:
        """Whether the graph tells all that became of the containers that a module has changed.

        It does if the code that made them is traced, too: neither the caller nor a module of the
        model has them.
        """
        changed = arguments.changed_ones()
        is_root = module is self.request.root
        return not is_root and not any(Held(vars(m)).holds(changed) for m in self.paths.modules())

    def _note_changes(self, module: nn.Module, mark: _Mark, changed: Iterable[str]) -> None:
        written = [*self.writes.since(mark.writes), *((module, name) for name in changed)]
        for owner, name in written:
            path = self.paths.find(owner)
            if path is not None:
                self.changing.add(f"{path}.{name}" if path else name)

    def _check_world(self, module: nn.Module) -> None:
        places = self.world.changed()
        if places:
            self.world.restore(first=False)
            raise Refusal(OpaqueKind.PYTHON_STATE, f"changes {', '.join(places)}")
        if self.random.changed():
            self.random.restore()
            raise Refusal(OpaqueKind.RANDOM_STATE, "draws Python or NumPy random numbers")
        if self._readers is not None and self._readers.is_reader(module):
            reason = "may read a global that an opaque module changes"
            raise Refusal(OpaqueKind.READS_CHANGING_STATE, reason)

    def roll_back(self, mark: _Mark) -> None:
        """Take back everything since `mark`."""
        del self.refusals[mark.refusals :]
        self.forget_nodes(mark.tail)
        self.writes.undo(mark.writes)
        mark.state.restore()
        mark.arguments.restore()
        self.memory.undo(mark.memory)
        _shorten(self.module_stack, mark.stack)
        self.stack_meta = None
        _shorten(self.opaque, mark.opaque)
        _shorten(self.calls, mark.calls)
        for name, _ in self.constants[mark.constants :]:
            self.request.root.__dict__.pop(name, None)
        del self.constants[mark.constants :]
        self.paths.forget(mark.unregistered)
        self.guards, self.late_guards = mark.guards
        self.reads_grad_mode = mark.reads_grad_mode
        del self.reads_training[mark.reads_training :]
        while len(self._called) > mark.num_calls:
            self._num_calls[self._called.pop()] -= 1
        if is_grad_enabled() != mark.grad_mode:
            set_grad_enabled(mark.grad_mode)


def has_global_hooks() -> bool:
    """Whether hooks are registered for all modules of the process."""
    registry = nn.modules.module
    names = ("_global_forward_hooks", "_global_forward_pre_hooks", "_global_backward_hooks")
    return any(getattr(registry, name, None) for name in names)


def _shorten(mapping: dict[str, Any], length: int) -> None:
    while len(mapping) > length:
        mapping.popitem()

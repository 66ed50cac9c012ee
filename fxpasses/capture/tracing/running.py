"""Runs an opaque module's own code on the example, and notes what it calls."""

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from typing import Any, Protocol, TypeAlias

import torch
from torch import Tensor, nn

from fxpasses.capture.tracing.internals import parameters_of, plain_form, set_grad_enabled
from fxpasses.capture.tracing.journal import ModuleState
from fxpasses.capture.tracing.memory import Memory
from fxpasses.capture.tracing.modes import functions_unseen
from fxpasses.capture.tracing.paths import Paths, is_compiled, is_leaf
from fxpasses.capture.tracing.refusal import Refusal
from fxpasses.capture.tracing.request import Call, OpaqueKind
from fxpasses.capture.tracing.structures import map_leaves
from fxpasses.ops import named_parts


class Host(Protocol):
    """What running needs of the tracer."""

    calls: dict[str, Call]
    memory: Memory
    paths: Paths
    region: tuple[Any, ...]

    def live_shown(self) -> AbstractContextManager[None]: ...
    def replace_known(self, old: Tensor, new: Tensor) -> None: ...


def run_module(
    host: Host, module: nn.Module, path: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> tuple[Any, set[str]]:
    """Run `module` on real values, under the grad mode of the trace's caller.

    Returns its result, detached, and the paths of the attributes that it changed.
    A module that writes a parameter is run again with parameters of its own.
    """
    with host.live_shown():
        out, states = _run_protected(host, module, path, args, kwargs)
        changed = {
            _joined(where, name)
            for where, state in states.items()
            for name in state.changed_names()
        }
    if changed:
        host.memory.also_undo(lambda: _restore(host, states))
    return map_leaves(out, _detached), changed


_Ran: TypeAlias = tuple[Any, dict[str, ModuleState]]


def as_called(host: Host, module: nn.Module) -> Callable[..., Any]:
    """Runs a layer as the trace's caller would: hooks and torch's own layers may ask for it.

    The result is detached.
    """

    def run(*args: Any, **kwargs: Any) -> Any:
        set_grad_enabled(host.region[0])
        with functions_unseen():
            return map_leaves(module(*args, **kwargs), _detached)

    return run


def _run_protected(host: Host, module: nn.Module, path: str, *call: Any) -> _Ran:
    """The result, and the Python state of the modules below as it was before.

    A module that writes parameters is run again on copies of them; one that reaches them by
    another way than their names, on the parameters themselves, which are put back at the end.
    """
    ran = _attempt(host, module, path, *call)
    if ran is None:
        real = _own_parameters(host, module)
        ran = _attempt(host, module, path, *call)
        if ran is None:
            _exchange_parameters(host, real)
            with host.memory.parameters_lent():
                ran = _attempt(host, module, path, *call)
    assert ran is not None, "parameters that are lent may be written"
    return ran


def _attempt(
    host: Host, module: nn.Module, path: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> _Ran | None:
    """As `_run_protected`; None where the module writes a parameter, and all is as before."""
    point = host.memory.checkpoint()
    states = _states_below(module, path)
    try:
        out = _run_noting(host, module, path, args, kwargs)
    except Refusal as refusal:
        if refusal.kind is not OpaqueKind.WRITES_PARAMETER:
            raise
        host.memory.undo(point)
        _restore(host, states)
        return None
    host.memory.keep(point)
    return out, states


def _restore(host: Host, states: Mapping[str, ModuleState]) -> None:
    with host.live_shown():
        for state in states.values():
            state.restore()


def _detached(leaf: Any) -> Any:
    return leaf.detach() if isinstance(leaf, Tensor) and leaf.requires_grad else leaf


def _states_below(module: nn.Module, path: str) -> dict[str, ModuleState]:
    return {
        _joined(path, below): ModuleState(child)
        for below, child in named_parts(module)
        if not isinstance(child, torch.jit.ScriptModule)
    }


def _joined(path: str, below: str) -> str:
    return f"{path}.{below}" if path and below else path or below


def _run_noting(
    host: Host, module: nn.Module, path: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> Any:
    """Run `module` with hooks below it that note the first call of each."""
    handles: list[Any] = []
    for below, child in _open_modules(module):
        if below and not is_leaf(child):
            hook = _note(host.calls, _joined(path, below))
            handles.append(child.register_forward_pre_hook(hook, prepend=True, with_kwargs=True))
    set_grad_enabled(host.region[0])  # the mode of the caller
    try:
        with functions_unseen():
            return _eager(module, path)(*args, **kwargs)
    finally:
        for handle in handles:
            handle.remove()


def _open_modules(module: nn.Module) -> list[tuple[str, nn.Module]]:
    """The modules that may be given hooks: none that is compiled, nor what lies in one."""
    found: list[tuple[str, nn.Module]] = []
    closed: list[str] = []
    for path, child in named_parts(module):
        if any(path.startswith(prefix) for prefix in closed):
            continue
        if is_compiled(child):
            closed.append(f"{path}." if path else "")
        else:
            found.append((path, child))
    return found


def _eager(module: nn.Module, path: str) -> Callable[..., Any]:
    """What to call: the module, its plain form if it is compiled, the root without its hooks."""
    if isinstance(module, torch.jit.ScriptModule):
        return module
    if type(module).__name__ == "OptimizedModule":
        return plain_form(module)
    return module if path else module.forward


def _note(calls: dict[str, Call], path: str) -> Callable[..., None]:
    def note(_module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        keep_call(calls, path, args, kwargs)

    return note


def keep_call(
    calls: dict[str, Call], path: str, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> None:
    """Keep the first call of the module at `path`."""
    if path not in calls:
        calls[path] = (map_leaves(args, _kept), map_leaves(kwargs, _kept))


def _kept(leaf: Any) -> Any:
    return leaf.detach() if isinstance(leaf, Tensor) else leaf


def _own_parameters(host: Host, module: nn.Module) -> dict[nn.Parameter, nn.Parameter]:
    """Replace the parameters below `module`, everywhere in the root, by copies to be written.

    Returns what was replaced, by what stands in its place.
    """
    mine = {p: p for _, child in named_parts(module) for p in child.parameters(recurse=False)}
    for parameter in mine:
        copied = nn.Parameter(parameter.detach().clone(), requires_grad=parameter.requires_grad)
        host.memory.lend(copied)
        mine[parameter] = copied
    _exchange_parameters(host, mine)
    return {copied: parameter for parameter, copied in mine.items()}


def _exchange_parameters(host: Host, new: Mapping[nn.Parameter, nn.Parameter]) -> None:
    for old, parameter in new.items():
        host.replace_known(old, parameter)
    for owner in list(host.paths.modules()):
        held = parameters_of(owner)
        for name, parameter in held.items():
            if parameter is not None and parameter in new:
                held[name] = new[parameter]
                host.paths.add_tensor(new[parameter], owner, name)

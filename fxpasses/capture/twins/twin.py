"""A copy of a module tree that shares every tensor, with the references inside it rebound.

What the copy cannot see through stays right all the same: it goes on calling the old module,
which holds the same tensors.
"""

import collections
import copy
import enum
import functools
import types
import weakref
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Any, TypeVar, cast

import torch
from torch import Tensor, nn
from torch.fx import GraphModule
from torch.utils.hooks import RemovableHandle

from fxpasses.capture.inside import (
    HOOK_DICTS,
    all_modules,
    is_sealed,
    slots_of,
)
from fxpasses.capture.twins.closures import filled_cells, reaches_module, rebuilt_function
from fxpasses.capture.twins.graphs import copy_graph
from fxpasses.capture.twins.sealed import COMPILED_CODE, copied_script, initialize_compiled
from fxpasses.core.garbage import collections_paused

ModuleT = TypeVar("ModuleT", bound=nn.Module)
TensorMap = Callable[[Tensor], Tensor]

_ATOMS = (
    *(str, bytes, int, float, complex, bool, type(None), slice, range, enum.Enum, type),
    *(types.ModuleType, types.BuiltinFunctionType, torch.dtype, torch.device, torch.Size),
    *(torch.layout, torch.memory_format),
)
_ATOM_TYPES = frozenset(_ATOMS)
# Objects of these packages hold no model state of their own, or cannot be copied.
_FOREIGN = frozenset(
    ("builtins", "torch", "numpy", "logging", "threading", "_thread", "re", "_io", "queue")
)
_GRAPH = frozenset(("_graph",))
_TENSOR_DICTS = frozenset(("_parameters", "_buffers"))
_MUTABLE = (list, dict, set, collections.deque)
_PLAIN_CONTAINERS = frozenset((dict, list, set, collections.OrderedDict))


def twin(
    module: ModuleT,
    *,
    share: Iterable[nn.Module] = (),
    replace: Mapping[nn.Module, nn.Module] | None = None,
    tensors: TensorMap | None = None,
    move_graphs: bool = False,
    join_hooks: bool = False,
) -> tuple[ModuleT, "Twin"]:
    """Copy the tree of `module`, sharing all tensors.

    Args:
        module: The root. Neither it nor anything below it is changed.
        share: Modules that the copy holds as the same objects.
        replace: Modules that others stand for in the copy.
        tensors: What the copy holds in place of each tensor; by default the tensor itself.
        move_graphs: Whether the graphs of captured modules go over to the copy, so that those
            of the tree itself must not be used any more.
        join_hooks: Whether modules hold the dicts of their hooks in common with their copies, where
            there are no hooks yet.
    """
    made = Twin(share, replace or {}, tensors, move_graphs=move_graphs, join_hooks=join_hooks)
    with collections_paused():
        new = made.build(module)
    return cast("ModuleT", new), made


class Twin:
    """Which new module stands for which old one. Both are kept alive."""

    def __init__(
        self,
        share: Iterable[nn.Module],
        replace: Mapping[nn.Module, nn.Module],
        tensors: TensorMap | None,
        *,
        move_graphs: bool,
        join_hooks: bool,
    ) -> None:
        self.shared: list[Any] = []
        """What could not be copied and is one object in both trees."""
        self._pairs: list[tuple[nn.Module, nn.Module]] = []
        self._new: dict[int, Any] = {}
        """While the copy is made of every old object by its number, then of modules alone."""
        self._old: dict[int, nn.Module] = {}
        self._alive: list[Any] = []
        """What no module may hold, so that its number could else be given to another."""
        self._tensors = tensors
        self._move_graphs = move_graphs
        self._joined = HOOK_DICTS if join_hooks else frozenset[str]()
        self._reaching: dict[int, bool] = {}
        # Old and new modules whose attributes are still to be copied. No recursion: trees are deep.
        self._pending: list[tuple[Callable[[Twin, Any, Any], None], Any, Any]] = []
        self._hooked: dict[int, tuple[nn.Module, nn.Module]] = {}
        self._handles: list[RemovableHandle] = []
        self._graphs: list[tuple[GraphModule, GraphModule]] = []
        self._compiled: list[nn.Module] = []
        self._root: nn.Module | None = None
        for module in share:
            self._pair(module, module)
        for old, new in replace.items():
            self._pair(old, new)

    def new(self, old: ModuleT) -> ModuleT:
        """The module that stands for `old` in the copy.

        Raises:
            KeyError: `old` is not in the tree that was copied.
        """
        return cast("ModuleT", self._new[id(old)])

    def old(self, new: ModuleT) -> ModuleT:
        """The module that `new` stands for.

        Raises:
            KeyError: `new` is not in the copy.
        """
        return cast("ModuleT", self._old[id(new)])

    def made(self, module: nn.Module) -> bool:
        """Whether `module` stands for a module of the tree that was copied."""
        return id(module) in self._old

    def __contains__(self, old: object) -> bool:
        return id(old) in self._new

    def build(self, root: nn.Module) -> nn.Module:
        self._root = root
        made = self._module(root)
        self._fill()
        # Last, when it is known what belongs to the tree.
        for old, new in self._hooked.values():
            for key in HOOK_DICTS & old.__dict__.keys():
                if old.__dict__[key]:
                    new.__dict__[key] = self._hooks(old.__dict__[key])
        self._fill()
        for handle in self._handles:
            self._aim(handle)
        for compiled in self._compiled:
            initialize_compiled(compiled)
        self._keep_modules_alone()
        for old, new in self._graphs:
            # Captured modules know how to do without generating the code again.
            take_code = getattr(type(new), "_fxpasses_take_code", None)
            if take_code is None:
                new.recompile()
            else:
                take_code(new, old)
        return made

    def _keep_modules_alone(self) -> None:
        """Forget all else: a copy is kept long, and what it holds costs each garbage collection."""
        self._new = {id(old): new for old, new in self._pairs}
        self._old = {id(new): old for old, new in self._pairs}
        self._alive.clear()

    def _fill(self) -> None:
        pending = self._pending
        while pending:
            fill, old, new = pending.pop()
            fill(self, old, new)

    def _remember(self, old: Any, new: Any) -> Any:
        self._new[id(old)] = new
        self._alive.append(old)
        return new

    def _pair(self, old: nn.Module, new: nn.Module) -> nn.Module:
        self._pairs.append((old, new))
        self._new[id(old)] = new
        return new

    # -- modules

    def _module(self, old: nn.Module) -> nn.Module:
        known = self._new.get(id(old))
        if known is not None:
            return known
        if is_sealed(old):
            return self._sealed(old)
        if isinstance(old, GraphModule):
            # It needs a class of its own: its forward is set on the class.
            new = GraphModule.__new__(type(old))
            self._pending.append((Twin._fill_graph_module, old, new))
        else:
            new = object.__new__(type(old))
            self._pending.append((Twin._fill_module, old, new))
        return self._pair(old, new)

    def _sealed(self, old: nn.Module) -> nn.Module:
        if not isinstance(old, torch.jit.ScriptModule):
            new = object.__new__(type(old))
            self._compiled.append(new)
            self._pending.append((Twin._fill_compiled, old, new))
            return self._pair(old, new)
        new = None if self._tensors is None else copied_script(old, self._tensor)
        if new is None:
            self.shared.append(old)
        return self._pair(old, old if new is None else new)

    def _fill_module(self, old: nn.Module, new: nn.Module, anew: Collection[str] = ()) -> None:
        """Copy the attributes of a module, but for those that are made `anew`."""
        state, known, joined = new.__dict__, self._new, self._joined
        held = old.__dict__
        if anew:
            held = {key: value for key, value in held.items() if key not in anew}
        # First all as they are, so that only what has to be copied is looked at one by one: the
        # dozen empty containers that a module has are most of what a copy costs.
        state.update(held)
        for key, value in list(held.items()):
            kind = type(value)
            if kind in _ATOM_TYPES or (kind is tuple and _ATOM_TYPES.issuperset(map(type, value))):
                continue
            if kind in _PLAIN_CONTAINERS and not value:
                if key not in joined:
                    made = known.get(id(value))
                    if made is None:
                        made = known[id(value)] = kind()
                    state[key] = made
            elif key in HOOK_DICTS and value:
                self._hooked[id(old)] = old, new  # filled at the end
            else:
                state[key] = self._held(key, value)

    def _fill_compiled(self, old: nn.Module, new: nn.Module) -> None:
        self._fill_module(old, new, _GRAPH | COMPILED_CODE)

    def _fill_graph_module(self, old: GraphModule, new: GraphModule) -> None:
        self._fill_module(old, new, _GRAPH)
        graph = old.graph if self._move_graphs else copy_graph(old.graph)
        graph.owning_module = new
        new.__dict__["_graph"] = graph
        type(new).__name__ = type(old).__name__
        self._graphs.append((old, new))

    def _held(self, key: str, value: Any) -> Any:
        if key in _TENSOR_DICTS:
            return self._tensors_in(value)
        return self._registered_in(value) if key == "_modules" else self._value(value)

    def _tensors_in(self, held: Any) -> Any:
        made = self._new.get(id(held))
        if made is not None:
            return made
        made = self._new[id(held)] = held.copy()
        if self._tensors is not None:
            for name, tensor in held.items():
                made[name] = None if tensor is None else self._tensor(tensor)
        return made

    def _tensor(self, old: Tensor) -> Tensor:
        if self._tensors is None:
            return old
        known = self._new.get(id(old))
        return self._remember(old, self._tensors(old)) if known is None else known

    def _registered_in(self, modules: dict[str, nn.Module | None]) -> Any:
        known = self._new.get(id(modules))
        if known is not None:
            return known
        made = self._remember(modules, type(modules)())
        for name, child in modules.items():
            made[name] = None if child is None else self._module(child)
        return made

    # -- hooks: the caller's own, except where they belong to a module of the tree

    def _hooks(self, hooks: Any) -> Any:
        if not isinstance(hooks, dict):
            return hooks
        if id(hooks) in self._new:
            return self._new[id(hooks)]
        made = self._remember(hooks, type(hooks)())
        for key, hook in hooks.items():
            made[key] = self._hook(hook)
        return made

    def _hook(self, hook: Any) -> Any:
        known = self._new.get(id(hook))
        if known is not None:
            return known
        if isinstance(hook, types.MethodType):
            owner = self._new.get(id(hook.__self__))
            return hook if owner is None else types.MethodType(hook.__func__, owner)
        if isinstance(hook, functools.partial):
            return self._hook_partial(hook)
        if isinstance(hook, types.FunctionType):
            return self._hook_function(hook)
        if type(hook).__name__ == "_WrappedHook":
            return self._wrapped_hook(hook)
        return hook

    def _hook_partial(self, hook: "functools.partial[Any]") -> Any:
        args = tuple(self._known(arg) for arg in hook.args)
        keywords = {key: self._known(arg) for key, arg in hook.keywords.items()}
        return functools.partial(self._hook(hook.func), *args, **keywords)

    def _hook_function(self, hook: types.FunctionType) -> Any:
        cells = hook.__closure__ or ()
        held = filled_cells(hook)
        if not any(id(value) in self._new for value in (*held, *(hook.__defaults__ or ()))):
            return hook
        # A cell that the tree knows nothing of stays the caller's, so that counts go on in it.
        made = rebuilt_function(hook, tuple(self._cell(cell) for cell in cells))
        if hook.__defaults__:
            made.__defaults__ = tuple(self._known(value) for value in hook.__defaults__)
        return made

    def _cell(self, cell: types.CellType) -> types.CellType:
        try:
            known = self._new.get(id(cell.cell_contents))
        except ValueError:
            return cell
        return cell if known is None else types.CellType(known)

    def _wrapped_hook(self, hook: Any) -> Any:
        """The wrapper that torch puts around hooks on `state_dict` and `load_state_dict`."""
        module = hook.module() if hook.with_module else None
        return type(hook)(self._hook(hook.hook), self._known(module))

    def _handle(self, handle: RemovableHandle) -> RemovableHandle:
        made = copy.copy(handle)
        self._handles.append(made)
        return self._remember(handle, made)

    def _aim(self, handle: RemovableHandle) -> None:
        """Let a handle that the tree holds remove the hook of the copy, not the caller's."""
        handle.hooks_dict_ref = self._known_weakly(handle.hooks_dict_ref)
        handle.extra_dict_ref = tuple(map(self._known_weakly, handle.extra_dict_ref))

    def _known_weakly(self, ref: "weakref.ref[Any]") -> "weakref.ref[Any]":
        return weakref.ref(self._known(target)) if (target := ref()) is not None else ref

    def _known(self, value: Any) -> Any:
        known = self._new.get(id(value))
        return value if known is None else known

    # -- everything else

    def _value(self, value: Any) -> Any:
        kind = type(value)
        if kind in _ATOM_TYPES:
            return value
        known = self._new.get(id(value))
        if known is not None:
            return known
        if kind in _COPIED_CONTAINERS:
            return self._container(value)
        if issubclass(kind, (tuple, frozenset)):
            return self._immutable(value)
        if isinstance(value, nn.Module):
            return self._module(value)
        if isinstance(value, Tensor):
            return self._tensor(value)
        if isinstance(value, _ATOMS):
            return value
        return self._callable_or_object(value, kind)

    def _generator(self, generator: torch.Generator) -> torch.Generator:
        """Draws move it, as a write does a tensor. The process's own is everybody's."""
        if self._tensors is None or generator in (torch.default_generator, *_of_gpus()):
            return generator
        return self._remember(generator, generator.clone_state())

    def _callable_or_object(self, value: Any, kind: type) -> Any:
        if isinstance(value, torch.Generator):
            return self._generator(value)
        if isinstance(value, functools.partial):
            return self._partial(value)
        if isinstance(value, types.MethodType):
            return self._method(value)
        if isinstance(value, types.FunctionType):
            return self._function(value)
        if isinstance(value, weakref.ref):
            return self._weakref(value)
        if isinstance(value, RemovableHandle):
            return self._handle(value)
        container = isinstance(value, _MUTABLE)
        package = kind.__module__.partition(".")[0]
        if package in _FOREIGN and not container:
            return value
        return self._object(value)

    def _immutable(self, value: Any) -> Any:
        if _ATOM_TYPES.issuperset(map(type, value)):
            return value
        items = [self._value(item) for item in value]
        if all(new is old for new, old in zip(items, value, strict=True)):
            return value
        named = hasattr(value, "_fields")
        made = type(value)(*items) if named else type(value)(items)
        return self._remember(value, made)

    def _container(self, value: Any) -> Any:
        made = self._remember(value, copy.copy(value))
        if not _holds_plain_values(value):
            self._pending.append((Twin._fill_container, value, made))
        return made

    def _fill_container(self, old: Any, new: Any) -> None:
        if isinstance(old, dict):
            self._fill_dict(cast("dict[Any, Any]", old), cast("dict[Any, Any]", new))
        elif isinstance(old, set):
            new.clear()
            # Only what is hashed by its identity is exchanged.
            new.update(self._key(item) for item in cast("set[Any]", old))
        else:
            for index, item in enumerate(old):
                new[index] = self._value(item)

    def _fill_dict(self, old: dict[Any, Any], new: dict[Any, Any]) -> None:
        rekeyed = any(isinstance(key, (nn.Module, Tensor)) for key in old)
        if rekeyed:
            dict.clear(new)
        for key, item in list(dict.items(old)):
            dict.__setitem__(new, self._key(key), self._value(item))

    def _key(self, key: Any) -> Any:
        if isinstance(key, nn.Module):
            return self._module(key)
        return self._tensor(key) if isinstance(key, Tensor) else key

    def _partial(self, value: "functools.partial[Any]") -> Any:
        args = [self._value(arg) for arg in value.args]
        keywords = {key: self._value(arg) for key, arg in value.keywords.items()}
        made = type(value)(self._value(value.func), *args, **keywords)
        made.__dict__.update(value.__dict__)
        return self._remember(value, made)

    def _method(self, value: types.MethodType) -> Any:
        owner = self._value(value.__self__)
        if owner is value.__self__:
            return value
        return self._remember(value, types.MethodType(value.__func__, owner))

    def _function(self, value: types.FunctionType) -> Any:
        if not reaches_module(value, self._reaching):
            return value
        cells = tuple(types.CellType() for _ in value.__closure__ or ())
        made = rebuilt_function(value, cells)
        # Remembered before it is filled: closures hold themselves.
        self._remember(value, made)
        self._pending.append((Twin._fill_function, value, made))
        return made

    def _fill_function(self, old: types.FunctionType, new: types.FunctionType) -> None:
        for cell, source in zip(new.__closure__ or (), old.__closure__ or (), strict=True):
            try:
                cell.cell_contents = self._value(source.cell_contents)
            except ValueError:
                continue
        if old.__defaults__:
            new.__defaults__ = tuple(self._value(value) for value in old.__defaults__)
        if old.__kwdefaults__:
            new.__kwdefaults__ = {k: self._value(v) for k, v in old.__kwdefaults__.items()}
        for key, value in old.__dict__.items():
            new.__dict__[key] = self._value(value)

    @functools.cached_property
    def _registered(self) -> frozenset[int]:
        assert self._root is not None, "asked while a copy is made"
        return frozenset(id(module) for module in all_modules(self._root))

    def _weakref(self, value: "weakref.ref[Any]") -> Any:
        # A copy of a module that nothing else holds would die at once.
        target = value()
        if id(target) not in self._registered:
            return value
        return self._remember(value, weakref.ref(self._value(target)))

    def _object(self, value: Any) -> Any:
        try:
            made = copy.copy(value)
        except Exception:
            # Whatever a foreign __copy__ raises: sharing is right, if less independent.
            made = value
        if made is value or type(made) is not type(value):
            self.shared.append(value)
            return self._remember(value, value)
        self._remember(value, made)
        self._pending.append((Twin._fill_object, value, made))
        return made

    def _fill_object(self, old: Any, new: Any) -> None:
        for key, value in _attributes(old):
            object.__setattr__(new, key, self._value(value))
        if isinstance(old, dict):
            self._fill_dict(cast("dict[Any, Any]", old), cast("dict[Any, Any]", new))
        elif isinstance(old, list):
            for index, item in enumerate(list.__iter__(cast("list[Any]", old))):
                list.__setitem__(cast("list[Any]", new), index, self._value(item))


_COPIED_CONTAINERS = frozenset(
    (*_MUTABLE, collections.OrderedDict, collections.defaultdict, collections.Counter)
)


def _holds_plain_values(value: Any) -> bool:
    """Whether a container holds nothing that could need a copy."""
    items = (*value, *value.values()) if isinstance(value, dict) else value
    return _ATOM_TYPES.issuperset(map(type, items))


def _attributes(value: Any) -> Iterator[tuple[str, Any]]:
    """What an object holds, in its `__dict__` and in slots."""
    yield from list(getattr(value, "__dict__", {}).items())
    yield from slots_of(value)


def _of_gpus() -> tuple[torch.Generator, ...]:
    return torch.cuda.default_generators if torch.cuda.is_initialized() else ()

"""Where modules and tensors of the traced root are, and how generated code reaches them."""

import collections
import functools
import types
from typing import Any, Final

import torch
from torch import Tensor, nn

from fxpasses.capture.tracing.names import is_safe_atom, is_safe_path
from fxpasses.capture.tracing.structures import PLAIN, held_by
from fxpasses.ops import named_parts, op_of_module

_CONTAINERS: Final = frozenset((nn.Sequential, nn.ModuleList, nn.ModuleDict))
_RUNS_ITSELF: Final = frozenset((torch.jit.ScriptModule, torch.nn.parallel.DistributedDataParallel))


def is_compiled(module: nn.Module) -> bool:
    """Whether the module runs compiled code: TorchScript, torch.compile."""
    is_optimized = type(module).__name__ == "OptimizedModule"
    has_own_call = module.__dict__.get("_compiled_call_impl") is not None
    return isinstance(module, torch.jit.ScriptModule) or is_optimized or has_own_call


def is_leaf(module: nn.Module) -> bool:
    """Whether the module is a layer of torch or einops or one that passes know, and stays one node.

    A subclass that keeps the layer's `forward` is one, a container is not.
    """
    kinds = type(module).__mro__
    if "forward" in module.__dict__ or not _RUNS_ITSELF.isdisjoint(kinds):
        return False
    home: str = getattr(type(module).forward, "__module__", None) or ""
    is_torch_layer = home.startswith(("torch.nn.", "torch.ao.nn."))
    if not _CONTAINERS.isdisjoint(kinds):
        return is_torch_layer and home.startswith("torch.nn.utils.")
    is_torch_layer = is_torch_layer and not home.startswith("torch.nn.parallel")
    return is_torch_layer or home.startswith("einops.layers.") or op_of_module(module) is not None


def is_parametrized(module: nn.Module) -> bool:
    """Whether the class of the module was made by `torch.nn.utils.parametrize`."""
    return type(module).__module__ == "torch.nn.utils.parametrize"


class Paths:
    """The paths of the modules and tensors that a root holds."""

    def __init__(self, root: nn.Module) -> None:
        self._root = root
        self._modules = {module: path for path, module in named_parts(root)}
        self._tensors: dict[int, tuple[nn.Module, str]] = {}
        self._targets: dict[nn.Module, str] = {}
        self._reachable: set[int] | None = None
        self._keep: list[Any] = []
        self.unregistered: list[tuple[str, nn.Module]] = []
        for module in self._modules:
            self.add_tensors(module)

    def add_tensors(self, module: nn.Module) -> None:
        for registry in ("_parameters", "_buffers"):
            for name, tensor in (module.__dict__.get(registry) or {}).items():
                if tensor is not None:
                    self.add_tensor(tensor, module, name)

    def add_tensor(self, tensor: Tensor, owner: nn.Module, name: str) -> None:
        self._keep.append(tensor)
        self._tensors.setdefault(id(tensor), (owner, name))

    def has_tensor(self, tensor: Tensor) -> bool:
        return id(tensor) in self._tensors

    def owner_of(self, tensor: Tensor) -> tuple[nn.Module, str]:
        return self._tensors[id(tensor)]

    def modules(self) -> dict[nn.Module, str]:
        return self._modules

    def find(self, module: nn.Module) -> str | None:
        return self._modules.get(module)

    def is_of_the_model(self, module: nn.Module) -> bool:
        """Whether the root reaches `module`, by registration or through containers."""
        if module in self._modules:
            return True
        if self._reachable is None:
            self._reachable = _reachable(self._root)
        return id(module) in self._reachable

    def register(self, module: nn.Module) -> str:
        """Give a module that is not registered a name at the root."""
        name = self._fresh("_unregistered")
        self.unregistered.append((name, module))
        for path, below in named_parts(module):
            if below not in self._modules:
                self._modules[below] = f"{name}.{path}" if path else name
                self.add_tensors(below)
        return name

    def forget(self, count: int) -> None:
        """Drop the names given to modules behind the first `count`."""
        for name, module in self.unregistered[count:]:
            self._root.__dict__.pop(name, None)
            self._targets.pop(module, None)
            for _, below in named_parts(module):
                if self._modules.get(below, "").split(".")[0] == name:
                    del self._modules[below]
        del self.unregistered[count:]

    def target(self, module: nn.Module) -> str:
        """The path by which generated code reaches `module`: an alias where its own is unsafe."""
        found = self._targets.get(module)
        if found is None:
            path = self._modules[module]
            found = path if is_safe_path(path) or not path else self._alias(module)
            self._targets[module] = found
        return found

    def tensor_target(self, tensor: Tensor) -> str | None:
        """The path by which generated code reaches `tensor`, None if its name is unsafe."""
        owner, name = self._tensors[id(tensor)]
        if not is_safe_atom(name):
            return None
        path = self.target(owner)
        return f"{path}.{name}" if path else name

    def _alias(self, module: nn.Module) -> str:
        name = self._fresh("_alias")
        self.unregistered.append((name, module))
        return name

    def _fresh(self, prefix: str) -> str:
        number = len(self.unregistered)
        while hasattr(self._root, f"{prefix}{number}"):
            number += 1
        return f"{prefix}{number}"


def _reachable(root: nn.Module) -> set[int]:
    """The ids of all modules that the root holds in any attribute."""
    found: set[int] = set()
    seen: set[int] = set()
    stack: list[Any] = [root]
    while stack:
        value = stack.pop()
        if type(value) in PLAIN or id(value) in seen:
            continue
        seen.add(id(value))
        if isinstance(value, nn.Module):
            found.add(id(value))
        stack.extend(_held_by(value))
    return found


def _held_by(value: Any) -> list[Any]:
    if isinstance(value, (dict, list, set, collections.deque)):
        return list(held_by(value))
    if isinstance(value, (tuple, frozenset)):
        return list(value)
    if isinstance(value, functools.partial):
        return [value.func, *value.args, *value.keywords.values()]
    if isinstance(value, types.MethodType):
        return [value.__self__]
    if isinstance(value, types.FunctionType):
        return [cell.cell_contents for cell in value.__closure__ or () if _is_filled(cell)]
    if isinstance(value, (type, types.ModuleType, Tensor)):
        return []
    attributes = getattr(value, "__dict__", None)
    return list(attributes.values()) if type(attributes) is dict else []


def _is_filled(cell: types.CellType) -> bool:
    try:
        cell.cell_contents  # noqa: B018 - asked for the error
    except ValueError:
        return False
    return True

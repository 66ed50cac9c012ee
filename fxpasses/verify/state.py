"""Run a model without a trace: what it writes, draws and remembers is put back."""

import copy
from collections.abc import Generator, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.grad_mode import _unsafe_preserve_version_counter  # pyright: ignore[reportPrivateUsage]  no public way to keep a counter
from torch.fx import Graph
from torch.utils._pytree import tree_leaves

from fxpasses.analysis.reach import tensors_within_reach
from fxpasses.capture.result.module import CapturedModule, entry_of
from fxpasses.capture.tracing.structures import PLAIN, Held
from fxpasses.core.randomness import PythonNumbers, default_generator
from fxpasses.core.surroundings import tensors_kept


@dataclass(frozen=True, slots=True)
class RandomState:
    """Where all the generators stand that a model may draw from in this thread."""

    cpu: Tensor
    cuda: tuple[Tensor, ...]
    python: PythonNumbers

    @classmethod
    def now(cls) -> "RandomState":
        # Asking a GPU that was never used for its state would make a context on it.
        used = torch.cuda.is_initialized()
        cuda = tuple(torch.cuda.get_rng_state_all()) if used else ()
        return cls(default_generator().get_state(), cuda, PythonNumbers())

    def restore(self) -> None:
        default_generator().set_state(self.cpu)
        if self.cuda and not all(map(torch.equal, torch.cuda.get_rng_state_all(), self.cuda)):
            torch.cuda.set_rng_state_all(list(self.cuda))
        self.python.restore()

    def same_torch(self, other: "RandomState") -> bool:
        """Whether torch's generators stand at the same place."""
        return torch.equal(self.cpu, other.cpu) and all(
            torch.equal(a, b) for a, b in zip(self.cuda, other.cuda, strict=False)
        )


@contextmanager
def randomness_restored() -> Generator[None]:
    state = RandomState.now()
    try:
        yield
    finally:
        state.restore()


@dataclass(frozen=True, slots=True)
class Autocast:
    """The devices for which ops cast their operands, and to what."""

    on: tuple[tuple[str, torch.dtype], ...]

    @classmethod
    def now(cls) -> "Autocast":
        devices = [one for one in ("cpu", "cuda") if torch.is_autocast_enabled(one)]
        return cls(tuple((device, torch.get_autocast_dtype(device)) for device in devices))

    @contextmanager
    def again(self) -> Generator[None]:
        with ExitStack() as stack:
            for device, dtype in self.on:
                stack.enter_context(torch.autocast(device, dtype))
            yield


@contextmanager
def untouched(
    roots: Iterable[nn.Module], *, clone: bool = True, parameters_too: bool = False
) -> Generator[None]:
    """Put back what the modules below `roots` remember: attributes, buffers, containers.

    With `clone`, buffers and plain tensors are stand-ins while the block runs (and parameters,
    where the model writes them). They are never restored by writing: that would break a backward
    that the caller still has to do. Without it something else sees to it that nothing is written,
    and only version counters are put back, which move all the same. Gradients and the generators
    that modules hold are put back as well. What nothing can stand in for, since code reaches it
    by other ways than the names of modules, is restored by writing, its version counters too.
    """
    roots = list(roots)
    hidden = _out_of_sight(roots)
    modules = {id(m): m for root in roots for m in root.modules()}.values()
    kept = [_Memory(module) for module in modules]
    parameters = [p for module in modules for p in module.parameters(recurse=False)]
    gradients = [(p, p.grad, p.requires_grad) for p in parameters]
    generators = [(g, g.get_state()) for m in modules for g in _generators(m)]
    tensors = tensors_below(roots).values()
    counted = () if clone else tuple(t for t in tensors if not t.is_inference())
    if clone:
        # Memory that is reached in both ways has to be one for both.
        memory = {_memory(tensor) for tensor in hidden} - {0}
        standins = {id(t): t for t in tensors if memory and _memory(t) in memory}
        hidden += standins.values()
        if parameters_too:  # Code may have them in a list of its own.
            hidden += parameters
        for module in modules:
            _put_standins(module, standins, parameters_too=parameters_too)
    try:
        with tensors_kept(hidden), _unsafe_preserve_version_counter(counted):
            yield
    finally:
        for memory in kept:
            memory.restore()
        for parameter, gradient, requires_grad in gradients:
            parameter.grad = gradient
            if parameter.requires_grad is not requires_grad:
                parameter.requires_grad_(requires_grad)
        for generator, state in generators:
            generator.set_state(state)


def _out_of_sight(roots: Iterable[nn.Module]) -> list[Tensor]:
    """The tensors that code of the modules' own reaches, but not by the names of modules."""
    found: dict[int, Tensor] = {}
    for root in roots:
        if not _runs_from_graph(root):
            found.update((id(tensor), tensor) for tensor in tensors_within_reach(root) or ())
    named = {id(tensor) for tensor in tensors_below(roots).values()} if found else ()
    return [tensor for key, tensor in found.items() if key not in named]


def _runs_from_graph(root: nn.Module) -> bool:
    if not isinstance(root, CapturedModule):
        return False
    entry = entry_of(root)
    return entry.pattern is not None and not entry.opaque


class _Memory:
    """The `__dict__` of a module and what the containers and objects in it held."""

    def __init__(self, module: nn.Module) -> None:
        self.module = module
        self.attributes = dict(vars(module))
        values = (value for value in self.attributes.values() if type(value) not in PLAIN)
        self.contents = [Held(value) for value in values if not isinstance(value, Graph)]

    def restore(self) -> None:
        now = vars(self.module)
        for name in now.keys() - self.attributes.keys():
            del now[name]
        now.update(self.attributes)
        for held in self.contents:
            held.restore()


def _generators(module: nn.Module) -> Iterator[torch.Generator]:
    return (value for value in vars(module).values() if isinstance(value, torch.Generator))


def _put_standins(module: nn.Module, standins: dict[int, Tensor], *, parameters_too: bool) -> None:
    def standin(tensor: Tensor) -> Tensor:
        if id(tensor) not in standins:
            standins[id(tensor)] = _copied(tensor)
        return standins[id(tensor)]

    attributes = vars(module)
    # Tables of its own, so that the real ones never hold a stand-in.
    for table in ("_buffers", "_parameters") if parameters_too else ("_buffers",):
        tensors = attributes[table].items()
        attributes[table] = {k: None if t is None else standin(t) for k, t in tensors}
    for name, value in attributes.items():
        if isinstance(value, Tensor) and not value.requires_grad:
            attributes[name] = standin(value)


def _copied(tensor: Tensor) -> Tensor:
    """A clone that needs a gradient where `tensor` does, and is a leaf where it is one."""
    made = tensor.detach().clone()
    if not tensor.requires_grad:
        return made
    made.requires_grad_()
    with torch.enable_grad():
        return made if tensor.is_leaf else made.clone()


def tensors_below(roots: Iterable[nn.Module]) -> dict[str, Tensor]:
    """Parameters, buffers and plain tensor attributes of the modules, by path."""
    found: dict[str, Tensor] = {}
    for root in roots:
        for path, module in root.named_modules(remove_duplicate=False):
            own = {**module._parameters, **module._buffers, **vars(module)}  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]  the public ways leave out ties
            prefix = f"{path}." if path else ""
            tensors = {prefix + k: v for k, v in own.items() if isinstance(v, Tensor)}
            found.update(tensors)
    return found


def fresh(value: Any) -> Any:
    """A copy of arguments that a model may write: memory that was shared stays shared."""
    storages: dict[int, torch.UntypedStorage] = {}
    memo: dict[int, Any] = {}
    for leaf in tree_leaves(value):
        if isinstance(leaf, Tensor):
            memo[id(leaf)] = _copy_of(leaf, storages)
        elif isinstance(leaf, torch.Generator):
            memo[id(leaf)] = leaf.clone_state()
    return copy.deepcopy(value, memo)


def _copy_of(tensor: Tensor, storages: dict[int, torch.UntypedStorage]) -> Tensor:
    plain = type(tensor) in (Tensor, nn.Parameter) and not tensor.is_quantized
    if tensor.layout is not torch.strided or not plain:
        return tensor.detach().clone().requires_grad_(tensor.requires_grad)
    storage = tensor.untyped_storage()
    copied = storages.setdefault(storage.data_ptr(), storage.clone())
    made = torch.empty(0, dtype=tensor.dtype, device=tensor.device)
    made.set_(copied, tensor.storage_offset(), tensor.shape, tensor.stride())
    return made.requires_grad_(tensor.requires_grad)


def shared_memory(outputs: Any, arguments: Any) -> set[tuple[str, int, int]]:
    """Which outputs share memory with which arguments, and with each other."""
    made = [_memory(leaf) for leaf in tree_leaves(outputs)]
    given = [_memory(leaf) for leaf in tree_leaves(arguments)]
    pairs: set[tuple[str, int, int]] = set()
    for number, memory in enumerate(made):
        if memory:
            pairs.update(
                ("argument", number, i) for i, other in enumerate(given) if other == memory
            )
            pairs.update(("output", number, i) for i in range(number) if made[i] == memory)
    return pairs


def _memory(value: Any) -> int:
    if not isinstance(value, Tensor) or value.layout is not torch.strided or value.is_meta:
        return 0
    return value.untyped_storage().data_ptr()


def flattens(tensor: Tensor) -> tuple[bool, ...]:
    """For each pair of neighbouring dimensions, whether `view` can make them one."""
    sizes, strides = tensor.shape, tensor.stride()
    return tuple(
        sizes[i] == 1 or sizes[i + 1] == 1 or strides[i] == strides[i + 1] * sizes[i + 1]
        for i in range(tensor.dim() - 1)
    )

"""Which module classes compute what a listed class computes."""

from collections import OrderedDict
from collections.abc import Callable, Container, Iterable, Iterator
from functools import wraps
from inspect import getattr_static
from types import CodeType, FunctionType
from typing import Any, Final, TypeVar
from weakref import WeakKeyDictionary

from torch import Tensor, nn
from torch.fx import Node

_PROTOCOL: Final = (
    "__call__",
    "_call_impl",
    "_wrapped_call_impl",
    "__getattribute__",
    "__getattr__",
)
"""What stands between a call and `forward`."""

_ABSENT: Final = object()


KeyT = TypeVar("KeyT")
ValueT = TypeVar("ValueT")


def kept(compute: Callable[[KeyT], ValueT]) -> Callable[[KeyT], ValueT]:
    """Compute once for each class or function, and forget it together with them.

    Every captured module has a class of its own, so that nothing may hold on to classes; torch's
    own stay, and are looked up quicker.
    """
    lasting: dict[KeyT, ValueT] = {}
    known: WeakKeyDictionary[KeyT, ValueT] = WeakKeyDictionary()

    @wraps(compute)
    def look_up(key: KeyT) -> ValueT:
        if key in lasting:
            return lasting[key]
        if key in known:
            return known[key]
        home: str = getattr(key, "__module__", None) or ""
        held = lasting if home.startswith("torch.nn.modules.") else known
        value = held[key] = compute(key)
        return value

    return look_up


def module_of(node: Node) -> nn.Module:
    """The module that a `call_module` node calls."""
    owner = node.graph.owning_module
    assert owner is not None, "a pass runs on the graph of a GraphModule"
    target: Any = node.target
    return attribute(owner, target)


def attribute(owner: Any, path: str) -> Any:
    """What `path` names below `owner`: a submodule, a tensor, anything.

    Registered modules are found quicker than by `getattr`: paths are followed for every node,
    often.
    """
    found = owner
    for name in path.split("."):
        child = found.__dict__["_modules"].get(name) if isinstance(found, nn.Module) else None
        # Compiled modules cannot be asked for their truth.
        found = getattr(found, name) if child is None else child
    return found


_NO_TENSORS: Final = frozenset(
    (bool, int, float, str, type(None), tuple, list, dict, set, OrderedDict)
)


def plain_tensors(module: nn.Module) -> list[tuple[str, Any]]:
    """The tensors that are attributes of a module, and neither parameters nor buffers."""
    # A module has two dozen attributes, and every module is asked.
    return [
        (name, value)
        for name, value in module.__dict__.items()
        if type(value) not in _NO_TENSORS and isinstance(value, Tensor)
    ]


def parts_of(module: nn.Module) -> Iterable[nn.Module]:
    """The module and all below it: `modules()`, quicker for layers, which hold none."""
    return module.modules() if module.__dict__["_modules"] else (module,)


def named_parts(root: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """Every module with its first path, parents first; deep trees included.

    As `named_modules()` has them, whose generators hand on each module from level to level.
    """
    seen: set[int] = set()
    stack = [("", root)]
    while stack:
        path, module = stack.pop()
        if id(module) in seen:
            continue
        seen.add(id(module))
        yield path, module
        children = module.__dict__.get("_modules")
        if children:
            stem = f"{path}." if path else ""
            stack += [(stem + k, m) for k, m in reversed(children.items()) if m is not None]


def computes_as(cls: type[nn.Module], listed: Container[type]) -> type[nn.Module] | None:
    """The listed class whose computation `cls` has, or None.

    It is `cls` itself, or a base of which `cls` overrides nothing that `forward` calls or reads.
    """
    base = next((base for base in cls.__mro__ if base in listed), None)
    return base if base is not None and _computes_the_same(cls, base) else None


def _computes_the_same(cls: type, base: type) -> bool:
    names = (*_PROTOCOL, *computing_names(base))
    return cls is base or all(_static(cls, name) is _static(base, name) for name in names)


@kept
def computing_names(cls: type) -> frozenset[str]:
    """The names that `forward`, and the methods that it calls, look up. An over-estimate."""
    found: set[str] = set()
    pending = ["forward"]
    while pending:
        name = pending.pop()
        if name in found:
            continue
        found.add(name)
        for function in _functions(_static(cls, name)):
            pending.extend(_names_in(function.__code__))
    return frozenset(found)


def is_plain(module: nn.Module) -> bool:
    """Whether calling `module` runs its class's methods and nothing else.

    Not so with hooks, with methods replaced on the instance, and after `module.compile()`.
    """
    state = vars(module)
    get = state.get  # asked of every module, often
    if get("_forward_hooks") or get("_forward_pre_hooks"):
        return False
    if get("_backward_hooks") or get("_backward_pre_hooks"):
        return False
    return get("_compiled_call_impl") is None and state.keys().isdisjoint(_methods(type(module)))


@kept
def _methods(cls: type) -> frozenset[str]:
    """The methods that compute."""
    names = computing_names(cls)
    return frozenset(name for name in names if isinstance(_static(cls, name), FunctionType))


def _static(cls: type, name: str) -> Any:
    return getattr_static(cls, name, _ABSENT)


def _functions(value: Any) -> Iterator[FunctionType]:
    if isinstance(value, property):
        yield from _functions(value.fget)
    elif isinstance(value, (staticmethod, classmethod)):
        yield from _functions(value.__func__)
    elif isinstance(value, FunctionType):
        wrapped: Callable[..., Any] | None = getattr(value, "__wrapped__", None)
        yield value
        yield from _functions(wrapped)


def _names_in(code: CodeType) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names_in(constant)

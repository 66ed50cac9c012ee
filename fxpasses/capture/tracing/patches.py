"""What is replaced in the process during a trace, for the tracing thread alone.

Other threads pass through, for the price of a call. What they look at by identity meanwhile (a
function of `math` that is pickled by its name, a builtin that Dynamo reads) is the replacement.
"""

import builtins
import functools
import math
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import FrameType, ModuleType
from typing import Any, Final, Protocol

import torch
from torch import nn
from torch.utils.hooks import RemovableHandle

from fxpasses.capture.result.ambient import SETTINGS
from fxpasses.capture.tracing.internals import (
    frame,
    function_modes,
    functions_off,
    is_grad_enabled,
    wrapped_functions,
)
from fxpasses.capture.tracing.proxies import (
    VALUE_TYPES,
    Held,
    Shape,
    Value,
    find_value,
)
from fxpasses.capture.tracing.questions import (
    is_instance,
    stand_in,
    type_of_value,
    type_that_answers,
)
from fxpasses.capture.tracing.refusal import Refusal
from fxpasses.capture.tracing.request import Note, NoteKind, OpaqueKind
from fxpasses.capture.tracing.unbound import replacements
from fxpasses.capture.tracing.values import UNKNOWN

# Held by whoever captures: patches are the process's, and so there is one trace at a time.
CAPTURE_LOCK: Final = threading.RLock()

# Factories whose C parser refuses proxies as separate integers, before any mode sees the call.
_FACTORIES: Final = [
    "zeros",
    "ones",
    "empty",
    "full",
    "rand",
    "randn",
    "randint",
    "randperm",
    "arange",
    "linspace",
    "eye",
    "tensor",
    "as_tensor",
    "tril_indices",
    "triu_indices",
    "logspace",
    "range",
    "hann_window",
    "normal",
]
_FROM_MEMORY: Final = ["from_numpy", "frombuffer", "from_dlpack", "asarray"]
_CACHED: Final = type(functools.cache(len))
_SEEDING: Final = ("manual_seed", "seed", "set_rng_state", "fork_rng")
# Frames whose questions are torch's own, about proxies as such.
PRINTS: Final = Note(NoteKind.PRINTS, "a print, which the graph does not repeat")

_INTERNAL: Final = (
    "torch.fx",
    "torch.utils",
    "torch.nn.parameter",
    "torch.overrides",
    "torch._",
    "fxpasses",
    "contextlib",
)
_MODELS: Final = "fxpasses.testing"
_ASKS_FOR_OTHERS: Final = "torch.utils._pytree"
_LAYERS: Final = ("torch.nn.modules",)
_STATE_READERS: Final = (*_INTERNAL, "torch.autograd", "torch.random", "torch.nn", "torch.amp")


class Host(Protocol):
    """What the patches need of the tracer."""

    evaluating: int
    reads_grad_mode: bool
    reads_device: bool
    settings: set[str]
    module_stack: dict[str, tuple[str, Any]]

    def refuse(self, kind: OpaqueKind, reason: str) -> Refusal: ...
    def ask(self, value: Value, question: str) -> Any: ...
    def record(
        self, op: str, target: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> Any: ...
    def call_module(
        self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any: ...
    def read_attribute(self, module: nn.Module, name: str) -> Any: ...
    def before_attribute_write(self, module: nn.Module, name: str, value: Any) -> bool: ...
    def before_attribute_delete(self, module: nn.Module, name: str) -> None: ...
    def call_tensor_method(
        self, value: Value, name: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> Any: ...
    def note(self, note: Note) -> None: ...
    def made_from_memory(self, tensor: Any) -> None: ...


class Patches:
    """Replacements of attributes and of entries of dicts, put back in the reverse order."""

    def __init__(self) -> None:
        self._undo: list[Callable[[], None]] = []

    def attribute(self, holder: Any, name: str, new: Any) -> None:
        is_own = name in vars(holder)
        old = vars(holder).get(name)
        undo = functools.partial(setattr, holder, name, old)
        self._undo.append(undo if is_own else functools.partial(delattr, holder, name))
        setattr(holder, name, new)

    def entry(self, names: dict[str, Any], name: str, new: Any) -> None:
        missing = object()
        old = names.get(name, missing)
        if old is missing:
            self._undo.append(functools.partial(names.pop, name, None))
        else:
            self._undo.append(functools.partial(names.__setitem__, name, old))
        names[name] = new

    def restore(self) -> None:
        while self._undo:
            self._undo[-1]()
            self._undo.pop()


class Replacements:
    """Builds the replacements for one trace, and puts them where model code finds them."""

    def __init__(self, host: Host, files: Iterable[dict[str, Any]]) -> None:
        self._host = host
        self._files = list(files)
        self._patches = Patches()
        self._thread = threading.get_ident()

    def apply(
        self,
        leaf_functions: Iterable[Callable[..., Any]],
        traced_functions: Iterable[Callable[..., Any]] = (),
    ) -> None:
        self._modules()
        self._builtins()
        replaced: dict[int, tuple[Any, Any]] = {}
        for holder, name, new in self._functions():
            old = getattr(holder, name)
            replaced.setdefault(id(old), (old, new))
            self._patches.attribute(holder, name, new)
        for function in leaf_functions:
            replaced[id(function)] = (function, self._leaf(function))
        self._leaf_holders(replaced)
        self._imported(replaced)
        leaves = [new for _, new in replaced.values()]
        self._wrapped(except_for=(*traced_functions, *leaves))
        self._autograd()
        self._hooks()
        self._types()

    def unbound(self, name: str) -> bool:
        """Let `Tensor.name(x)` take traced values; False where it does already, or cannot."""
        made = replacements(name, self._host, self._is_tracing)
        for spelling, replacement in made.items():
            self._patches.attribute(torch.Tensor, spelling, replacement)
        return bool(made)

    def restore(self) -> None:
        self._patches.restore()

    def _is_tracing(self) -> bool:
        return threading.get_ident() == self._thread and not self._host.evaluating

    # -- modules

    def _modules(self) -> None:
        for name, make in (
            ("__call__", self._call),
            ("__getattr__", self._read),
            ("__setattr__", self._write),
            ("__delattr__", self._delete),
        ):
            original = getattr(nn.Module, name)
            self._patches.attribute(nn.Module, name, functools.wraps(original)(make(original)))

    def _call(self, call: Callable[..., Any]) -> Callable[..., Any]:
        host, is_tracing = self._host, self._is_tracing

        def call_module(module: nn.Module, /, *args: Any, **kwargs: Any) -> Any:
            if not is_tracing():
                return call(module, *args, **kwargs)
            return host.call_module(module, args, kwargs)

        return call_module

    def _read(self, read: Callable[[nn.Module, str], Any]) -> Callable[..., Any]:
        host, thread, ident = self._host, self._thread, threading.get_ident

        def read_attribute(module: nn.Module, name: str) -> Any:
            if ident() == thread:
                found = host.read_attribute(module, name)
                if found is not UNKNOWN:
                    return found
            return read(module, name)

        return read_attribute

    def _write(self, write: Callable[[nn.Module, str, Any], None]) -> Callable[..., Any]:
        host, is_tracing = self._host, self._is_tracing

        def write_attribute(module: nn.Module, name: str, value: Any) -> None:
            if is_tracing() and host.before_attribute_write(module, name, value):
                return
            write(module, name, value)

        return write_attribute

    def _delete(self, delete: Callable[[nn.Module, str], None]) -> Callable[..., Any]:
        host, is_tracing = self._host, self._is_tracing

        def delete_attribute(module: nn.Module, name: str) -> None:
            if is_tracing():
                host.before_attribute_delete(module, name)
            delete(module, name)

        return delete_attribute

    # -- builtins

    def _builtins(self) -> None:
        host, thread, ident = self._host, self._thread, threading.get_ident
        isinstance_, callable_, print_ = isinstance, callable, print
        special = VALUE_TYPES | {Shape}

        def is_asked_by_model() -> bool:
            return not (host.evaluating or _is_among(_module_asking(frame(2)), _INTERNAL))

        def isinstance_of(value: Any, kinds: Any, /) -> bool:
            if type(value) in special and ident() == thread and is_asked_by_model():
                return is_instance(host, value, kinds)
            return isinstance_(value, kinds)

        def callable_of(value: Any, /) -> bool:
            if type(value) in VALUE_TYPES and ident() == thread and is_asked_by_model():
                return callable_(stand_in(host, value, "callable()"))
            return callable_(value)

        def silent_print(*args: Any, **kwargs: Any) -> None:
            if ident() != thread or host.evaluating:
                print_(*args, **kwargs)
            else:
                host.note(PRINTS)

        self._patches.attribute(builtins, "isinstance", isinstance_of)
        self._patches.attribute(builtins, "callable", callable_of)
        self._patches.attribute(builtins, "print", silent_print)

    # -- functions

    def _functions(self) -> Iterator[tuple[Any, str, Any]]:
        for name in _FACTORIES:
            yield torch, name, self._leaf(getattr(torch, name))
        for name in _FROM_MEMORY:
            yield torch, name, self._from_memory(getattr(torch, name))
        for holder in (torch, torch.random, torch.cuda):
            for name in (*_SEEDING, "manual_seed_all", "seed_all", "set_rng_state_all"):
                if callable(vars(holder).get(name)):
                    yield holder, name, self._refused(name, getattr(holder, name))
        yield torch, "is_grad_enabled", self._grad_mode(torch.is_grad_enabled)
        asks = self._inference_mode(torch.is_inference_mode_enabled)
        yield torch, "is_inference_mode_enabled", asks
        asks = self._has_torch_function(torch.overrides.has_torch_function)
        yield torch.overrides, "has_torch_function", asks
        for name in SETTINGS:
            yield torch, name, self._setting(name, getattr(torch, name))
        for name, function in vars(math).items():
            if callable(function) and not name.startswith("_"):
                yield math, name, self._leaf(function)

    def _leaf(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Becomes a node as a whole where it is given a traced value."""
        host, is_tracing = self._host, self._is_tracing

        def leaf(*args: Any, **kwargs: Any) -> Any:
            if is_tracing() and find_value((args, kwargs)) is not None:
                return host.record("call_function", function, args, kwargs)
            return function(*args, **kwargs)

        return _named(leaf, function)

    def _uncached(self, function: Any) -> Callable[..., Any]:
        """A cache of results that is given a traced value would keep it as a key for good."""
        is_tracing, computed = self._is_tracing, function.__wrapped__

        def call(*args: Any, **kwargs: Any) -> Any:
            is_traced = is_tracing() and find_value((args, kwargs)) is not None
            return (computed if is_traced else function)(*args, **kwargs)

        return functools.update_wrapper(call, function)

    def _from_memory(self, function: Callable[..., Any]) -> Callable[..., Any]:
        host, is_tracing = self._host, self._is_tracing

        def make(*args: Any, **kwargs: Any) -> Any:
            made = function(*args, **kwargs)
            if is_tracing():
                host.made_from_memory(made)
            return made

        return _named(make, function)

    def _refused(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        host, is_tracing = self._host, self._is_tracing

        def refused(*args: Any, **kwargs: Any) -> Any:
            if is_tracing():
                raise host.refuse(OpaqueKind.RANDOM_STATE, f"calls {name}")
            return function(*args, **kwargs)

        return _named(refused, function)

    def _grad_mode(self, function: Callable[[], bool]) -> Callable[[], bool]:
        host, is_tracing = self._host, self._is_tracing

        def is_grad_enabled() -> bool:
            name = frame(1).f_globals.get("__name__", "")
            if is_tracing() and not _is_among(name, _STATE_READERS):
                host.reads_grad_mode = True
            return function()

        return _named(is_grad_enabled, function)

    def _inference_mode(self, function: Callable[[], bool]) -> Callable[[], bool]:
        """No pattern tells inference mode from the mere absence of gradients."""
        host, is_tracing = self._host, self._is_tracing

        def is_inference_mode_enabled() -> bool:
            name = frame(1).f_globals.get("__name__", "")
            if is_tracing() and not _is_among(name, _STATE_READERS):
                raise host.refuse(OpaqueKind.REGION, "asks whether inference mode is on")
            return function()

        return _named(is_inference_mode_enabled, function)

    def _has_torch_function(self, function: Callable[[Any], bool]) -> Callable[[Any], bool]:
        """Layers of torch ask before they take a kernel for the whole of what they compute.

        They take it where nothing needs a gradient, in the grad mode of the call. A graph of the
        layer alone holds for one grad mode; a graph around it shall hold for both.
        """
        host, is_tracing = self._host, self._is_tracing

        def has_torch_function(values: Any) -> bool:
            asking = frame(1).f_globals.get("__name__", "")
            if not is_tracing() or not _is_among(asking, _LAYERS):
                return function(values)
            if host.module_stack:
                reason = "computes by another kernel where nothing needs a gradient"
                raise host.refuse(OpaqueKind.FUSED_KERNEL, reason)
            host.reads_grad_mode = True
            return function_modes() > 1 or (is_grad_enabled() and _any_is_trained(values))

        return _named(has_torch_function, function)

    def _setting(self, name: str, function: Callable[[], Any]) -> Callable[[], Any]:
        host, is_tracing = self._host, self._is_tracing

        def setting() -> Any:
            asking = frame(1).f_globals.get("__name__", "")
            if is_tracing() and not _is_among(asking, _STATE_READERS):
                host.settings.add(name)
            return function()

        return _named(setting, function)

    def _autograd(self) -> None:
        host, is_tracing = self._host, self._is_tracing
        function = torch.autograd.Function
        apply: Any = vars(function)["apply"]

        def refused(cls: type, *args: Any, **kwargs: Any) -> Any:
            if is_tracing():
                reason = f"{cls.__name__}.apply, a custom autograd function"
                raise host.refuse(OpaqueKind.CUSTOM_AUTOGRAD, reason)
            return apply.__get__(None, cls)(*args, **kwargs)

        self._patches.attribute(function, "apply", classmethod(refused))

    def _hooks(self) -> None:
        """Each hook that torch registers, on a module or for all, has a handle."""
        host, is_tracing = self._host, self._is_tracing

        def refused(does: str, method: Callable[..., Any]) -> Callable[..., Any]:
            def call(*args: Any, **kwargs: Any) -> Any:
                if is_tracing():
                    raise host.refuse(OpaqueKind.PYTHON_STATE, f"{does} a hook")
                return method(*args, **kwargs)

            return functools.wraps(method)(call)

        for name, does in (("__init__", "registers"), ("remove", "removes")):
            method = refused(does, getattr(RemovableHandle, name))
            self._patches.attribute(RemovableHandle, name, method)

    # -- where model code finds them

    def _imported(self, replaced: Mapping[int, tuple[Any, Any]]) -> None:
        """Names imported into the model's files, by identity."""
        for names in self._files:
            for name, value in list(names.items()):
                found = replaced.get(id(value))
                if found is not None and found[0] is value:
                    self._patches.entry(names, name, found[1])
                elif type(value) is _CACHED:
                    self._patches.entry(names, name, self._uncached(value))

    def _types(self) -> None:
        """`type(x)` and `id(x)` in the model's files: C code asks the builtins themselves."""
        host, is_tracing = self._host, self._is_tracing

        def type_of(value: Any) -> Any:
            kind = type(value)
            is_traced = kind in VALUE_TYPES or kind is Shape
            return type_of_value(host, value) if is_traced and is_tracing() else kind

        def id_of(value: Any, /) -> int:
            if type(value) in VALUE_TYPES and is_tracing():
                raise host.refuse(OpaqueKind.CONTROL_FLOW, "id() of a traced value")
            return id(value)

        for name, asked in (("type", type_that_answers(type_of)), ("id", id_of)):
            for names in self._files:
                if name not in names:
                    self._patches.entry(names, name, asked)

    def _leaf_holders(self, replaced: Mapping[int, tuple[Any, Any]]) -> None:
        """The modules that define the leaf functions, through which `a.f(x)` finds them."""
        for number, (function, new) in replaced.items():
            package = (getattr(function, "__module__", None) or "").split(".")[0]
            if package not in ("", "torch", "math", "builtins"):
                for holder, name in _places_of(number, package):
                    if vars(holder).get(name) is function:
                        self._patches.attribute(holder, name, new)

    def _wrapped(self, except_for: Iterable[Callable[..., Any]]) -> None:
        """The functions that `torch.fx.wrap` names."""
        others = set(map(id, except_for))
        for name, names in wrapped_functions():
            function = names.get(name, getattr(builtins, name, None))
            if function is not None and id(function) not in others:
                self._patches.entry(names, name, self._leaf(function))


def _any_is_trained(values: Iterable[Any]) -> bool:
    with functions_off():
        return any(isinstance(v, Held) and v.real.requires_grad for v in values)


def _is_among(name: str, packages: tuple[str, ...]) -> bool:
    """Whether a module is in one of these packages, and does not hold models for tests."""
    return name.startswith(packages) and not name.startswith(_MODELS)


def _module_asking(asking: FrameType) -> str:
    """The name of the module whose code asks, itself or by `tree_map_only` and its kin."""
    name: str = asking.f_globals.get("__name__", "")
    while name.startswith(_ASKS_FOR_OTHERS) and asking.f_back is not None:
        asking = asking.f_back
        name = asking.f_globals.get("__name__", "")
    return name


_Place = tuple[ModuleType, str]
_PLACES: Final[dict[str, tuple[Any, Mapping[int, Sequence[_Place]]]]] = {}
"""Where the modules of a package hold what, by its `id`, and what was loaded at that time."""


def _places_of(number: int, package: str) -> Sequence[_Place]:
    """The modules of a package that hold the function with this `id`, and under which names."""
    loaded = len(sys.modules), sys.modules.get(package)
    found, places = _PLACES.get(package, (None, {}))
    if found != loaded or number not in places:
        places = _places_in(package)
        _PLACES[package] = loaded, places
    return places.get(number, ())


def _places_in(package: str) -> Mapping[int, Sequence[_Place]]:
    places: dict[int, list[_Place]] = {}
    for path, module in list(sys.modules.items()):
        # What is no module may stand there, too: it may even be None.
        if path.partition(".")[0] == package and type(module) is ModuleType:
            for name, value in vars(module).items():
                if callable(value):
                    places.setdefault(id(value), []).append((module, name))
    return places


def _named(new: Any, function: Any) -> Any:
    for name in ("__name__", "__qualname__", "__doc__"):
        if hasattr(function, name):
            setattr(new, name, getattr(function, name))
    return new

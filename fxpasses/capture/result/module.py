"""The module that the user gets: a graph, and the module's own code where the graph is no good."""

import contextlib
import copy
import inspect
from collections.abc import Callable, Mapping
from typing import Any, Self, cast

import torch
from torch import Tensor, nn
from torch.fx import Graph, GraphModule
from torch.fx.graph import PythonCode

from fxpasses.capture.inside import all_modules, attributes_of
from fxpasses.capture.result.entry import Calls, Entry, Forward, own_forward
from fxpasses.capture.result.forms import OMITTED
from fxpasses.capture.result.unshare import convert
from fxpasses.capture.twins.graphs import FrozenGraph, copy_graph, freeze, thaw
from fxpasses.core import Watch
from fxpasses.core.given import shown
from fxpasses.errors import ResultError

# What every module has, and what is one object in a captured module and in the module it is of.
_MODULE_KEYS = frozenset(attributes_of(nn.Module()))
# Written anew whenever code is generated.
_GENERATED = frozenset(("_graph", "_code", "_lineno_map", "_prologue_start"))
# The names that results reserve: any other may be one of the model's own.
_ENTRY, _OWN_CODE = "_fxpasses", "_fxpasses_own"
_OWN_KEYS = frozenset(
    (*attributes_of(GraphModule(nn.Module(), Graph())), *_GENERATED, "graph", _ENTRY, _OWN_CODE)
) - frozenset(("training",))
_MISSING: Any = object()
# Python looks for these on the class; `model[0]` is common.
_CONTAINER_METHODS = ("__len__", "__getitem__", "__iter__", "__contains__")


class CapturedModule(GraphModule):
    """A GraphModule that is called, copied, pickled, converted and asked as the module it is of.

    It shares the dicts of parameters, buffers, submodules and hooks with that module. A call
    that the graph does not hold for runs the module's own code and is counted in `calls`.
    """

    _fxpasses: Entry
    _fxpasses_graph: Callable[..., Any]
    """The generated code, without the check of the arguments."""

    @classmethod
    def over(cls, module: nn.Module, graph: Graph, entry: Entry) -> Self:
        """Make `graph` the code of `module`, whose dicts are shared from now on."""
        made = cls._empty(type(module).__name__)
        state = attributes_of(made)
        held = attributes_of(module)
        state.update({key: held[key] for key in _MODULE_KEYS & held.keys()})
        # What nodes may name; everything else is asked of the fallback.
        named = (Tensor, nn.Module)
        state.update({key: value for key, value in held.items() if isinstance(value, named)})
        before: Entry | None = held.get(_ENTRY)
        entry.model_class = type(module) if before is None else before.model_class
        entry.barriers = entry.barriers.moved(module, made)
        state[_ENTRY] = entry
        made._fxpasses_postpone_code(graph)  # noqa: SLF001  its own class
        return made

    @classmethod
    def keeps_name(cls, name: str) -> bool:
        """Whether `self.name` is not the model's own in generated code."""
        return hasattr(cls, name) or name in _OWN_KEYS

    @classmethod
    def _empty(cls, name: str) -> Self:
        made = GraphModule.__new__(cls)
        GraphModule.__init__(made, nn.Module(), Graph(), name)
        return made

    # -- the call

    def _fxpasses_postpone_code(self, graph: Graph) -> None:
        """Take the graph over, and generate its code when it is first needed."""
        kind, state = cast("Any", type(self)), attributes_of(self)
        state["_graph"] = graph
        graph.owning_module = self
        state.pop("_code", None)
        kind._fxpasses_graph = _made_late  # noqa: SLF001  its own class
        kind.forward = _checked_forward(self._fxpasses, graph)
        _adopt(kind, self._fxpasses.model_class)

    @property
    def code(self) -> str:
        generate_code(self)
        return super().code

    def recompile(self) -> PythonCode:
        code = super().recompile()
        kind = cast("Any", type(self))
        entry: Entry | None = attributes_of(self).get(_ENTRY)
        kind._fxpasses_graph = kind.forward  # noqa: SLF001  its own class
        kind.forward = _checked_forward(entry, self.graph)
        _adopt(kind, None if entry is None else entry.model_class)
        # Torch's own prints a traceback to stderr for whatever the generated code raises.
        del kind.__call__
        return code

    def _fxpasses_take_code(self, other: "CapturedModule") -> None:
        """Run the generated code of `other`, whose graph is the same: generating it costs."""
        kind, theirs = cast("Any", type(self)), type(other)
        kind._fxpasses_graph = theirs._fxpasses_graph  # noqa: SLF001  its own class
        kind.forward = theirs.forward
        _adopt(kind, self._fxpasses.model_class)

    def __prepare_scriptable__(self) -> nn.Module:
        raise ResultError(
            "TorchScript cannot hold what decides whether the graph holds for a call: use "
            "`torch.jit.trace`, or script `torch.fx.GraphModule(result, result.graph)`, which "
            "takes the pattern of the calls for granted"
        )

    def _recompile_submodules(self) -> list[tuple[str, PythonCode]]:
        return []

    # -- as the original: attributes, mode

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            found = self._of_the_original(name)
            if found is _MISSING:
                raise
            return found

    def _of_the_original(self, name: str) -> Any:
        state = attributes_of(self)
        entry: Entry | None = state.get(_ENTRY)
        if entry is None or (name.startswith("__") and name.endswith("__")):
            return _MISSING
        fallback = entry.fallback
        if fallback is not None:
            # What is registered was removed on purpose where it is not found here.
            registered = (fallback.__dict__[key] for key in ("_parameters", "_buffers", "_modules"))
            return (
                _MISSING
                if any(name in held for held in registered)
                else getattr(fallback, name, _MISSING)
            )
        original = entry.model_class
        method = getattr(original, name, _MISSING) if original is not None else _MISSING
        return method.__get__(self) if inspect.isfunction(method) else method

    def __setattr__(self, name: str, value: Any) -> None:
        # Torch's names may be those of the model's own submodules, which they must not replace.
        if name in _GENERATED:
            attributes_of(self)[name] = value
            return
        if name == "graph" and isinstance(value, Graph):
            attributes_of(self)["_graph"] = value
            value.owning_module = self
            self.recompile()
            return
        super().__setattr__(name, value)
        entry: Entry | None = attributes_of(self).get(_ENTRY)
        if entry is None or entry.fallback is None or name in _OWN_KEYS:
            return
        setattr(entry.fallback, name, value)

    def train(self, mode: bool = True) -> Self:
        """Never raises; in the other mode the module's own code runs, where it can."""
        super().train(mode)
        entry = self._fxpasses
        if entry.fallback is not None:
            # The class of the original may have its own idea of a mode, such as frozen norms.
            entry.fallback.train(mode)
            entry.modes_from_fallback()
            attributes_of(self)["training"] = entry.fallback.training
        return self

    def requires_grad_(self, requires_grad: bool = True) -> Self:
        """Also of the weights that were folded, and so of the model's, which are shared."""
        super().requires_grad_(requires_grad)
        for watch in self._fxpasses.watches:
            tensor = watch.tensor()
            if isinstance(tensor, nn.Parameter):
                tensor.requires_grad_(requires_grad)
        return self

    # -- conversions

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        return self._convert(fn, recurse=recurse)

    def share_memory(self) -> Self:
        """Move a copy of the weights to shared memory; the caller's stay where they are."""
        return self._convert(lambda tensor: tensor.share_memory_(), clone=True)

    def _convert(
        self, fn: Callable[[Tensor], Tensor], *, recurse: bool = True, clone: bool = False
    ) -> Self:
        entry, fallback = self._fxpasses, self._fxpasses.fallback
        before, dtypes = self._device_type(), _dtypes_of(self)
        # The old tensors are gone afterwards, if nobody else holds them.
        watched = [(watch, watch.tensor()) for watch in entry.watches]

        @torch.no_grad()  # What was a leaf stays one.
        def apply() -> None:
            GraphModule._apply(self, fn, recurse)  # noqa: SLF001  its own class
            if fallback is not None:
                fallback._apply(fn, recurse)  # noqa: SLF001  as torch's own conversions do

        roots = [self] if fallback is None else [self, fallback]
        became = convert(roots, fn, apply, clone=clone)
        entry.watches = [_followed(watch, tensor, became) for watch, tensor in watched]
        entry.barriers.forget()
        after = self._device_type()
        if entry.pattern is not None and before and after and not entry.reads_device:
            entry.pattern = entry.pattern.on_device(before, after)
        self._note_dtypes(dtypes)
        return self

    def _note_dtypes(self, before: tuple[torch.dtype, ...]) -> None:
        """What a graph decided by dtype holds for the weights as they were captured only."""
        after = _dtypes_of(self)
        if after == before:
            return
        for module in all_modules(self):
            forward = attributes_of(module).get("forward")
            captured = forward.serve if isinstance(forward, Forward) else module
            if isinstance(captured, CapturedModule):
                entry_of(captured).converted(before, after)

    def _device_type(self) -> str | None:
        """The one type of device that all weights are on."""
        types = {tensor.device.type for tensor in (*self.parameters(), *self.buffers())}
        return types.pop() if len(types) == 1 else None

    # -- copies

    def __copy__(self) -> Self:
        made = self._empty(type(self).__name__)
        attributes_of(made).update(self._kept_state())
        attributes_of(made)[_ENTRY] = self._fxpasses.of_copy(self, made)
        made.graph = copy_graph(self.graph)
        return made

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        made = self._empty(type(self).__name__)
        memo[id(self)] = made
        state = attributes_of(made)
        for key, value in self._kept_state().items():
            state[key] = copy.deepcopy(value, memo)
        made.graph = copy_graph(self.graph)
        return made

    def __reduce__(self) -> tuple[Any, ...]:
        state, entry = self._kept_state(), self._fxpasses
        if entry.fallback is not None and not entry.pickles_fallback:
            state = {**_plain_attributes(entry.fallback, state), **state}
        return _rebuilt, (type(self).__name__, freeze(self.graph)), state

    def __setstate__(self, state: dict[str, Any]) -> None:
        attributes_of(self).update(state)
        self.recompile()

    def _kept_state(self) -> dict[str, Any]:
        return {k: v for k, v in attributes_of(self).items() if k not in _GENERATED}


def _rebuilt(name: str, frozen: FrozenGraph) -> CapturedModule:
    made = CapturedModule._empty(name)  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]  the way to make one
    graph = thaw(frozen)
    graph.owning_module = made
    attributes_of(made)["_graph"] = graph
    return made


def _plain_attributes(module: nn.Module, present: Mapping[str, Any]) -> dict[str, Any]:
    """What a module holds besides what every module has."""
    return {
        key: value
        for key, value in attributes_of(module).items()
        if key not in _MODULE_KEYS and key not in present and key not in ("forward", "_graph")
    }


def _dtypes_of(module: nn.Module) -> tuple[torch.dtype, ...]:
    return tuple(tensor.dtype for tensor in (*module.parameters(), *module.buffers()))


def _followed(watch: Watch, tensor: Tensor | None, became: Mapping[int, Tensor]) -> Watch:
    new = None if tensor is None else became.get(id(tensor))
    return (new is not None and watch.on_copy(new)) or watch


def _checked_forward(entry: Entry | None, graph: Graph) -> Callable[..., Any]:
    """A forward that looks like the model's own and serves calls by the entry."""
    model_class = None if entry is None else entry.model_class

    def forward(self: CapturedModule, *args: Any, **kwargs: Any) -> Any:
        return self._fxpasses.run(self._fxpasses_graph, args, kwargs)  # pyright: ignore[reportPrivateUsage]

    own = None if model_class is None else model_class.forward
    if own is not None:
        forward.__doc__ = own.__doc__
        with contextlib.suppress(TypeError, ValueError):
            forward.__signature__ = inspect.signature(own)
    # Where `torch.fx.symbolic_trace` looks for the names of the arguments.
    runs_own_code = entry is not None and entry.pattern is None and own is not None
    cast("Any", forward).__wrapped__ = own if runs_own_code else _of_the_same_names(graph)
    return forward


def _of_the_same_names(graph: Graph) -> Callable[..., Any]:
    """A function, never called, that takes what the generated code will take."""

    def function(self: Any) -> None: ...

    defaults: dict[str, tuple[Any, ...]] = {}
    for node in graph.nodes:
        if node.op != "placeholder":
            break
        defaults[node.target] = node.args
    names = ("self", *defaults)
    function.__code__ = function.__code__.replace(
        co_argcount=len(names), co_nlocals=len(names), co_varnames=names
    )
    by_name = inspect.Parameter.KEYWORD_ONLY  # of which each may have a default
    function.__signature__ = inspect.Signature(
        [
            inspect.Parameter(name, by_name, default=default[0] if default else OMITTED)
            for name, default in defaults.items()
            if not name.startswith("*")
        ]
    )
    return function


def _adopt(kind: Any, model_class: type[nn.Module] | None) -> None:
    """Let the class of a result answer for the class of the model, where torch asks the class."""
    if model_class is None:
        return
    kind.__doc__ = model_class.__doc__
    for name in _CONTAINER_METHODS:
        if hasattr(model_class, name):
            setattr(kind, name, getattr(model_class, name))
    if model_class.get_extra_state is nn.Module.get_extra_state:
        return
    kind.get_extra_state = lambda self: fallback_of(self).get_extra_state()
    kind.set_extra_state = lambda self, state: fallback_of(self).set_extra_state(state)


def _made_late(self: CapturedModule, *args: Any, **kwargs: Any) -> Any:
    """Stands where generated code will, until it is needed."""
    generate_code(self)
    return self._fxpasses_graph(*args, **kwargs)  # pyright: ignore[reportPrivateUsage]


def generate_code(module: GraphModule) -> None:
    """Generate the code of the graph where that was put off."""
    if "_code" not in attributes_of(module):
        module.recompile()


# -- modules that run their own code


class OwnCode(nn.Module):
    """Calls the own code of a module exactly as the caller called it. Holds it unregistered."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        attributes_of(self)["module"] = module

    def forward(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return own_forward(attributes_of(self)["module"])(*args, **kwargs)


def around(module: nn.Module) -> CapturedModule:
    """A module in place of an opaque root: it runs the root's own code and shares its dicts.

    The hooks are shared too and run once, because the own code is called below them.
    """
    graph = Graph()
    args = graph.create_node("placeholder", "*args", name="args")
    kwargs = graph.create_node("placeholder", "**kwargs", name="kwargs")
    own = graph.create_node("call_module", _OWN_CODE, (args, kwargs), name="original")
    graph.output(own)
    entry = Entry(None, module)
    entry.pickles_fallback = True
    made = CapturedModule.over(module, Graph(), entry)
    attributes_of(made)[_OWN_CODE] = OwnCode(module)
    made.graph = graph
    entry.pairs = [(made, module)]
    return made


def install(module: nn.Module, graph: Graph, entry: Entry) -> CapturedModule:
    """Let `graph` stand in for the forward of a module that keeps its class and its place."""
    made = CapturedModule.over(module, graph, entry)
    entry.pickles_fallback = True
    held = attributes_of(module)
    held["forward"] = Forward(made, held.get("forward"))
    return made


# -- asked of a result; functions, so that no name is taken from the model


def entry_of(module: nn.Module) -> Entry:
    """What decides whether the graph of a captured module runs, or the module's own code.

    Raises:
        ResultError: `module` is no captured module.
    """
    if not isinstance(module, CapturedModule):
        raise ResultError(
            f"{shown(module)} is no captured module: pass what fxpasses.run has returned"
        )
    return attributes_of(module)[_ENTRY]


def graphs_of(result: nn.Module) -> dict[str, "CapturedModule"]:
    """The graphs of a result by the paths of the modules that they stand in for.

    Raises:
        ResultError: `result` is no captured module.
    """
    entry_of(result)
    found = {"": cast("CapturedModule", result)}
    for path, module in result.named_modules():
        forward = attributes_of(module).get("forward")
        if isinstance(forward, Forward) and isinstance(forward.serve, CapturedModule):
            found[path] = forward.serve
    return found


def calls_of(result: nn.Module) -> Mapping[str, Any]:
    """How often the graph ran, and how often and why the module's own code did.

    Where the model as a whole runs its own code, the calls of the graphs below it are counted.
    """
    entry = entry_of(result)
    if entry.pattern is not None:
        return entry.calls.as_dict()
    total = Calls()
    for module in all_modules(result):
        forward = attributes_of(module).get("forward")
        if isinstance(forward, Forward):
            total += entry_of(forward.serve).calls
    return total.as_dict()


def fallback_of(result: nn.Module) -> Any:
    """The module whose own code runs where the graph does not hold, or None."""
    return entry_of(result).fallback


def guard_weights(result: nn.Module, on: bool) -> None:
    """Whether a call raises `StaleWeightsError` once a folded weight was written."""
    entry_of(result).guard_weights = on


def pickle_fallback(result: nn.Module, on: bool = True) -> None:
    """Whether pickles of a result carry the module's own code along."""
    entry_of(result).pickles_fallback = on


def release(result: nn.Module) -> None:
    """Drop the own code of a result, and with it the weights that only it needs.

    A call that the graph does not hold for raises `GuardError` from then on.
    """
    entry = entry_of(result)
    if entry.fallback is None or entry.pattern is None:
        return
    attributes_of(result).update(_plain_attributes(entry.fallback, attributes_of(result)))
    entry.fallback, entry.pairs = None, []

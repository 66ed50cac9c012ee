"""The module that the user gets: a graph, and the module's own code where the graph is no good."""

import contextlib
import copy
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Self, cast

from torch import Tensor, nn
from torch.fx import Graph, GraphModule
from torch.fx.graph import PythonCode

from fxpasses.capture.entry import Entry, Forward, own_forward
from fxpasses.capture.graphs import FrozenGraph, copy_graph, freeze, is_picklable, thaw
from fxpasses.capture.inside import attributes_of
from fxpasses.capture.unshare import convert
from fxpasses.core import Watch

# What every module has, and what is one object in a captured module and in the module it is of.
_MODULE_KEYS = frozenset(attributes_of(nn.Module()))
# Written anew whenever code is generated.
_GENERATED = frozenset(("_graph", "_code", "_lineno_map", "_prologue_start"))
_SETTINGS = ("graph", "entry", "guard_weights", "_entry", "_model_class", "_original")
_OWN_KEYS = frozenset(
    (*attributes_of(GraphModule(nn.Module(), Graph())), *_GENERATED, *_SETTINGS)
) - frozenset(("training",))
_MODEL_CLASS = "_model_class"
_MISSING: Any = object()
# Python looks for these on the class; `model[0]` is common.
_CONTAINER_METHODS = ("__len__", "__getitem__", "__iter__", "__contains__")


class CapturedModule(GraphModule):
    """A GraphModule that is called, copied, pickled, converted and asked as the module it is of.

    It shares the dicts of parameters, buffers, submodules and hooks with that module. A call
    that the graph does not hold for runs the module's own code and is counted in `calls`.
    """

    _entry: Entry
    _model_class: "type[nn.Module] | None"
    graph_forward: Callable[..., Any]
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
        state["_entry"] = entry
        state[_MODEL_CLASS] = held.get(_MODEL_CLASS, type(module))
        made.graph = graph
        return made

    @classmethod
    def _empty(cls, name: str) -> Self:
        made = GraphModule.__new__(cls)
        GraphModule.__init__(made, nn.Module(), Graph(), name)
        return made

    # -- the call

    def recompile(self) -> PythonCode:
        code = super().recompile()
        kind = cast("Any", type(self))
        kind.graph_forward = kind.forward
        kind.forward = _checked_forward(attributes_of(self).get(_MODEL_CLASS))
        _adopt(kind, attributes_of(self).get(_MODEL_CLASS))
        # Torch's own prints a traceback to stderr for whatever the generated code raises.
        del kind.__call__
        return code

    def _recompile_submodules(self) -> list[tuple[str, PythonCode]]:
        return []

    @property
    def calls(self) -> Mapping[str, Any]:
        """How often the graph ran, and how often and why the module's own code did."""
        return self._entry.calls.as_dict()

    @property
    def entry(self) -> Entry:
        """What decides whether the graph runs, or the module's own code."""
        return self._entry

    @property
    def fallback(self) -> nn.Module | None:
        """The module whose own code runs where the graph does not hold."""
        return self._entry.fallback

    @property
    def guard_weights(self) -> bool:
        """Whether a call raises `StaleWeightsError` once a folded weight was written."""
        return self._entry.guard_weights

    @guard_weights.setter
    def guard_weights(self, on: bool) -> None:
        self._entry.guard_weights = on

    def set_watches(self, watches: Sequence[Watch]) -> None:
        """Let calls raise once one of the watched tensors is written."""
        self._entry.watches = list(watches)

    def pickle_fallback(self, on: bool = True) -> None:
        """Whether pickles of this module carry the module's own code along."""
        self._entry.pickles_fallback = on

    def release(self) -> None:
        """Drop the module's own code, and with it the weights that only it needs."""
        fallback = self._entry.fallback
        if fallback is None or self._entry.pattern is None:
            return
        attributes_of(self).update(_plain_attributes(fallback, attributes_of(self)))
        self._entry.fallback = None
        self._entry.pairs = []

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
        entry: Entry | None = state.get("_entry")
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
        original: type | None = state.get(_MODEL_CLASS)
        method = getattr(original, name, _MISSING) if original is not None else _MISSING
        return method.__get__(self) if inspect.isfunction(method) else method

    def __setattr__(self, name: str, value: Any) -> None:
        super().__setattr__(name, value)
        entry: Entry | None = attributes_of(self).get("_entry")
        if entry is None or entry.fallback is None or name in _OWN_KEYS:
            return
        setattr(entry.fallback, name, value)

    def train(self, mode: bool = True) -> Self:
        """Never raises; in the other mode the module's own code runs, where it can."""
        super().train(mode)
        entry = self._entry
        if entry.fallback is not None:
            # The class of the original may have its own idea of a mode, such as frozen norms.
            entry.fallback.train(mode)
            entry.modes_from_fallback()
            attributes_of(self)["training"] = entry.fallback.training
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
        entry, fallback = self._entry, self._entry.fallback
        before = self._device_type()

        def apply() -> None:
            GraphModule._apply(self, fn, recurse)  # noqa: SLF001  its own class
            if fallback is not None:
                fallback._apply(fn, recurse)  # noqa: SLF001  as torch's own conversions do

        roots = [self] if fallback is None else [self, fallback]
        became = convert(roots, fn, apply, clone=clone)
        entry.watches = [_followed(watch, became) for watch in entry.watches]
        after = self._device_type()
        if entry.pattern is not None and before and after and not entry.reads_device:
            entry.pattern = entry.pattern.on_device(before, after)
        return self

    def _device_type(self) -> str | None:
        """The one type of device that all weights are on."""
        types = {tensor.device.type for tensor in (*self.parameters(), *self.buffers())}
        return types.pop() if len(types) == 1 else None

    # -- copies

    def __copy__(self) -> Self:
        made = self._empty(type(self).__name__)
        attributes_of(made).update(self._kept_state())
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
        state, entry = self._kept_state(), self._entry
        if entry.fallback is not None and not entry.pickles_fallback:
            state = {**_plain_attributes(entry.fallback, state), **state}
        model_class = state.pop(_MODEL_CLASS)
        if not is_picklable(model_class):
            model_class = None
        return _rebuilt, (type(self).__name__, freeze(self.graph), model_class), state

    def __setstate__(self, state: dict[str, Any]) -> None:
        attributes_of(self).update(state)
        self.recompile()

    def _kept_state(self) -> dict[str, Any]:
        return {k: v for k, v in attributes_of(self).items() if k not in _GENERATED}


def _rebuilt(name: str, frozen: FrozenGraph, model_class: type | None) -> CapturedModule:
    made = CapturedModule._empty(name)  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]  the way to make one
    attributes_of(made)[_MODEL_CLASS] = model_class
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


def _followed(watch: Watch, became: Mapping[int, Tensor]) -> Watch:
    tensor = watch.tensor()
    new = None if tensor is None else became.get(id(tensor))
    made = None if new is None else Watch.on(watch.name, new)
    if made is None:
        return watch
    return Watch(made.name, made.tensor, -1) if watch.stale else made


def _checked_forward(model_class: type[nn.Module] | None) -> Callable[..., Any]:
    """A forward that looks like the model's own and serves calls by the entry."""

    def forward(self: CapturedModule, *args: Any, **kwargs: Any) -> Any:
        return self._entry.run(self.graph_forward, args, kwargs)  # pyright: ignore[reportPrivateUsage]

    own = None if model_class is None else model_class.forward
    if own is not None:
        forward.__doc__ = own.__doc__
        with contextlib.suppress(TypeError, ValueError):
            forward.__signature__ = inspect.signature(own)
    return forward


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
    kind.get_extra_state = lambda self: self.fallback.get_extra_state()
    kind.set_extra_state = lambda self, state: self.fallback.set_extra_state(state)


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
    own = graph.create_node("call_module", "_original", (args, kwargs), name="original")
    graph.output(own)
    entry = Entry(None, module)
    entry.pickles_fallback = True
    made = CapturedModule.over(module, Graph(), entry)
    attributes_of(made)["_original"] = OwnCode(module)
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


def release(result: nn.Module) -> None:
    """Drop the own code of a result, and with it the weights that only it needs.

    A call that the graph does not hold for raises `GuardError` from then on.
    """
    if isinstance(result, CapturedModule):
        result.release()

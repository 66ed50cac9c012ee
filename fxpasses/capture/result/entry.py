"""What stands at the door of a captured graph: which calls it takes, and what runs otherwise."""

import copy
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from fxpasses.capture.inside import attributes_of
from fxpasses.capture.result.barriers import Barriers
from fxpasses.capture.result.forms import (
    SHARED,
    Args,
    Kwargs,
    has_proxy,
    is_starred,
    proxies_in,
)
from fxpasses.capture.result.guards import GuardMiss
from fxpasses.capture.result.pattern import Pattern
from fxpasses.capture.result.steps import count_steps
from fxpasses.capture.result.undo import Foreseen, Undo, sizes_of
from fxpasses.capture.twins.graphs import is_picklable
from fxpasses.core import History, Watch
from fxpasses.errors import FxPassesError, GuardError, ModeError, ResultError, StaleWeightsError

if TYPE_CHECKING:
    from fxpasses.capture.twins.twin import Twin

GraphCall = Callable[..., Any]


@dataclass(slots=True)
class Calls:
    """How often a graph ran, and how often and why the module's own code did."""

    graph: int = 0
    fallback: int = 0
    reasons: Counter[str] = field(default_factory=Counter[str])

    def __add__(self, other: "Calls") -> "Calls":
        reasons = self.reasons + other.reasons
        return Calls(self.graph + other.graph, self.fallback + other.fallback, reasons)

    def as_dict(self) -> dict[str, Any]:
        return {"graph": self.graph, "fallback": self.fallback, "reasons": dict(self.reasons)}


class Entry:
    """Decides for each call of a captured module whether its graph runs or its own code.

    Args:
        pattern: What a call must look like; None where the module has no graph of its own.
        renamed: Placeholders of arguments whose names are not safe in generated code.
        fallback: The module whose own code runs otherwise, or None.
        flags: The modules whose mode the graph took for granted, with that mode.
    """

    foreseen: Foreseen | None = None
    """Where guards follow what a second run would repeat: the sizes for which they hold."""
    without_gradients = False
    """Whether the graph is of a forward that switches gradients off for all of it."""

    def __init__(
        self,
        pattern: Pattern | None,
        fallback: nn.Module | None,
        *,
        renamed: Mapping[str, str] | None = None,
        flags: Sequence[tuple[nn.Module, bool]] = (),
    ) -> None:
        self.pattern = pattern
        self.fallback = fallback
        self.renamed = dict(renamed or {})
        self.flags = list(flags)
        self.model_class: type[nn.Module] | None = None
        """The class of the module that was captured."""
        self.mode_reasons: tuple[str, ...] = ()
        """Why no call in the other mode can be served: what passes did to the weights."""
        self.watches: list[Watch] = []
        self.barriers = Barriers()
        self.own_code_ran = False
        """Since the values of watched tensors were looked at: it may write them unseen."""
        self.guard_weights = True
        self.pickles_fallback = False
        self.run_again_after: tuple[type[Exception], ...] = ()
        """What a graph may raise, so that another run of the call repeats nothing."""
        self.reads_device = True
        self.dtypes: tuple[torch.dtype, ...] | None = None
        """Of the weights as they were captured, where they have been converted since."""
        self.transparent = False
        """On twins that are traced: the graph runs unchecked, so that it is traced itself."""
        self.opaque: list[nn.Module] = []
        """The modules that the graph calls and that run their own code."""
        self.lineage: Twin | None = None
        """While passes work: which module stands for which of the original program's."""
        self.pairs: list[tuple[nn.Module, nn.Module]] = []
        """Modules of the result and those of the fallback that stand for the same."""
        self.calls = Calls()
        self.history: History | None = None
        """The stages of the run that has made the module, where they were to be kept."""

    def run(self, graph: GraphCall, args: Args, kwargs: dict[str, Any]) -> Any:
        """Serve one call: by `graph` where it holds, else by the module's own code."""
        if self.without_gradients:
            graph = torch.no_grad()(graph)
        if self.transparent:
            return graph(*args, **self._safe(kwargs))
        if torch.compiler.is_compiling():
            return self._run_compiled(graph, args, kwargs)
        if self.watches and self.guard_weights:
            self.check_weights()
        if self.barriers.weights and torch.is_grad_enabled():
            self.barriers.follow(self.watches)
        if not self._mode_fits():
            return self._other_mode(args, kwargs)
        if self.pattern is None:
            return self.own_code(args, kwargs)
        return self._serve(self.pattern, graph, args, kwargs)

    def _serve(self, pattern: Pattern, graph: GraphCall, args: Args, kwargs: dict[str, Any]) -> Any:
        if self.dtypes is not None:
            return self._miss("the weights were converted to another dtype", args, kwargs)
        if not pattern.admits(args, kwargs):
            call = pattern.normalized(args, kwargs)
            if call is None:
                if has_proxy((args, kwargs)):
                    return self._run_traced(pattern, graph, args, kwargs)
                reason = pattern.describe_difference(args, kwargs)
                return self._miss(reason or "arguments in another form", args, kwargs)
            args, kwargs = call[0], dict(call[1])
        if self.foreseen is not None:
            return self._serve_undoably(self.foreseen, graph, args, kwargs)
        return self._serve_by(graph, args, kwargs)

    def _serve_by(self, graph: GraphCall, args: Args, kwargs: dict[str, Any]) -> Any:
        try:
            output = graph(*args, **self._safe(kwargs))
        except GuardMiss as miss:
            reason = f"a size: {miss}"
        except FxPassesError:
            raise
        except self.run_again_after as error:
            # The model's own code raises in its own words, or knows what to do about it.
            is_assertion = isinstance(error, AssertionError)
            if self.fallback is None and not is_assertion:
                raise
            reason = f"the graph raises {type(error).__name__}"
            reason = f"an assertion of the model fails: {error}" if is_assertion else reason
        else:
            self.calls.graph += 1
            return output
        return self._miss(reason, args, kwargs)

    def _serve_undoably(
        self, foreseen: Foreseen, graph: GraphCall, args: Args, kwargs: dict[str, Any]
    ) -> Any:
        """Serve a call by a graph whose guards may miss when it has changed something already."""
        fallback, sizes = self.fallback, sizes_of(args, kwargs)
        undo = None if fallback is None or sizes in foreseen else Undo(fallback)
        try:
            output = graph(*args, **self._safe(kwargs))
        except GuardMiss as miss:
            if undo is None:
                raise GuardError(f"the graph does not hold for this call: a size: {miss}") from miss
            undo.take_back()
            return self._miss(f"a size: {miss}", args, kwargs)
        foreseen.add(sizes)
        self.calls.graph += 1
        return output

    def _run_traced(
        self, pattern: Pattern, graph: GraphCall, args: Args, kwargs: dict[str, Any]
    ) -> Any:
        """What `torch.fx` traces of a call: the graph, if what is no proxy fits."""
        if any(map(is_starred, args)):
            raise ResultError(
                "torch.fx cannot trace a result that takes any number of arguments: trace a "
                "module whose forward calls it with as many as are needed"
            )
        concrete = [value for value in (*args, *kwargs.values()) if not has_proxy(value)]
        reason = pattern.describe_difference(args, kwargs, skip=has_proxy) if concrete else ""
        proxies = proxies_in((args, kwargs))
        if pattern.has_aliases or len(set(map(id, proxies))) < len(proxies):
            reason = SHARED
        if reason:
            return self._miss(reason, args, kwargs)
        return graph(*args, **self._safe(kwargs))

    def _run_compiled(self, graph: GraphCall, args: Args, kwargs: dict[str, Any]) -> Any:
        """As `run`, in what a compiler can trace: nothing is counted, no memory is compared."""
        pattern, mode_fits = self.pattern, self._mode_fits()
        if not mode_fits:
            self._check_other_mode()
        fits = pattern is not None and mode_fits and pattern.resembles(args, kwargs)
        if self.fallback is not None and (not fits or self.dtypes is not None):
            return own_forward(self.fallback)(*args, **kwargs)
        return graph(*args, **self._safe(kwargs))

    def holds_for(self, args: Args, kwargs: dict[str, Any]) -> bool:
        """Whether the graph holds for a call, as far as can be told without running it."""
        if self.pattern is None or self.dtypes is not None or not self._mode_fits():
            return False
        admitted = self.pattern.admits(args, kwargs)
        return admitted or self.pattern.normalized(args, kwargs) is not None

    @property
    def reads_grad_mode(self) -> bool:
        return self.pattern is not None and self.pattern.reads_grad_mode

    def converted(self, before: tuple[torch.dtype, ...], after: tuple[torch.dtype, ...]) -> None:
        """The dtypes of the weights have changed; a way back is noticed too."""
        captured = before if self.dtypes is None else self.dtypes
        self.dtypes = None if after == captured else captured

    def inherit(self, before: "Entry") -> None:
        """Take over what holds for a graph that this one was traced from."""
        self.flags.extend(before.flags)
        if before.foreseen is not None:
            self.foreseen = Foreseen()
        self.watches, self.mode_reasons = list(before.watches), before.mode_reasons
        self.barriers = Barriers(before.barriers.weights)

    def _safe(self, kwargs: Kwargs) -> Kwargs:
        if not self.renamed or not kwargs:
            return kwargs
        return {self.renamed.get(key, key): value for key, value in kwargs.items()}

    def _mode_fits(self) -> bool:
        for module, training in self.flags:  # noqa: SIM110  a generator would double the cost
            if module.training is not training:
                return False
        return True

    def check_weights(self) -> None:
        """Raise `StaleWeightsError` where a folded weight was written since."""
        looks, self.own_code_ran = self.own_code_ran, False
        for watch in self.watches:
            if watch.stale or (looks and watch.differs):
                self.own_code_ran = looks
                raise StaleWeightsError(
                    f"{watch.name} was written after a pass had folded it; run the passes again, "
                    "or set guard_weights=False on the result to go on with the old values"
                )

    def _captured_mode(self) -> str:
        return "training" if self.flags and self.flags[0][1] else "evaluation"

    def _check_other_mode(self) -> None:
        """Raise `ModeError` where passes worked for the captured mode alone."""
        if self.mode_reasons:
            captured = self._captured_mode()
            raise ModeError(
                f"optimized for {captured} mode, because {'; '.join(self.mode_reasons)}; "
                f"run the passes with training={captured != 'training'} for the other mode"
            )

    def _other_mode(self, args: Args, kwargs: dict[str, Any]) -> Any:
        self._check_other_mode()
        reason = f"not in {self._captured_mode()} mode, which the graph was captured in"
        return self._miss(reason, args, kwargs)

    def _miss(self, reason: str, args: Args, kwargs: dict[str, Any]) -> Any:
        if self.fallback is None:
            raise GuardError(
                f"the graph does not hold for this call ({reason}), and the module's own code is "
                "not there: `fallback=False` and `release` drop it, and a pickle leaves it out. "
                "Run the passes with an example of such a call"
            )
        self.calls.fallback += 1
        self.calls.reasons[reason] += 1
        self.own_code_ran = True
        return self.own_code(args, kwargs)

    def own_code(self, args: Args, kwargs: dict[str, Any]) -> Any:
        """Run the module's own forward, in the mode in which the result is."""
        fallback = self.fallback
        if fallback is None:
            raise GuardError("the module's own code is gone")
        self.modes_to_fallback()
        return own_forward(fallback)(*args, **kwargs)

    # -- one state in result and fallback

    def modes_to_fallback(self) -> None:
        for mine, other in self.pairs:
            attributes_of(other)["training"] = mine.training

    def modes_from_fallback(self) -> None:
        for mine, other in self.pairs:
            attributes_of(mine)["training"] = other.training

    # -- copies

    def of_copy(self, old: nn.Module, new: nn.Module) -> "Entry":
        """The entry of `new`, which holds what `old` holds and stands in its place."""
        made = copy.copy(self)
        made.pairs = [(new if mine is old else mine, other) for mine, other in self.pairs]
        made.flags = [(new if flagged is old else flagged, mode) for flagged, mode in self.flags]
        made.barriers = self.barriers.moved(old, new)
        made.calls = Calls()
        return made

    def __copy__(self) -> "Entry":
        made = object.__new__(Entry)
        made.__dict__.update(self.__dict__)
        count_steps(made)
        return made

    def __deepcopy__(self, memo: dict[int, Any]) -> "Entry":
        made = object.__new__(Entry)
        memo[id(self)] = made
        for key, value in self.__dict__.items():
            if key not in ("watches", "lineage", "calls", "history"):
                made.__dict__[key] = copy.deepcopy(value, memo)
        made.lineage, made.calls, made.history = None, Calls(), None
        made.watches = [w for w in (_copied_watch(watch, memo) for watch in self.watches) if w]
        count_steps(made)
        return made

    def __getstate__(self) -> dict[str, Any]:
        state = dict(self.__dict__)
        watches: list[Watch] = []
        if self.pickles_fallback:
            watches = [watch for watch in self.watches if watch.tensor() is not None]
        else:
            state["fallback"] = None
            state["pairs"] = []
        state.update(watches=watches, lineage=None, calls=Calls(), history=None)
        if not is_picklable(self.model_class):
            state["model_class"] = None
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        # There is none on a tensor that is loaded in inference mode.
        loaded: list[Watch | None] = state["watches"]
        self.watches = [watch for watch in loaded if watch is not None]
        count_steps(self)


def _copied_watch(watch: Watch, memo: dict[int, Any]) -> Watch | None:
    """A watch on the copy of the tensor; none where the tensor was not copied along."""
    tensor = watch.tensor()
    copied = None if tensor is None else memo.get(id(tensor))
    return None if copied is None else watch.on_copy(copied)


def own_function(module: nn.Module) -> Callable[..., Any]:
    """The function that computes a module, by which its arguments are named."""
    entry = attributes_of(module).get("_fxpasses")
    if isinstance(entry, Entry) and entry.model_class is not None:
        return entry.model_class.forward
    forward = attributes_of(module).get("forward", type(module).forward)
    return type(module).forward if isinstance(forward, Forward) else forward


def own_forward(module: nn.Module) -> Callable[..., Any]:
    """The forward that a module had before a graph took its place."""
    forward = attributes_of(module).get("forward")
    if isinstance(forward, Forward):
        forward = forward.before
    # Not a bound method, which Dynamo traces in some versions only.
    return partial(type(module).forward, module) if forward is None else forward


class Forward:
    """Stands in for the `forward` of a module that keeps its class and its place.

    Args:
        serve: What takes the calls: a captured module that shares the dicts of the original.
        before: The forward that the module had in its own `__dict__`, if any.
    """

    def __init__(self, serve: nn.Module, before: Callable[..., Any] | None) -> None:
        self.serve = serve
        self.before = before

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.serve.forward(*args, **kwargs)

"""Record what a module computes as a graph, and what cannot be recorded as opaque leaves."""

import importlib
from collections.abc import Callable, Iterable
from typing import Any

from fxpasses.capture.tracing.deep import run_deep
from fxpasses.capture.tracing.internals import (
    is_grad_enabled,
    recompile_if_lazy,
    set_grad_enabled,
)
from fxpasses.capture.tracing.modes import DispatchMode, FunctionMode, GeneratorStates
from fxpasses.capture.tracing.modules import ModuleTracer, has_global_hooks
from fxpasses.capture.tracing.patches import CAPTURE_LOCK, Replacements
from fxpasses.capture.tracing.paths import Paths, is_compiled
from fxpasses.capture.tracing.placeholders import Inputs
from fxpasses.capture.tracing.refusal import Refusal, explain, unbound_method
from fxpasses.capture.tracing.request import (
    Call,
    Opaque,
    OpaqueKind,
    Outside,
    Refused,
    Request,
    Sizes,
    Trace,
    Untraceable,
)
from fxpasses.capture.tracing.running import run_module
from fxpasses.capture.tracing.structures import map_leaves
from fxpasses.capture.tracing.watch import World
from fxpasses.core.randomness import own_generator

__all__ = [
    "CAPTURE_LOCK",
    "Call",
    "Opaque",
    "OpaqueKind",
    "Outside",
    "Refused",
    "Request",
    "Sizes",
    "Trace",
    "Untraceable",
    "resolved",
    "trace",
]


def trace(request: Request) -> Trace:
    """Trace `request.root`.

    Nothing but the twin is changed when this returns or raises: patches, globals, classes and
    random generators are put back.

    Raises:
        Untraceable: the root itself does what no graph can represent. With an example it
            carries what the root's own code returned, and the calls below it.
        Outside: globals changed and `request.strict` is off.
    """
    with CAPTURE_LOCK, own_generator():
        _import_early()
        run = _Run(request)
        try:
            return run_deep(run.depth, run.run_the_trace)
        finally:
            run.end()


def _import_early() -> None:
    """Import what torch imports at the first use of a mode.

    Dynamo keeps tables of the builtins that it finds: it must not find ours.
    """
    importlib.import_module("torch._dynamo")


class _Run:
    """One trace: sets up, runs the root's forward, and puts everything back."""

    def __init__(self, request: Request) -> None:
        self._request = request
        self._paths = Paths(request.root)
        for module in self._paths.modules():
            recompile_if_lazy(module)
        self._world = World(self._paths.modules())
        self._generators = GeneratorStates()
        self._tracer = ModuleTracer(request, self._paths, self._world)
        self._random = self._tracer.random
        self._inputs = Inputs(self._tracer)

    @property
    def depth(self) -> int:
        """How many modules lie in each other at most."""
        return 1 + max(path.count(".") for path in self._paths.modules().values())

    def end(self) -> None:
        self._tracer.end()

    def run_the_trace(self) -> Trace:
        tracer = self._tracer
        replacements = Replacements(tracer, self._world.files.values())
        outside: tuple[str, ...] | None = None  # not known where the trace ends by an exception
        try:
            with DispatchMode(tracer), FunctionMode(tracer):
                tracer.prepare()
                replacements.apply(
                    resolved(self._request.leaf_functions), self._request.traced_functions
                )
                tracer.allow_unbound = replacements.unbound
                with tracer.quiet():
                    self._world.watch()
                outputs = self._root()
            outside = self._outside()
        finally:
            if outside != ():
                self._world.restore(first=True)
            replacements.restore()
            tracer.show_attributes()
            tracer.memory.restore_outside()
            self._random.restore()
            self._generators.restore()
        if outside:
            raise Outside(outside)
        return self._result(outputs)

    def _outside(self) -> tuple[str, ...] | None:
        """What changed outside the modules; None where the modules that did it are opaque."""
        if self._request.strict:
            return None
        places = self._tracer.world.changed()
        if self._random.changed():
            places.append("the state of Python's or NumPy's random numbers")
        return tuple(places)

    def _root(self) -> Any:
        """Trace the root's forward; returns what it returned on the example."""
        tracer, root = self._tracer, self._request.root
        mark = tracer.mark(root, (self._request.args, self._request.kwargs))
        try:
            forced = self._request.force_opaque.get("")
            if forced is not None:
                raise Refusal(forced.kind, forced.reason, forced.source)
            if is_compiled(root):
                raise tracer.refuse(OpaqueKind.COMPILED, "is compiled")
            if has_global_hooks():
                raise tracer.refuse(OpaqueKind.HOOKED, "hooks are registered for all modules")
            args, kwargs = self._inputs.lift(root.forward)
            out = self._forward(args, kwargs)
            returned = self._returned(out)
            tracer.create_node("output", "output", (returned,), {})
        except Exception as error:
            kind, reason, source = explain(error, root)
            tracer.roll_back(mark)
            failed = Untraceable(kind, reason, source)
            self._run_root(failed)
            raise failed from error
        return tracer.known_of(out) if tracer.has_example else None

    def _forward(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        tracer, root = self._tracer, self._request.root
        mark = tracer.mark(root, (args, kwargs))
        try:
            out = root.forward(*args, **kwargs)
        except TypeError as error:
            name = unbound_method(error)
            if name is None or not tracer.allow_unbound(name):
                raise
            tracer.roll_back(mark)
            return self._forward(args, kwargs)
        tracer.check_exit(root, mark, out)
        return out

    def _returned(self, out: Any) -> Any:
        """What the output node holds. It is read in the mode in which the graph runs."""
        if not self._request.without_gradients:
            return self._tracer.output_argument(out)
        if not is_grad_enabled():
            raise self._tracer.refuse(OpaqueKind.REGION, "leaves gradients switched off")
        set_grad_enabled(False)
        try:
            return self._tracer.output_argument(out)
        finally:
            set_grad_enabled(True)

    def _run_root(self, failed: Untraceable) -> None:
        """Run the root's own code on the example, for its children's sake."""
        request, tracer = self._request, self._tracer
        if request.args is None or not request.run_refused:
            return
        copies = map_leaves((request.args, dict(request.kwargs or {})), tracer.copied)
        tracer.evaluating += 1
        try:
            failed.outputs, _ = run_module(tracer, request.root, "", *copies)
            failed.calls = dict(tracer.calls)
        except Refusal:
            failed.left_traces = True
        except Exception as error:
            failed.error = error
        finally:
            tracer.evaluating -= 1
            failed.outside = tracer.memory.written_outside()

    def _result(self, outputs: Any) -> Trace:
        tracer = self._tracer
        if tracer.sizes_are_fixed:
            tracer.asking.ask_for_sizes()
        return Trace(
            graph=tracer.graph,
            opaque=list(tracer.opaque.values()),
            calls=tracer.calls,
            outputs=outputs,
            constants=tracer.constants,
            unregistered=self._paths.unregistered,
            renamed=self._inputs.renamed,
            reads_grad_mode=tracer.reads_grad_mode,
            reads_training=tuple(dict.fromkeys(tracer.reads_training)),
            guards=tracer.guards,
            late_guards=tracer.late_guards,
            changing=frozenset(tracer.changing),
            notes=tuple(tracer.notes),
            reads_device=tracer.reads_device,
            settings=frozenset(tracer.settings),
            effect=tracer.memory.effect,
            writes_given=tracer.memory.writes_given,
            asked=tracer.asking.answers(reads_device=tracer.reads_device),
            outside=tracer.memory.written_outside(),
        )


def resolved(functions: Iterable[Callable[..., Any] | str]) -> list[Callable[..., Any]]:
    """The functions themselves, where some are given as `package.name` or `package.*`."""
    found: list[Callable[..., Any]] = []
    for function in functions:
        if not isinstance(function, str):
            found.append(function)
            continue
        package, _, name = function.rpartition(".")
        module = importlib.import_module(package)
        names = [name] if name != "*" else [n for n in vars(module) if not n.startswith("_")]
        values = [getattr(module, n) for n in names]
        found += [v for v in values if callable(v) and not isinstance(v, type)]
    return found

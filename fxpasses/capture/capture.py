"""A model as a program of graphs, without anything of the caller's being touched.

The root is traced first; what tracing cannot represent stays a call of a module that runs its
own code, and the children of that module are traced in turn.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.fx import Graph

from fxpasses.capture.admission import check_example, check_model, children_of
from fxpasses.capture.aliased import SHARING_MATTERS, apart, holds_for_both, shares
from fxpasses.capture.arguments import Arguments
from fxpasses.capture.captured import Capture, Reference
from fxpasses.capture.inside import attributes_of, is_sealed
from fxpasses.capture.leaves import default_leaves, traced_though_wrapped
from fxpasses.capture.quantized import quantized_notes
from fxpasses.capture.result.entry import Entry, own_function
from fxpasses.capture.result.forms import tensors_of
from fxpasses.capture.result.guards import GuardMiss
from fxpasses.capture.result.module import CapturedModule, around, entry_of, install
from fxpasses.capture.result.pattern import Pattern
from fxpasses.capture.result.questions import answer_of
from fxpasses.capture.result.undo import Foreseen
from fxpasses.capture.retraced import STAND_INS, bare, captured_before, show_guards
from fxpasses.capture.tracing.tracer import (
    Call,
    Opaque,
    OpaqueKind,
    Refused,
    Request,
    Sizes,
    Trace,
    Untraceable,
    resolved,
    trace,
)
from fxpasses.capture.tries import Known, scratch_of
from fxpasses.capture.twins.own_tensors import OwnTensors
from fxpasses.capture.twins.twin import Twin, twin
from fxpasses.core import Program
from fxpasses.core.garbage import collections_paused
from fxpasses.core.given import as_call, flag, one_of, shown
from fxpasses.core.surroundings import surroundings_kept
from fxpasses.errors import ArgumentError, CaptureError
from fxpasses.ops import op_of_module

LeafFunctions = Sequence[Callable[..., Any] | str]
_SIZES: tuple[Sizes, ...] = ("guards", "kinds", "shapes")


def capture(
    model: nn.Module,
    args: Sequence[Any] | None = None,
    kwargs: Mapping[str, Any] | None = None,
    *,
    sizes: Sizes = "guards",
    leaf_functions: LeafFunctions = (),
    training: bool | None = None,
) -> Capture:
    """Capture `model` as graphs, innermost first.

    Args:
        model: Any module. Nothing of it is changed, nor are the arguments or any random state.
        args: The positional arguments of an example call, or the one tensor; None for tracing by
            names alone.
        kwargs: Its keyword arguments.
        sizes: `guards`: branches on sizes become checks at run time. `kinds`: they are opaque.
            `shapes`: the graphs hold for the sizes and strides of the example alone, and compute
            no sizes.
        leaf_functions: Functions, or names such as `package.windows.*`, that stay one node, beside
            those of einops, and those of torchvision and timm that cannot be traced.
        training: The mode to capture; by default that of `model`.

    Raises:
        ArgumentError: an argument is of another kind than these.
        CaptureError: `model` is no module, its weights are not known yet, it is compiled as a
            whole, it raises on the example itself, or the example holds a tensor of a class that
            does something of its own at every operation.
    """
    check_model(model)
    call = as_call(args, kwargs, ("args", "kwargs"))
    example = None if call is None else Arguments(*call)
    check_example(call)
    sizes = one_of(sizes, "sizes", _SIZES)
    functions = _functions(leaf_functions)
    if training is not None:
        flag(training, "training")
    clean, _ = twin(model, tensors=OwnTensors(model))
    if training is not None and training != model.training:
        clean.train(training)
    # What an example leaves behind may be large, and is freed as soon as it can be.
    paused = collections_paused() if example is None else nullcontext()
    with surroundings_kept(), paused:
        return _Capturing(clean, sizes, functions).run(example)


def _functions(given: object) -> tuple[Callable[..., Any] | str, ...]:
    advice = "a list of functions, or of names such as `einops.*`"
    if isinstance(given, str) or not isinstance(given, Iterable):
        raise ArgumentError(f"leaf_functions is {shown(given)}: pass {advice}")
    functions = tuple(cast("Iterable[Any]", given))
    for function in functions:
        if isinstance(function, type) or not (callable(function) or isinstance(function, str)):
            raise ArgumentError(f"leaf_functions holds {shown(function)}: pass {advice}")
        if isinstance(function, str):
            try:
                resolved((function,))
            except (ImportError, AttributeError, ValueError) as error:
                raise ArgumentError(f"leaf_functions: there is no {function!r}: {error}") from error
    return functions


class _Capturing:
    """One capture under way. `clean` becomes the result and its fallback; only twins are run."""

    def __init__(
        self, clean: nn.Module, sizes: Sizes, leaf_functions: tuple[Callable[..., Any] | str, ...]
    ) -> None:
        self._clean = clean
        self._sizes: Sizes = sizes
        self._leaf_functions = leaf_functions
        self._graphs: dict[str, CapturedModule] = {}
        self._opaque: list[Opaque] = []
        self._done: set[int] = {id(clean)}
        self._traces = self._guards = 0
        self._notes = dict.fromkeys(quantized_notes(clean))
        self._apart: dict[int, Arguments] = {}
        """Of modules for which it does not matter that their example shares memory: others."""
        self._outside: dict[int, Tensor] = {}
        self._without_gradients: set[int] = set()
        """Modules whose forward switches gradients off for all that it computes."""

    def run(self, example: Arguments | None) -> Capture:
        root = self._clean
        try:
            made = self._traced_or_refused(root, example)
        except Untraceable as refusal:
            kind = type(root).__name__
            self._opaque.append(Opaque("", kind, refusal.kind, refusal.reason, refusal.source))
            program_root, reference = self._own_code(root, example, refusal)
        else:
            program_root = self._graph_of(root, made, example)
            reference = None if example is None else Reference(made.outputs)
            self._graphs[""] = program_root
            self._below(root, "", made, exampled=example is not None)
        graphs = dict(reversed(self._graphs.items()))
        return Capture(
            Program(program_root, graphs),
            tuple(self._opaque),
            example,
            reference,
            self._sizes,
            self._traces,
            self._guards,
            tuple(self._notes),
            tuple(self._outside.values()),
        )

    # -- one trace

    def _traced_or_refused(self, module: nn.Module, example: Arguments | None) -> Trace:
        """As `_trace`, also of a module whose whole forward is without gradients."""
        try:
            return self._trace(module, example)
        except Untraceable as refusal:
            made = self._traced_without_gradients(module, example, refusal.kind)
            if made is None:
                raise
            return made

    def _traced_without_gradients(
        self, module: nn.Module, example: Arguments | None, kind: OpaqueKind
    ) -> Trace | None:
        """A graph to be run without gradients, as a module runs its whole forward; else None."""
        if kind is not OpaqueKind.REGION or not torch.is_grad_enabled():
            return None
        self._without_gradients.add(id(module))
        try:
            return self._trace(module, example)
        except Untraceable:
            self._without_gradients.discard(id(module))
            return None

    def _trace(self, module: nn.Module, example: Arguments | None) -> Trace:
        """Trace `module`, and put what its graph needs where it is found."""
        made, found = self._traced(module, example)
        self._apart.pop(id(module), None)
        if example is not None and shares(example):
            made, found = self._also_apart(module, example, made, found)
        self._guards += made.guards
        self._notes.update(dict.fromkeys(made.notes))
        state = attributes_of(module)
        state.update(made.constants)
        state.update({n: found.old(m) if found.made(m) else m for n, m in made.unregistered})
        show_guards(made.graph)
        _name_safely(module, made.graph)
        return made

    def _also_apart(
        self, module: nn.Module, example: Arguments, shared: Trace, found: Twin
    ) -> tuple[Trace, Twin]:
        """A graph for arguments of their own, too, where the model does not tell them apart."""
        separate = apart(example)
        try:
            made, twins = self._traced(module, separate)
        except Untraceable:
            return shared, found
        if not holds_for_both(module.forward, (shared, example), (made, separate)):
            self._notes[SHARING_MATTERS] = None
            return shared, found
        made.outputs = shared.outputs
        self._apart[id(module)] = separate
        return made, twins

    def _traced(self, module: nn.Module, example: Arguments | None) -> tuple[Trace, Twin]:
        """Trace a twin of `module`, again where globals or state turn out to change."""
        known = Known(module)
        while True:
            scratch, found, copies = scratch_of(module, example)
            request = self._request(scratch, example, known, copies=copies)
            self._traces += 1
            try:
                made = trace(request)
            except Refused as refused:
                self._note_outside(refused.outside)
                known.learn(refused)
                continue
            if known.covers(made):
                self._note_outside(made.outside)
                return made, found

    def _request(
        self,
        scratch: nn.Module,
        example: Arguments | None,
        known: Known,
        copies: Sequence[tuple[Tensor, Tensor]],
    ) -> Request:
        has_example = example is not None
        defaults = default_leaves(self._sizes, has_example=has_example)
        leaf_functions = (*self._leaf_functions, *defaults)
        if bare(scratch, example):
            leaf_functions = (*leaf_functions, *STAND_INS)
        given = None if example is None else example.copied()
        return Request(
            scratch,
            None if given is None else given.args,
            None if given is None else given.kwargs,
            self._sizes,
            leaf_functions,
            traced_functions=tuple(traced_though_wrapped(self._sizes, has_example=has_example)),
            live=known.live,
            strict=known.strict,
            places=known.places,
            force_opaque=known.opaque,
            run_refused=known.root is self._clean,
            without_gradients=id(known.root) in self._without_gradients,
            copies=copies,
        )

    def _note_outside(self, tensors: Sequence[Tensor]) -> None:
        self._outside.update((id(tensor), tensor) for tensor in tensors)

    def _graph_of(
        self, module: nn.Module, made: Trace, example: Arguments | None
    ) -> CapturedModule:
        return CapturedModule.over(module, made.graph, self._entry(module, made, example))

    def _entry(self, module: nn.Module, made: Trace, example: Arguments | None) -> Entry:
        earlier = captured_before(module)
        before = None if earlier is None else entry_of(earlier)
        reads_grad = made.reads_grad_mode or (before is not None and before.reads_grad_mode)
        asked = made.asked if before is None else _also_asked(made.asked, before, example)
        settings = made.settings | (_settings_of(before) if before is not None else frozenset())
        forward = own_function(module)
        separate = self._apart.get(id(module))
        example = example if separate is None else separate
        pattern = (
            Pattern.by_names(forward, asked, settings)
            if example is None
            else Pattern(
                example.args,
                example.kwargs,
                forward=forward,
                grad_matters=reads_grad,
                asked=asked,
                aliases_matter=separate is None,
                settings=settings,
            )
        )
        flags = [(_at(module, path), _at(module, path).training) for path in made.reads_training]
        entry = Entry(pattern, module, renamed=made.renamed, flags=flags)
        entry.opaque = [_at(module, opaque.path) for opaque in made.opaque]
        entry.reads_device = made.reads_device
        entry.without_gradients = id(module) in self._without_gradients
        entry.foreseen = Foreseen() if made.late_guards else None
        if not made.effect:
            # Without an example, little is known of what comes before an error.
            entry.run_again_after = (AssertionError,) if example is None else (Exception,)
        if before is not None:
            entry.inherit(before)
        return entry

    # -- what runs its own code

    def _own_code(
        self, root: nn.Module, example: Arguments | None, refusal: Untraceable
    ) -> tuple[CapturedModule, Reference | None]:
        if refusal.error is not None:
            error = refusal.error
            if isinstance(error, GuardMiss):
                raise CaptureError(
                    "the model is a result, and its graph does not hold for the example: a size: "
                    f"{error}. Run the passes on the model that it was made of"
                ) from error
            raise CaptureError(
                f"the model itself raises on the example: {type(error).__name__}: {error}"
            ) from error
        made = around(root)
        exampled = example is not None
        self._inside(root, "", refusal.calls if exampled else None)
        ran = exampled and not refusal.left_traces
        return made, Reference(refusal.outputs) if ran else None

    def _below(self, module: nn.Module, path: str, made: Trace, *, exampled: bool) -> None:
        """Capture the children of what is opaque in the graph of `module`."""
        for opaque in made.opaque:
            inner = _at(module, opaque.path)
            if id(inner) in self._done:
                continue
            self._done.add(id(inner))
            full = _joined(path, opaque.path)
            if self._region(inner, full, opaque, made.calls if exampled else None):
                continue
            self._opaque.append(replace(opaque, path=full))
            if not is_sealed(inner):
                calls = {_joined(path, key): call for key, call in made.calls.items()}
                self._inside(inner, full, calls if exampled else None)

    def _region(
        self, module: nn.Module, path: str, opaque: Opaque, calls: Mapping[str, Call] | None
    ) -> bool:
        """Capture a module that a graph calls, if all of its forward is without gradients."""
        call = None if calls is None else calls.get(opaque.path)
        if calls is not None and call is None:
            return False
        example = None if call is None else Arguments(*call)
        made = self._traced_without_gradients(module, example, opaque.kind)
        if made is not None:
            self._installed(module, path, made, example)
        return made is not None

    def _installed(
        self, module: nn.Module, path: str, made: Trace, example: Arguments | None
    ) -> None:
        self._graphs[path] = install(module, made.graph, self._entry(module, made, example))
        self._below(module, path, made, exampled=example is not None)

    def _inside(self, module: nn.Module, path: str, calls: Mapping[str, Call] | None) -> None:
        stack = list(reversed(children_of(module, path)))
        while stack:
            name, child = stack.pop()
            if id(child) in self._done or _is_layer(child):
                continue
            if is_sealed(child):
                self._done.add(id(child))
                self._opaque.append(_sealed(name, child))
            elif not self._child(child, name, calls):
                stack.extend(reversed(children_of(child, name)))

    def _child(self, child: nn.Module, path: str, calls: Mapping[str, Call] | None) -> bool:
        """Capture a module below an opaque one; False where its children have to be looked at."""
        container = type(child).forward is nn.Module.forward
        if container or (calls is not None and path not in calls):
            # A list or a dict of modules, or a module that the example does not reach.
            return False
        call = None if calls is None else Arguments(*calls[path])
        self._done.add(id(child))
        try:
            made = self._traced_or_refused(child, call)
        except Untraceable as refusal:
            kind = type(child).__name__
            self._opaque.append(Opaque(path, kind, refusal.kind, refusal.reason, refusal.source))
            return False
        self._installed(child, path, made, call)
        return True


def _settings_of(entry: Entry) -> frozenset[str]:
    return frozenset() if entry.pattern is None else entry.pattern.settings


def _also_asked(
    asked: Mapping[int, Mapping[str, Any]], before: Entry, example: Arguments | None
) -> Mapping[int, Mapping[str, Any]]:
    """What the model asked when the graph was made that is traced now, of whichever tensor."""
    if before.pattern is None or example is None:
        return asked
    questions = before.pattern.questions
    tensors = tensors_of((example.args, dict(example.kwargs)))
    return {
        number: {**{q: answer_of(tensor, q) for q in questions}, **asked.get(number, {})}
        for number, tensor in enumerate(tensors)
    }


def _at(module: nn.Module, path: str) -> nn.Module:
    found: Any = module
    for name in path.split(".") if path else ():
        found = getattr(found, name)
    return found


def _joined(path: str, name: str) -> str:
    return f"{path}.{name}" if path and name else path or name


def _is_layer(module: nn.Module) -> bool:
    """A layer that stays one node wherever it is called: a graph of it gains nothing."""
    containers = (nn.Sequential, nn.ModuleList, nn.ModuleDict)
    is_torch_layer = type(module).__module__.startswith("torch.nn.")
    is_known = op_of_module(module) is not None
    return is_known or (is_torch_layer and not isinstance(module, containers))


def _sealed(path: str, module: nn.Module) -> Opaque:
    script = isinstance(module, torch.jit.ScriptModule)
    reason = "TorchScript" if script else "compiled by torch.compile"
    return Opaque(path, type(module).__name__, OpaqueKind.COMPILED, reason)


# Python compiles an attribute of an attribute by recursion.
_DEEPEST = 64
# Where what the model calls by a name of GraphModule's own is found.
_NAMES = "_fxpasses_names"


def _name_safely(root: nn.Module, graph: Graph) -> None:
    """Let nodes reach modules that lie very deep, or have a name that GraphModule keeps."""
    deep: dict[str, str] = {}
    for node in graph.nodes:
        if node.op not in ("call_module", "get_attr"):
            continue
        if CapturedModule.keeps_name(node.target.partition(".")[0]):
            attributes_of(root).setdefault(_NAMES, _same_names(root))
            node.target = f"{_NAMES}.{node.target}"
        if node.target.count(".") < _DEEPEST:
            continue
        path, name = node.target, ""
        if node.op == "get_attr":
            path, _, name = node.target.rpartition(".")
        alias = deep.setdefault(path, f"_fxpasses_deep{len(deep)}")
        attributes_of(root)[alias] = _at(root, path)
        node.target = f"{alias}.{name}" if name else alias


def _same_names(root: nn.Module) -> nn.Module:
    """A plain module over the dicts of `root`: what is registered later is found here too."""
    made = nn.Module()
    held = attributes_of(root)
    tensors = {key: value for key, value in held.items() if isinstance(value, Tensor)}
    shared = {key: held[key] for key in ("_parameters", "_buffers", "_modules")}
    attributes_of(made).update(tensors | shared)
    return made

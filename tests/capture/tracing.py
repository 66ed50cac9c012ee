"""How tests of the tracer run a trace and compare what comes of it."""

import copy
import dataclasses
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.fx import GraphModule

from fxpasses.capture.result.guards import GuardMiss
from fxpasses.capture.tracing.tracer import OpaqueKind, Outside, Request, Trace, Untraceable, trace


def module(forward: Any, **attributes: Any) -> nn.Module:
    """A module in eval mode with this forward and these attributes."""

    class Subject(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            for name, value in attributes.items():
                setattr(self, name, value)

    Subject.forward = forward
    return Subject().eval()


class Outer(nn.Module):
    """Calls the subject between two layers: it is the subject that is opaque, not the root."""

    def __init__(self, inner: nn.Module, width: int = 4) -> None:
        super().__init__()
        self.before, self.inner, self.after = nn.Linear(4, 4), inner, nn.Linear(width, 4)

    def forward(self, x: Tensor) -> Any:
        return self.after(self.inner(self.before(x)))


@dataclass
class Result:
    """What a trace made of a model: callable as the model is."""

    model: nn.Module
    graph_module: GraphModule | None
    trace: Trace | None
    refused: Untraceable | None
    misses: int = 0

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if self.graph_module is None:
            return self.model(*args, **kwargs)
        renamed = self.trace.renamed
        kwargs_ = {renamed.get(k, k): v for k, v in kwargs.items()}
        try:
            return type(self.graph_module).forward(self.graph_module, *args, **kwargs_)
        except GuardMiss:
            self.misses += 1
            return self.model(*args, **kwargs)

    @property
    def kinds(self) -> dict[str, OpaqueKind]:
        if self.refused is not None:
            return {"": self.refused.kind}
        return {opaque.path: opaque.kind for opaque in self.trace.opaque}

    @property
    def code(self) -> str:
        return self.graph_module.code

    @property
    def targets(self) -> list[Any]:
        return [n.target for n in self.trace.graph.nodes if n.op not in ("placeholder", "output")]


def traced(
    model: nn.Module,
    args: tuple[Any, ...] | None = None,
    kwargs: dict[str, Any] | None = None,
    *,
    twin: Any = copy.deepcopy,
    **options: Any,
) -> Result:
    """Trace copies of `model` until nothing that changes is read, and make a module of it."""
    live: frozenset[str] = frozenset()
    known: dict[str, Any] = {}
    places: tuple[str, ...] = ()
    clean = twin(model)
    for _ in range(8):
        subject = twin(model)
        request = Request(
            subject,
            args,
            kwargs,
            force_opaque=known,
            live=live,
            strict=bool(places),
            places=places,
            **options,
        )
        try:
            found = trace(request)
        except Outside as outside:
            places = outside.places
            continue
        except Untraceable as refused:
            return Result(clean, None, None, refused)
        if found.changing <= live:
            break
        live |= found.changing
        known = {opaque.path: opaque for opaque in found.opaque}
    else:
        raise AssertionError("the trace comes to no end")
    paths = {below: path for path, below in subject.named_modules()}
    for name, tensor in found.constants:
        clean.__dict__[name] = tensor
    for name, below in found.unregistered:
        own = clean.get_submodule(paths[below]) if below in paths else below
        clean.__dict__[name] = own
    found.graph.lint()
    graph_module = GraphModule(nn.Module(), torch.fx.Graph())
    graph_module.__dict__.update(
        {k: v for k, v in clean.__dict__.items() if k not in ("forward", "_graph")}
    )
    graph_module.graph = found.graph
    return Result(clean, graph_module, found, None)


def same(a: Any, b: Any) -> bool:
    """Whether two results are equal, in values, types and structure."""
    if type(a) is not type(b):
        return False
    if isinstance(a, Tensor):
        is_alike = a.shape == b.shape and a.dtype == b.dtype
        return is_alike and torch.allclose(a, b, rtol=1e-5, atol=1e-6, equal_nan=True)
    if dataclasses.is_dataclass(a) and not isinstance(a, type):
        names = [field.name for field in dataclasses.fields(a)]
        return all(same(getattr(a, name), getattr(b, name)) for name in names)
    if isinstance(a, dict):
        return list(a) == list(b) and all(same(a[key], b[key]) for key in a)
    if isinstance(a, (tuple, list)):
        return len(a) == len(b) and all(map(same, a, b))
    return a == b


def run(model: Any, call: tuple[Any, ...], kwargs: Any = None, seed: int = 0) -> Any:
    """What `model` returns, or the kind of what it raises."""
    torch.manual_seed(seed)
    try:
        return model(*copy.deepcopy(call), **copy.deepcopy(kwargs or {}))
    except Exception as error:  # the two sides are compared
        return type(error).__name__

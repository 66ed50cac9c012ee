"""Small programs and rewrites to verify, with faults that can be switched on."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from torch import fx, nn
from torch.fx import Node

from fxpasses.core import (
    STANDS_FOR,
    Applied,
    Editor,
    Folds,
    GraphPass,
    Numerics,
    Program,
    carry_out,
)
from fxpasses.core.record import PassRecord, RewriteRecord


@dataclass
class Call:
    args: tuple[Any, ...]
    kwargs: dict[str, Any] = field(default_factory=dict)


@dataclass
class Reference:
    outputs: Any


@dataclass
class Done:
    """A pass as a manager would have carried it out."""

    record: PassRecord
    applied: dict[str, list[Applied]]
    numerics: Numerics
    foreign: bool = False
    trains: bool = True


class NoFacts:
    def changed(self, nodes: object) -> None:
        return


@dataclass
class Case:
    """A model as it was captured, and a fork to work on."""

    original: Program
    work: Program
    done: list[Done] = field(default_factory=list)

    @property
    def graph(self) -> fx.Graph:
        return self.work.graphs[""].graph

    def named(self, name: str) -> Node:
        return next(node for node in self.graph.nodes if node.name == name)

    def run(self, graph_pass: GraphPass) -> None:
        module = self.work.graphs[""]
        with Editor(module, graph_pass.name, folds=self.work.folds, keep_regions=True) as edit:
            carry_out(graph_pass, NoFacts(), edit)
        self._done(graph_pass.name, graph_pass.numerics, edit.applied)

    def apply(
        self,
        do: Callable[[Editor], None],
        at: str,
        *,
        name: str = "a_pass",
        numerics: Numerics = Numerics.ROUNDING,
    ) -> str:
        """One rewrite of one pass, and its id."""
        module, node = self.work.graphs[""], self.named(at)
        identifier = f"{len(self.done) + 1}:{name}@/{at}"
        with (
            Editor(module, name, folds=self.work.folds, keep_regions=True) as edit,
            edit.rewrite(identifier, node),
        ):
            do(edit)
        self._done(name, numerics, edit.applied)
        return identifier

    def foreign(self, name: str = "foreign", numerics: Numerics = Numerics.ROUNDING) -> None:
        """Record that a pass without rewrites changed the work by hand."""
        self._done(name, numerics, [])

    def _done(self, name: str, numerics: Numerics, applied: list[Applied]) -> None:
        rewrites = [
            RewriteRecord(a.id, "", a.node, a.why, a.source, [], a.created, a.erased)
            for a in applied
        ]
        record = PassRecord(
            len(self.done) + 1, name, {}, str(numerics), status="changed", rewrites=rewrites
        )
        self.done.append(Done(record, {"": applied}, numerics))


class _Tracer(fx.Tracer):
    proxy_buffer_attributes = True


def captured(model: nn.Module) -> Case:
    """`model` traced by names, and an independent copy over the same tensors."""
    return Case(_program(model), _program(model))


def _program(model: nn.Module) -> Program:
    traced = fx.GraphModule(model, _Tracer().trace(model))
    traced.train(model.training)
    for node in traced.graph.nodes:
        node.meta[STANDS_FOR] = node.name
    return Program(traced, {"": traced}, Folds())

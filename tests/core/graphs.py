"""Small graphs and passes that the tests of the core share."""

import torch
from torch import Tensor, nn
from torch.fx import GraphModule, Node, symbolic_trace

from fxpasses.core import SOURCE, STANDS_FOR, Editor, Facts, Numerics, Rewrite, Source
from fxpasses.core.rewrite import Condition


class Chain(nn.Module):
    """Two convolutions with activations, a weight that is read directly, and a sum."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(2, 2, 1), nn.Conv2d(2, 2, 1)
        self.scale = nn.Parameter(torch.randn(2, 1, 1))

    def forward(self, x: Tensor) -> Tensor:
        y = torch.relu(self.first(x))
        return torch.relu(self.second(y)) * self.scale + y


def captured(module: nn.Module) -> GraphModule:
    """The trace of a module, with all that it holds and the metadata that a capture leaves."""
    traced = symbolic_trace(module)
    for held in ("_modules", "_parameters", "_buffers"):
        vars(traced)[held] = dict(vars(module)[held])
    for line, node in enumerate(traced.graph.nodes, start=1):
        node.meta[SOURCE] = Source("model.py", line)
        node.meta[STANDS_FOR] = node.name
    return traced


def node_named(module: GraphModule, name: str) -> Node:
    return next(node for node in module.graph.nodes if node.name == name)


def is_relu(node: Node) -> bool:
    return node.target is torch.relu


class SwapRelu(Rewrite[Node]):
    """Writes tanh for relu."""

    name = "swap_relu"
    numerics = Numerics.MEANING

    def match(self, node: Node, facts: Facts) -> Node | None:
        return node if is_relu(node) else None

    def rewrite(self, site: Node, edit: Editor) -> None:
        edit.replace(site, edit.call_function(torch.tanh, *site.args))


class SwapTanh(Rewrite[Node]):
    """Writes relu for tanh."""

    name = "swap_tanh"
    numerics = Numerics.MEANING

    def match(self, node: Node, facts: Facts) -> Node | None:
        return node if node.target is torch.tanh else None

    def rewrite(self, site: Node, edit: Editor) -> None:
        edit.replace(site, edit.call_function(torch.relu, *site.args))


def with_condition(condition: Condition[Node], *, legal: bool = True) -> SwapRelu:
    """A `SwapRelu` under one condition."""

    class Conditional(SwapRelu):
        legal_if = (condition,) if legal else ()
        worthwhile_if = () if legal else (condition,)

    return Conditional()


def description(module: GraphModule) -> tuple[object, ...]:
    """All that a rollback has to put back: text, names, order, metadata, attributes, code."""
    nodes = [(n.name, n.op, n.target, repr(n.args), repr(n.kwargs)) for n in module.graph.nodes]
    metas = [dict(node.meta) for node in module.graph.nodes]
    held = [
        (
            name,
            {
                k: id(v)
                for d in ("_modules", "_parameters", "_buffers")
                for k, v in vars(m)[d].items()
            },
        )
        for name, m in module.named_modules()
    ]
    plain = {
        k for k in vars(module) if k not in ("_graph", "_code", "_lineno_map", "_prologue_start")
    }
    return str(module.graph), nodes, metas, held, plain, module.code

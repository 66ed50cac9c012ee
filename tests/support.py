"""What the test of every pass needs: models as graphs, and what became of them."""

import copy
from typing import Any

import torch
from torch import Tensor, nn
from torch.fx import GraphModule, Interpreter, Node, Tracer
from torch.overrides import TorchFunctionMode

from fxpasses.core import (
    STANDS_FOR,
    VALUE,
    Known,
    PassResult,
    TensorInfo,
)
from fxpasses.ops import FACTORIES, Op, op_of, op_of_function


class _LeavesKnownOps(Tracer):
    """Modules that spell an op are leaves, wherever they are defined; buffers are nodes."""

    proxy_buffer_attributes = True

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        return is_op(m) or super().is_leaf_module(m, module_qualified_name)


def is_op(module: nn.Module) -> bool:
    """Whether the vocabulary knows what calling `module` computes."""
    root = nn.Module()
    root.called = module
    graph = torch.fx.Graph(root)
    node = graph.call_module("called", (graph.placeholder("x"),))
    return op_of(node) is not None


class _FactoriesAreNodes(TorchFunctionMode):
    def __init__(self, tracer: Tracer) -> None:
        super().__init__()
        self.tracer = tracer

    def __torch_function__(self, func, types, args=(), kwargs=None):
        if op_of_function(func) in FACTORIES:
            return self.tracer.create_proxy("call_function", func, args, kwargs or {})
        return func(*args, **(kwargs or {}))


def bare(model: nn.Module) -> GraphModule:
    """The model as a graph that knows nothing of its values."""
    tracer = _LeavesKnownOps()
    with _FactoriesAreNodes(tracer):
        graph = tracer.trace(model)
    return GraphModule(model, graph, type(model).__name__)


def traced(model: nn.Module, *example: Any) -> GraphModule:
    """The model as a graph whose nodes know their values, as a capture leaves it."""
    module = bare(model)
    recorder = _Recorder(copy.deepcopy(module))
    with torch.no_grad():
        recorder.run(*copy.deepcopy(example))
    for node in module.graph.nodes:
        node.meta[STANDS_FOR] = node.name
        if (known := recorder.known.get(node.name)) is not None:
            node.meta[VALUE] = known
    return module


class _Recorder(Interpreter):
    def __init__(self, module: GraphModule) -> None:
        super().__init__(module)
        self.known: dict[str, Known] = {}

    def run_node(self, n: Node) -> Any:
        value = super().run_node(n)
        self.known[n.name] = _known(value)
        return value


def _known(value: Any) -> Known:
    if isinstance(value, Tensor):
        return TensorInfo.of(value)
    if isinstance(value, tuple | list):
        return tuple(_known(item) for item in value)
    if isinstance(value, dict):
        return {key: _known(item) for key, item in value.items()}
    return None


def exported(model: nn.Module, *example: Any) -> GraphModule:
    """The model as torch.export spells it: aten ops, parameters read by get_attr."""
    return torch.export.export(model, example).module(check_guards=False)


def reasons(result: PassResult) -> list[str]:
    """The names of the conditions that refused something."""
    return [refusal.condition for refusal in result.refusals]


def ops(module: GraphModule) -> list[Op]:
    """The ops that the graph computes, in order."""
    return [op for node in module.graph.nodes if (op := op_of(node)) is not None]


def the_node(module: GraphModule, op: Op) -> Node:
    """The only node that computes `op`."""
    (node,) = [node for node in module.graph.nodes if op_of(node) is op]
    return node

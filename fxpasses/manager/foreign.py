"""Passes that are any callable: they work on a copy, whose result is then taken over."""

import copy
from typing import Any

import torch
from torch import Tensor, nn
from torch.fx import Graph, GraphModule

from fxpasses.capture.twins.graphs import copy_graph
from fxpasses.core import ForeignPass, Program
from fxpasses.core.snapshot import Snapshot
from fxpasses.errors import PassError
from fxpasses.manager.resharing import Resharing
from fxpasses.manager.slots import tensor_slots
from fxpasses.manager.states import GraphState


class Installed:
    """The result of a foreign pass in the place of a graph, which can still be taken back."""

    def __init__(self, name: str, module: GraphModule, result: GraphModule) -> None:
        self._name = name
        self._module = module
        self._before = Snapshot(module)
        self._plain = set(_plain_attributes(module))
        self._install(result)

    def _install(self, result: GraphModule) -> None:
        own, new = vars(self._module), vars(result)
        for held in ("_modules", "_parameters", "_buffers"):
            own[held].clear()
            own[held].update(new[held])
        own["_non_persistent_buffers_set"] = set(new["_non_persistent_buffers_set"])
        for name in self._plain:
            del own[name]
        own.update(_plain_attributes(result))
        self._module.graph = result.graph

    def seal(self) -> None:
        """Check the graph.

        Raises:
            PassError: it is broken.
        """
        try:
            self._module.graph.lint()
        except Exception as error:
            reason = str(error).partition("\n")[0]
            raise PassError(f"{self._name} left a broken graph behind: {reason}") from error

    def rollback(self) -> None:
        self._before.restore()


def carry_out_foreign(foreign: ForeignPass, program: Program, path: str) -> Installed | None:
    """Run a foreign pass on a copy of one graph, and take its result over; None if it is the same.

    Raises:
        PassError: the pass raised, returned something that is no graph, or changed the inputs.
    """
    module = program.graphs[path]
    where = f"{foreign.name} on the graph of {path or 'the model'}"
    memo: dict[int, Any] = {}
    try:
        copied = _copied(module, memo)
    except Exception as error:
        raise PassError(f"{where} needs a copy of it, which cannot be made: {error}") from error
    try:
        returned = foreign.function(copied)
    except Exception as error:
        raise PassError(f"{where} raised {type(error).__name__}: {error}") from error
    result = _graph_module_in(returned, copied, where)
    _check(result, module, where)
    Resharing(module, result, memo, keep=[m for _, m in program]).share()
    if GraphState.of(result).same_as(GraphState.of(module)):
        return None
    return Installed(foreign.name, module, result)


def _copied(module: GraphModule, memo: dict[int, Any]) -> GraphModule:
    """A plain graph module with copies of all that the graph can reach, hooks of its own apart."""
    result = GraphModule(nn.Module(), Graph())
    memo[id(module)] = result
    for tensor in [slot.value for slot in tensor_slots(module)]:
        if not tensor.is_leaf or tensor.layout is not torch.strided:  # torch refuses to copy some
            memo[id(tensor)] = _cloned(tensor)
    own, new = vars(module), vars(result)
    for held in ("_modules", "_parameters", "_buffers"):
        new[held].update({name: copy.deepcopy(value, memo) for name, value in own[held].items()})
    new["_non_persistent_buffers_set"] = set(own["_non_persistent_buffers_set"])
    plain = _plain_attributes(module)
    new.update({name: copy.deepcopy(value, memo) for name, value in plain.items()})
    new["training"] = module.training
    result.meta = dict(module.meta)
    result.graph = copy_graph(module.graph)
    return result


def _cloned(tensor: Tensor) -> Tensor:
    clone = tensor.detach().clone()
    if isinstance(tensor, nn.Parameter):
        return nn.Parameter(clone, requires_grad=tensor.requires_grad)
    return clone.requires_grad_(tensor.requires_grad)


def _plain_attributes(module: GraphModule) -> dict[str, Any]:
    """Tensors, and whatever else the graph reads, that are attributes and nothing more."""
    targets = {
        str(node.target).partition(".")[0]
        for node in module.graph.nodes
        if node.op in ("get_attr", "call_module")
    }
    own = vars(module).items()
    return {name: value for name, value in own if isinstance(value, Tensor) or name in targets}


def _graph_module_in(returned: Any, copied: GraphModule, where: str) -> GraphModule:
    """What a foreign pass made: it may return it, a PassResult, or nothing if it is in place."""
    if returned is None or isinstance(returned, bool):
        return copied
    found = getattr(returned, "graph_module", returned)
    if not isinstance(found, GraphModule):
        raise PassError(
            f"{where} returned {type(returned).__name__} {str(returned)[:60]!r}, where a "
            "GraphModule, a PassResult, a bool or None was expected"
        )
    return found


def _check(result: GraphModule, module: GraphModule, where: str) -> None:
    try:
        result.graph.lint()
    except Exception as error:
        reason = str(error).partition("\n")[0]
        raise PassError(f"{where} left a broken graph behind: {reason}") from error
    before, after = _inputs(module.graph), _inputs(result.graph)
    if before != after:
        raise PassError(f"{where} changed the inputs from {before} to {after}")


def _inputs(graph: Graph) -> list[str]:
    return [str(node.target) for node in graph.nodes if node.op == "placeholder"]

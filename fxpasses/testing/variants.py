"""A model in difficult circumstances: shared, tied, hooked, named oddly, written in between."""

import copy
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, Final

import torch
from torch import Tensor, nn
from torch.fx import GraphModule, Node
from torch.utils._pytree import tree_map_only

from fxpasses.capture.twins.graphs import copy_graph
from fxpasses.core import TensorInfo
from fxpasses.core.values import VALUE
from fxpasses.testing.behaviour import behaviour_of
from fxpasses.testing.model import Model
from fxpasses.testing.trial import Trial

_MOST_VALUES: Final = 4
"""How many values of one graph are returned, and written, each in a model of its own."""


def hostile_variants(trial: Trial) -> Iterator[Model]:
    """Variants of a model on which a pass fires; those that the model itself cannot stand are not.

    The model is put into others, and the values that the rewrites are about are returned, and
    written in place.
    """
    for variant in (*_circumstances(trial.model), *_interventions(trial)):
        if _runs(variant):
            yield variant


def _runs(model: Model) -> bool:
    module = model.own().module.train(model.is_for_training)
    try:
        behaviour_of(module, module, model)
    except Exception:  # a model need not stand everything
        return False
    return True


# -- around the model


class _Around(nn.Module):
    """Calls a model that it holds under `name`."""

    def __init__(self, model: nn.Module, name: str = "model") -> None:
        super().__init__()
        self.add_module(name, model)
        self.name = name

    @property
    def held(self) -> nn.Module:
        return self.get_submodule(self.name)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.held(*args, **kwargs)


class _CalledTwice(_Around):
    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.held(*args, **kwargs), self.held(*args, **kwargs)


class _Tied(_Around):
    """Two models whose parameters are the same."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__(model)
        self.other = copy.deepcopy(model)
        for path, owner in model.named_modules():
            twin = self.other.get_submodule(path)
            for name, parameter in owner.named_parameters(recurse=False):
                setattr(twin, name, parameter)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.held(*args, **kwargs), self.other(*args, **kwargs)


class _Writes(_Around):
    """Writes what it was given and what comes out, and returns both states."""

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        result = self.held(*args, **kwargs)
        before = tree_map_only(Tensor, lambda tensor: tensor * 1, result)
        tree_map_only(Tensor, _write, (args, result))
        return before, result


def _write(tensor: Tensor) -> Tensor:
    return tensor.mul_(2) if tensor.is_floating_point() else tensor


def _scaled(module: nn.Module, args: Any, result: Any) -> Any:  # noqa: ARG001  a hook
    return tree_map_only(Tensor, lambda tensor: tensor * 2, result)


def _hooked(model: nn.Module) -> nn.Module:
    for module in model.modules():
        if not list(module.children()):
            module.register_forward_hook(_scaled)
    return model


def _hooked_outside(model: nn.Module) -> nn.Module:
    model.register_forward_hook(_scaled)
    return model


_CIRCUMSTANCES: Final[dict[str, Callable[[nn.Module], nn.Module]]] = {
    "called twice": _CalledTwice,
    "tied to another": _Tied,
    "named by a keyword": lambda model: _Around(model, "for"),
    "named by code": lambda model: _Around(model, "x = 1); raise OSError('run') #"),
    "named by quotes": lambda model: _Around(model, "'\\n\""),
    "written around": _Writes,
    "with hooks on its layers": _hooked,
    "with a hook of its own": _hooked_outside,
}


def _circumstances(model: Model) -> Iterator[Model]:
    for how, make in _CIRCUMSTANCES.items():
        module = copy.deepcopy(model.module)
        made = make(module).train(module.training)
        if module.training != model.module.training or made is not module:
            _same_modes(module, model.module)
        yield replace(model, module=made, name=f"{model.name}, {how}")
    if not model.is_for_training:
        module = copy.deepcopy(model.module).train()
        yield replace(model, module=module, training=True, name=f"{model.name}, in training mode")
    for dtype in (torch.float64, torch.bfloat16):
        yield _converted(model, dtype)


def _same_modes(module: nn.Module, original: nn.Module) -> None:
    for one, other in zip(module.modules(), original.modules(), strict=True):
        one.training = other.training


def _converted(model: Model, dtype: torch.dtype) -> Model:
    def cast(tensor: Tensor) -> Tensor:
        return tensor.to(dtype) if tensor.is_floating_point() else tensor

    given = (model.inputs, dict(model.kwargs))
    inputs, kwargs = tree_map_only(Tensor, cast, given)
    module = copy.deepcopy(model.module).to(dtype)
    name = f"{model.name}, in {str(dtype).removeprefix('torch.')}"
    return replace(model, module=module, inputs=inputs, kwargs=kwargs, name=name)


# -- inside of its graph


def _interventions(trial: Trial) -> Iterator[Model]:
    if list(trial.captured.program.graphs) != [""]:
        return
    for name, at in _values(trial):
        for how, change in (("returned too", _return), ("written in between", _write_before)):
            module = _graph(trial)
            nodes = {node.name: node for node in module.graph.nodes}
            change(nodes[name], nodes[at])
            module.graph.lint()
            module.recompile()
            yield replace(trial.model, module=module, name=f"{trial.model.name}, {name} {how}")


def _graph(trial: Trial) -> GraphModule:
    root = trial.captured.program.graphs[""]
    made = GraphModule(root, copy_graph(root.graph), trial.model.name)
    made.train(root.training)
    return copy.deepcopy(made)


def _values(trial: Trial) -> list[tuple[str, str]]:
    """Floats that rewrites read or replaced, each with the last node that the rewrite is about."""
    graph = trial.captured.program.graphs[""].graph
    nodes = {node.name: node for node in graph.nodes}
    found: dict[str, str] = {}
    for applied in trial.once.runs[0].applied.get("", ()):
        old = [one.old for one in applied.replacements]
        inside = [nodes[name] for name in (*old, *applied.absorbed) if name in nodes]
        at = max(inside, default=None)
        if at is not None:
            read = [one for node in inside for one in node.all_input_nodes]
            found.update((node.name, at.name) for node in (*read, *inside) if _is_float(node))
    return list(found.items())[:_MOST_VALUES]


def _is_float(node: Node) -> bool:
    known = node.meta.get(VALUE)
    is_computed = node.op not in ("get_attr", "output")
    return is_computed and isinstance(known, TensorInfo) and known.dtype.is_floating_point


def _return(node: Node, at: Node) -> None:  # noqa: ARG001  an intervention
    output = node.graph.output_node()
    output.args = ((output.args[0], node),)


def _write_before(node: Node, at: Node) -> None:
    """Just before the rewritten nodes are done; where that is itself, just after it."""
    graph = node.graph
    with graph.inserting_after(node) if node is at else graph.inserting_before(at):
        graph.call_method("mul_", (node, 2.0))

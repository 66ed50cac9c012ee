"""The tensors of a result that were computed ahead of time, and what they came from."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from torch import Tensor, nn
from torch.fx import GraphModule

from fxpasses.capture import FoldedWeight
from fxpasses.core import Program, Watch, attribute
from fxpasses.manager import PassRun
from fxpasses.ops import module_of, named_parts


@dataclass(frozen=True, slots=True, eq=False)
class Folded:
    """A folded tensor that a graph reads, and where it is held."""

    tensor: Tensor
    owner: nn.Module
    name: str


def folded_in(program: Program) -> list[Folded]:
    """What the graphs of `program` read and a pass has folded, each tensor once.

    Whatever was folded needs a gradient from now on if one of the tensors does that it was made
    of, also where only an earlier state of the program reads it.
    """
    for fold in program.folds:
        if not fold.value.requires_grad and _is_trained(fold.value, program):
            fold.value.requires_grad_()
    found = {
        id(one.tensor): one
        for _, graph_module in program
        for one in _read_by(graph_module)
        if program.folds.find(one.tensor) is not None
    }
    return list(found.values())


def _is_trained(tensor: Tensor, program: Program) -> bool:
    can_be = tensor.is_floating_point() or tensor.is_complex()
    if not can_be or not tensor.is_leaf or tensor.is_inference():
        return False
    return any(root.requires_grad for root in program.folds.trained(tensor))


def _read_by(graph_module: GraphModule) -> Iterator[Folded]:
    for node in graph_module.graph.nodes:
        if node.op == "get_attr":
            path, _, name = str(node.target).rpartition(".")
            owner = attribute(graph_module, path) if path else graph_module
            value = getattr(owner, name)
            if isinstance(value, Tensor):
                yield Folded(value, owner, name)
        elif node.op == "call_module":
            owner = module_of(node)
            yield from (Folded(tensor, owner, name) for name, tensor in _held(owner))


def sources_of(
    folded: Sequence[Folded], program: Program, *holders: nn.Module
) -> tuple[list[Watch], list[FoldedWeight]]:
    """Watches on the tensors of `holders` that `folded` were made of, and what was made of which.

    The first holder that has a tensor names it: the model, whose parameters are shared, or its
    own code in the result, which may write the buffers that are the result's own.
    """
    made_of = {id(one): program.folds.roots(one.tensor) for one in folded}
    roots = {id(root): root for sources in made_of.values() for root in sources}
    names = {
        id(tensor): f"{path}.{name}" if path else name
        for holder in reversed(holders)
        for path, module in named_parts(holder)
        for name, tensor in _held(module)
        if id(tensor) in roots
    }
    watches = (
        Watch.on(names[key], root, keep=_may_be_statistic(root))
        for key, root in roots.items()
        if key in names
    )
    weights = [
        FoldedWeight(one.owner, one.name, trainable)
        for one in folded
        if (trainable := tuple(_trainable(program.folds.trained(one.tensor), names)))
    ]
    return [watch for watch in watches if watch is not None], weights


def _may_be_statistic(tensor: Tensor) -> bool:
    """Whether a batch norm may count its batches in a tensor, which it does unseen."""
    if type(tensor) is nn.Parameter or tensor.dim() != 1:
        return False
    return tensor.is_floating_point() and not isinstance(tensor, nn.Parameter)


def _trainable(sources: Sequence[Tensor], names: Mapping[int, str]) -> Iterator[str]:
    for source in sources:
        is_weight = source.requires_grad or isinstance(source, nn.Parameter)
        if is_weight and id(source) in names:
            yield names[id(source)]


def _held(module: nn.Module) -> list[tuple[str, Tensor]]:
    """The parameters and buffers of one module; torch's own iterators ask for more."""
    places = (module._parameters, module._buffers)  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]  no public name
    return [
        (name, tensor) for held in places for name, tensor in held.items() if tensor is not None
    ]


def bytes_of(tensors: Sequence[Tensor]) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


def mode_reasons(runs: Sequence[PassRun], *, training: bool) -> list[str]:
    """Why the result cannot be called in the other mode: the passes that folded weights."""
    mode = "training" if training else "evaluation"
    names = dict.fromkeys(run.record.name for run in runs if run.record.bytes_folded)
    return [f"{name} folded weights as they are in {mode} mode" for name in names]

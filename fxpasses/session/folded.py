"""The tensors of a result that were computed ahead of time, and what they came from."""

from collections.abc import Iterator, Sequence

from torch import Tensor, nn
from torch.fx import GraphModule

from fxpasses.core import Program, Watch, attribute
from fxpasses.manager import PassRun
from fxpasses.ops import module_of


def folded_tensors(program: Program) -> list[Tensor]:
    """What the graphs of `program` read and a pass has folded, each once."""
    found: dict[int, Tensor] = {}
    for _, graph_module in program:
        for tensor in _read_by(graph_module):
            if program.folds.find(tensor) is not None:
                found[id(tensor)] = tensor
    return list(found.values())


def _read_by(graph_module: GraphModule) -> Iterator[Tensor]:
    for node in graph_module.graph.nodes:
        if node.op == "get_attr":
            value = attribute(graph_module, str(node.target))
            if isinstance(value, Tensor):
                yield value
        elif node.op == "call_module":
            yield from (tensor for _, tensor in _held(module_of(node)))


def watches_on_sources(
    folded: Sequence[Tensor], program: Program, original: nn.Module
) -> list[Watch]:
    """Watches on the original's tensors that the `folded` ones of `program` were made of."""
    roots = {id(root): root for tensor in folded for root in program.folds.roots(tensor)}
    names = {
        id(tensor): f"{path}.{name}" if path else name
        for path, module in original.named_modules()
        for name, tensor in _held(module)
        if id(tensor) in roots
    }
    watches = (Watch.on(names[key], root) for key, root in roots.items() if key in names)
    return [watch for watch in watches if watch is not None]


def _held(module: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """The parameters and buffers of one module; torch's own iterators ask for more."""
    for held in (module._parameters, module._buffers):  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]  no public name
        yield from ((name, tensor) for name, tensor in held.items() if tensor is not None)


def bytes_of(tensors: Sequence[Tensor]) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


def mode_reasons(runs: Sequence[PassRun], *, training: bool) -> list[str]:
    """Why the result cannot be called in the other mode: the passes that folded weights."""
    mode = "training" if training else "evaluation"
    names = dict.fromkeys(run.record.name for run in runs if run.record.bytes_folded)
    return [f"{name} folded weights as they are in {mode} mode" for name in names]

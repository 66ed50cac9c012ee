"""The tensors of a result that were computed ahead of time, and what they came from."""

from collections.abc import Iterator, Sequence

from torch import Tensor, nn
from torch.fx import GraphModule

from fxpasses.core import Program, Watch
from fxpasses.manager import PassRun


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
            value = _attribute(graph_module, str(node.target))
            if isinstance(value, Tensor):
                yield value
        elif node.op == "call_module":
            module = graph_module.get_submodule(str(node.target))
            yield from module.parameters(recurse=False)
            yield from module.buffers(recurse=False)


def _attribute(module: nn.Module, path: str) -> object:
    value: object = module
    for name in path.split("."):
        value = getattr(value, name)
    return value


def watches_on_sources(program: Program, original: nn.Module) -> list[Watch]:
    """Watches on the original's tensors that something in `program` was folded from."""
    names = {id(tensor): name for name, tensor in _named_tensors(original)}
    sources = {
        id(root): root
        for tensor in folded_tensors(program)
        for root in program.folds.roots(tensor)
        if id(root) in names
    }
    watches = (Watch.on(names[key], tensor) for key, tensor in sources.items())
    return [watch for watch in watches if watch is not None]


def _named_tensors(module: nn.Module) -> Iterator[tuple[str, Tensor]]:
    yield from module.named_parameters(remove_duplicate=False)
    yield from module.named_buffers(remove_duplicate=False)


def bytes_of(tensors: Sequence[Tensor]) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


def mode_reasons(runs: Sequence[PassRun], *, training: bool) -> list[str]:
    """Why the result cannot be called in the other mode: the passes that folded weights."""
    mode = "training" if training else "evaluation"
    names = dict.fromkeys(run.record.name for run in runs if run.record.bytes_folded)
    return [f"{name} folded weights as they are in {mode} mode" for name in names]

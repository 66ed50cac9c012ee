"""What nodes and refusals have to say: where they come from, what value they have, and why not."""

from collections.abc import Iterator, Mapping
from typing import Any, Final

from torch import Tensor
from torch.fx import GraphModule, Node

from fxpasses.capture import fork
from fxpasses.core import Applied, GraphPass, Program, TensorInfo
from fxpasses.core.values import MODULE_STACK, ORIGIN, SOURCE, VALUE
from fxpasses.testing.behaviour import randomness_kept
from fxpasses.testing.model import Model
from fxpasses.testing.trial import Trial
from fxpasses.verify.runner import NoVisitor, run_program

_KEPT: Final = (SOURCE, MODULE_STACK, VALUE)


def wrong_metadata(trial: Trial) -> Iterator[str]:
    """What nodes lack that the pass has made or kept, and what they say of values that is wrong."""
    done = trial.once
    before = _nodes(trial.captured.program.graphs)
    after = _nodes(done.program.graphs)
    for place, node in after.items():
        if (old := before.get(place)) is not None:
            lost = [key for key in _KEPT if key in old.meta and key not in node.meta]
            yield from (f"{node.name} has lost its {key}{_at(old)}" for key in lost)
    for path, applied in done.runs[0].applied.items():
        for one in applied:
            yield from _wrong_in(one, path, before, after, trial.graph_pass.name)
    if isinstance(trial.graph_pass, GraphPass):
        yield from _wrong_values(trial)


Places = Mapping[tuple[str, str], Node]


def _nodes(graphs: Mapping[str, GraphModule]) -> Places:
    return {(path, node.name): node for path, one in graphs.items() for node in one.graph.nodes}


def _wrong_in(
    applied: Applied, path: str, before: Places, after: Places, author: str
) -> Iterator[str]:
    """What the nodes lack that one rewrite has made."""
    old = [applied.node, *(one.old for one in applied.replacements), *applied.absorbed]
    sources = [before[path, name] for name in old if (path, name) in before]
    replaced = {one.new: before.get((path, one.old)) for one in applied.replacements}
    for name in applied.created:
        node = after.get((path, name))
        if node is None:
            continue
        origin = node.meta.get(ORIGIN)
        if not (isinstance(origin, tuple) and origin and origin[0] == author):
            yield f"{applied.id} makes {name} without an origin that names the pass"
        for key in (SOURCE, MODULE_STACK):
            # A node of the model itself lies in no module, nor does what stands for it.
            if key not in node.meta and sources and all(key in one.meta for one in sources):
                yield f"{applied.id} makes {name} without a {key}{_at(*sources)}"
        stands_for = replaced.get(name)
        if stands_for is not None and VALUE in stands_for.meta and VALUE not in node.meta:
            yield f"{applied.id} makes {name} without the value of {stands_for.name}"


def _at(*nodes: Node) -> str:
    source = next((node.meta[SOURCE] for node in nodes if SOURCE in node.meta), None)
    return "" if source is None else f" ({source})"


class _Looks(NoVisitor):
    """Compares what nodes say of their values with the values."""

    def __init__(self) -> None:
        self.wrong: list[str] = []

    def around(self, node: Node, values: Any, run: Any) -> Any:  # noqa: ARG002  the protocol
        value = run()
        if VALUE in node.meta and (text := _unlike(node.meta[VALUE], value)):
            self.wrong.append(f"{node.name} is said to be {text}{_at(node)}")
        return value


def _unlike(known: Any, value: Any) -> str | None:
    if not isinstance(known, TensorInfo) or not isinstance(value, Tensor):
        return None
    for name, said in (("dtype", known.dtype), ("device", known.device)):
        if said != getattr(value, name):
            return f"of {name} {said}, and is of {getattr(value, name)}"
    shape = tuple(value.shape)
    if (known.rank is not None and known.rank != len(shape)) or known.example_shape != shape:
        return f"of shape {known.example_shape}, and is of {shape}"
    return None


def _wrong_values(trial: Trial) -> Iterator[str]:
    wrong = _said_wrongly(trial.once.program, trial.model)
    if wrong:
        # What the capture itself says wrongly is not the pass's doing.
        known = _said_wrongly(trial.captured.program, trial.model)
        yield from (text for text in wrong if text not in known)


def _said_wrongly(program: Program, model: Model) -> list[str]:
    looks = _Looks()
    args, kwargs = model.arguments()
    with randomness_kept():
        run_program(fork(program), args, kwargs, lambda path, module: looks)  # noqa: ARG005
    return list(dict.fromkeys(looks.wrong))


def wrong_refusals(trial: Trial) -> Iterator[str]:
    """What refusals do not say."""
    nodes = {**_nodes(trial.once.program.graphs), **_nodes(trial.captured.program.graphs)}
    for refusal in trial.once.runs[0].refusals:
        node = nodes.get((refusal.path, refusal.node))
        what = f"the refusal at {refusal.node or 'the model'}"
        if not _says_something(refusal.condition):
            yield f"{what} names no condition"
        if not _says_something(refusal.reason):
            yield f"{what} ({refusal.condition}) gives no reason in words, but {refusal.reason!r}"
        if node is None and refusal.node:
            yield f"{what} is at a node that does not exist"
        if node is not None and SOURCE in node.meta and refusal.source != str(node.meta[SOURCE]):
            yield f"{what} ({refusal.condition}) does not give its line, {node.meta[SOURCE]}"


def _says_something(text: object) -> bool:
    return isinstance(text, str) and bool(text.strip())

"""What needs a gradient in the original needs one in the result.

A pass that freezes weights leaves every value as it was, so this is asked apart.
"""

from collections.abc import Collection, Iterator, Sequence

from torch import Tensor, nn
from torch.fx import Node

from fxpasses.core import ORIGIN, Program, attribute
from fxpasses.verify.findings import Findings
from fxpasses.verify.probes import Probe
from fxpasses.verify.runs import Run, named_tensors
from fxpasses.verify.sites import PassRun
from fxpasses.verify.state import tensors_below


def check_needs(
    findings: Findings,
    passes: Sequence[PassRun],
    programs: tuple[Program, Program],
    runs: tuple[Run, Run],
    probe: Probe,
) -> None:
    """Compare what needs a gradient in original and result, in that order.

    A pass that declares that its result cannot be trained may lose gradients, by what it makes
    itself: that is noted. It excuses no other, and no pass makes gradients that were not there.
    """
    changed = [one for one in passes if one.record.status == "changed"]
    if gained := _outputs_differ(*runs, needed=False):
        findings.add("gradient", probe.name, where="what needs one", message=gained)
        return
    declared = [one.record.name for one in changed if not one.trains]
    message = _outputs_differ(*runs, needed=True) or _weights_frozen(*programs)
    by_others = _weights_frozen(*programs, but_by=declared)
    if message and declared and not by_others:
        findings.note(f"{message}; {', '.join(declared)} makes no result that can be trained")
    elif changed:
        findings.add("gradient", probe.name, where="what needs one", message=by_others or message)


def _outputs_differ(original: Run, result: Run, *, needed: bool) -> str:
    """The first output that differs, of those that need a gradient in the original, or do not."""
    pairs = zip(original.need_gradients, result.need_gradients, strict=False)
    for number, (needs_in_original, needs) in enumerate(pairs):
        if needs != needs_in_original == needed:
            a, does = ("no", "does") if needed else ("a", "does not")
            return f"output {number} needs {a} gradient, which the original's {does}"
    return ""


def _weights_frozen(original: Program, optimised: Program, but_by: Collection[str] = ()) -> str:
    """Weights that need a gradient are read no longer, but new ones that need none are.

    Folded tensors are known by what they are made of, and are no such exchange. Nodes that the
    passes `but_by` have made may read what they like.
    """
    known = named_tensors(original)
    own = {id(tensor) for tensor in known.values()}
    reads = list(_read_by(optimised))
    frozen = [
        tensor
        for node, tensor in reads
        if id(tensor) not in own and _is_frozen(tensor, optimised) and _maker(node) not in but_by
    ]
    if not frozen:
        return ""
    kept = {id(root) for _, tensor in reads for root in optimised.folds.roots(tensor)}
    read = {id(tensor) for _, tensor in _read_by(original)}
    lost = [n for n, t in known.items() if t.requires_grad and id(t) in read - kept]
    if not lost:
        return ""
    return (
        f"{lost[0]} needs a gradient, and what is read in its place needs none: make it with "
        "edit.fold, or let it need one"
    )


def _is_frozen(tensor: Tensor, program: Program) -> bool:
    is_float = tensor.is_floating_point() or tensor.is_complex()
    return is_float and not tensor.requires_grad and program.folds.find(tensor) is None


def _maker(node: Node) -> str | None:
    """The pass that made a node; None for those of the capture."""
    return next(iter(node.meta.get(ORIGIN, ())), None)


def _read_by(program: Program) -> Iterator[tuple[Node, Tensor]]:
    """What the graphs of a program read, or give to the modules that they call."""
    for _, graph_module in program:
        for node in graph_module.graph.nodes:
            if node.op not in ("get_attr", "call_module"):
                continue
            value = attribute(graph_module, str(node.target))
            if isinstance(value, Tensor):
                yield node, value
            elif isinstance(value, nn.Module):
                yield from ((node, tensor) for tensor in tensors_below([value]).values())

"""A pass that changes the meaning by request must leave alone whatever comes before its sites."""

from collections.abc import Sequence
from typing import Any

from torch import Tensor
from torch.fx import GraphModule, Node
from torch.fx.node import map_arg

from fxpasses.core import Applied, Program, attribute
from fxpasses.verify.findings import Findings
from fxpasses.verify.sites import PassRun


def check_untouched(findings: Findings, original: Program, changed: Program, run: PassRun) -> None:
    """Every node that does not follow from a rewritten one is there as it was."""
    for path, before in original:
        after = changed.graphs.get(path)
        if after is not None:
            message = _first_change(before, after, _rewritten(run.applied.get(path, ())))
            findings.add("upstream", "graph", where=path or "the model", message=message)


def _rewritten(applied: Sequence[Applied]) -> set[str]:
    """The names of the nodes that rewrites were made at, or took the place of."""
    return {
        name
        for one in applied
        for name in (one.node, *(r.old for r in one.replacements), *one.absorbed, *one.erased)
    }


def _first_change(before: GraphModule, after: GraphModule, rewritten: set[str]) -> str:
    now = {node.name: node for node in after.graph.nodes}
    touched: set[Node] = set()
    for node in before.graph.nodes:
        if node.name in rewritten or any(n in touched for n in node.all_input_nodes):
            touched.add(node)
            continue
        other = now.get(node.name)
        if other is None:
            if node.users and not all(u.name in rewritten for u in node.users):
                return f"{node.name}, which comes before every rewritten node, is gone"
        elif _call(before, node) != _call(after, other):
            return f"{node.name}, which comes before every rewritten node, was changed"
    return ""


def _call(module: GraphModule, node: Node) -> tuple[Any, ...]:
    args: Any = map_arg((node.args, node.kwargs), lambda n: f"%{n.name}")
    target: Any = node.target
    if node.op == "get_attr":
        value = attribute(module, str(node.target))
        target = id(value) if isinstance(value, Tensor) else target
    return node.op, target, repr(args)

"""A pass that changes the meaning by request must leave alone whatever comes before its sites."""

from typing import Any

from torch.fx import GraphModule, Node
from torch.fx.node import map_arg

from fxpasses.core import STANDS_FOR, Program, attribute
from fxpasses.verify.findings import Findings
from fxpasses.verify.sites import PassRun


def check_untouched(findings: Findings, original: Program, changed: Program, run: PassRun) -> None:
    """Every node that does not follow from a rewritten one is there as it was."""
    for path, before in original:
        rewritten = {
            replacement.stands_for or replacement.old
            for applied in run.applied.get(path, ())
            for replacement in applied.replacements
        }
        message = _first_change(before, changed.graphs[path], rewritten)
        findings.add("upstream", "graph", where=path or "the model", message=message)


def _first_change(before: GraphModule, after: GraphModule, rewritten: set[str]) -> str:
    now = {_captured(node): node for node in after.graph.nodes}
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


def _captured(node: Node) -> str:
    return str(node.meta.get(STANDS_FOR, node.name))


def _call(module: GraphModule, node: Node) -> tuple[Any, ...]:
    args: Any = map_arg((node.args, node.kwargs), lambda n: f"%{_captured(n)}")
    target: Any = node.target
    if node.op == "get_attr":
        target = id(attribute(module, str(node.target)))
    return node.op, target, repr(args)

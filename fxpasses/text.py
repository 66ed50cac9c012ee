"""A graph as text in the op vocabulary: what snapshot tests compare."""

from torch.fx import GraphModule, Node

from fxpasses.ops import label_of


def graph_text(module: GraphModule) -> str:
    """One line a node, alike for every spelling of one graph. Constants are left out."""
    names: dict[Node, str] = {}
    lines: list[str] = []
    for node in module.graph.nodes:
        inputs = ", ".join(names[n] for n in node.all_input_nodes if n in names)
        if node.op == "get_attr":
            continue
        if node.op == "output":
            lines.append(f"return {inputs}")
            continue
        names[node] = f"%{len(names)}"
        lines.append(f"{names[node]} = {_call(node, inputs)}")
    return "\n".join(lines)


def _call(node: Node, inputs: str) -> str:
    return "input" if node.op == "placeholder" else f"{label_of(node) or _target(node)}({inputs})"


def _target(node: Node) -> str:
    if node.op == "call_function":
        return str(getattr(node.target, "__name__", node.target))
    return str(node.target)

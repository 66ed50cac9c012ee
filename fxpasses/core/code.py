"""The generated code of graphs, as people read and compare it."""

import re
from collections.abc import Iterator, Mapping
from typing import Final

from torch.fx import GraphModule, Node

from fxpasses.core.described import value_of
from fxpasses.core.plain import installed_place, printable
from fxpasses.core.values import ORIGIN, source_of

# What generated code lets go of at the end of a line.
_LET_GO: Final = re.compile(r";  (?:\w+ = )+None$")
# A node is the last name that its line assigns.
_ASSIGNED: Final = re.compile(r" +(?:.*;  )?(\w+)(?: : [^=]+)? = ")


def plain_code(graphs: Mapping[str, GraphModule]) -> str:
    """The code of every graph as it runs, under the path of the module that it stands in for."""
    parts = (f"# {_title(path)}\n{one.code.strip()}\n" for path, one in graphs.items())
    return "\n\n".join(parts)


def readable_code(graphs: Mapping[str, GraphModule]) -> str:
    """The code of every graph, each line with its value, where it is from, and who made it.

    What generated code does to free memory early is left out.
    """
    parts = ("\n".join([f"# {_title(path)}", *_lines(one)]) for path, one in graphs.items())
    return "\n\n\n".join(parts) + "\n"


def _title(path: str) -> str:
    return printable(path) or "the model"


def _lines(module: GraphModule) -> Iterator[str]:
    nodes = {node.name: node for node in module.graph.nodes}
    for line in module.code.strip().splitlines():
        kept = _LET_GO.sub("", line)
        assigned = _ASSIGNED.match(kept)
        node = nodes.get(assigned[1]) if assigned else None
        said = "" if node is None else _said(node)
        yield f"{kept}  # {said}" if said else kept.rstrip()


def _said(node: Node) -> str:
    source, origin = source_of(node), node.meta.get(ORIGIN)
    parts = [value_of(node), "" if source is None else installed_place(str(source))]
    if origin:
        by, *old = map(str, origin)
        parts.append(f"{by} of {', '.join(old)}" if old else by)
    return printable("; ".join(part for part in parts if part))

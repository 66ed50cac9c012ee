"""How long values are needed."""

from collections.abc import Iterator

from torch.fx import Graph, Node

from fxpasses.core import is_replaced
from fxpasses.ops import reads_only_metadata


def readers_of(node: Node) -> list[Node]:
    """The nodes that read the value of `node`, and not only its size, rank or dtype.

    Those that a rewrite has replaced and that only wait for the commit are no readers.
    """
    users = (user for user in node.users if not is_replaced(user))
    return [user for user in users if not reads_only_metadata(user, node)]


def last_readers(graph: Graph) -> dict[Node, Node]:
    """The last node, in order, that reads each node; what nothing reads is not in it."""
    last: dict[Node, Node] = {}
    for node in graph.nodes:
        last.update(dict.fromkeys(node.all_input_nodes, node))
    return last


def live_sets(graph: Graph) -> Iterator[tuple[Node, frozenset[Node]]]:
    """Each node in order, with the values that something after it still reads."""
    last = last_readers(graph)
    dying: dict[Node, list[Node]] = {}
    for node, reader in last.items():
        dying.setdefault(reader, []).append(node)
    live: set[Node] = set()
    for node in graph.nodes:
        live.difference_update(dying.get(node, ()))
        if node in last:
            live.add(node)
        yield node, frozenset(live)

"""How long values are needed."""

from collections.abc import Iterator
from typing import Final

from torch.fx import Graph, Node

from fxpasses.core import is_replaced
from fxpasses.ops import Op, bind, op_of

_ASKS_ABOUT: Final = frozenset({Op.SIZE, Op.RANK, Op.NUMEL, Op.STRIDE})
_TAKES_THE_SIZE_OF_OTHER: Final = frozenset({Op.VIEW_AS, Op.RESHAPE_AS, Op.EXPAND_AS})
_QUESTIONS: Final = frozenset(
    {"shape", "ndim", "dtype", "device", "layout", "requires_grad", "is_cuda", "is_sparse"}
    | {"is_quantized", "is_meta", "itemsize", "nbytes", "names"}
)


def readers_of(node: Node) -> list[Node]:
    """The nodes that read the value of `node`, and not only its size, rank or dtype.

    Those that a rewrite has replaced and that only wait for the commit are no readers.
    """
    return [user for user in node.users if not is_replaced(user) and not asks_about(user, node)]


def asks_about(node: Node, operand: Node | None = None) -> bool:
    """Whether `node` reads the size, rank, dtype or device of `operand`, and not its value.

    Only calls of several operands, such as `reshape_as`, need to be told which one is meant.
    """
    op = op_of(node)
    if op in _TAKES_THE_SIZE_OF_OTHER and operand is not None:
        arguments = bind(node)
        return arguments is not None and arguments.get("input") is not operand
    if op is Op.GETATTR:
        name = node.args[1] if len(node.args) > 1 else node.kwargs.get("name")
        return name in _QUESTIONS
    return op in _ASKS_ABOUT


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

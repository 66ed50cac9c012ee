"""Run graphs node by node, freeing each value after its last use, with somebody looking on."""

from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, Protocol, cast

from torch import nn
from torch.fx import Graph, GraphModule, Node

from fxpasses.capture.result.module import CapturedModule, entry_of
from fxpasses.core import Program, attribute

Environment = dict[Node, Any]


class Visitor(Protocol):
    """Looks on while a graph runs."""

    def keeps(self) -> Mapping[Node, Node]:
        """Nodes whose values are needed longer than the graph does: until which node."""
        ...

    def around(self, node: Node, values: Environment, run: Callable[[], Any]) -> Any:
        """Run a node, which is neither a placeholder nor the output, and return its value."""
        ...

    def after(self, node: Node, values: Environment) -> None:
        """The node has run, and what the graph alone needed until then is gone."""
        ...

    def begins(self) -> None:
        """The placeholders have their values."""
        ...

    def ends(self, output: Any) -> None:
        """The graph has returned."""
        ...


class NoVisitor:
    def keeps(self) -> Mapping[Node, Node]:
        return {}

    def around(self, node: Node, values: Environment, run: Callable[[], Any]) -> Any:  # noqa: ARG002  the protocol
        return run()

    def after(self, node: Node, values: Environment) -> None:  # noqa: ARG002  the protocol
        return

    def begins(self) -> None:
        return

    def ends(self, output: Any) -> None:  # noqa: ARG002  the protocol
        return


class Runner:
    """Runs one graph. `resolve` says what the targets of its nodes mean."""

    def __init__(
        self, graph: Graph, resolve: Callable[[str], Any], keeps: Mapping[Node, Node] | None = None
    ) -> None:
        self.nodes = list(graph.nodes)
        self.resolve = resolve
        keeps = keeps or {}
        dying = lifetimes(self.nodes, keeps)
        self.unread = {
            node: [one for one in dead if keeps.get(one) is not node]
            for node, dead in dying.items()
        }
        self.kept = {
            node: [one for one in dead if keeps.get(one) is node] for node, dead in dying.items()
        }

    def run(self, inputs: list[Any], visitor: Visitor) -> Any:
        """Run on the values of the placeholders, which are taken out of `inputs`."""
        values: Environment = {}
        for node in self.nodes:
            if node.op == "placeholder":
                values[node] = inputs.pop(0)
        visitor.begins()
        for node in self.nodes:
            if node.op == "output":
                output = operands(node.args[0], values.__getitem__)
                visitor.ends(output)
                return output
            if node.op != "placeholder":
                values[node] = visitor.around(node, values, lambda: self._value(node, values))  # noqa: B023  called at once
            for dead in self.unread.get(node, ()):
                del values[dead]
            if node.op != "placeholder":
                visitor.after(node, values)
            for dead in self.kept.get(node, ()):
                del values[dead]
        return None

    def _value(self, node: Node, values: Environment) -> Any:
        return call(node, values.__getitem__, self.resolve)


def call(node: Node, value_of: Callable[[Node], Any], resolve: Callable[[str], Any]) -> Any:
    """The value of one node."""
    if node.op == "get_attr":
        return resolve(str(node.target))
    args = operands(node.args, value_of)
    kwargs = operands(dict(node.kwargs), value_of)
    match node.op:
        case "call_module":
            return resolve(str(node.target))(*args, **kwargs)
        case "call_method":
            receiver, *rest = args
            return getattr(receiver, str(node.target))(*rest, **kwargs)
        case _:
            return node.target(*args, **kwargs)  # pyright: ignore[reportCallIssue]  a function here


def operands(value: Any, value_of: Callable[[Node], Any]) -> Any:
    """What stands in a node with the values of nodes in it, in containers as code would make them.

    The graph's own containers are of classes that cannot be written.
    """
    if isinstance(value, Node):
        return value_of(value)
    if isinstance(value, tuple):
        parts = [operands(part, value_of) for part in cast("tuple[Any, ...]", value)]
        return type(value)(*parts) if hasattr(value, "_fields") else tuple(parts)
    if isinstance(value, list):
        return [operands(part, value_of) for part in cast("list[Any]", value)]
    if isinstance(value, dict):
        items = cast("dict[Any, Any]", value).items()
        return {key: operands(part, value_of) for key, part in items}
    if isinstance(value, slice):
        return slice(*(operands(part, value_of) for part in (value.start, value.stop, value.step)))
    return value


def lifetimes(nodes: Sequence[Node], keeps: Mapping[Node, Node]) -> dict[Node, list[Node]]:
    """Which values nobody needs any more after which node."""
    order = {node: position for position, node in enumerate(nodes)}
    dying: dict[Node, list[Node]] = {}
    for node in nodes:
        readers = [*node.users, *([keeps[node]] if node in keeps else []), node]
        last = max(readers, key=lambda reader: order.get(reader, 0))
        dying.setdefault(last, []).append(node)
    return dying


class Binder:
    """Gives the placeholders of a graph the arguments of a call, as its generated code would."""

    def __init__(self, graph_module: GraphModule) -> None:
        graph = graph_module.graph
        captured = isinstance(graph_module, CapturedModule)
        self.renamed = entry_of(graph_module).renamed if captured else {}
        copied, copies = Graph(), dict[Node, Node]()
        copied.set_codegen(graph._codegen)  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]  no public way to read it
        for node in graph.nodes:
            if node.op == "placeholder":
                copies[node] = copied.node_copy(node, copies.__getitem__)
        copied.output(list(copies.values()))
        self.forward = GraphModule(nn.Module(), copied).forward

    def __call__(self, *args: Any, **kwargs: Any) -> list[Any]:
        named = {self.renamed.get(name, name): value for name, value in kwargs.items()}
        return list(self.forward(*args, **named))


MakeVisitor = Callable[[str, GraphModule], Visitor]


def no_visitor(path: str, graph_module: GraphModule) -> Visitor:  # noqa: ARG001  a MakeVisitor
    return NoVisitor()


def run_program(
    program: Program, args: Any, kwargs: Mapping[str, Any], visitors: MakeVisitor = no_visitor
) -> Any:
    """Call the program, every captured graph run node by node.

    Graphs run whatever they are given: what a captured module checks at its entry is not asked.
    """
    callers = {path: _caller(path, one, visitors) for path, one in program}
    with ExitStack() as stack:
        for path, caller in callers.items():
            if path:
                stack.enter_context(_forward_replaced(attribute(program.root, path), caller))
        root = callers.get("")
        return (root or program.root)(*args, **kwargs)


def _caller(path: str, graph_module: GraphModule, visitors: MakeVisitor) -> Callable[..., Any]:
    graph = graph_module.graph
    bind = Binder(graph_module)

    def forward(*args: Any, **kwargs: Any) -> Any:
        visitor = visitors(path, graph_module)
        runner = Runner(graph, lambda target: attribute(graph_module, target), visitor.keeps())
        output = runner.run(bind(*args, **kwargs), visitor)
        return graph.process_outputs(output)

    return forward


@contextmanager
def _forward_replaced(module: nn.Module, forward: Callable[..., Any]) -> Generator[None]:
    attributes = vars(module)
    before = attributes.get("forward")
    attributes["forward"] = forward
    try:
        yield
    finally:
        if before is None:
            del attributes["forward"]
        else:
            attributes["forward"] = before


def roots_of(program: Program) -> dict[str, nn.Module]:
    """The roots of everything that a program may run, by path; the program's own root is "".

    Modules may hold others in plain attributes: an opaque root is held so, for one.
    """
    found: dict[str, nn.Module] = {"": program.root, **dict(program)}
    if isinstance(program.root, CapturedModule) and entry_of(program.root).pattern is None:
        fallback = entry_of(program.root).fallback
        found.update({} if fallback is None else {"(own code)": fallback})
    known = {id(module) for root in found.values() for module in root.modules()}
    waiting = list(found.items())
    while waiting:
        prefix, root = waiting.pop()
        for path, module in root.named_modules(prefix=prefix):
            for name, value in vars(module).items():
                if isinstance(value, nn.Module) and id(value) not in known:
                    known.update(id(inner) for inner in value.modules())
                    found[f"{path}.{name}"] = value
                    waiting.append((f"{path}.{name}", value))
    return found


def modules_of(program: Program) -> list[nn.Module]:
    """The values of `roots_of`, each once."""
    return list({id(module): module for module in roots_of(program).values()}.values())

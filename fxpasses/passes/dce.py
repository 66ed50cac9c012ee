"""Remove what nothing reads: nodes without effects, and what the module holds for no node.

    unused = sin(x); return x  ->  return x

What is computed does not change by a bit.
"""

from collections.abc import Callable, Iterable, Iterator

from torch import Tensor, nn
from torch.fx import GraphModule, Node

from fxpasses.analysis.reach import tensors_within_reach
from fxpasses.core import Editor, Facts, GraphPass, Numerics, Step, attribute, is_replaced
from fxpasses.ops import named_parts, parts_of, plain_tensors


class Dce(GraphPass):
    """Remove nodes that nothing reads, and submodules and tensors that no node names.

    What has effects stays, read or not: writes, checks, statistics, and random draws, since they
    move the numbers that others draw. So do all arguments, and calls of code that nothing is
    known of. A tensor stays under all its names if one of them is used. What the module holds
    stays altogether where the result is to be trained, and where the graph stands in for the
    `forward` of a module inside a model, whose own code may read it.
    """

    name = "dce"
    numerics = Numerics.EXACT
    trains = True

    def steps(self, module: GraphModule, facts: Facts) -> Iterator[Step]:
        for node in _dead_nodes(module, facts):
            yield Step(node, "nothing reads it", _erasing(node))
        if facts.owns_state and not facts.training:
            unused = list(_unused_attributes(module))
            if unused:
                output = module.graph.output_node()
                yield Step(output, "no node names it", lambda edit: _remove(edit, unused))


def _erasing(node: Node) -> Callable[[Editor], None]:
    return lambda edit: edit.erase(node)


def _remove(edit: Editor, paths: Iterable[str]) -> None:
    for path in paths:
        edit.remove_attribute(path)


def _dead_nodes(module: GraphModule, facts: Facts) -> list[Node]:
    """Readers come before what they read."""
    live: set[Node] = set()
    dead: list[Node] = []
    for node in reversed(module.graph.nodes):
        if is_replaced(node):
            continue
        is_border = node.op in ("placeholder", "output")
        if is_border or not live.isdisjoint(node.users) or not facts.effects(node).none:
            live.add(node)
        else:
            dead.append(node)
    return dead


def _unused_attributes(module: GraphModule) -> Iterator[str]:
    """Paths of the modules and tensors that no node names under any of their names.

    Of a module that goes altogether, only its own path is given.
    """
    used = _used(module)
    if used is None:
        return
    tensors, called = used
    owners = dict(named_parts(module))
    held = {id(owner): _held(owner) for owner in owners.values() if id(owner) not in called}
    needed = {key for key, names in held.items() if not tensors.isdisjoint(names.values())}
    kept = _with_parents({id(module), *called, *needed}, owners.values())
    for path, owner in owners.items():
        if id(owner) in called or id(owner) not in kept:
            continue
        stem = f"{path}." if path else ""
        yield from (stem + name for name, t in held[id(owner)].items() if t not in tensors)
        yield from (stem + name for name, child in _children(owner) if id(child) not in kept)


def _used(module: GraphModule) -> tuple[set[int], set[int]] | None:
    """The tensors that nodes can get at, and the modules that they call, with all below them.

    None where code is called that holds too much to look through.
    """
    tensors: set[int] = set()
    called: set[int] = set()
    for target in _names(module):
        value = attribute(module, target)
        if isinstance(value, Tensor):
            tensors.add(id(value))
        elif id(value) not in called:
            # Its own code may hold tensors in places of its own, too.
            reached = tensors_within_reach(value)
            if reached is None:
                return None
            tensors.update(map(id, reached))
            called.update(map(id, parts_of(value)) if isinstance(value, nn.Module) else ())
    return tensors, called


def _names(module: GraphModule) -> Iterator[str]:
    """What the nodes name that will still be there after this pass."""
    stay: set[Node] = set()
    for node in reversed(module.graph.nodes):
        if not is_replaced(node) or not stay.isdisjoint(node.users):
            stay.add(node)
    for node in stay:
        if node.op in ("get_attr", "call_module"):
            yield str(node.target)


def _with_parents(needed: set[int], owners: Iterable[nn.Module]) -> set[int]:
    parents: dict[int, list[int]] = {}
    for owner in owners:
        for _, child in _children(owner):
            parents.setdefault(id(child), []).append(id(owner))
    kept, stack = set[int](), list(needed)
    while stack:
        top = stack.pop()
        if top not in kept:
            kept.add(top)
            stack.extend(parents.get(top, ()))
    return kept


def _held(owner: nn.Module) -> dict[str, int]:
    """The tensors of one module by number, plain attributes among them, under every name."""
    registered = (*owner._parameters.items(), *owner._buffers.items())  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]  torch's public iterators skip second names
    held = (*registered, *plain_tensors(owner))
    return {name: id(tensor) for name, tensor in held if tensor is not None}


def _children(owner: nn.Module) -> list[tuple[str, nn.Module]]:
    modules = owner._modules  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]  torch's public iterators skip second names
    return [(name, child) for name, child in modules.items() if child is not None]

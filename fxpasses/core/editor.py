"""How a pass changes a graph: as one transaction that adds and rewires, and can be taken back."""

import keyword
import re
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Self

import torch
from torch import Tensor, nn
from torch.fx import Graph, GraphModule, Node

from fxpasses.core.facts import Facts
from fxpasses.core.fold import Fold, Folds, Formula
from fxpasses.core.values import MODULE_STACK, ORIGIN, REPLACED, SOURCE, STANDS_FOR, is_replaced
from fxpasses.errors import BudgetError, PassError


@dataclass(frozen=True, slots=True, eq=False)
class Region:
    """A piece of a graph, cut out as it stood: how some values follow from others.

    The placeholders of `graph` take the values of the captured nodes named by `inputs`, in that
    order; its output is the tuple of the region's results. `attributes` holds what its
    `get_attr` and `call_module` targets meant.
    """

    graph: Graph
    inputs: tuple[str, ...]
    attributes: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Replacement:
    """One value that is computed in another way: `new` is read wherever `old` was."""

    old: str
    new: str
    stands_for: str | None
    """The captured node whose value both have, or None where no captured node has it."""


@dataclass(slots=True, eq=False)
class Applied:
    """One numbered rewrite, as it was carried out."""

    id: str
    node: str
    why: str
    source: str | None
    replacements: list[Replacement] = field(default_factory=list[Replacement])
    created: list[str] = field(default_factory=list[str])
    absorbed: list[str] = field(default_factory=list[str])
    erased: list[str] = field(default_factory=list[str])
    after: Region | None = None
    """Computes each replacement's new value, in order. None where regions are not kept."""
    before: Region | None = None
    """Computes the old values of the replacements that stand for no captured node."""


class Editor:
    """A transaction over one graph.

    It creates nodes and attributes and rewires readers; it never writes a module, a parameter or
    a buffer, and erases nothing before `commit`. Used as a context manager it commits at the end
    and takes everything back when any exception, Ctrl-C included, leaves the block.

    ```
    with Editor(graph_module, "my_pass") as edit, edit.rewrite("id", at=node):
        new = edit.call_function(torch.relu, node.args[0])
        edit.replace(node, new)
    ```
    """

    def __init__(
        self,
        module: GraphModule,
        author: str,
        *,
        folds: Folds | None = None,
        facts: Facts | None = None,
        keep_regions: bool = False,
        node_budget: int | None = None,
    ) -> None:
        self.module = module
        self.author = author
        self.folds = Folds() if folds is None else folds
        self.applied: list[Applied] = []
        self._facts = facts
        self._keep_regions = keep_regions
        self._node_budget = node_budget
        self._current: Applied | None = None
        self._created: dict[Node, None] = {}
        self._pairs: list[tuple[Node, Node]] = []
        self._point: Node | None = None
        self._undo: list[Callable[[], None]] = []
        self._doomed: list[Node] = []
        self._gone_attributes: list[str] = []
        self._touched: dict[Node, None] = {}

    # -- the transaction

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        if kind is None:
            self.commit()
        else:
            self.rollback()

    @property
    def graph(self) -> Graph:
        return self.module.graph

    @property
    def changed(self) -> bool:
        """Whether anything was done that a commit makes final."""
        return bool(self._undo or self._doomed or self._gone_attributes)

    def commit(self) -> None:
        """Erase what was replaced and nothing reads, check the graph, generate its code once."""
        if not self.changed:
            return
        try:
            # First, while a broken graph can still be rolled back.
            self.graph.lint()
            self._erase_doomed()
            for path in self._gone_attributes:
                _delete_attribute(self.module, path)
            self.module.recompile()
        except Exception as error:
            raise PassError(f"{self.author} left a broken graph behind: {error}") from error
        self._undo.clear()

    def rollback(self) -> None:
        """Take back everything since the editor was made. Only before `commit`."""
        while self._undo:
            self._undo.pop()()
        self._doomed.clear()
        self._gone_attributes.clear()
        self.applied.clear()
        self._current = None
        if self._facts is not None:
            self._facts.changed(list(self._touched))
        self._forget()

    @contextmanager
    def rewrite(self, identifier: str, at: Node, why: str = "") -> Generator[Applied]:
        """The numbered rewrite that the edits inside the block belong to.

        New nodes are created before `at` unless `before` or `after` says otherwise.
        """
        source = at.meta.get(SOURCE)
        applied = Applied(identifier, at.name, why, None if source is None else str(source))
        self._current, self._point = applied, at
        try:
            yield applied
        finally:
            self._current = self._point = None
        self._finish(applied)

    @contextmanager
    def before(self, node: Node) -> Generator[None]:
        """Create nodes just before `node` inside the block."""
        point, self._point = self._point, node
        try:
            yield
        finally:
            self._point = point

    @contextmanager
    def after(self, node: Node) -> Generator[None]:
        """Create nodes just after `node` inside the block."""
        with self.before(node.next):
            yield

    # -- nodes

    def call_function(self, target: Callable[..., Any], *args: Any, **kwargs: Any) -> Node:
        return self._create("call_function", target, args, kwargs)

    def call_method(self, name: str, *args: Any, **kwargs: Any) -> Node:
        return self._create("call_method", name, args, kwargs)

    def call_module(self, module: nn.Module, near: str, *args: Any, **kwargs: Any) -> Node:
        """Add `module` under a new name like `near` and call it."""
        return self._create("call_module", self.add_attribute(near, module), args, kwargs)

    def get_attr(self, path: str) -> Node:
        """Read an attribute that the module has already."""
        return self._create("get_attr", path, (), {})

    def constant(self, value: Tensor, near: str) -> Node:
        """Add a tensor under a new name like `near` (a Parameter stays one) and read it."""
        return self.get_attr(self.add_attribute(near, value))

    def copy(self, node: Node, **operands: Any) -> Node:
        """The call of `node` again, with other positional (`args`) or keyword operands."""
        args = operands.pop("args", node.args)
        return self._create(node.op, node.target, args, {**node.kwargs, **operands})

    def _create(
        self, op: str, target: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> Node:
        current, point = self._current, self._point
        if current is None or point is None:
            raise PassError(f"{self.author} edits outside of a rewrite")
        self._spend_node()
        with self.graph.inserting_before(point):
            node = self.graph.create_node(op, target, args, dict(kwargs))
        node.meta.update({k: point.meta[k] for k in (SOURCE, MODULE_STACK) if k in point.meta})
        node.meta[ORIGIN] = (self.author,)
        self._undo.append(lambda: self.graph.erase_node(node))
        current.created.append(node.name)
        self._created[node] = None
        self._touch(node, *node.all_input_nodes)
        return node

    def _spend_node(self) -> None:
        if self._node_budget is None:
            return
        self._node_budget -= 1
        if self._node_budget < 0:
            raise BudgetError(f"{self.author} makes the graph grow without end: no nodes left")

    def replace(self, old: Node, new: Node, *, absorbing: Sequence[Node] = ()) -> None:
        """Read `new` wherever `old` was read, except in what this rewrite itself created.

        A new node takes over the metadata of `old`, and the origins of all it stands for.
        `old` and `absorbing` are erased at commit, if nothing reads them then.
        """
        current = self._require_current()
        mine = self._created
        stands_for = old.meta.get(STANDS_FOR)
        current.replacements.append(Replacement(old.name, new.name, stands_for))
        self._pairs.append((old, new))
        current.absorbed.extend(node.name for node in absorbing)
        if new in mine:
            self._inherit(old, new, absorbing)
        for user in list(old.users):
            if user not in mine and user is not new:
                self._rewire(user, old, new)
        for node in (old, *absorbing):
            self._doom(node)

    def rewire(self, user: Node, old: Node, new: Node) -> None:
        """Let `user` alone read `new` where it read `old`."""
        self._require_current()
        self._rewire(user, old, new)

    def erase(self, node: Node) -> None:
        """Remove `node` at commit. Nothing may read it then."""
        self._require_current().erased.append(node.name)
        self._doom(node)

    def _rewire(self, user: Node, old: Node, new: Node) -> None:
        args, kwargs = user.args, user.kwargs

        def restore() -> None:
            user.args, user.kwargs = args, kwargs

        self._undo.append(restore)
        user.replace_input_with(old, new)
        self._touch(user, old, new)

    def _inherit(self, old: Node, new: Node, absorbing: Sequence[Node]) -> None:
        origins = [self.author]
        for node in (old, *absorbing):
            earlier = node.meta.get(ORIGIN)
            origins.extend(earlier[1:] if earlier and len(earlier) > 1 else (node.name,))
        kept = {k: v for k, v in old.meta.items() if k != REPLACED}
        new.meta = {**kept, ORIGIN: tuple(dict.fromkeys(origins))}

    def _doom(self, node: Node) -> None:
        if is_replaced(node):
            return
        node.meta[REPLACED] = True
        self._undo.append(lambda: node.meta.pop(REPLACED, None) and None)
        self._doomed.append(node)
        self._touch(node, *node.all_input_nodes)

    def _erase_doomed(self) -> None:
        """Readers come before what they read; what something else still reads stays."""
        for node in sorted(self._doomed, reverse=True):
            if node.users:
                node.meta.pop(REPLACED, None)
            else:
                self.graph.erase_node(node)
        self._doomed.clear()

    # -- attributes

    def add_attribute(self, near: str, value: nn.Module | Tensor) -> str:
        """Put `value` on the module under a new name like `near`, and return the name.

        Modules become submodules, Parameters parameters and Buffers buffers; other tensors are
        plain attributes, which are in no `state_dict` and stay as they are under `.to()`.
        """
        name = self._fresh(near)
        module = self.module
        if isinstance(value, nn.Module):
            module.add_module(name, value)
        elif isinstance(value, nn.Parameter):
            module.register_parameter(name, value)
        elif isinstance(value, nn.Buffer):
            module.register_buffer(name, value, persistent=value.persistent)
        else:
            module.__dict__[name] = value
        self._undo.append(lambda: _delete_attribute(module, name))
        return name

    def fold(self, formula: Formula, *sources: Tensor, dtype: torch.dtype | None = None) -> Fold:
        """A tensor made ahead of time: `formula` of the float64 values of `sources`, rounded once.

        `dtype` is that of the result; by default of the first source. The verifier knows the
        formula: folded tensors are checked against it element by element.
        """
        return self.folds.fold(formula, sources, sources[0].dtype if dtype is None else dtype)

    def parameter(self, fold: Fold, *, requires_grad: bool = False) -> nn.Parameter:
        """The folded tensor as a Parameter that is still known as folded."""
        made = nn.Parameter(fold.value, requires_grad=requires_grad)
        self.folds.alias(fold, made)
        return made

    def buffer(self, fold: Fold, *, persistent: bool = True) -> nn.Buffer:
        """The folded tensor as a Buffer that is still known as folded."""
        made = nn.Buffer(fold.value, persistent=persistent)
        self.folds.alias(fold, made)
        return made

    def remove_attribute(self, path: str) -> None:
        """Take a submodule, parameter, buffer or plain attribute out of the module at commit."""
        self._require_current().erased.append(path)
        self._gone_attributes.append(path)

    def _fresh(self, near: str) -> str:
        stem = re.sub(r"\W", "_", near) or "_"
        if stem[0].isdigit() or keyword.iskeyword(stem):
            stem = f"_{stem}"
        name, number = stem, 0
        while hasattr(self.module, name):
            number += 1
            name = f"{stem}_{number}"
        return name

    # -- bookkeeping

    def _require_current(self) -> Applied:
        if self._current is None:
            raise PassError(f"{self.author} edits outside of a rewrite")
        return self._current

    def _touch(self, *nodes: Node) -> None:
        self._touched.update(dict.fromkeys(nodes))

    def _finish(self, applied: Applied) -> None:
        if self._keep_regions and self._pairs:
            new = [new for _, new in self._pairs]
            lost = [old for old, _ in self._pairs if STANDS_FOR not in old.meta]
            applied.after = cut_region(self.module, new, inside=set(self._created))
            applied.before = cut_region(self.module, lost) if lost else None
        self.applied.append(applied)
        if self._facts is not None:
            self._facts.changed(list(self._touched))
        self._forget()

    def _forget(self) -> None:
        self._touched.clear()
        self._created.clear()
        self._pairs.clear()


def cut_region(
    module: GraphModule, outputs: Sequence[Node], inside: set[Node] | None = None
) -> Region:
    """Copy what computes `outputs`, back to the nodes that stand for captured ones.

    Nodes in `inside` belong to the region even where they stand for a captured node.
    """
    inside = inside or set()
    graph, copies = Graph(), dict[Node, Node]()
    inputs: list[str] = []
    attributes: dict[str, Any] = {}
    for node in _region_order(outputs, inside):
        if _is_border(node, inside):
            copies[node] = graph.placeholder(f"input_{len(inputs)}")
            inputs.append(str(node.meta.get(STANDS_FOR, node.name)))
            continue
        copies[node] = graph.node_copy(node, copies.__getitem__)
        if node.op in ("get_attr", "call_module"):
            attributes[str(node.target)] = attribute(module, str(node.target))
    graph.output(tuple(copies[node] for node in outputs))
    return Region(graph, tuple(inputs), attributes)


def _is_border(node: Node, inside: set[Node]) -> bool:
    return node.op == "placeholder" or (STANDS_FOR in node.meta and node not in inside)


def _region_order(outputs: Sequence[Node], inside: set[Node]) -> list[Node]:
    found: dict[Node, None] = {}
    stack = list(outputs)
    while stack:
        node = stack.pop()
        if node in found:
            continue
        found[node] = None
        if not _is_border(node, inside):
            stack.extend(node.all_input_nodes)
    order = sorted(found)
    return sorted(order, key=lambda node: not _is_border(node, inside))


def attribute(module: nn.Module, path: str) -> Any:
    """What `path` names below `module`: a submodule, a tensor, anything."""
    found: Any = module
    for name in path.split("."):
        found = getattr(found, name)
    return found


def _delete_attribute(module: nn.Module, path: str) -> None:
    *parents, name = path.split(".")
    owner = attribute(module, ".".join(parents)) if parents else module
    delattr(owner, name)

"""How a pass changes a graph: as one transaction that adds and rewires, and can be taken back."""

from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Self

import torch
from torch import Tensor, nn
from torch.fx import Graph, GraphModule, Node

from fxpasses.core import attributes
from fxpasses.core.applied import Applied, Operands, Replacement, cut_region
from fxpasses.core.facts import Facts
from fxpasses.core.fold import Fold, Folds, Formula
from fxpasses.core.nodes import add_node
from fxpasses.core.snapshot import Snapshot
from fxpasses.core.values import MODULE_STACK, ORIGIN, REPLACED, SOURCE, STANDS_FOR
from fxpasses.errors import BudgetError, PassError


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
        self._before = Snapshot(module)
        self._created: dict[Node, None] = {}
        self._rewired: dict[Node, None] = {}
        self._doomed: dict[Node, None] = {}
        self._added: list[str] = []
        self._numbers: attributes.Numbers = {}
        self._unwanted: list[str] = []
        self._superseded: list[str] = []
        self._settling: dict[Node, str] = {}
        self._sealed = False
        self._current: _Rewriting | None = None

    # -- the transaction

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: object, trace: object) -> None:
        if kind is not None:
            self.rollback()
            return
        try:
            self.commit()
        except BaseException:
            self.rollback()
            raise

    @property
    def graph(self) -> Graph:
        return self.module.graph

    @property
    def changed(self) -> bool:
        """Whether anything was done that a commit makes final."""
        return bool(self._created or self._rewired or self._doomed or self._added or self._unwanted)

    @property
    def created(self) -> int:
        """How many nodes were made."""
        return len(self._created)

    def commit(self) -> None:
        """Erase what was replaced and nothing reads, check the graph, generate its code once.

        Raises:
            PassError: the graph is broken, or was changed in other ways than by this editor.
                Nothing is taken back: call `rollback`, as the context manager does.
        """
        self.seal()

    def seal(self) -> None:
        """All that a commit does. Until the editor is dropped, `rollback` can still undo it."""
        if self._sealed:
            return
        if found := self._before.difference(
            self._created, {**self._rewired, **self._doomed}, self._added
        ):
            raise PassError(f"{self.author} edited the graph behind the editor's back: {found}")
        self._sealed = True
        if not self.changed:
            return
        try:
            self._erase_doomed()
            self._settle()
            attributes.remove_unused(self.module, [*self._unwanted, *self._superseded])
            if self._created or self._rewired or self._doomed:
                self.graph.lint()
                self.module.recompile()
        except Exception as error:
            reason = str(error).partition("\n")[0]
            raise PassError(f"{self.author} left a broken graph behind: {reason}") from error

    def rollback(self) -> None:
        """Put everything back as it was when the editor was made, whoever changed it."""
        self._before.restore()
        self.applied.clear()
        self._current = None
        touched = [*self._created, *self._rewired, *self._doomed]
        self._created.clear()
        self._rewired.clear()
        self._doomed.clear()
        self._added.clear()
        self._numbers.clear()
        self._unwanted.clear()
        self._superseded.clear()
        self._settling.clear()
        if self._facts is not None:
            self._facts.changed(touched)

    @contextmanager
    def rewrite(self, identifier: str, at: Node, why: str = "") -> Generator[Applied]:
        """The numbered rewrite that the edits inside the block belong to.

        New nodes are created before `at` unless `before` or `after` says otherwise. A block that
        does nothing is no rewrite.
        """
        source = at.meta.get(SOURCE)
        applied = Applied(identifier, at.name, why, None if source is None else str(source))
        self._current = current = _Rewriting(applied, at)
        try:
            yield applied
        finally:
            self._current = None
        self._finish(current)

    def before(self, node: Node) -> AbstractContextManager[None]:
        """Create nodes just before `node` inside the block."""
        return self._creating(node, near=node)

    def after(self, node: Node) -> AbstractContextManager[None]:
        """Create nodes just after `node` inside the block."""
        return self._creating(node.next, near=node)

    @contextmanager
    def _creating(self, point: Node, near: Node) -> Generator[None]:
        current = self._require_current()
        outer = current.point, current.near
        current.point, current.near = point, near
        try:
            yield
        finally:
            current.point, current.near = outer

    # -- nodes

    def call_function(self, target: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Node:
        """A call, its operands written as in the call itself: `call_function(F.relu, x)`."""
        return self._create("call_function", target, args, kwargs)

    def call_method(self, name: str, /, *args: Any, **kwargs: Any) -> Node:
        """A call of a tensor's method: `call_method("view", x, 2, -1)`."""
        return self._create("call_method", name, args, kwargs)

    def call_module(self, module: nn.Module, near: str, /, *args: Any, **kwargs: Any) -> Node:
        """Add `module` under a new name like `near` and call it."""
        return self._create("call_module", self.add_attribute(near, module), args, kwargs)

    def call_submodule(self, path: str, /, *args: Any, **kwargs: Any) -> Node:
        """Call a submodule that the module has already."""
        return self._create("call_module", path, args, kwargs)

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
        current = self._require_current()
        self._spend_node()
        with self.graph.inserting_before(current.point):
            node = add_node(self.graph, op, target, args, kwargs)
        known = current.near.meta
        node.meta.update({key: known[key] for key in (SOURCE, MODULE_STACK) if key in known})
        node.meta[ORIGIN] = (self.author,)
        current.applied.created.append(node.name)
        current.created[node] = self._created[node] = None
        current.touch(node, *node.all_input_nodes)
        return node

    def _spend_node(self) -> None:
        if self._node_budget is None:
            return
        self._node_budget -= 1
        if self._node_budget < 0:
            raise BudgetError(
                f"{self.author} makes the graph grow without end: it has made {self.created} nodes"
            )

    def replace(self, old: Node, new: Node, *, absorbing: Sequence[Node] = ()) -> None:
        """Read `new` wherever `old` was read, except in what this rewrite itself created.

        A new node takes over the metadata of `old`, and the origins of all it stands for.
        `old` and `absorbing` are erased at commit, if nothing reads them then.
        """
        current = self._require_current()
        stands_for = old.meta.get(STANDS_FOR)
        current.applied.replacements.append(Replacement(old.name, new.name, stands_for))
        current.pairs.append((old, new))
        current.applied.absorbed.extend(node.name for node in absorbing)
        if new in current.created:
            self._inherit(old, new, absorbing)
        for user in list(old.users):
            if user not in current.created and user is not new:
                self._rewire(current, user, old, new)
        for node in (old, *absorbing):
            if node.op not in ("placeholder", "output"):
                self._doom(current, node)

    def rewire(self, user: Node, old: Node, new: Node) -> None:
        """Let `user` alone read `new` where it read `old`."""
        self._rewire(self._require_current(), user, old, new)

    def erase(self, node: Node) -> None:
        """Remove `node` at commit. Nothing may read it then."""
        current = self._require_current()
        if node.op in ("placeholder", "output"):
            raise PassError(f"{self.author} erases {node.name}, which is part of the signature")
        current.applied.erased.append(node.name)
        self._doom(current, node)

    def _rewire(self, current: "_Rewriting", user: Node, old: Node, new: Node) -> None:
        current.operands.setdefault(user, (user.args, user.kwargs))
        self._rewired[user] = None
        user.replace_input_with(old, new)
        current.touch(user, old, new)

    def _inherit(self, old: Node, new: Node, absorbing: Sequence[Node]) -> None:
        origins = list(new.meta.get(ORIGIN, (self.author,)))
        for node in (old, *absorbing):
            earlier = node.meta.get(ORIGIN)
            origins.extend(earlier[1:] if earlier and len(earlier) > 1 else (node.name,))
        kept = {k: v for k, v in old.meta.items() if k != REPLACED}
        new.meta = {**kept, ORIGIN: tuple(dict.fromkeys(origins))}

    def _doom(self, current: "_Rewriting", node: Node) -> None:
        node.meta[REPLACED] = True
        self._doomed[node] = None
        current.touch(node, *node.all_input_nodes)

    def _erase_doomed(self) -> None:
        """Readers come before what they read; what something else still reads stays."""
        touched: dict[Node, None] = {}
        for node in sorted(self._doomed, reverse=True):
            if node.users:
                node.meta.pop(REPLACED, None)
                continue
            touched.update(dict.fromkeys((node, *node.all_input_nodes)))
            self.graph.erase_node(node)
            if node in self._created and node.target in self._added:
                self._superseded.append(str(node.target))
        if self._facts is not None:
            self._facts.changed(list(touched))

    # -- attributes

    def add_attribute(self, near: str, value: nn.Module | Tensor) -> str:
        """Put `value` on the module under a new name like `near`, and return the name.

        Modules become submodules, Parameters parameters and Buffers buffers; other tensors are
        plain attributes, which are in no `state_dict` and stay as they are under `.to()`.
        """
        name = attributes.add(self.module, near, value, self._numbers)
        self._added.append(name)
        return name

    def fold(
        self,
        formula: Formula,
        *sources: Tensor,
        dtype: torch.dtype | None = None,
        by_rows: bool = False,
        trained: Sequence[Tensor] | None = None,
    ) -> Fold:
        """A tensor made ahead of time: `formula` of the float64 values of `sources`, rounded once.

        `dtype` is that of the result; by default of the first source. With `by_rows` each row of
        the result follows from that row of every source, and large ones are made piece by piece.
        `trained` are the sources that gradients of the result reach, by default all of them.
        The verifier knows the formula: folded tensors are checked against it element by element.
        """
        dtype = sources[0].dtype if dtype is None else dtype
        return self.folds.fold(formula, sources, dtype, by_rows=by_rows, trained=trained)

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
        """Take a submodule, parameter, buffer or plain attribute out of the module at commit.

        What the graph still uses then, under this name or another, stays.
        """
        self._require_current().applied.erased.append(path)
        self._unwanted.append(path)

    def settle(self, call: Node, path: str) -> None:
        """Give the module that a new node calls the place at `path` at commit.

        Its tensors then keep the names that they have there. It stays where it is if the graph
        still uses what is at `path`, or that holds other tensors. Only for graphs that alone read
        what the module holds: see `Facts.owns_state`.
        """
        self._require_current()
        self._settling[call] = path

    def _settle(self) -> None:
        calls = {node: path for node, path in self._settling.items() if node not in self._doomed}
        moved = attributes.settle(self.module, {str(n.target): p for n, p in calls.items()})
        for node, path in calls.items():
            if str(node.target) in moved:
                node.target = path

    # -- bookkeeping

    def _require_current(self) -> "_Rewriting":
        if self._current is None:
            raise PassError(f"{self.author} edits outside of a rewrite")
        return self._current

    def _finish(self, current: "_Rewriting") -> None:
        if not current.did_something:
            return
        if self._keep_regions:
            current.cut_regions(self.module)
        self.applied.append(current.applied)
        if self._facts is not None:
            self._facts.changed(list(current.touched))


class _Rewriting:
    """One rewrite while it is carried out."""

    def __init__(self, applied: Applied, at: Node) -> None:
        self.applied = applied
        self.point = at
        self.near = at
        self.created: dict[Node, None] = {}
        self.pairs: list[tuple[Node, Node]] = []
        self.operands: dict[Node, Operands] = {}
        """What rewired nodes read before this rewrite."""
        self.touched: dict[Node, None] = {}

    def touch(self, *nodes: Node) -> None:
        self.touched.update(dict.fromkeys(nodes))

    @property
    def did_something(self) -> bool:
        return bool(self.touched or self.applied.replacements or self.applied.erased)

    def cut_regions(self, module: GraphModule) -> None:
        if not self.pairs:
            return
        new = [new for _, new in self.pairs]
        lost = [old for old, _ in self.pairs if STANDS_FOR not in old.meta]
        self.applied.after = cut_region(module, new, inside=self.created)
        if lost:
            self.applied.before = cut_region(module, lost, operands=self.operands)

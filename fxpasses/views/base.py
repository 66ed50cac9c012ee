"""What every view has: operands by name, and which of them are constant tensors."""

from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, Self, TypeVar

from torch import Tensor, nn
from torch.fx import Node
from torch.nn.parameter import is_lazy

from fxpasses.ops import Op, bind, forward_arguments, module_of, op_of


@dataclass(frozen=True)
class View:
    """A call whose operands are known by name, however the model spelled it.

    Names are those of torch's functions: `input`, `weight`, `dim`. A module's settings count as
    operands. Defaults are filled in.
    """

    node: Node
    ops: ClassVar[frozenset[Op] | None] = None
    """What this view can show; None: every op."""

    @classmethod
    def at(cls, node: object) -> Self | None:
        """The view of `node`, or None where it is another op or its operands cannot be told."""
        return view_at(node, cls)

    @cached_property
    def op(self) -> Op:
        op = op_of(self.node)
        assert op is not None, "a view is made by `at`"
        return op

    @cached_property
    def module(self) -> nn.Module | None:
        """The module that is called; None for functions and methods."""
        return module_of(self.node) if self.node.op == "call_module" else None

    @cached_property
    def arguments(self) -> dict[str, Any]:
        """What is given to the call, by name."""
        return bind(self.node) or {}

    def operand(self, name: str, default: Any = None) -> Any:
        """An argument of the call or a setting of the module; `default` where there is none."""
        if name in self.arguments:
            return self.arguments[name]
        return default if self.module is None else getattr(self.module, name, default)

    def tensor(self, name: str) -> Tensor | None:
        """The tensor that an operand is sure to be at run time, or None where that is not known.

        Known are parameters, buffers and plain tensors, until something in the graph writes them;
        not what a parametrization computes.
        """
        found = self._tensors
        if name not in found:
            value = self.arguments.get(name)
            of_module = value is None and self.module is not None
            found[name] = _stored(self.module, name) if of_module else constant(value)
        return found[name]

    def path(self, name: str) -> str | None:
        """Where the graph's module holds the tensor that an operand is, if it is such a tensor."""
        value = self.arguments.get(name)
        if value is None and self.module is not None:
            return None if self.tensor(name) is None else f"{self.node.target}.{name}"
        return attribute_path(value)

    @cached_property
    def _tensors(self) -> dict[str, Tensor | None]:
        """What `tensor` has answered."""
        return {}

    def has(self, name: str) -> bool:
        """Whether there is such an operand."""
        # What a module holds is told quicker than asked of it.
        return self.tensor(name) is not None or self.operand(name) is not None

    def are_constant(self, *names: str) -> bool:
        """Whether each of the operands is absent or a tensor that is known."""
        return all(self.tensor(n) is not None or self.operand(n) is None for n in names)

    @property
    def input(self) -> Any:
        """The first operand: a node, or a constant where the call has one."""
        if self.module is not None and "input" not in self.arguments:
            # Classes of other packages call it what they like.
            return next(iter(self.arguments.values()), None)
        return self.operand("input")


ViewT = TypeVar("ViewT", bound=View)


def view_at(node: object, *kinds: type[ViewT]) -> ViewT | None:
    """The view of `node` of the first of `kinds` that can show its op.

    None where none of them can, or the operands cannot be told.
    """
    if not isinstance(node, Node) or (op := op_of(node)) is None:
        return None
    for kind in kinds:
        if kind.ops is None or op in kind.ops:
            return _bound(kind, node, op)
    return None


def _bound(kind: type[ViewT], node: Node, op: Op) -> ViewT | None:
    module = module_of(node) if node.op == "call_module" else None
    given = node.args, node.kwargs
    arguments = bind(node) if module is None else forward_arguments(module, *given)
    if arguments is None:
        return None
    view = kind(node)
    # What was found out on the way need not be found out again.
    vars(view).update(op=op, module=module, arguments=arguments, _tensors={})
    return view


def constant(value: Any) -> Tensor | None:
    """The tensor that an operand is sure to be at run time, if that is known."""
    if isinstance(value, Tensor):
        return value
    if not isinstance(value, Node) or value.op != "get_attr":
        return None
    owner: Any = value.graph.owning_module
    *path, name = str(value.target).split(".")
    for step in path:
        owner = getattr(owner, step, None)
    return _stored(owner, name)


def attribute_path(value: Any) -> str | None:
    """Where the module holds what an operand is, if it is an attribute."""
    return str(value.target) if isinstance(value, Node) and value.op == "get_attr" else None


def _stored(owner: Any, name: str) -> Tensor | None:
    """A tensor that `owner` holds itself, rather than computes when asked."""
    if not isinstance(owner, nn.Module):
        return None
    # A property of the class comes before whatever is stored under its name.
    if isinstance(getattr(type(owner), name, None), property):
        return None
    state = owner.__dict__
    for place in (state["_parameters"], state["_buffers"], state):
        if name in place:
            found = place[name]
            return found if isinstance(found, Tensor) and not is_lazy(found) else None
    return None

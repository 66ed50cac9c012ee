"""Which nodes of a graph have the same value in every call, and how that value is made."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.func import functional_call
from torch.fx import GraphModule, Node
from torch.fx.node import map_arg
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map_only

from fxpasses.core import Facts, attribute, integers_widened, rounds_integers, widened

_CALLS = frozenset({"call_function", "call_method", "call_module"})
_ORDINARY = frozenset({Tensor, nn.Parameter})

Become: TypeAlias = Callable[[Tensor], tuple[torch.dtype, torch.device]]


@dataclass(frozen=True, slots=True, eq=False)
class _Step:
    """One node, as it stood when the recipe was made."""

    node: Node
    op: str
    target: Any
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    module: nn.Module | None
    names: tuple[str, ...]
    """What the module calls its tensors; for an attribute, one name."""
    tensors: tuple[int, ...]
    """The positions of those tensors among the sources."""


@dataclass(frozen=True, slots=True, eq=False)
class Recipe:
    """How the value of one node follows from tensors that the module holds."""

    node: Node
    sources: tuple[Tensor, ...]
    steps: tuple[_Step, ...]

    def made_of(self, *sources: Tensor) -> Any:
        """The value, computed as the model does, from other tensors in place of the sources."""
        with torch.no_grad():
            return self._values(sources, lambda value: value)[self.node]

    def made_wide(self, *sources: Tensor) -> Tensor:
        """The value in float64: every narrow float is widened before it is read.

        What no tensor goes into, such as `arange`, is made in its own dtype first: its values in
        that dtype are what the model means. The result is laid out densely.
        """
        with torch.no_grad(), _Wide():
            value = self._values(sources, _widened_all)[self.node]
        return value.clone()

    def dry_run(self, become: Become | None = None) -> Mapping[Node, Any]:
        """The values of all nodes on the way, as fake tensors: no data is read or made.

        `become` says which dtype and device each source is taken to have.
        """
        with FakeTensorMode(), torch.no_grad():
            return self._values(self._fakes(become), lambda value: value)

    def trained_sources(self) -> tuple[Tensor, ...]:
        """The sources that make the model's own value need a gradient, if they need one.

        Others lie behind a `detach`, a comparison and the like. No data is read or made.
        """
        return tuple(
            tensor
            for position, tensor in enumerate(self.sources)
            if (isinstance(tensor, nn.Parameter) or tensor.requires_grad)
            and self._needs_gradient_of(position)
        )

    def _needs_gradient_of(self, position: int) -> bool:
        with FakeTensorMode(), torch.inference_mode(mode=False), torch.enable_grad():
            fakes = self._fakes()
            if not (fakes[position].is_floating_point() or fakes[position].is_complex()):
                return False
            fakes[position].requires_grad_()
            return self._values(fakes, lambda value: value)[self.node].requires_grad

    def _fakes(self, become: Become | None = None) -> list[Tensor]:
        """Stand-ins for the sources without data, in the active fake mode."""
        fakes: list[Tensor] = []
        for tensor in self.sources:
            dtype, device = become(tensor) if become else (tensor.dtype, tensor.device)
            layout = (tensor.shape, tensor.stride())
            fakes.append(torch.empty_strided(*layout, dtype=dtype, device=device))
        return fakes

    def _values(self, sources: Sequence[Tensor], finish: Callable[[Any], Any]) -> dict[Node, Any]:
        values: dict[Node, Any] = {}
        for step in self.steps:
            values[step.node] = finish(_run(step, values, sources))
        return values


def _run(step: _Step, values: Mapping[Node, Any], sources: Sequence[Tensor]) -> Any:
    held = [sources[position] for position in step.tensors]
    if step.op == "get_attr":
        return held[0]
    args = map_arg(step.args, values.__getitem__)
    kwargs = map_arg(dict(step.kwargs), values.__getitem__)
    if step.module is not None:
        return functional_call(step.module, dict(zip(step.names, held, strict=True)), args, kwargs)
    if step.op == "call_method":
        return getattr(args[0], step.target)(*args[1:], **kwargs)
    return step.target(*args, **kwargs)


class Constants:
    """The nodes of one graph whose value follows from tensors that the module holds.

    `closed` nodes are the calls that read nothing else. A closed call without effects has the
    same value in every call, as long as nobody writes those tensors. It may write values that
    nothing else reads, as a ReLU in place does: its recipe makes them anew.
    """

    def __init__(self, module: GraphModule, facts: Facts) -> None:
        self._module = module
        self._facts = facts
        self.closed: dict[Node, None] = {}
        self._constant: set[Node] = set()
        for node in module.graph.nodes:
            if node.op == "get_attr":
                if is_ordinary(attribute(module, str(node.target))):
                    self._constant.add(node)
            elif node.op in _CALLS and self._constant.issuperset(node.all_input_nodes):
                self.closed[node] = None
                if facts.effects(node).none or self._writes_its_own(node):
                    self._constant.add(node)

    def __contains__(self, node: Node) -> bool:
        """Whether `node` has the same value in every call."""
        return node in self._constant

    def _writes_its_own(self, node: Node) -> bool:
        """Whether all that `node` does besides computing is to write what it alone reads."""
        effects = self._facts.effects(node)
        does_more = effects.writes_state or effects.random or effects.raises or effects.unknown
        return not does_more and all(self._is_read_by(node, value) for value in effects.writes)

    def _is_read_by(self, reader: Node, value: Node) -> bool:
        """Whether `value` is made on the way, and nothing else reads it or what it looks into."""
        if value.op not in _CALLS or set(value.users) != {reader}:
            return False
        looked_into = (n for n in value.all_input_nodes if self._facts.may_alias(value, n))
        return all(self._is_read_by(value, below) for below in looked_into)

    def recipe(self, node: Node) -> Recipe:
        """How `node` follows from what the module holds, as the graph stands now."""
        found: dict[Node, None] = {}
        stack = [node]
        while stack:
            top = stack.pop()
            if top not in found:
                found[top] = None
                stack.extend(top.all_input_nodes)
        sources: dict[int, Tensor] = {}
        steps = [self._step(step, sources) for step in sorted(found)]
        return Recipe(node, tuple(sources.values()), tuple(steps))

    def _step(self, node: Node, sources: dict[int, Tensor]) -> _Step:
        named = dict(self._tensors(node))
        for tensor in named.values():
            sources.setdefault(id(tensor), tensor)
        positions = {key: position for position, key in enumerate(sources)}
        is_module = node.op == "call_module"
        return _Step(
            node,
            node.op,
            node.target,
            node.args,
            dict(node.kwargs),
            self._module.get_submodule(str(node.target)) if is_module else None,
            tuple(named),
            tuple(positions[id(tensor)] for tensor in named.values()),
        )

    def _tensors(self, node: Node) -> Iterator[tuple[str, Tensor]]:
        if node.op == "get_attr":
            yield "", attribute(self._module, str(node.target))
        elif node.op == "call_module":
            module = self._module.get_submodule(str(node.target))
            yield from module.named_parameters(remove_duplicate=False)
            yield from module.named_buffers(remove_duplicate=False)


def is_ordinary(value: object) -> bool:
    """Whether `value` is a plain dense tensor with data, and no kind of its own."""
    return (
        isinstance(value, Tensor)
        and type(value) in _ORDINARY
        and value.layout is torch.strided
        and not value.is_quantized
        and not value.is_meta
    )


class _Wide(TorchDispatchMode):
    """Raises every narrow float that an op reads or makes, and every cast to one."""

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        # Asked while another mode handles an op, casts come as they are called: as views.
        with self:
            made = func.decompose(*args, **kwargs)
        if made is not NotImplemented:
            return made
        if func.is_view:
            return func(*args, **kwargs)
        reads = any(isinstance(leaf, Tensor) for leaf in tree_leaves((args, kwargs)))
        if reads:
            args, kwargs = _raised((tuple(args), kwargs))
        result = func(*args, **kwargs)
        if reads and rounds_integers(func, result):
            args, kwargs = tree_map_only(Tensor, integers_widened, (tuple(args), kwargs))
            result = func(*args, **kwargs)
        return _widened_all(result)


def _raised(operands: Any) -> Any:
    return tree_map_only(torch.dtype, _raised_dtype, _widened_all(operands))


def _raised_dtype(dtype: torch.dtype) -> torch.dtype:
    if dtype.is_complex:
        return torch.complex128
    return torch.float64 if dtype.is_floating_point else dtype


def _widened_all(value: Any) -> Any:
    return tree_map_only(Tensor, widened, value)

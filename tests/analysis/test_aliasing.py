"""Which values may share memory, and who may write it: never too little, seldom too much."""

import functools
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
import torch.utils._pytree as pytree
from torch import Tensor, nn
from torch.fx import Graph, GraphModule, Interpreter, Node, symbolic_trace

from fxpasses.analysis.facts import GraphFacts
from fxpasses.ops import Op
from tests.op_examples import EXAMPLES
from tests.test_ops import OUT, Call, calls_of


def facts_of(function: Callable[..., Any]) -> "Asked":
    """The facts of what a function of tensors computes."""
    return Asked(symbolic_trace(function))


class Asked:
    """Facts asked by the names of nodes."""

    def __init__(self, module: GraphModule) -> None:
        self.module = module
        self.facts = GraphFacts(module)

    def node(self, name: str) -> Node:
        return next(node for node in self.module.graph.nodes if node.name == name)

    def may_alias(self, a: str, b: str) -> bool:
        return self.facts.may_alias(self.node(a), self.node(b))

    def written(self, first: str, last: str, value: str) -> str | None:
        found = self.facts.written_between(self.node(first), self.node(last), self.node(value))
        return None if found is None else found.name


# -- values


def chain(x: Tensor) -> Tensor:
    a = x + 1
    b = a.view(-1)
    c = b[2:]
    d = c.unsqueeze(0).relu()
    e = d.reshape(-1)
    return e.relu_() + a.sum()


def test_aliasing_is_transitive_and_ends_at_new_memory() -> None:
    asked = facts_of(chain)
    assert asked.may_alias("view", "add")
    assert asked.may_alias("getitem", "add")
    assert asked.may_alias("unsqueeze", "view")
    assert not asked.may_alias("relu", "unsqueeze")
    assert not asked.may_alias("add", "x")
    assert asked.may_alias("relu_", "relu")
    assert not asked.may_alias("reshape", "add")


def test_parts_of_one_value_may_alias() -> None:
    def parts(x: Tensor) -> Tensor:
        chunks = (x + 1).chunk(2)
        ordered = torch.sort(x)
        return chunks[0] + chunks[1] + ordered[0]

    asked = facts_of(parts)
    assert asked.may_alias("getitem", "getitem_1")
    assert not asked.may_alias("getitem", "x")
    assert not asked.may_alias("getitem_2", "x")


def test_sizes_have_no_memory() -> None:
    def sized(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        n = x.size(0)
        return x.view(n, -1), (y + 1).view(n, x.shape[1])

    asked = facts_of(sized)
    assert not asked.may_alias("size", "x")
    assert not asked.may_alias("getitem", "x")
    assert not asked.may_alias("view", "view_1")
    assert not asked.may_alias("size", "size")


def test_arguments_are_apart() -> None:
    asked = facts_of(lambda a, b: a + b)
    assert not asked.may_alias("a", "b")
    assert asked.may_alias("a", "a")


@pytest.mark.parametrize(
    ("function", "may"),
    [
        (lambda x: x.to(torch.float64), True),
        (lambda x: x.float(), True),
        (lambda x: x.contiguous(), True),
        (lambda x: x.expand(2, -1), True),
        (lambda x: x.type_as(x), True),
        (lambda x: torch.einsum("ij->ji", x), True),
        (lambda x: torch.broadcast_tensors(x, x)[0], True),
        (lambda x: torch.atleast_2d(x), True),  # noqa: PLW0108  cannot be traced bare
        (lambda x: F.dropout(x, 0.5, training=False), True),
        (lambda x: x.T, True),
        (lambda x: x.data, True),
        (lambda x: x.detach(), True),
        (lambda x: x.swapdims(0, 1), True),
        (lambda x: torch.ops.aten.view.default(x, [-1]), True),
        (lambda x: torch.ops.aten.slice.Tensor(x, 0, 0, 1), True),
        (lambda x: torch.add(x, 1, out=x), True),
        (lambda x: x.clone(), False),
        (lambda x: F.linear(x, x), False),
        (lambda x: torch.cat([x]), False),
        (lambda x: x.erfinv().logcumsumexp(0), False),
        (lambda x: x.cumsum(0), False),
        (lambda x: torch.ops.aten.mul.Tensor(x, x), False),
        (lambda x: F.layer_norm(x, (2,)), False),
        (lambda x: torch.logcumsumexp(x, 0), False),
    ],
)
def test_what_a_call_returns(function: Callable[[Tensor], Tensor], *, may: bool) -> None:
    asked = Asked(symbolic_trace(function))
    output = next(iter(reversed(asked.module.graph.nodes))).args[0]
    assert asked.facts.may_alias(output, asked.node("x")) == may


@pytest.mark.parametrize("op", sorted(EXAMPLES))
def test_no_spelling_of_any_op_returns_memory_that_is_not_foreseen(op: Op) -> None:
    for call in calls_of(op):
        missed = unforeseen(call)
        assert not missed, f"{call.spelling} returns the memory of {missed}"


def unforeseen(call: Call) -> list[str]:
    """The operands that the result lies in, though the facts say that it cannot."""
    graph, tensors = Graph(), dict[str, Tensor]()

    def placed(value: Any) -> Any:
        if not isinstance(value, Tensor):
            return value
        tensors[f"t{len(tensors)}"] = value.clone(memory_format=torch.preserve_format)
        return graph.placeholder(f"t{len(tensors) - 1}")

    if any(leaf is OUT for leaf in pytree.tree_leaves((call.args, dict(call.kwargs)))):
        return []
    args, kwargs = pytree.tree_map(placed, (call.args, dict(call.kwargs)))
    root = nn.Module()
    target = call.target
    if call.kind == "call_module":
        root.add_module("called", target)
        target = "called"
    node = graph.create_node(call.kind, target, args, kwargs)
    graph.output(node)
    module = GraphModule(root, graph)
    result = result_of(module, list(tensors.values()))
    facts = GraphFacts(module)
    (node,) = [n for n in module.graph.nodes if n.op.startswith("call_")]
    operands = [n for n in module.graph.nodes if n.op == "placeholder"]
    places = {
        t.untyped_storage().data_ptr() for t in pytree.tree_leaves(result) if isinstance(t, Tensor)
    }
    return [
        operand.name
        for operand, tensor in zip(operands, tensors.values(), strict=True)
        if tensor.untyped_storage().data_ptr() in places - {0}
        and not facts.may_alias(node, operand)
    ]


def result_of(module: GraphModule, args: list[Tensor]) -> Any:
    try:
        with torch.no_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # some spellings are deprecated
            return Interpreter(module).run(*args)
    except (RuntimeError, AssertionError):  # what only checks may raise
        return None


# -- what the module holds


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.randn(4, 2))
        self.register_buffer("view", self.table.detach()[:2])
        self.register_buffer("other", torch.zeros(2))

    def forward(self, x: Tensor) -> Tensor:
        return x @ self.table + self.view.sum() + self.other


def test_attributes_alias_by_storage() -> None:
    module = Tied()
    asked = Asked(GraphModule(module, _Leaves().trace(module)))
    assert asked.may_alias("table", "view")
    assert not asked.may_alias("table", "other")
    assert not asked.may_alias("table", "x")


class _Leaves(torch.fx.Tracer):
    proxy_buffer_attributes = True

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        return True


class Opaque(nn.Module):
    """Code that nothing is known of, which can reach its own tensors and a friend's."""

    def __init__(self, *friends: Any) -> None:
        super().__init__()
        self.own = nn.Parameter(torch.ones(2))
        self.friends = list(friends)

    def forward(self, x: Tensor) -> Tensor:
        return x


class WithOpaque(nn.Module):
    def __init__(self, opaque: Opaque, weight: nn.Parameter) -> None:
        super().__init__()
        self.opaque, self.weight = opaque, weight
        self.unrelated = nn.Parameter(torch.ones(2))

    def forward(self, x: Tensor) -> Tensor:
        y = x + self.weight
        z = self.opaque(y)
        return z + self.weight + self.unrelated + self.opaque.own


def reach(hold: Callable[[nn.Parameter], Any]) -> Asked:
    weight = nn.Parameter(torch.ones(2))
    module = WithOpaque(Opaque(hold(weight)), weight)
    return Asked(GraphModule(module, _Leaves().trace(module)))


def deep(weight: nn.Parameter) -> Any:
    return {"k": [(weight,)]}


def in_a_closure(weight: nn.Parameter) -> Any:
    return lambda: weight


def in_a_default(weight: nn.Parameter) -> Any:
    return lambda w=weight: w


def in_a_partial(weight: nn.Parameter) -> Any:
    return functools.partial(torch.add, weight)


class Slotted:
    __slots__ = ("held", "unset")

    def __init__(self, held: Any) -> None:
        self.held = held

    def method(self) -> None: ...


def in_a_bound_method(weight: nn.Parameter) -> Any:
    return Slotted(weight).method


@pytest.mark.parametrize(
    "hold", [deep, in_a_closure, in_a_default, in_a_partial, in_a_bound_method, Slotted]
)
def test_unknown_code_may_return_and_write_what_it_can_reach(
    hold: Callable[[nn.Parameter], Any],
) -> None:
    asked = reach(hold)
    assert asked.may_alias("opaque", "weight")
    assert asked.may_alias("opaque", "add")
    assert asked.may_alias("opaque", "opaque_own")
    assert not asked.may_alias("opaque", "unrelated")
    assert not asked.may_alias("opaque", "x")
    assert asked.facts.is_written(asked.module.weight)
    assert asked.facts.is_written(asked.module.opaque.own)
    assert not asked.facts.is_written(asked.module.unrelated)
    assert asked.written("add", "add_1", "weight") == "opaque"
    assert asked.written("add", "add_1", "add") == "opaque"
    assert asked.written("add", "add_1", "x") is None


def test_what_unknown_code_cannot_reach_it_cannot_write() -> None:
    asked = reach(lambda weight: None)
    assert not asked.facts.is_written(asked.module.weight)
    assert asked.written("add", "add_1", "weight") is None


GLOBAL = nn.Parameter(torch.ones(2))


class NamesAGlobal(Opaque):
    def forward(self, x: Tensor) -> Tensor:
        return x + GLOBAL


def test_unknown_code_reaches_the_globals_that_it_names() -> None:
    module = WithOpaque(NamesAGlobal(), GLOBAL)
    asked = Asked(GraphModule(module, _Leaves().trace(module)))
    assert asked.facts.is_written(GLOBAL)


def test_memory_that_unknown_code_keeps_may_come_back_from_other_unknown_code() -> None:
    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = Opaque(), Opaque()

        def forward(self, x: Tensor) -> Tensor:
            return self.a(x + 1) + self.b(x + 2)

    module = Two()
    asked = Asked(GraphModule(module, _Leaves().trace(module)))
    assert asked.may_alias("a", "b")
    assert not asked.may_alias("a", "x")


# -- writes


def written(x: Tensor) -> Tensor:
    a = x + 1
    v = a.view(-1)
    b = a * 2
    v.relu_()
    c = b + a
    b.add_(1)
    return c + b


def test_a_write_through_a_view_is_seen() -> None:
    asked = facts_of(written)
    assert asked.written("mul", "add_1", "add") == "relu_"
    assert asked.written("mul", "add_1", "mul") is None
    assert asked.written("add_1", "output", "mul") == "add_"
    assert asked.written("relu_", "add_1", "add") is None
    assert asked.written("view", "relu_", "add") is None


def test_statistics_are_written_where_the_norm_measures_them() -> None:
    class Normed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm, self.conv = nn.BatchNorm2d(2), nn.Conv2d(2, 2, 1)

        def forward(self, x: Tensor) -> Tensor:
            return self.norm(self.conv(x))

    for training in (True, False):
        module = GraphModule(Normed().train(training), _Leaves().trace(Normed()))
        module.train(training)
        facts = GraphFacts(module)
        assert facts.is_written(module.norm.running_mean) == training
        assert not facts.is_written(module.conv.weight)


def test_a_buffer_that_is_written_in_place_is_written() -> None:
    class Counting(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("count", torch.zeros(()))
            self.register_buffer("still", torch.zeros(()))

        def forward(self, x: Tensor) -> Tensor:
            self.count.add_(1)
            return x + self.count + self.still

    module = Counting()
    asked = Asked(GraphModule(module, _Leaves().trace(module)))
    assert asked.facts.is_written(module.count)
    assert not asked.facts.is_written(module.still)

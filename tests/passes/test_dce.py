"""Nothing that is computed, written, drawn, checked or kept under another name is removed."""

import copy
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.fx import GraphModule, Node

from fxpasses.analysis.facts import GraphFacts
from fxpasses.core import Editor, Gate, carry_out
from fxpasses.manager import apply
from fxpasses.passes.dce import Dce
from fxpasses.testing import check_pass
from fxpasses.text import graph_text
from tests.support import exported, traced

X = torch.randn(3, 4, generator=torch.Generator().manual_seed(0))


class Unused(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        y = torch.sin(x)
        z = y * 2
        z.exp()
        return x + 1


class UnusedLayers(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.used, self.unused = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        F.relu(self.unused(x), inplace=False)
        return self.used(x)


class UnusedWeights(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.w, self.v = nn.Parameter(torch.ones(4)), nn.Parameter(torch.ones(4))
        self.register_buffer("b", torch.ones(4))

    def forward(self, x: Tensor) -> Tensor:
        (self.v * self.b).softmax(0)
        return x * self.w


@pytest.mark.parametrize("graph_of", [traced, exported])
@pytest.mark.parametrize(
    ("model", "text"),
    [
        (Unused, "%0 = input\n%1 = add(%0)\nreturn %1"),
        (UnusedLayers, "%0 = input\n%1 = linear(%0)\nreturn %1"),
        (UnusedWeights, "%0 = input\n%1 = mul(%0)\nreturn %1"),
    ],
)
def test_removes_what_nothing_reads(graph_of: Any, model: type[nn.Module], text: str) -> None:
    module = graph_of(model(), X)
    expected = module(X)

    result = apply(Dce(), module)

    assert graph_text(module) == text
    assert not result.refusals
    assert torch.equal(module(X), expected)
    assert not apply(Dce(), module).modified


def test_keeps_the_promises_of_a_pass() -> None:
    check_pass(Dce, models=[(model().eval(), X) for model in (UnusedLayers, UnusedWeights)])


class WritesItsInput(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        x.add_(1)
        return x * 1


class WritesThroughAFunction(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        F.relu(x, inplace=True)
        torch.mul(x, 2, out=x)
        return x - 1


class WritesAView(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        y = x * 1
        y[0].zero_()
        y[1].fill_(5)
        return y


class WritesABuffer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("steps", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        self.steps.add_(1)
        return x + 0


class WritesStatistics(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(4)

    def forward(self, x: Tensor) -> Tensor:
        self.norm(x)
        return x * 2


class WritesByIndex(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("rows", torch.tensor([0, 2]))
        self.register_buffer("zero", torch.zeros(()))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        h = x * 2
        first = h.sum(1)
        h.index_put_((self.rows,), self.zero)
        return first, h


class DrawsNumbers(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        torch.rand_like(x)
        F.dropout(x, 0.5, training=True)
        torch.randn(3)
        return x + torch.rand_like(x)


class DropsOut(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.drop = nn.Dropout(0.5)

    def forward(self, x: Tensor) -> Tensor:
        self.drop(x)
        return self.drop(x)


EFFECTS = [
    WritesItsInput,
    WritesThroughAFunction,
    WritesAView,
    WritesABuffer,
    WritesStatistics,
    WritesByIndex,
    DrawsNumbers,
    DropsOut,
]


@pytest.mark.parametrize("model", EFFECTS)
def test_what_has_effects_stays(model: type[nn.Module]) -> None:
    module = traced(model(), X)
    reference = copy.deepcopy(module)

    assert not apply(Dce(), module).modified

    for _ in range(2):
        outputs = []
        for run in (module, reference):
            torch.manual_seed(5)
            x = X.clone()
            outputs.append((run(x), x, dict(run.named_buffers())))
        torch.testing.assert_close(outputs[0], outputs[1], rtol=0, atol=0)


def test_checks_stay() -> None:
    class Checks(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            torch._assert(x.sum() < 100, "too large")
            return x * 2

    module = traced(Checks(), X)
    apply(Dce(), module)

    with pytest.raises(AssertionError, match="too large"):
        module(X + 1000)


SEEN: list[Tensor] = []


def note(x: Tensor) -> None:
    SEEN.append(x)


def test_calls_of_unknown_code_stay() -> None:
    module = traced(Unused(), X)
    graph = module.graph
    with graph.inserting_before(graph.output_node()):
        graph.call_function(note, (next(iter(graph.nodes)),))
    module.recompile()
    SEEN.clear()

    apply(Dce(), module)
    module(X)

    assert len(SEEN) == 1


def test_arguments_stay() -> None:
    class TakesMore(nn.Module):
        def forward(self, a: Tensor, unused: Tensor, b: Tensor) -> Tensor:
            torch.sin(unused)
            return a - b

    module = traced(TakesMore(), X, X, X)

    apply(Dce(), module)

    assert torch.equal(module(b=X, a=X * 3, unused=X), X * 3 - X)


def test_dead_norms_in_evaluation_go() -> None:
    module = traced(WritesStatistics().eval(), X)

    apply(Dce(), module)

    assert graph_text(module) == "%0 = input\n%1 = mul(%0)\nreturn %1"
    assert not list(module.children())


# -- what the module holds


def _with_state(model: nn.Module) -> GraphModule:
    """The graph of the model on a module that holds all that the model does, as a capture has."""
    module = traced(model, X)
    for name, value in vars(model).items():
        if name in ("_parameters", "_buffers", "_modules", "_non_persistent_buffers_set"):
            vars(module)[name] = copy.copy(value)
        else:
            vars(module).setdefault(name, value)
    return module


class Holder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(4, 4), nn.Sequential(nn.Tanh(), nn.Linear(4, 4)))
        self.spare = nn.Sequential(nn.Linear(4, 4))
        self.scale = nn.Parameter(torch.ones(4))
        self.register_buffer("table", torch.ones(4))
        self.register_buffer("unsaved", torch.ones(4), persistent=False)
        self.plain = torch.ones(4)
        self.remark = "kept"

    def forward(self, x: Tensor) -> Tensor:
        return self.body[1][1](self.body[0](x))


def test_removes_modules_and_tensors_that_no_node_names() -> None:
    module = _with_state(Holder())

    result = apply(Dce(), module)

    names = {"body.0.weight", "body.0.bias", "body.1.1.weight", "body.1.1.bias"}
    assert set(module.state_dict()) == names
    assert set(dict(module.named_modules())) == {"", "body", "body.0", "body.1", "body.1.1"}
    assert not hasattr(module, "plain")
    assert module.remark == "kept"
    (applied,) = result.rewrites
    assert set(applied.erased) == {"spare", "scale", "table", "unsaved", "plain", "body.1.0"}
    module(X)


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(7, 4)
        self.decoder = nn.Linear(4, 7, bias=False)
        self.decoder.weight = self.table.weight
        self.alias = self.decoder
        self.register_buffer("rows", torch.arange(3))
        self.register_buffer("other_rows", self.rows)
        self.unused = nn.Linear(2, 2)
        self.unused.extra = self.rows

    def forward(self, x: Tensor) -> Tensor:
        return self.decoder(x) + self.rows[:1]


def test_a_used_tensor_keeps_all_its_names() -> None:
    module = _with_state(Tied())

    apply(Dce(), module)

    state = module.state_dict()
    assert set(state) == {"table.weight", "decoder.weight", "alias.weight", "rows", "other_rows"}
    assert module.table.weight is module.decoder.weight
    assert module.unused.extra is module.rows
    assert not list(module.unused.parameters())


class Opaque(nn.Module):
    """Runs its own code, on what it holds in places of its own."""

    def __init__(self, other: nn.Module) -> None:
        super().__init__()
        self.inner = nn.Linear(4, 4)
        self.state = nn.Parameter(torch.ones(4))
        self.friends = [other]

    def forward(self, x: Tensor) -> Tensor:
        return self.friends[0](self.inner(x)) if x.sum() > 0 else x * self.state


class HoldsOpaque(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.friend = nn.Linear(4, 4)
        self.opaque = Opaque(self.friend)
        self.unused = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.opaque(x)


def test_what_a_module_with_its_own_code_can_get_at_stays() -> None:
    model = HoldsOpaque()
    tracer = torch.fx.Tracer()
    tracer.is_leaf_module = lambda module, name: not isinstance(module, HoldsOpaque)
    module = GraphModule(model, tracer.trace(model))
    module.add_module("friend", model.friend)
    module.add_module("unused", model.unused)

    apply(Dce(), module)

    assert {name for name, _ in module.named_children()} == {"opaque", "friend"}
    assert len(list(module.opaque.parameters())) == 3


def test_the_state_stays_where_other_code_may_read_it() -> None:
    module = _with_state(UnusedLayers())
    facts = GraphFacts(module, owns_state=False)

    with Editor(module, "dce", facts=facts) as edit:
        carry_out(Dce(), facts, edit)

    assert graph_text(module) == "%0 = input\n%1 = linear(%0)\nreturn %1"
    assert len(list(module.parameters())) == 4


def test_the_state_stays_where_the_result_is_to_be_trained() -> None:
    module = _with_state(UnusedLayers())

    apply(Dce(), module, training=True)

    assert graph_text(module) == "%0 = input\n%1 = linear(%0)\nreturn %1"
    assert len(list(module.parameters())) == 4


def test_what_a_rewrite_would_have_erased_stays_if_it_is_skipped() -> None:
    module = _with_state(UnusedLayers())
    facts = GraphFacts(module)
    with Editor(module, "dce", facts=facts) as edit:
        carry_out(Dce(), facts, edit, gate=Gate(skip=frozenset({"1:dce@/relu"})))

    assert "relu" in graph_text(module)
    module(X)


def test_each_node_is_looked_at_once() -> None:
    class Long(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            y = x
            for _ in range(1000):
                y = torch.sin(y)
            return x

    module = traced(Long(), X)
    facts = GraphFacts(module)
    with Editor(module, "dce", facts=facts) as edit:
        carry_out(Dce(), facts, edit)

    assert len(module.graph.nodes) == 2
    assert facts.visits <= 1100


def test_keeps_the_metadata_of_what_stays() -> None:
    module = exported(UnusedLayers(), X)
    kept: dict[str, dict[str, Any]] = {n.name: dict(n.meta) for n in module.graph.nodes}

    apply(Dce(), module)

    def same(node: Node) -> bool:
        return all(node.meta[key] is value for key, value in kept[node.name].items())

    assert all(same(node) for node in module.graph.nodes)

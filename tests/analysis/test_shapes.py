"""What is known of values: as captured, worked out on fake tensors, or unknown, but no crash."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx import Graph, GraphModule, Node, symbolic_trace

from fxpasses.analysis.facts import GraphFacts
from fxpasses.core import VALUE, Editor, TensorInfo

IMAGE = torch.randn(2, 3, 8, 8)


def worked_out(
    function: Callable[..., Any] | nn.Module, example: Tensor = IMAGE, *, rank_is_fixed: bool = True
) -> tuple[GraphFacts, Node]:
    """The facts of a graph of which the input alone is known, and its result."""
    module = symbolic_trace(function)
    (x,) = (node for node in module.graph.nodes if node.op == "placeholder")
    x.meta[VALUE] = TensorInfo.of(example, rank_is_fixed=rank_is_fixed)
    (output,) = (node for node in module.graph.nodes if node.op == "output")
    return GraphFacts(module), output.args[0]


class Small(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4)
        self.scale = nn.Parameter(torch.ones(4, 1, 1, dtype=torch.float64))

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm(self.conv(x)).relu_()
        return (y * self.scale).view(y.size(0), -1)


def test_a_graph_is_worked_out_from_its_input() -> None:
    facts, result = worked_out(Small().eval())
    assert facts.rank(result) == 2
    assert facts.dtype(result) is torch.float64
    assert facts.device(result) == torch.device("cpu")
    assert facts.example_shape(result) == (2, 144)


def test_nothing_is_written_and_no_random_number_drawn() -> None:
    model = nn.Sequential(
        nn.Dropout(0.5), nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(inplace=True)
    )
    held = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    state = torch.get_rng_state()
    facts, result = worked_out(model)
    facts.rank(result)
    assert torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(tensor, held[name]) for name, tensor in model.state_dict().items())


@pytest.mark.parametrize(
    ("function", "shape"),
    [
        (lambda x: x.t_(), (8, 2)),
        (lambda x: x.unsqueeze_(0), (1, 2, 8)),
        (lambda x: x.unsqueeze_(0).squeeze_(0), (2, 8)),
        (lambda x: torch.cat([x, x], dim=1), (2, 16)),
        (lambda x: x.chunk(2, 1)[1], (2, 4)),
        (lambda x: torch.sort(x)[0], (2, 8)),
        (lambda x: x.reshape(x.shape[1], -1), (8, 2)),
        (lambda x: x @ x.T, (2, 2)),
        (lambda x: torch.zeros(3, x.size(0)), (3, 2)),
        (lambda x: torch.rand_like(x), (2, 8)),  # noqa: PLW0108  cannot be traced bare
        (lambda x: F.dropout(x), (2, 8)),  # noqa: PLW0108  cannot be traced bare
        (lambda x: x > 0, (2, 8)),
    ],
)
def test_calls_are_run_on_fake_tensors(function: Callable[[Tensor], Any], shape: Any) -> None:
    facts, result = worked_out(function, torch.randn(2, 8))
    assert facts.example_shape(result) == shape
    (x,) = (node for node in facts.module.graph.nodes if node.op == "placeholder")
    assert facts.example_shape(x) == (2, 8)


class RaisesOnFakes(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        raise KeyError("no")


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x[x > 0],
        lambda x: x.nonzero(),
        lambda x: x.item() + 1,
        lambda x: x.no_such_method(),
        lambda x: x.view(1000, 1000),
        nn.Sequential(torch.nn.Identity(), nn.BatchNorm2d(3)).train(),
        lambda x: x.size(0),
    ],
)
def test_what_cannot_be_run_is_unknown(function: Callable[[Tensor], Any]) -> None:
    facts, result = worked_out(function)
    for question in (facts.rank, facts.dtype, facts.device, facts.example_shape, facts.known):
        assert question(result) is None


def test_what_follows_from_the_unknown_is_unknown() -> None:
    facts, result = worked_out(lambda x: (x.no_such_method() + 1).relu())
    assert facts.rank(result) is None


def test_an_input_of_which_nothing_is_known_is_unknown() -> None:
    module = symbolic_trace(lambda x: x + 1)
    facts = GraphFacts(module)
    assert [facts.rank(node) for node in module.graph.nodes] == [None, None, None]


def test_attributes_are_known_by_themselves() -> None:
    module = symbolic_trace(Small())
    facts = GraphFacts(module)
    (scale,) = (node for node in module.graph.nodes if node.op == "get_attr")
    assert facts.dtype(scale) is torch.float64
    assert facts.rank(scale) == 3


def test_a_rank_that_is_not_fixed_makes_the_ranks_after_it_unknown() -> None:
    facts, result = worked_out(lambda x: (x + 1).relu(), rank_is_fixed=False)
    assert facts.rank(result) is None
    assert facts.dtype(result) is torch.float32
    assert facts.example_shape(result) == (2, 3, 8, 8)


def test_structures_are_known_part_by_part() -> None:
    module = symbolic_trace(lambda x: x["a"][1] + 1)
    x = next(iter(module.graph.nodes))
    info = TensorInfo.of(IMAGE)
    x.meta[VALUE] = {"a": [None, info]}
    facts = GraphFacts(module)
    assert [facts.rank(node) for node in module.graph.nodes] == [None, None, 4, 4, None]
    assert facts.known(x) == {"a": [None, info]}


def test_fake_values_of_other_front_ends_are_read() -> None:
    module = symbolic_trace(lambda x: x + 1)
    x, add, _ = module.graph.nodes
    with FakeTensorMode() as mode:
        x.meta["val"] = mode.from_tensor(IMAGE)
    facts = GraphFacts(module)
    assert facts.example_shape(add) == (2, 3, 8, 8)
    add.meta["val"] = "nonsense"
    add.meta["tensor_meta"] = "nonsense"
    facts.changed([add])
    assert facts.dtype(add) is torch.float32


def test_exported_graphs_with_symbolic_sizes_are_read() -> None:
    batch = torch.export.Dim("batch", min=2, max=64)
    program = torch.export.export(
        nn.Sequential(nn.Linear(8, 4), nn.ReLU()),
        (torch.randn(3, 8),),
        dynamic_shapes=({0: batch},),
    )
    module = program.module(check_guards=False)
    facts = GraphFacts(module)
    relu = next(node for node in module.graph.nodes if "relu" in node.name)
    assert facts.rank(relu) == 2
    assert facts.dtype(relu) is torch.float32


def test_tensors_of_another_device_are_worked_out_without_it() -> None:
    info = TensorInfo(torch.float16, torch.device("cuda"), 2, (2, 3), (3, 1))
    module = symbolic_trace(lambda x: x.float() + 1)
    x, *_, add, _ = module.graph.nodes
    x.meta[VALUE] = info
    facts = GraphFacts(module)
    assert facts.dtype(add) in (torch.float32, None)


def test_strides_of_the_example_are_kept() -> None:
    facts, result = worked_out(lambda x: x.relu(), IMAGE.to(memory_format=torch.channels_last))
    known = facts.known(result)
    assert isinstance(known, TensorInfo)
    assert known.example_stride == (192, 1, 24, 3)


def test_values_follow_edits() -> None:
    facts, result = worked_out(lambda x: (x + 1).relu())
    assert facts.dtype(result) is torch.float32
    add = result.all_input_nodes[0]
    with Editor(facts.module, "p", facts=facts) as edit, edit.rewrite("id", at=result):
        wide = edit.call_method("double", add)
        edit.rewire(result, add, wide)
    assert facts.dtype(wide) is torch.float64
    assert facts.dtype(result) is torch.float64


def test_a_long_chain_needs_no_recursion() -> None:
    graph = Graph()
    node = x = graph.placeholder("x")
    for _ in range(3000):
        node = graph.call_method("neg", (node,))
    graph.output(node)
    x.meta[VALUE] = TensorInfo.of(torch.ones(2))
    facts = GraphFacts(GraphModule(nn.Module(), graph))
    last = next(iter(reversed(facts.module.graph.nodes))).args[0]
    assert facts.rank(last) == 1
    assert not facts.may_alias(last, next(iter(facts.module.graph.nodes)))

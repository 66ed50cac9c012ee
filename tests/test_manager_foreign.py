"""Foreign passes: any callable, on a copy; what it left alone is shared with the original."""

import functools
import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, nn
from torch.fx import Graph, GraphModule, symbolic_trace
from torch.fx.experimental.optimization import fuse, remove_dropout
from torch.fx.passes.infra.pass_base import PassBase, PassResult
from torch.fx.passes.shape_prop import ShapeProp
from torch.nn.utils.parametrizations import weight_norm

from fxpasses.core import SOURCE, Group, Numerics, Program, foreign
from fxpasses.errors import BudgetError, PassError
from fxpasses.manager import PassManager, PassRun
from tests.core.graphs import Chain, SwapRelu, captured, description, node_named

IMAGE = torch.randn(1, 2, 4, 4)


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(2, 2, 1), nn.BatchNorm2d(2)
        self.same, self.tied = nn.Conv2d(2, 2, 1), nn.Conv2d(2, 2, 1)
        self.tied.weight = self.same.weight
        self.scale = nn.Parameter(torch.randn(2, 1, 1))
        self.register_buffer(
            "table", torch.tensor([float("nan"), 1.0]).view(2, 1, 1), persistent=False
        )

    def forward(self, x: Tensor) -> Tensor:
        y = torch.relu(self.norm(self.conv(x)))
        return self.tied(self.same(y)) * self.scale + self.table


@pytest.fixture
def program() -> Program:
    module = captured(Model().eval())
    return Program(module, {"": module})


def run(program: Program, function: Callable[..., Any], **options: Any) -> PassRun:
    item = foreign(function, name="outside")
    (done,) = PassManager(Group((item,)), **options).run(program)
    return done


def tensors(module: nn.Module) -> dict[str, Tensor]:
    held = dict(module.named_parameters(remove_duplicate=False))
    return {**held, **dict(module.named_buffers(remove_duplicate=False))}


def graph_module(program: Program) -> GraphModule:
    return program.graphs[""]


# -- what it may return


class Result(NamedTuple):
    graph_module: GraphModule
    modified: bool


def in_place(module: GraphModule) -> None:
    node_named(module, "relu").target = torch.tanh


def returning(made: Callable[[GraphModule], Any]) -> Callable[[GraphModule], Any]:
    def function(module: GraphModule) -> Any:
        in_place(module)
        module.recompile()
        return made(module)

    return function


@pytest.mark.parametrize(
    "made",
    [
        lambda module: None,
        lambda module: True,
        lambda module: False,
        lambda module: module,
        lambda module: PassResult(module, False),
        lambda module: Result(module, True),
        symbolic_trace,
    ],
)
def test_the_result_is_taken_over_however_it_is_returned(
    program: Program, made: Callable[[GraphModule], Any]
) -> None:
    done = run(program, returning(made))
    assert done.foreign
    assert done.record.status == "changed"
    assert done.applied == {}
    assert "tanh" in graph_module(program).code
    graph_module(program)(IMAGE)


def test_a_torch_pass_object_is_a_pass(program: Program) -> None:
    class Tanh(PassBase):
        def call(self, graph_module: GraphModule) -> PassResult:
            in_place(graph_module)
            return PassResult(graph_module, True)

    assert run(program, Tanh()).record.status == "changed"


@pytest.mark.parametrize("nonsense", [3, "graph", [], nn.ReLU(), Graph(), Tensor([1.0])])
def test_nonsense_is_an_error_that_names_the_pass(program: Program, nonsense: object) -> None:
    before = description(graph_module(program))
    with pytest.raises(PassError, match=r"outside on the graph of the model returned"):
        run(program, lambda module: nonsense)
    assert description(graph_module(program)) == before


def test_doing_nothing_is_no_change(program: Program) -> None:
    before = description(graph_module(program))
    for function in (lambda m: m, symbolic_trace, lambda m: ShapeProp(m).propagate(IMAGE) is None):
        assert run(program, function).record.status == "unchanged"
    assert description(graph_module(program)) == before


def test_metadata_stays_where_the_graph_is_edited_in_place(program: Program) -> None:
    run(program, in_place)
    assert str(node_named(graph_module(program), "relu").meta[SOURCE]) == "model.py:4"


# -- what it cannot do


def through_data(module: GraphModule) -> None:
    for tensor in tensors(module).values():
        tensor.data.add_(1)


def in_place_without_grad(module: GraphModule) -> None:
    with torch.no_grad():
        for tensor in tensors(module).values():
            tensor.mul_(3)


def through_the_storage(module: GraphModule) -> None:
    for tensor in tensors(module).values():
        tensor.untyped_storage().fill_(0)


def by_assignment(module: GraphModule) -> None:
    module.conv.weight = nn.Parameter(torch.zeros(2, 2, 1, 1))
    module.norm.eps = 3.0
    module.norm.training = True


@pytest.mark.parametrize(
    "function", [through_data, in_place_without_grad, through_the_storage, by_assignment]
)
@pytest.mark.parametrize("then_fails", [False, True])
def test_the_weights_that_it_was_given_are_not_the_originals(
    function: Callable[[GraphModule], None], *, then_fails: bool
) -> None:
    def act(module: GraphModule) -> None:
        function(module)
        if then_fails:
            raise ZeroDivisionError

    model = Model().eval()
    held = {name: tensor.clone() for name, tensor in tensors(model).items()}
    settings = dict(vars(model.norm))
    module = captured(model)
    before = description(module)
    done = run(Program(module, {"": module}), act, on_failure="skip")
    assert all(torch.equal(t.nan_to_num(), held[n].nan_to_num()) for n, t in tensors(model).items())
    assert vars(model.norm) == settings
    assert done.record.status == ("failed" if then_fails else "changed")
    if then_fails:
        assert description(module) == before


def test_what_it_changed_is_in_the_result(program: Program) -> None:
    old = {name: tensor.clone() for name, tensor in tensors(graph_module(program)).items()}

    def double(module: GraphModule) -> None:
        module.conv.weight.data.mul_(2)

    run(program, double)
    new = tensors(graph_module(program))
    assert torch.equal(new["conv.weight"], 2 * old["conv.weight"])


def test_what_it_left_is_shared_and_stays_tied(program: Program) -> None:
    module = graph_module(program)
    before, conv = tensors(module), module.conv

    def change_one(copied: GraphModule) -> None:
        copied.conv.bias.data.add_(1)

    run(program, change_one)
    after = tensors(module)
    changed = {name for name in before if after[name] is not before[name]}
    assert changed == {"conv.bias"}
    assert after["same.weight"] is after["tied.weight"]
    assert module.conv is not conv
    assert "table" not in module.state_dict()


def test_a_copy_that_the_pass_made_itself_is_shared_again(program: Program) -> None:
    module = graph_module(program)
    before, same = tensors(module), module.same
    expected = module(IMAGE)
    run(program, lambda copied: fuse(copied.eval()))
    after = tensors(module)
    assert "norm" not in str(module.graph)
    assert all(after[name] is before[name] for name in ("same.weight", "same.bias", "scale"))
    assert module.same is same
    torch.testing.assert_close(module(IMAGE), expected, equal_nan=True)


def test_a_renamed_weight_is_shared_only_if_there_is_no_doubt() -> None:
    class Zeros(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Parameter(torch.zeros(2)), nn.Parameter(torch.zeros(2))
            self.c = nn.Parameter(torch.ones(2))

        def forward(self, x: Tensor) -> Tensor:
            return x * self.a + self.b * self.c

    def rename(module: GraphModule) -> GraphModule:
        held = {f"new_{n}": nn.Parameter(p.detach().clone()) for n, p in module.named_parameters()}
        for node in module.graph.nodes:
            if node.op == "get_attr":
                node.target = f"new_{node.target}"
        node_named(module, "mul").target = torch.mul
        return GraphModule(held, module.graph)

    module = captured(Zeros())
    original = dict(module.named_parameters())
    run(Program(module, {"": module}), rename)
    assert module.new_c is original["c"]
    assert not {id(module.new_a), id(module.new_b)} & {id(original["a"]), id(original["b"])}


def add_input(module: GraphModule) -> None:
    with module.graph.inserting_before(node_named(module, "conv")):
        module.graph.placeholder("more")


def break_the_order(module: GraphModule) -> None:
    node_named(module, "relu").args = (node_named(module, "add"),)


def name_nothing(module: GraphModule) -> None:
    node_named(module, "conv").target = "nowhere"


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (add_input, "changed the inputs from .'x'. to .'x', 'more'."),
        (break_the_order, "left a broken graph behind.*before it has been defined"),
        (name_nothing, "left a broken graph behind.*nonexistent attribute nowhere"),
    ],
)
def test_a_broken_result_is_an_error_and_taken_back(
    program: Program, function: Callable[[GraphModule], None], message: str
) -> None:
    before = description(graph_module(program))
    with pytest.raises(PassError, match=f"outside.*{message}"):
        run(program, function)
    assert description(graph_module(program)) == before


def test_an_error_names_the_pass_and_is_chained(program: Program) -> None:
    with pytest.raises(PassError, match="outside on the graph of the model raised KeyError") as e:
        run(program, lambda module: {}["k"])
    assert isinstance(e.value.__cause__, KeyError)


def test_ctrl_c_leaves_the_original(program: Program) -> None:
    def interrupted(module: GraphModule) -> None:
        in_place(module)
        raise KeyboardInterrupt

    before = description(graph_module(program))
    with pytest.raises(KeyboardInterrupt):
        run(program, interrupted)
    assert description(graph_module(program)) == before


def test_growth_has_a_budget(program: Program) -> None:
    def grow(module: GraphModule) -> None:
        for _ in range(100):
            with module.graph.inserting_after(node_named(module, "conv")):
                module.graph.call_function(torch.neg, (node_named(module, "conv"),))

    before = description(graph_module(program))
    with pytest.raises(BudgetError, match="outside makes the graph grow"):
        run(program, grow, node_budget=50)
    assert description(graph_module(program)) == before


class Uncopyable(nn.Module):
    def __deepcopy__(self, memo: Any) -> Any:
        raise TypeError("not me")

    def forward(self, x: Tensor) -> Tensor:
        return x


def test_a_model_that_cannot_be_copied_is_said_so() -> None:
    class Holding(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.part = Uncopyable()

        def forward(self, x: Tensor) -> Tensor:
            return self.part(x)

    root = Holding()
    module = GraphModule(root, AllLeaves().trace(root))
    with pytest.raises(PassError, match="needs a copy of it, which cannot be made: not me"):
        run(Program(module, {"": module}), lambda copied: None)


def test_plain_tensors_and_weights_with_a_history_are_copied_and_shared() -> None:
    module = captured(Chain())
    module.__dict__["plain"] = (torch.ones(2, requires_grad=True) * 2).view(2, 1, 1)
    plain = module.plain
    with module.graph.inserting_before(node_named(module, "add")):
        read = module.graph.create_node("get_attr", "plain")
        node_named(module, "add").args = (node_named(module, "mul"), read)
    module.recompile()
    expected = module(IMAGE)

    def change(copied: GraphModule) -> None:
        assert copied.plain is not plain
        copied.second.bias.data.add_(1)

    run(Program(module, {"": module}), change)
    assert module.__dict__["plain"] is plain
    assert "plain" not in module.state_dict()
    assert not torch.equal(module(IMAGE), expected)


class Scripted(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(2, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(x)


class Unusual(nn.Module):
    """Parts that are copied and compared in ways of their own."""

    def __init__(self) -> None:
        super().__init__()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # much of this is in beta
            self.register_buffer("coo", torch.eye(2).to_sparse())
            self.register_buffer("csr", torch.eye(2).to_sparse_csr())
            self.quantized = torch.quantize_per_tensor(torch.ones(2), 0.1, 0, torch.qint8)
        self.register_buffer("missing", None)
        self.register_parameter("none", None)
        self.held_method = functools.partial(self.register_buffer, "x")
        self.complex = nn.Parameter(torch.ones(2, dtype=torch.complex64))
        self.double = torch.zeros(2, dtype=torch.float64)

    def forward(self, x: Tensor) -> Tensor:
        return x


class Mixed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # much of this is deprecated
            self.unusual = Unusual()
            self.scripted = torch.jit.script(Scripted())
            self.traced = torch.jit.trace(Scripted(), torch.ones(1, 2))
        self.normed = weight_norm(nn.Linear(2, 2))

    def forward(self, x: Tensor) -> Tensor:
        return self.normed(self.traced(self.unusual(self.scripted(x))))


@pytest.mark.filterwarnings("ignore")
def test_unusual_parts_are_copied_and_put_back() -> None:
    root = Mixed()
    module = GraphModule(root, AllLeaves().trace(root))
    program = Program(module, {"": module})
    assert run(program, lambda copied: None).record.status == "unchanged"
    children, expected = dict(module.named_children()), module(torch.ones(1, 2))

    def change_one(copied: GraphModule) -> None:
        for parameter in copied.scripted.parameters():
            parameter.data.zero_()

    assert run(program, change_one).record.status == "changed"
    changed = {name for name, child in module.named_children() if child is not children[name]}
    assert changed == {"scripted"}
    assert not torch.equal(module(torch.ones(1, 2)), expected)
    torch.testing.assert_close(root(torch.ones(1, 2)), expected)


class AllLeaves(torch.fx.Tracer):
    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        return True


# -- programs of several graphs


class Outer(nn.Module):
    """Calls a child that runs its own code, a part of which is a graph of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.opaque = Opaque()
        self.conv = nn.Conv2d(2, 2, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.opaque(torch.relu(self.conv(x)))


class Opaque(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = captured(Chain())

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x) if x.sum() > 0 else x


@pytest.fixture
def nested() -> Program:
    class Leaves(torch.fx.Tracer):
        def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
            return not isinstance(m, Outer)

    root = Outer()
    outer = GraphModule(root, Leaves().trace(root))
    return Program(outer, {"opaque.inner": root.opaque.inner, "": outer})


def test_a_foreign_pass_leaves_the_graphs_below_in_place(nested: Program) -> None:
    inner, opaque = nested.graphs["opaque.inner"], nested.graphs[""].opaque

    def spoil(module: GraphModule) -> None:
        for node in module.graph.nodes:
            if node.target is torch.relu:
                node.target = torch.tanh
        module.recompile()

    done = run(nested, spoil)
    assert done.record.status == "changed"
    assert nested.graphs[""].opaque is opaque
    assert opaque.inner is inner
    assert "tanh" in inner.code
    assert "tanh" in nested.graphs[""].code


def test_a_failure_in_the_last_graph_takes_the_first_back(nested: Program) -> None:
    before = [description(module) for _, module in nested]

    def fails_on_the_outer(module: GraphModule) -> None:
        node_named(module, "relu").target = torch.tanh
        if hasattr(module, "opaque"):
            raise ZeroDivisionError

    with pytest.raises(PassError, match="outside on the graph of the model"):
        run(nested, fails_on_the_outer)
    assert [description(module) for _, module in nested] == before


def test_our_own_passes_go_on_after_a_foreign_one(nested: Program) -> None:
    cleans = foreign(lambda module: module.graph.eliminate_dead_code())
    runs = PassManager(Group((cleans, SwapRelu()))).run(nested)
    assert [run.record.status for run in runs] == ["unchanged", "changed"]
    assert foreign(remove_dropout, numerics=Numerics.EXACT).numerics is Numerics.EXACT
    assert foreign(remove_dropout).name == "remove_dropout"

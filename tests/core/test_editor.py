"""What the editor does to a graph, and that it takes everything back."""

from collections.abc import Callable

import pytest
import torch
from torch import nn
from torch.fx import GraphModule, Node

from fxpasses.analysis.facts import GraphFacts
from fxpasses.core import ORIGIN, SOURCE, STANDS_FOR, Editor
from fxpasses.errors import BudgetError, PassError
from tests.core.graphs import Chain, captured, description, node_named

IMAGE = torch.randn(1, 2, 4, 4)


@pytest.fixture
def module() -> GraphModule:
    return captured(Chain())


def names(module: GraphModule) -> list[str]:
    return [node.name for node in module.graph.nodes]


def test_a_commit_erases_what_was_replaced_and_makes_code_once(
    module: GraphModule, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiled: list[object] = []
    recompile = GraphModule.recompile
    monkeypatch.setattr(GraphModule, "recompile", lambda m: (compiled.append(m), recompile(m))[1])

    with Editor(module, "p") as edit, edit.rewrite("1:p@/relu", at=node_named(module, "relu")):
        old = node_named(module, "relu")
        edit.replace(old, edit.call_function(torch.tanh, *old.args))

    assert "relu" not in names(module)
    assert "tanh" in names(module)
    assert len(compiled) == 1
    assert "torch.tanh" in module.code


def test_a_new_node_takes_over_metadata_and_origins(module: GraphModule) -> None:
    relu, first = node_named(module, "relu"), node_named(module, "first")
    with Editor(module, "p") as edit, edit.rewrite("id", at=relu):
        new = edit.call_function(torch.tanh, *relu.args)
        other = edit.call_function(torch.neg, new)
        edit.replace(relu, new, absorbing=[first])
        edit.replace(other, other)
    assert new.meta[SOURCE] is relu.meta[SOURCE]
    assert new.meta[STANDS_FOR] == "relu"
    assert new.meta[ORIGIN] == ("p", "relu", "first")
    assert other.meta[SOURCE] is relu.meta[SOURCE]
    assert STANDS_FOR not in other.meta


def test_operands_may_have_any_name(module: GraphModule) -> None:
    relu = node_named(module, "relu")
    x = relu.args[0]
    with Editor(module, "p") as edit, edit.rewrite("id", at=relu):
        loss = edit.call_function(nn.functional.l1_loss, x, target=x)
        renamed = edit.call_method("rename", x, name="a", self="b")
        called = edit.call_module(nn.ReLU(), "relu", near=x, module=x)
    assert loss.kwargs == {"target": x}
    assert renamed.kwargs == {"name": "a", "self": "b"}
    assert called.kwargs == {"near": x, "module": x}


def test_origins_reach_back_through_earlier_rewrites(module: GraphModule) -> None:
    relu = node_named(module, "relu")
    with Editor(module, "first_pass") as edit, edit.rewrite("id", at=relu):
        edit.replace(relu, edit.call_function(torch.tanh, *relu.args))
    tanh = node_named(module, "tanh")
    with Editor(module, "second_pass") as edit, edit.rewrite("id", at=tanh):
        edit.replace(tanh, edit.call_function(torch.sin, *tanh.args))
    assert node_named(module, "sin").meta[ORIGIN] == ("second_pass", "relu")
    assert node_named(module, "sin").meta[STANDS_FOR] == "relu"


def test_what_something_still_reads_stays(module: GraphModule) -> None:
    relu, first = node_named(module, "relu"), node_named(module, "first")
    with Editor(module, "p") as edit, edit.rewrite("id", at=relu):
        edit.replace(relu, edit.call_function(torch.tanh, first), absorbing=[first])
    assert "first" in names(module)


def test_a_chain_of_absorbed_nodes_is_erased_readers_first(module: GraphModule) -> None:
    relu_1 = node_named(module, "relu_1")
    chain = [node_named(module, "second"), node_named(module, "relu")]
    with Editor(module, "p") as edit, edit.rewrite("id", at=relu_1):
        first = node_named(module, "first")
        edit.replace(relu_1, edit.call_function(torch.tanh, first), absorbing=chain)
        edit.rewire(node_named(module, "add"), node_named(module, "relu"), first)
    assert names(module) == ["x", "first", "tanh", "scale", "mul", "add", "output"]


def test_before_and_after_nest(module: GraphModule) -> None:
    relu, mul = node_named(module, "relu"), node_named(module, "mul")
    with Editor(module, "p") as edit, edit.rewrite("id", at=node_named(module, "add")):
        with edit.after(relu):
            edit.call_function(torch.sin, relu)
            edit.call_function(torch.cos, relu)
            with edit.before(mul):
                inner = edit.call_function(torch.tan, relu)
            edit.call_function(torch.tanh, relu)
        edit.call_function(torch.exp, relu)
    order = [
        name
        for name in names(module)
        if name in {"relu", "sin", "cos", "tanh", "tan", "mul", "exp", "add"}
    ]
    assert order == ["relu", "sin", "cos", "tanh", "tan", "mul", "exp", "add"]
    assert inner.meta[SOURCE] is mul.meta[SOURCE]
    assert node_named(module, "sin").meta[SOURCE] is relu.meta[SOURCE]


def test_edits_belong_to_a_rewrite(module: GraphModule) -> None:
    relu = node_named(module, "relu")
    with pytest.raises(PassError, match="outside of a rewrite"), Editor(module, "p") as edit:
        edit.replace(relu, relu)


def test_a_block_that_does_nothing_is_no_rewrite(module: GraphModule) -> None:
    with Editor(module, "p") as edit, edit.rewrite("id", at=node_named(module, "relu")):
        pass
    assert edit.applied == []
    assert not edit.changed


@pytest.mark.parametrize("name", ["x", "output"])
def test_the_signature_cannot_be_erased(module: GraphModule, name: str) -> None:
    node = node_named(module, name)
    with pytest.raises(PassError, match="signature"), Editor(module, "p") as edit:  # noqa: SIM117
        with edit.rewrite("id", at=node_named(module, "relu")):
            edit.erase(node)


def test_an_input_that_is_replaced_stays_an_input(module: GraphModule) -> None:
    x = node_named(module, "x")
    with Editor(module, "p") as edit, edit.rewrite("id", at=node_named(module, "first")):
        edit.replace(x, edit.call_function(torch.neg, x))
    assert names(module)[:2] == ["x", "neg"]


def test_the_node_budget_ends_endless_growth(module: GraphModule) -> None:
    before = description(module)
    with pytest.raises(BudgetError, match=r"grow without end.*3 nodes"):  # noqa: SIM117, PT012
        with Editor(module, "grows", node_budget=3) as edit:
            with edit.rewrite("id", at=node_named(module, "relu")):
                while True:
                    edit.call_function(torch.neg, node_named(module, "x"))
    assert description(module) == before


# -- taking back


def add_things(edit: Editor, module: GraphModule) -> None:
    relu = node_named(module, "relu")
    weight = edit.constant(nn.Parameter(torch.ones(2)), "first.weight")
    plain = edit.constant(torch.ones(2), "first.bias")
    new = edit.call_module(nn.ReLU(), "relu", relu.args[0])
    edit.call_function(torch.add, weight, plain)
    edit.replace(relu, new, absorbing=[node_named(module, "first")])
    edit.erase(node_named(module, "scale"))
    edit.remove_attribute("second")


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt, SystemExit, PassError])
def test_any_exception_takes_everything_back(
    module: GraphModule, error: type[BaseException]
) -> None:
    before, nodes = description(module), list(module.graph.nodes)
    with pytest.raises(error), Editor(module, "p") as edit:  # noqa: SIM117, PT012
        with edit.rewrite("id", at=node_named(module, "relu")):
            add_things(edit, module)
            raise error
    assert description(module) == before
    assert list(module.graph.nodes) == nodes
    assert edit.applied == []
    module(IMAGE)


def test_what_is_tried_again_after_a_rollback_gets_the_same_names(module: GraphModule) -> None:
    made: list[list[str]] = []
    for _ in range(2):
        edit = Editor(module, "p")
        with edit.rewrite("id", at=node_named(module, "relu")) as applied:
            add_things(edit, module)
        made.append(applied.created)
        edit.rollback()
    assert made[0] == made[1]


def test_a_sealed_editor_can_still_be_taken_back(module: GraphModule) -> None:
    before = description(module)
    edit = Editor(module, "p")
    relu = node_named(module, "relu")
    with edit.rewrite("id", at=relu):
        edit.replace(relu, edit.call_function(torch.tanh, *relu.args))
    edit.seal()
    assert "relu" not in names(module)
    edit.rollback()
    assert description(module) == before
    module.graph.lint()
    module(IMAGE)


def test_a_broken_graph_is_taken_back_at_commit(module: GraphModule) -> None:
    before = description(module)
    with pytest.raises(PassError, match=r"p left a broken graph.*used before"):  # noqa: SIM117, PT012
        with Editor(module, "p") as edit:
            with edit.rewrite("id", at=node_named(module, "first")):
                edit.call_function(torch.neg, node_named(module, "add"))
    assert description(module) == before


def erase(module: GraphModule) -> None:
    node = node_named(module, "add")
    node.replace_all_uses_with(node_named(module, "relu"))
    module.graph.erase_node(node)


def move(module: GraphModule) -> None:
    node_named(module, "add").append(node_named(module, "scale"))


def rename(module: GraphModule) -> None:
    node_named(module, "relu").name = "hello"


def retarget(module: GraphModule) -> None:
    node_named(module, "relu").target = torch.sin


def break_uses(module: GraphModule) -> None:
    node_named(module, "relu").args = (node_named(module, "add"),)


def insert(module: GraphModule) -> None:
    with module.graph.inserting_before(node_named(module, "relu")):
        module.graph.call_function(torch.neg, (node_named(module, "x"),))


def another_graph(module: GraphModule) -> None:
    module.graph = captured(Chain()).graph


def everything_erased(module: GraphModule) -> None:
    for node in reversed(list(module.graph.nodes)):
        module.graph.erase_node(node)


def attribute_set(module: GraphModule) -> None:
    module.first = nn.Identity()


def attribute_deleted(module: GraphModule) -> None:
    del module.scale


def nested_attribute_set(module: GraphModule) -> None:
    module.first.bias = None
    module.first.padding = (3, 3)


def plain_attribute_set(module: GraphModule) -> None:
    module.hello = 3


HOSTILE = [
    erase,
    move,
    rename,
    retarget,
    break_uses,
    insert,
    another_graph,
    everything_erased,
    attribute_set,
    attribute_deleted,
    nested_attribute_set,
    plain_attribute_set,
]


@pytest.mark.parametrize("hostile", HOSTILE)
def test_edits_behind_the_editors_back_are_found_and_taken_back(
    module: GraphModule, hostile: Callable[[GraphModule], None]
) -> None:
    before = description(module)
    with pytest.raises(PassError, match="sly edited the graph behind the editor's back"):  # noqa: SIM117, PT012
        with Editor(module, "sly") as edit:
            with edit.rewrite("id", at=node_named(module, "relu")):
                edit.call_function(torch.neg, node_named(module, "x"))
            hostile(module)
    assert description(module) == before
    module.graph.lint()
    module(IMAGE)


@pytest.mark.parametrize("hostile", HOSTILE)
def test_an_error_after_edits_behind_the_editors_back_stays_that_error(
    module: GraphModule, hostile: Callable[[GraphModule], None]
) -> None:
    before = description(module)
    with pytest.raises(ZeroDivisionError), Editor(module, "sly") as edit:  # noqa: SIM117, PT012
        with edit.rewrite("id", at=node_named(module, "relu")):
            add_things(edit, module)
            hostile(module)
            raise ZeroDivisionError
    assert description(module) == before
    module.graph.lint()
    module(IMAGE)


def test_metadata_that_a_pass_wrote_goes_back_too(module: GraphModule) -> None:
    before = description(module)
    with pytest.raises(ZeroDivisionError), Editor(module, "p"):  # noqa: PT012
        node_named(module, "relu").meta["note"] = 1
        node_named(module, "first").meta = {}
        raise ZeroDivisionError
    assert description(module) == before


def test_facts_are_told_of_edits_and_of_their_undoing(module: GraphModule) -> None:
    facts = GraphFacts(module)
    relu, second = node_named(module, "relu"), node_named(module, "second")
    assert [n.name for n in facts.readers(relu)] == ["second", "add"]
    edit = Editor(module, "p", facts=facts)
    with edit.rewrite("id", at=second):
        new = edit.call_function(torch.relu_, relu)
        edit.rewire(second, relu, new)
    assert facts.written_between(relu, second, relu) is new
    edit.rollback()
    assert facts.written_between(relu, second, relu) is None


# -- attributes


def test_names_of_attributes_are_new(module: GraphModule) -> None:
    edit = Editor(module, "p")
    with edit.rewrite("id", at=node_named(module, "relu")):
        assert edit.add_attribute("first", torch.ones(1)) == "first_1"
        assert edit.add_attribute("first", torch.ones(1)) == "first_2"
        assert edit.add_attribute("a.b-c", torch.ones(1)) == "a_b_c"
        assert edit.add_attribute("3", torch.ones(1)) == "_3"
        assert edit.add_attribute("for", torch.ones(1)) == "_for"
        assert edit.add_attribute("forward", torch.ones(1)) == "forward_1"
        assert edit.add_attribute("", torch.ones(1)) == "_"


class AnswersToAnything(nn.Module):
    def __getattr__(self, name: str) -> object:
        try:
            return super().__getattr__(name)
        except AttributeError:
            return None


def test_a_module_that_answers_to_any_name_gets_a_new_one() -> None:
    module = captured(Chain())
    kind = type("Answering", (AnswersToAnything, type(module)), {})
    object.__setattr__(module, "__class__", kind)
    with Editor(module, "p") as edit, edit.rewrite("id", at=node_named(module, "relu")):
        assert edit.add_attribute("fused", torch.ones(1)) == "fused"


def test_tensors_are_held_by_their_kind(module: GraphModule) -> None:
    with Editor(module, "p") as edit, edit.rewrite("id", at=node_named(module, "relu")):
        edit.constant(nn.Parameter(torch.ones(1)), "trained")
        edit.constant(nn.Buffer(torch.ones(1)), "kept")
        edit.constant(nn.Buffer(torch.ones(1), persistent=False), "passing")
        edit.constant(torch.ones(1), "plain")
    assert {"trained", "kept"} <= module.state_dict().keys()
    assert not {"passing", "plain"} & module.state_dict().keys()
    assert "passing" in dict(module.named_buffers())


class Nested(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.block = nn.Sequential(nn.Linear(2, 2), nn.ReLU())
        self.same_block = self.block
        self.spare = nn.Linear(2, 2)
        self.register_buffer("table", torch.ones(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.linear(x, self.block[0].weight)


@pytest.mark.parametrize(
    ("path", "goes"),
    [
        ("spare", True),
        ("spare.weight", True),
        ("table", True),
        ("block.1", True),
        ("block.0.bias", True),
        ("block.0.weight", False),
        ("same_block.0.weight", False),
        ("block", False),
        ("same_block", True),
    ],
)
def test_attributes_go_unless_the_graph_uses_them_by_any_name(path: str, *, goes: bool) -> None:
    module = captured(Nested())
    before = set(names_held(module))
    with Editor(module, "p") as edit, edit.rewrite("id", at=node_named(module, "output")):
        edit.remove_attribute(path)
    gone = before - set(names_held(module))
    assert (path in gone) == goes
    module(torch.ones(1, 2))


def names_held(module: nn.Module) -> list[str]:
    modules = (name for name, _ in module.named_modules(remove_duplicate=False))
    parameters = (name for name, _ in module.named_parameters(remove_duplicate=False))
    return [*modules, *parameters, *(name for name, _ in module.named_buffers())]


def test_what_a_called_module_holds_stays() -> None:
    module = captured(Chain())
    with Editor(module, "p") as edit, edit.rewrite("id", at=node_named(module, "output")):
        edit.remove_attribute("first.bias")
    assert module.first.bias is not None


def test_the_name_of_a_removed_attribute_does_not_come_back() -> None:
    module = captured(Nested())
    with Editor(module, "p") as edit, edit.rewrite("id", at=node_named(module, "output")):
        edit.remove_attribute("table")
    with Editor(module, "p") as edit, edit.rewrite("id", at=node_named(module, "output")):
        assert edit.add_attribute("table", torch.ones(1)) == "table_1"


def test_a_removal_is_taken_back() -> None:
    module = captured(Nested())
    before = description(module)
    edit = Editor(module, "p")
    with edit.rewrite("id", at=node_named(module, "output")):
        edit.remove_attribute("spare")
        edit.remove_attribute("spare.bias")
        edit.remove_attribute("table")
    edit.seal()
    assert "spare" not in vars(module)["_modules"]
    edit.rollback()
    assert description(module) == before


def test_users_of_a_node_are_those_of_the_original_after_a_rollback(module: GraphModule) -> None:
    users: Callable[[], list[list[Node]]] = lambda: [list(n.users) for n in module.graph.nodes]  # noqa: E731
    before = [set(nodes) for nodes in users()]
    edit = Editor(module, "p")
    with edit.rewrite("id", at=node_named(module, "relu")):
        add_things(edit, module)
    edit.rollback()
    assert [set(nodes) for nodes in users()] == before


# -- places that new modules settle in


def replaced_by(module: GraphModule, made: nn.Module, *, path: str = "first") -> Node:
    """The call that takes the place of `first`, and wants the place of its module."""
    first = node_named(module, "first")
    with Editor(module, "p") as edit, edit.rewrite("id", at=first):
        call = edit.call_module(made, "unit", *first.args)
        edit.replace(first, call)
        edit.settle(call, path)
    return call


def with_tensors_of(conv: nn.Module) -> nn.Module:
    made = nn.Conv2d(2, 2, 1)
    made.weight, made.bias = conv.weight, conv.bias
    return made


def test_a_new_module_settles_where_its_tensors_were(module: GraphModule) -> None:
    names_before, expected = list(module.state_dict()), module(IMAGE)
    made = with_tensors_of(module.first)

    call = replaced_by(module, made)

    assert call.target == "first"
    assert module.first is made
    assert not hasattr(module, "unit")
    assert list(module.state_dict()) == names_before
    assert torch.equal(module(IMAGE), expected)


def test_a_new_module_settles_below_another() -> None:
    class Outer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Sequential(nn.Conv2d(2, 2, 1), nn.ReLU())

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.inner[0](x)

    module = captured(Outer())
    conv = node_named(module, "inner_0")
    with Editor(module, "p") as edit, edit.rewrite("id", at=conv):
        call = edit.call_module(made := with_tensors_of(module.inner[0]), "unit", *conv.args)
        edit.replace(conv, call)
        edit.settle(call, "inner.0")

    assert call.target == "inner.0"
    assert module.inner[0] is made


@pytest.mark.parametrize(
    "made",
    [
        lambda first: nn.Conv2d(2, 2, 1),
        nn.Sequential,
        lambda first: nn.Identity(),
    ],
    ids=["other tensors", "other names", "none"],
)
def test_it_stays_where_it_is_if_it_holds_other_tensors(
    made: Callable[[nn.Module], nn.Module], module: GraphModule
) -> None:
    first = module.first
    assert replaced_by(module, made(first)).target == "unit"
    assert module.first is first


def test_it_stays_where_it_is_if_the_place_is_in_use(module: GraphModule) -> None:
    first, relu = node_named(module, "first"), node_named(module, "relu")
    with Editor(module, "p") as edit, edit.rewrite("id", at=relu):
        call = edit.call_module(with_tensors_of(module.first), "unit", *first.args)
        edit.replace(relu, edit.call_function(torch.add, first, call))
        edit.settle(call, "first")

    assert call.target == "unit"
    assert first.target == "first"


def test_what_is_replaced_again_settles_nowhere(module: GraphModule) -> None:
    first, old = node_named(module, "first"), module.first
    with Editor(module, "p") as edit:
        with edit.rewrite("1", at=first):
            call = edit.call_module(with_tensors_of(old), "unit", *first.args)
            edit.replace(first, call)
            edit.settle(call, "first")
        with edit.rewrite("2", at=call):
            edit.replace(call, edit.call_function(torch.neg, *call.args))

    assert module.first is old
    assert not hasattr(module, "unit")


def test_a_rollback_puts_back_what_has_settled(module: GraphModule) -> None:
    before, first = description(module), node_named(module, "first")
    edit = Editor(module, "p")
    with edit.rewrite("id", at=first):
        call = edit.call_module(with_tensors_of(module.first), "unit", *first.args)
        edit.replace(first, call)
        edit.settle(call, "first")
    edit.seal()
    assert call.target == "first"

    edit.rollback()

    assert description(module) == before


def test_a_module_settles_in_a_rewrite_alone(module: GraphModule) -> None:
    with pytest.raises(PassError, match="outside of a rewrite"):
        Editor(module, "p").settle(node_named(module, "first"), "first")

"""How the steps of a pass are carried out: ids, gates, refusals and errors."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch.fx import GraphModule, Node

from fxpasses.analysis.facts import GraphFacts
from fxpasses.core import (
    Editor,
    Facts,
    Gate,
    GraphPass,
    Label,
    Numerics,
    Refusal,
    Step,
    carry_out,
)
from fxpasses.errors import BudgetError, PassError
from tests.core.graphs import Chain, SwapRelu, captured, node_named, with_condition

FIRST = Label()


@pytest.fixture
def module() -> GraphModule:
    return captured(Chain())


def ids_of(
    graph_pass: GraphPass, module: GraphModule, gate: Gate | None = None, label: Label = FIRST
) -> list[str]:
    with Editor(module, graph_pass.name) as edit:
        carry_out(graph_pass, GraphFacts(module), edit, label=label, gate=gate)
    return [applied.id for applied in edit.applied]


def test_ids_are_made_of_position_pass_path_node_and_round(module: GraphModule) -> None:
    label = Label(3, "backbone.body", 2)
    assert ids_of(SwapRelu(), module, label=label) == [
        "3:swap_relu@backbone.body/relu#2",
        "3:swap_relu@backbone.body/relu_1#2",
    ]


def test_two_steps_at_one_node_have_two_ids(module: GraphModule) -> None:
    node = node_named(module, "add")
    step = Step(node, "", lambda edit: edit.rewire(node, node.args[0], node_named(module, "x")))
    assert ids_of(scripted(step, step), module) == ["1:scripted@/add", "1:scripted@/add.2"]


@pytest.mark.parametrize(
    ("gate", "admitted"),
    [
        (Gate(), ["relu", "relu_1"]),
        (Gate(skip=frozenset({"1:swap_relu@/relu"})), ["relu_1"]),
        (Gate(only=frozenset({"1:swap_relu@/relu"})), ["relu"]),
        (Gate(stop_after=1), ["relu"]),
        (Gate(stop_after=0), []),
        (Gate(skip=frozenset({"1:swap_relu@/relu"}), stop_after=1), ["relu_1"]),
    ],
)
def test_a_gate_decides_which_rewrites_happen(
    module: GraphModule, gate: Gate, admitted: list[str]
) -> None:
    assert ids_of(SwapRelu(), module, gate) == [f"1:swap_relu@/{name}" for name in admitted]


def relu_is_first(site: Node, facts: Facts) -> str | None:
    return None if site.name == "relu" else "it is another"


@pytest.mark.parametrize("legal", [True, False])
def test_a_condition_that_fails_is_a_refusal_with_its_source(
    module: GraphModule, *, legal: bool
) -> None:
    graph_pass = with_condition(relu_is_first, legal=legal)
    with Editor(module, "p") as edit:
        refusals = carry_out(graph_pass, GraphFacts(module), edit, label=Label(path="body"))
    expected = Refusal("relu_1", "relu_is_first", "it is another", not legal, "model.py:5", "body")
    assert refusals == [expected]
    assert [applied.node for applied in edit.applied] == ["relu"]


def scripted(*steps: Any) -> GraphPass:
    class Scripted(GraphPass):
        """Yields what it is told to."""

        name = "scripted"
        numerics = Numerics.EXACT

        def steps(self, module: GraphModule, facts: Facts) -> Iterator[Step | Refusal]:
            for step in steps:
                if isinstance(step, BaseException):
                    raise step
                yield step

    return Scripted()


def raising(error: BaseException) -> Callable[..., Any]:
    def raise_it(*args: Any) -> Any:
        raise error

    return raise_it


def test_an_error_in_a_rewrite_names_pass_rewrite_node_and_line(module: GraphModule) -> None:
    cause = ZeroDivisionError("by zero")
    step = Step(node_named(module, "relu"), "", raising(cause))
    message = r"1:scripted@/relu raised ZeroDivisionError at relu \(model.py:3\): by zero"
    with pytest.raises(PassError, match=message) as caught:
        ids_of(scripted(step), module)
    assert caught.value.__cause__ is cause


def test_a_typed_error_of_a_rewrite_keeps_its_type_and_gets_the_place(module: GraphModule) -> None:
    step = Step(node_named(module, "relu"), "", raising(BudgetError("too many bytes")))
    message = r"1:scripted@/relu at relu \(model.py:3\): too many bytes"
    with pytest.raises(BudgetError, match=message):
        ids_of(scripted(step), module)


def test_an_error_in_match_names_pass_node_and_line(
    module: GraphModule, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(SwapRelu, "match", raising(KeyError("k")))
    with pytest.raises(PassError, match=r"swap_relu raised KeyError at x \(model.py:1\)"):
        ids_of(SwapRelu(), module)


def test_an_error_in_a_condition_names_pass_node_and_line(module: GraphModule) -> None:
    with pytest.raises(PassError, match=r"swap_relu raised KeyError at relu \(model.py:3\)"):
        ids_of(with_condition(raising(KeyError("k"))), module)


def test_an_error_between_steps_names_the_pass_and_the_graph(module: GraphModule) -> None:
    with pytest.raises(PassError, match="scripted on the graph of body raised ValueError: oh"):
        ids_of(scripted(ValueError("oh")), module, label=Label(path="body"))


@pytest.mark.parametrize("nonsense", [None, True, "relu", 3, SwapRelu])
def test_what_is_no_step_is_an_error(module: GraphModule, nonsense: object) -> None:
    with pytest.raises(PassError, match=r"scripted .* yields .* neither a Step nor a Refusal"):
        ids_of(scripted(nonsense), module)


def test_a_step_at_a_node_of_another_graph_is_an_error(module: GraphModule) -> None:
    elsewhere = node_named(captured(Chain()), "relu")
    with pytest.raises(PassError, match="relu, a node of another graph"):
        ids_of(scripted(Step(elsewhere, "", lambda edit: None)), module)


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit, GeneratorExit])
def test_what_is_no_error_passes_through(module: GraphModule, error: type[BaseException]) -> None:
    step = Step(node_named(module, "relu"), "", raising(error()))
    with pytest.raises(error):
        ids_of(scripted(step), module)


def test_steps_without_end_are_an_error(module: GraphModule) -> None:
    class Endless(GraphPass):
        """Refuses for ever."""

        name = "endless"
        numerics = Numerics.EXACT

        def steps(self, module: GraphModule, facts: Facts) -> Iterator[Step | Refusal]:
            while True:
                yield Refusal("relu", "never", "it never holds")

    with pytest.raises(BudgetError, match="endless proposes steps without end"):  # noqa: SIM117
        with Editor(module, "endless") as edit:
            carry_out(Endless(), GraphFacts(module), edit, most_steps=100)


def test_a_replaced_node_is_not_matched_again(module: GraphModule) -> None:
    class Twice(SwapRelu):
        def rewrite(self, site: Node, edit: Editor) -> None:
            later = [n for n in edit.graph.nodes if n.target is torch.relu and n is not site]
            edit.replace(site, edit.call_function(torch.tanh, *site.args), absorbing=later)

    assert len(ids_of(Twice(), module)) == 1


def test_options_are_the_annotated_fields() -> None:
    class Optioned(SwapRelu):
        slope: float = 0.5

    assert Optioned(slope=1.0).options() == {"slope": 1.0}
    assert SwapRelu.summary() == "Writes tanh for relu."


@pytest.mark.parametrize("given", [None, 3])
def test_a_pass_without_steps_is_told_what_to_return(module: GraphModule, given: Any) -> None:
    class Forgetful(GraphPass):
        """Forgets to return."""

        name = "forgetful"
        numerics = Numerics.EXACT

        def steps(self, module: GraphModule, facts: Facts) -> Any:
            return given

    with pytest.raises(PassError, match=f"forgetful on .* returned {given}: let it yield each"):
        ids_of(Forgetful(), module)

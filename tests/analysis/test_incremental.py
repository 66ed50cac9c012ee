"""Facts are computed when asked for, once, and anew only where an edit made them stale."""

import pytest
import torch
from torch import Tensor, nn
from torch.fx import Graph, GraphModule, Node

from fxpasses.analysis.facts import GraphFacts
from fxpasses.core import VALUE, Editor, Facts, Numerics, Rewrite, TensorInfo, carry_out


def chain_of(length: int, *, in_place: bool = False) -> GraphModule:
    """relu(neg(relu(neg(x)))) …, with a view between them."""
    graph = Graph()
    node = graph.placeholder("x")
    node.meta[VALUE] = TensorInfo.of(torch.ones(2, 3))
    for _ in range(length):
        node = graph.call_function(torch.neg, (node,))
        node = graph.call_method("relu_" if in_place else "relu", (node,))
        node = graph.call_method("view", (node, -1))
    graph.output(node)
    return GraphModule(nn.Module(), graph)


class AsksEverything(Rewrite[Node]):
    """Writes tanh for relu, and asks all there is to ask at every site."""

    name = "asks_everything"
    numerics = Numerics.MEANING

    def match(self, node: Node, facts: Facts) -> Node | None:
        return node if node.target in ("relu", "relu_") else None

    def rewrite(self, site: Node, edit: Editor) -> None:
        edit.replace(site, edit.call_function(torch.tanh, site.args[0]))


def asked(site: Node, facts: Facts) -> str | None:
    operand = site.all_input_nodes[0]
    facts.rank(site)
    facts.dtype(operand)
    facts.example_shape(site)
    facts.may_alias(site, operand)
    facts.written_between(operand, site.next, operand)
    facts.readers(site)
    return None


class Asking(AsksEverything):
    legal_if = (asked,)


def visits(length: int, *, in_place: bool) -> int:
    module = chain_of(length, in_place=in_place)
    facts = GraphFacts(module)
    with Editor(module, "p", facts=facts) as edit:
        carry_out(Asking(), facts, edit)
    assert len(edit.applied) == length
    return facts.visits


@pytest.mark.parametrize("in_place", [False, True])
def test_rewriting_every_node_is_linear(*, in_place: bool) -> None:
    small, large = visits(50, in_place=in_place), visits(400, in_place=in_place)
    assert large <= 8.5 * small
    assert large <= 400 * 3 * 12


def test_nothing_is_computed_before_it_is_asked_for() -> None:
    facts = GraphFacts(chain_of(100))
    assert facts.visits == 0
    nodes = list(facts.module.graph.nodes)
    facts.effects(nodes[50])
    assert facts.visits == 1


def test_what_is_asked_again_is_not_computed_again() -> None:
    facts = GraphFacts(chain_of(100))
    nodes = list(facts.module.graph.nodes)
    facts.rank(nodes[-2])
    facts.may_alias(nodes[5], nodes[-2])
    before = facts.visits
    facts.rank(nodes[-2])
    facts.rank(nodes[20])
    facts.may_alias(nodes[-2], nodes[5])
    assert facts.visits == before


def test_an_edit_makes_stale_only_what_depends_on_it() -> None:
    facts = GraphFacts(chain_of(100))
    nodes = list(facts.module.graph.nodes)
    for node in nodes[:-1]:
        facts.rank(node)
    last_but_one = nodes[-3]
    before = facts.visits
    with Editor(facts.module, "p", facts=facts) as edit, edit.rewrite("id", at=last_but_one):
        edit.replace(last_but_one, edit.call_method("tanh", *last_but_one.args))
    for node in facts.module.graph.nodes:
        facts.rank(node)
    assert facts.visits - before <= 12


class Views(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        y = x + 1
        z = y.view(-1)
        return z.view(-1) + 1


def test_roots_follow_a_rewired_view() -> None:
    module = torch.fx.symbolic_trace(Views())
    nodes = {node.name: node for node in module.graph.nodes}
    facts = GraphFacts(module)
    assert facts.may_alias(nodes["view_1"], nodes["add"])
    edit = Editor(module, "p", facts=facts)
    with edit.rewrite("id", at=nodes["view"]):
        edit.rewire(nodes["view"], nodes["add"], nodes["x"])
    assert facts.may_alias(nodes["view_1"], nodes["x"])
    assert not facts.may_alias(nodes["view_1"], nodes["add"])
    edit.rollback()
    assert not facts.may_alias(nodes["view_1"], nodes["x"])


def test_writers_come_and_go_with_edits() -> None:
    module = chain_of(3, in_place=True)
    nodes = {node.name: node for node in module.graph.nodes}
    facts = GraphFacts(module)
    first, last = nodes["neg"], nodes["view"]
    assert facts.written_between(first, last, first) is nodes["relu_"]
    with Editor(module, "p", facts=facts) as edit, edit.rewrite("id", at=nodes["relu_"]):
        edit.replace(nodes["relu_"], edit.call_method("relu", first))
    assert facts.written_between(first, last, first) is None
    with Editor(module, "p", facts=facts) as edit, edit.rewrite("id", at=last):
        written = edit.call_method("zero_", first)
        edit.rewire(last, last.all_input_nodes[0], written)
    assert facts.written_between(first, last, first) is written

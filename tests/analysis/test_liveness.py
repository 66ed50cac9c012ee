"""How long values are needed, and who reads them."""

import torch
from torch import Tensor
from torch.fx import symbolic_trace

from fxpasses.analysis.facts import GraphFacts
from fxpasses.analysis.liveness import last_readers, live_sets
from fxpasses.core import Editor
from fxpasses.ops import reads_only_metadata


def example(x: Tensor) -> Tensor:
    a = x + 1
    b = a.relu()
    c = b * a
    x.sum()
    return c.view(a.size(0), b.shape[1], b.dim(), a.numel(), b.stride(0))


def test_the_last_reader_of_each_value() -> None:
    module = symbolic_trace(example)
    last = {node.name: reader.name for node, reader in last_readers(module.graph).items()}
    assert last["x"] == "sum_1"
    assert last["mul"] == "view"
    assert last["view"] == "output"
    assert last["add"] == "numel"
    assert "sum_1" not in last


def test_live_sets_hold_what_is_still_read() -> None:
    def short(x: Tensor) -> Tensor:
        a = x + 1
        b = a.relu()
        return b * a

    live = {n.name: sorted(v.name for v in s) for n, s in live_sets(symbolic_trace(short).graph)}
    assert live == {
        "x": ["x"],
        "add": ["add"],
        "relu": ["add", "relu"],
        "mul": ["mul"],
        "output": [],
    }


def test_readers_of_a_size_are_no_readers_of_the_value() -> None:
    module = symbolic_trace(example)
    nodes = {node.name: node for node in module.graph.nodes}
    facts = GraphFacts(module)
    assert [n.name for n in facts.readers(nodes["relu"])] == ["mul"]
    assert [n.name for n in facts.readers(nodes["add"])] == ["relu", "mul"]
    asking = {n.name for n in module.graph.nodes if n.args and reads_only_metadata(n, n.args[0])}
    assert asking == {
        "size",
        "getattr_1",
        "dim",
        "numel",
        "stride",
    }


def test_attributes_that_hold_the_value_are_readers() -> None:
    module = symbolic_trace(lambda x: (x.T, x.data, x.mT, x.dtype, x.device, x.ndim))
    x, *calls, _ = module.graph.nodes
    assert [reads_only_metadata(n, x) for n in calls] == [False] * 3 + [True] * 3


def test_a_view_like_another_reads_only_the_size_of_the_other() -> None:
    module = symbolic_trace(lambda x, y: (x.view_as(y), x.expand_as(other=y), x.reshape_as(y)))
    x, y, *calls, _ = module.graph.nodes
    assert [reads_only_metadata(n, y) for n in calls] == [True] * 3
    assert [reads_only_metadata(n, x) for n in calls] == [False] * 3


def test_what_is_replaced_reads_no_more() -> None:
    module = symbolic_trace(example)
    nodes = {node.name: node for node in module.graph.nodes}
    facts = GraphFacts(module)
    edit = Editor(module, "p", facts=facts)
    with edit.rewrite("id", at=nodes["relu"]):
        edit.replace(nodes["relu"], edit.call_function(torch.tanh, nodes["x"]))
    assert [n.name for n in facts.readers(nodes["add"])] == ["mul"]


def test_what_is_shaped_like_a_value_does_not_read_it() -> None:
    def shaped(x: Tensor) -> Tensor:
        a = x + 1
        b = x * 2
        return b.reshape_as(a) + b.view_as(other=a)

    module = symbolic_trace(shaped)
    nodes = {node.name: node for node in module.graph.nodes}
    facts = GraphFacts(module)
    assert not facts.readers(nodes["add"])
    assert [n.name for n in facts.readers(nodes["mul"])] == ["reshape_as", "view_as"]

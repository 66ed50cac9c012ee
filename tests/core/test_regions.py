"""The pieces of graph that tell a rewrite's old values from its new ones."""

from collections.abc import Mapping
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.fx import GraphModule

from fxpasses.core import STANDS_FOR, Applied, Editor, Region
from tests.core.graphs import Chain, captured, node_named

IMAGE = torch.randn(1, 2, 4, 4)


def values_of(module: GraphModule, *args: Tensor) -> dict[str, Any]:
    """Every value of a graph by the name of its node."""
    found: dict[str, Any] = {}

    class Watching(torch.fx.Interpreter):
        def run_node(self, n: torch.fx.Node) -> Any:
            found[n.name] = super().run_node(n)
            return found[n.name]

    Watching(module).run(*args)
    return found


def run(region: Region, values: Mapping[str, Any]) -> tuple[Any, ...]:
    """What a region makes of the original's own values."""
    holder = nn.Module()
    for path, value in region.attributes.items():
        owner = holder
        *parents, name = path.split(".")
        for parent in parents:
            if not hasattr(owner, parent):
                owner.add_module(parent, nn.Module())
            owner = getattr(owner, parent)
        setattr(owner, name, value)
    return GraphModule(holder, region.graph)(*(values[name] for name in region.inputs))


@pytest.fixture
def module() -> GraphModule:
    return captured(Chain())


def test_a_region_computes_the_new_value_from_the_original_ones(module: GraphModule) -> None:
    values = values_of(module, IMAGE)
    applied = swapped(module, "relu_1")
    assert applied.after is not None
    assert applied.after.inputs == ("second",)
    torch.testing.assert_close(run(applied.after, values), (values["second"].tanh(),))
    assert applied.before is None


def swapped(module: GraphModule, name: str) -> Applied:
    relu = node_named(module, name)
    with Editor(module, "p", keep_regions=True) as edit, edit.rewrite("id", at=relu) as applied:
        edit.replace(relu, edit.call_function(torch.tanh, *relu.args))
    return applied


def test_a_later_region_stops_where_an_earlier_rewrite_stands_for_a_captured_node(
    module: GraphModule,
) -> None:
    values = values_of(module, IMAGE)
    swapped(module, "relu")
    applied = swapped(module, "relu_1")
    assert applied.after is not None
    assert applied.after.inputs == ("second",)
    second = node_named(module, "second")
    with Editor(module, "p", keep_regions=True) as edit, edit.rewrite("id", at=second) as applied:
        edit.replace(second, edit.call_function(torch.neg, *second.args))
    assert applied.after is not None
    assert applied.after.inputs == ("relu",)
    torch.testing.assert_close(run(applied.after, values), (-values["relu"],))


def test_attributes_mean_what_they_meant(module: GraphModule) -> None:
    values = values_of(module, IMAGE)
    relu = node_named(module, "relu")
    with Editor(module, "p", keep_regions=True) as edit, edit.rewrite("id", at=relu) as applied:
        halved = edit.constant(module.scale.detach() / 2, "scale")
        product = edit.call_function(torch.mul, relu.args[0], halved)
        edit.replace(relu, edit.call_module(nn.Tanh(), "relu", product))
    expected = torch.tanh(values["first"] * module.scale_1)
    delattr(module, "scale_1")
    assert applied.after is not None
    torch.testing.assert_close(run(applied.after, values), (expected,))


def test_several_outputs_come_in_the_order_of_the_replacements(module: GraphModule) -> None:
    values = values_of(module, IMAGE)
    relu, relu_1 = node_named(module, "relu"), node_named(module, "relu_1")
    with Editor(module, "p", keep_regions=True) as edit, edit.rewrite("id", at=relu_1) as applied:
        both = edit.call_function(torch.chunk, relu_1.args[0], 2, 1)
        parts = [edit.call_function(part, both) for part in (lambda v: v[0], lambda v: v[1])]
        edit.replace(relu_1, edit.call_function(torch.cat, parts, 1))
        with edit.before(relu):
            edit.replace(relu, edit.call_function(torch.tanh, *relu.args))
    assert applied.after is not None
    new = run(applied.after, values)
    torch.testing.assert_close(new, (values["second"], values["first"].tanh()))


def test_a_new_call_that_only_writes_is_part_of_the_region(module: GraphModule) -> None:
    values = values_of(module, IMAGE)
    relu = node_named(module, "relu")
    with Editor(module, "p", keep_regions=True) as edit, edit.rewrite("id", at=relu) as applied:
        copied = edit.call_method("clone", relu.args[0])
        edit.call_method("add_", copied, 1)
        edit.replace(relu, edit.call_function(torch.tanh, copied))
    assert applied.after is not None
    torch.testing.assert_close(run(applied.after, values), ((values["first"] + 1).tanh(),))


def test_old_values_that_no_captured_node_has_come_from_the_graph_as_it_was(
    module: GraphModule,
) -> None:
    values = values_of(module, IMAGE)
    relu, relu_1 = node_named(module, "relu"), node_named(module, "relu_1")
    for node in (relu, node_named(module, "second"), relu_1):
        del node.meta[STANDS_FOR]
    with Editor(module, "p", keep_regions=True) as edit, edit.rewrite("id", at=relu) as applied:
        edit.replace(relu, edit.call_function(torch.neg, *relu.args))
        with edit.before(relu_1):
            edit.replace(relu_1, edit.call_function(torch.sin, *relu_1.args))
    assert applied.before is not None
    assert applied.before.inputs == ("first",)
    torch.testing.assert_close(run(applied.before, values), (values["relu"], values["relu_1"]))
    assert applied.after is not None
    changed = module.second(-values["first"]).sin()
    torch.testing.assert_close(run(applied.after, values), (-values["first"], changed))


def test_a_value_that_the_graph_has_already_is_its_own_region(module: GraphModule) -> None:
    values = values_of(module, IMAGE)
    relu_1, relu = node_named(module, "relu_1"), node_named(module, "relu")
    with Editor(module, "p", keep_regions=True) as edit, edit.rewrite("id", at=relu_1) as applied:
        edit.replace(relu_1, relu)
    assert applied.after is not None
    assert applied.after.inputs == ("relu",)
    torch.testing.assert_close(run(applied.after, values), (values["relu"],))


def test_regions_are_not_kept_unless_wanted(module: GraphModule) -> None:
    relu = node_named(module, "relu")
    with Editor(module, "p") as edit, edit.rewrite("id", at=relu) as applied:
        edit.replace(relu, edit.call_function(torch.tanh, *relu.args))
    assert applied.after is None

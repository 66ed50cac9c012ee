"""Passes that do what no pass may: the right error names them, and the model stays as it was."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.fx import GraphModule

import fxpasses
from fxpasses.core import Facts, GraphPass, Numerics, Refusal, Step
from fxpasses.errors import BudgetError, FxPassesError, PassError, VerificationError

IMAGE = torch.randn(2, 3, 8, 8, generator=torch.Generator().manual_seed(0))


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4)
        self.norm.running_mean = torch.tensor([0.5, -1.0, 2.0, 0.0])
        self.eval()

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.norm(self.conv(x)))


class Hostile(GraphPass):
    """Does its worst at every call of relu."""

    name = "hostile"
    numerics = Numerics.ROUNDING
    worst: Any

    def steps(self, module: GraphModule, facts: Facts) -> Iterator[Step | Refusal]:
        for node in list(module.graph.nodes):
            if node.target is torch.relu:
                yield Step(node, "", lambda edit, node=node: self.worst(edit, node))


def raises_half_way(edit: Any, node: Any) -> None:
    edit.replace(node, edit.copy(node))
    raise KeyError("half-way")


def breaks_the_graph(edit: Any, node: Any) -> None:
    node.args = (node.next,)
    edit.replace(node, edit.copy(node))


def makes_cycles(edit: Any, node: Any) -> None:
    new = edit.call_function(torch.relu, node.args[0])
    new.args = (new,)
    edit.replace(node, new)


def writes_a_shared_weight(edit: Any, node: Any) -> None:
    for parameter in edit.module.parameters():
        parameter.data.mul_(2)
    edit.replace(node, edit.copy(node))


def sets_the_data_of_a_weight(edit: Any, node: Any) -> None:
    for parameter in edit.module.parameters():
        parameter.data = torch.zeros_like(parameter)
    edit.replace(node, edit.copy(node))


def freezes_a_weight(edit: Any, node: Any) -> None:
    for parameter in edit.module.parameters():
        parameter.requires_grad_(not parameter.requires_grad)
    edit.replace(node, edit.copy(node))


def grows_without_end(edit: Any, node: Any) -> None:
    while True:
        node = edit.copy(node)


def interrupts(edit: Any, node: Any) -> None:
    edit.replace(node, edit.copy(node))
    raise KeyboardInterrupt


def returns_nonsense(module: GraphModule) -> Any:
    return 42


def returns_another_model(module: GraphModule) -> GraphModule:
    return torch.fx.symbolic_trace(nn.Identity())


def foreign_that_raises(module: GraphModule) -> None:
    module.graph.erase_node(next(iter(reversed(module.graph.nodes))))
    raise ValueError("gone")


def foreign_that_writes_weights(module: GraphModule) -> None:
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.data.add_(1)


class To(GraphPass):
    """Replaces one activation by the other."""

    name = "to"
    numerics = Numerics.EXACT
    old: Any
    new: Any

    def steps(self, module: GraphModule, facts: Facts) -> Iterator[Step | Refusal]:
        for node in list(module.graph.nodes):
            if node.target is self.old:
                yield Step(node, "", lambda edit, node=node: self._swap(edit, node))

    def _swap(self, edit: Any, node: Any) -> None:
        edit.replace(node, edit.call_function(self.new, *node.args))


def _relu_in_other_words(x: Tensor) -> Tensor:
    return x.clamp(min=0)


HOSTILE: dict[str, tuple[Any, type[BaseException], str]] = {
    "raises half-way": (Hostile(worst=raises_half_way), PassError, "hostile"),
    "breaks the graph": (Hostile(worst=breaks_the_graph), PassError, "hostile"),
    "makes cycles": (Hostile(worst=makes_cycles), PassError, "hostile"),
    "writes a weight": (Hostile(worst=writes_a_shared_weight), PassError, "hostile.*in place"),
    "sets data": (Hostile(worst=sets_the_data_of_a_weight), PassError, "hostile.*set .data"),
    "freezes": (Hostile(worst=freezes_a_weight), PassError, "hostile.*requires_grad"),
    "grows": (Hostile(worst=grows_without_end), BudgetError, "hostile"),
    "interrupts": (Hostile(worst=interrupts), KeyboardInterrupt, "^$"),
    "returns nonsense": (returns_nonsense, PassError, "returns_nonsense"),
    "returns another model": (returns_another_model, FxPassesError, "returns_another_model"),
    "foreign raises": (foreign_that_raises, PassError, "foreign_that_raises"),
    "foreign writes": (foreign_that_writes_weights, VerificationError, "foreign_that_writes"),
}


def everything_of(model: nn.Module) -> dict[str, Tensor]:
    tensors = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    grads = {f"grad of {n}": torch.tensor(p.requires_grad) for n, p in model.named_parameters()}
    return {**tensors, **grads}


@pytest.mark.parametrize("case", HOSTILE)
@pytest.mark.parametrize("prepare", [lambda m: m, lambda m: m.requires_grad_(False)])
def test_hostile_passes(case: str, prepare: Callable[[nn.Module], nn.Module]) -> None:
    hostile, error, name = HOSTILE[case]
    model, image = prepare(Net()), IMAGE.clone()
    before, random = everything_of(model), torch.get_rng_state()

    with pytest.raises(error, match=name):
        fxpasses.run(model, ["fuse_conv_bn", hostile, "dce"], image)

    assert torch.equal(torch.get_rng_state(), random)
    assert torch.equal(image, IMAGE)
    after = everything_of(model)
    assert before.keys() == after.keys()
    for key, value in before.items():
        assert torch.equal(after[key], value), key


def test_passes_that_undo_each_other_are_named() -> None:
    there = To(old=torch.relu, new=_relu_in_other_words)
    back = To(old=_relu_in_other_words, new=torch.relu)
    with pytest.raises(PassError, match="undo"):
        fxpasses.run(Net(), [{"repeat": 10, "passes": [there, back]}], IMAGE)


@pytest.mark.parametrize("case", [c for c in HOSTILE if c != "interrupts"])
def test_hostile_passes_are_left_out_on_request(case: str) -> None:
    model = Net()
    passes = ["fuse_conv_bn", HOSTILE[case][0], "dce"]
    fast = fxpasses.run(model, passes, IMAGE, on_failure="skip")
    torch.testing.assert_close(fast(IMAGE), model(IMAGE))
    statuses = [run["status"] for run in fast.meta["fxpasses"]["passes"]]
    assert statuses[0] == "changed"
    assert statuses[1] in ("failed", "undone", "unchanged")

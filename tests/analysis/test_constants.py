"""What is the same in every call, how it is made, and what can be said of it beforehand."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.fx import Node

from fxpasses.analysis.constant_value import ConstantValue
from fxpasses.analysis.constants import Constants, is_ordinary
from fxpasses.analysis.facts import GraphFacts
from tests.support import bare


class Holder(nn.Module):
    """Computes `made` of what it holds, and adds it to the input."""

    def __init__(self, made: Callable[["Holder"], Tensor]) -> None:
        super().__init__()
        self.made = made
        self.w = nn.Parameter(torch.tensor([[0.1, 0.2], [0.3, 0.4]]))
        self.register_buffer("rows", torch.tensor([1, 0]))
        self.layer = nn.Linear(2, 2)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.made(self)


def value_of(made: Callable[[Holder], Tensor]) -> ConstantValue:
    module = bare(Holder(made))
    constants = Constants(module, GraphFacts(module))
    (add,) = module.graph.output_node().all_input_nodes
    node = add.args[1]
    assert isinstance(node, Node)
    assert node in constants
    saved = {id(t): True for t in (*module.parameters(), *module.buffers())}
    return ConstantValue(constants.recipe(node), saved)


def test_only_what_the_module_holds_goes_into_a_constant() -> None:
    module = bare(Holder(lambda m: m.w.exp()))
    constants = Constants(module, GraphFacts(module))

    names = {node.name for node in module.graph.nodes if node in constants}
    assert names == {"w", "exp"}
    assert [node.name for node in constants.closed] == ["exp"]


@pytest.mark.parametrize(
    "made",
    [
        lambda m: m.w.exp() @ m.layer(m.w).softmax(-1),
        lambda m: m.layer(torch.arange(4.0).view(2, 2)) * torch.full((2,), 0.1),
        lambda m: m.w.to(torch.float32).clone(),
        lambda m: (m.w * 2).relu_().mul_(0.5),
    ],
)
def test_a_wide_value_is_that_of_a_model_in_float64(made: Callable[[Holder], Tensor]) -> None:
    value = value_of(made)
    sources = value.recipe.sources
    before = [tensor.detach().clone() for tensor in sources]

    eager = value.recipe.made_of(*sources)
    wide = value.recipe.made_wide(*(tensor.double() for tensor in sources))

    assert wide.dtype is torch.float64
    torch.testing.assert_close(wide.float(), eager, rtol=1e-6, atol=1e-7)
    assert all(torch.equal(a, b) for a, b in zip(sources, before, strict=True))


def test_a_wide_value_is_not_rounded_on_the_way() -> None:
    value = value_of(lambda m: (m.w / 3).to(torch.float32) * 3)
    (w,) = value.recipe.sources

    torch.testing.assert_close(
        value.recipe.made_wide(w.double()), w.detach().double(), rtol=1e-15, atol=0
    )


@pytest.mark.parametrize(
    ("made", "is_cast", "moves"),
    [
        (lambda m: m.w.exp(), True, True),
        (lambda m: m.rows + 1, True, True),
        (lambda m: m.w.float(), False, True),
        (lambda m: m.rows.float(), False, True),
        (lambda m: m.w * torch.ones(2), False, True),
        (lambda m: m.w * torch.ones(()), True, True),
        (lambda m: torch.zeros(2, dtype=m.w.dtype, device=m.w.device) + m.w, True, True),
        (lambda m: torch.ones(2, device=m.w.device) + m.rows, False, True),
        (lambda m: m.rows.to("cpu"), True, False),
    ],
)
def test_what_follows_the_model(
    made: Callable[[Holder], Tensor], is_cast: bool, moves: bool
) -> None:
    value = value_of(made)
    assert value.is_cast_with_the_model is is_cast
    assert value.moves_with_the_model is moves


def test_views_are_no_new_tensors() -> None:
    assert not value_of(lambda m: m.w.t()).is_new_tensor
    assert not value_of(lambda m: m.w[0].expand(3, 2)).is_new_tensor
    assert not value_of(lambda m: (m.w + 1)[0].expand(3, 2)).is_new_tensor
    assert value_of(lambda m: (m.w + 1).t()).is_new_tensor
    assert value_of(lambda m: m.w.t().contiguous()).is_new_tensor


def test_sizes_are_known_before_anything_is_made() -> None:
    value = value_of(lambda m: torch.zeros(10**6, 10**6).sum() + m.w)
    assert value.most_bytes == 4 * 10**12
    assert value.bytes == 16


def test_what_hangs_on_data_is_not_known_ahead() -> None:
    assert value_of(lambda m: m.w[m.rows.nonzero()]).fakes is None


def test_a_step_to_a_narrower_dtype_is_found() -> None:
    narrowing = value_of(lambda m: (m.w / 3).half().float()).narrowing
    assert narrowing is not None
    assert narrowing.name == "half"
    assert value_of(lambda m: m.w.double().exp()).narrowing is None


def test_decisions_that_rounding_could_turn_are_found() -> None:
    assert value_of(lambda m: m.w.exp().softmax(-1)).survives_rounding()
    assert not value_of(lambda m: ((torch.arange(4) + 6) / 10 * 3 * 10).long()).survives_rounding()


def test_tensors_of_their_own_kind_are_not_ordinary() -> None:
    assert is_ordinary(torch.ones(2))
    assert is_ordinary(nn.Parameter(torch.ones(2)))
    assert not is_ordinary(torch.ones(2).to_sparse())
    assert not is_ordinary(torch.empty(2, device="meta"))
    assert not is_ordinary(torch.ones(2).as_subclass(type("Own", (Tensor,), {})))
    assert not is_ordinary(3.0)

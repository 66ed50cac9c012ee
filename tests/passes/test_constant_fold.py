"""Constants computed once: right, no larger than allowed, and nothing that is not constant."""

import copy
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import fxpasses
from fxpasses.analysis.facts import GraphFacts
from fxpasses.core import VALUE, Condition, Editor, Folds, carry_out
from fxpasses.manager import apply
from fxpasses.ops import Op
from fxpasses.passes import constant_fold as subject
from fxpasses.passes.constant_fold import GROWTH, ConstantFold
from fxpasses.passes.dce import Dce
from fxpasses.testing import Model, check_pass, goes_wrong
from fxpasses.text import graph_text
from tests.support import bare, exported, ops, reasons, traced

X = torch.randn(5, 4, generator=torch.Generator().manual_seed(0))


class Weighted(nn.Module):
    """Two weights and two buffers to make constants of."""

    def __init__(self) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(1)
        self.a = nn.Parameter(torch.randn(4, generator=generator))
        self.b = nn.Parameter(torch.randn(4, generator=generator))
        self.w = nn.Parameter(torch.randn(4, 4, generator=generator))
        self.register_buffer("rows", torch.tensor([0, 2, 1, 3]))
        self.register_buffer("unsaved", torch.ones(4), persistent=False)


class Chain(Weighted):
    def forward(self, x: Tensor) -> Tensor:
        return x * torch.exp(self.a + self.b).softmax(0)


class Gathered(Weighted):
    """As relative position biases are made."""

    def forward(self, x: Tensor) -> Tensor:
        return x + self.w[self.rows.view(-1)].permute(1, 0).contiguous().unsqueeze(0)[0, 0]


class Spread(Weighted):
    """A layer on constants, and one constant that two calls share."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        table = self.layer(self.w).sigmoid()
        return x @ (table * 16) + table.sum(0)


class Numbers(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x * torch.arange(4) + torch.full((4,), 0.1) + torch.linspace(0, 1, 4).exp()


class Parts(Weighted):
    def forward(self, x: Tensor) -> Tensor:
        first, second = (self.w * 2).chunk(2)
        low, _ = self.w.abs().max(0)
        return x * first.sum(0) + second.mean(0) * low


class InPlace(Weighted):
    """A small network on constants, whose activation writes its input."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(inplace=True), nn.Linear(8, 4))

    def forward(self, x: Tensor) -> Tensor:
        return x * torch.sigmoid(self.a + 1).sigmoid_() + self.net(self.w * 3).sum(0)


MODELS = {
    InPlace: [Op.MUL, Op.ADD],
    Chain: [Op.MUL],
    Gathered: [Op.ADD],
    Spread: [Op.MATMUL, Op.ADD],
    Numbers: [Op.MUL, Op.ADD, Op.ADD],
    Parts: [Op.MUL, Op.ADD],
}


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("graph_of", [traced, exported])
def test_folds_constants_in_every_spelling(model: type[nn.Module], graph_of: Any) -> None:
    module = graph_of(model(), X)
    expected = module(X)

    assert apply(ConstantFold(), module).modified
    apply(Dce(), module)  # Parts that nothing reads.

    assert [op for op in ops(module) if op is not Op.ASSERT] == MODELS[model]
    torch.testing.assert_close(module(X), expected)
    assert not apply(ConstantFold(), module).modified


def test_the_text_of_what_is_left() -> None:
    module = traced(Chain(), X)

    apply(ConstantFold(), module)

    assert graph_text(module) == "%0 = input\n%1 = mul(%0)\nreturn %1"


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_keeps_the_dtype_and_rounds_once(dtype: torch.dtype) -> None:
    model = Chain().to(dtype)
    module = traced(model, X.to(dtype))

    apply(ConstantFold(), module)

    assert module.folded_softmax.dtype is dtype
    exact = torch.exp(model.a.double() + model.b.double()).softmax(0)
    assert torch.equal(module.folded_softmax, exact.to(dtype))


def test_what_is_only_moved_about_is_bit_equal() -> None:
    module = traced(Gathered(), X)
    expected = module(X)

    apply(ConstantFold(), module)

    assert torch.equal(module(X), expected)


def test_keeps_the_layout() -> None:
    class Transposed(Weighted):
        def forward(self, x: Tensor) -> Tensor:
            return x @ (self.w + 1).t()

    module = traced(Transposed(), X)
    apply(ConstantFold(), module)

    assert module.folded_t.stride() == (1, 4)
    assert module.folded_t.untyped_storage().nbytes() == 64


def test_each_constant_has_a_formula() -> None:
    module, folds = traced(Spread(), X), Folds()
    facts = GraphFacts(module)

    with Editor(module, "constant_fold", facts=facts, folds=folds) as edit:
        carry_out(ConstantFold(), facts, edit)

    folded = [b for name, b in module.named_buffers() if name.startswith("folded")]
    assert len(folded) == 2
    for tensor in folded:
        exact = folds.exact(tensor)
        assert exact.dtype is torch.float64
        assert torch.equal(exact.float(), tensor)


def test_the_original_is_not_changed_nor_shared() -> None:
    model = Chain()
    before = copy.deepcopy(model.state_dict())
    module = traced(model, X)

    apply(ConstantFold(), module)
    module.folded_softmax.zero_()

    torch.testing.assert_close(model.state_dict(), before, rtol=0, atol=0)


def test_constants_are_leaves_that_can_be_copied() -> None:
    module = traced(Chain(), X)
    apply(ConstantFold(), module)

    assert module.folded_softmax.is_leaf
    assert not module.folded_softmax.requires_grad
    assert torch.equal(copy.deepcopy(module)(X), module(X))


# -- what follows the model, and what stays


def test_what_is_made_of_weights_is_cast_and_saved_with_them() -> None:
    module = traced(Chain(), X)
    expected = bare(Chain()).half()(X.half())

    apply(ConstantFold(), module)
    module.half()

    assert "folded_softmax" in module.state_dict()
    got = module(X.half())
    assert got.dtype is expected.dtype is torch.float16
    torch.testing.assert_close(got, expected, rtol=1e-2, atol=1e-3)


def test_what_is_made_of_unsaved_buffers_is_not_saved() -> None:
    class Unsaved(Weighted):
        def forward(self, x: Tensor) -> Tensor:
            return x * (self.unsaved + 1)

    module = traced(Unsaved(), X)
    # A plain GraphModule saves every buffer from some versions of torch on, and in others not.
    module._non_persistent_buffers_set.add("unsaved")
    apply(ConstantFold(), module)

    assert "folded_add" in dict(module.named_buffers())
    assert "folded_add" not in module.state_dict()


def test_what_is_made_of_numbers_stays_as_it_is_made() -> None:
    module, reference = traced(Numbers(), X), bare(Numbers()).half()

    apply(ConstantFold(), module)
    module.half()

    assert not module.state_dict()
    assert module(X.half()).dtype is reference(X.half()).dtype is torch.float32


def test_integers_made_of_buffers_move_but_are_not_cast() -> None:
    class Indices(Weighted):
        def forward(self, x: Tensor) -> Tensor:
            return x[:, self.rows + torch.arange(4) - self.rows]

    module = traced(Indices(), X)
    apply(ConstantFold(), module)
    module.half()

    (folded,) = [b for name, b in module.named_buffers() if name.startswith("folded")]
    assert folded.dtype is torch.int64


# -- refusals


class Drawn(Weighted):
    def forward(self, x: Tensor) -> Tensor:
        return x * torch.bernoulli(self.a.sigmoid().round() * 0.5)


class DrawsForNothing(Weighted):
    def forward(self, x: Tensor) -> Tensor:
        return x + F.dropout(self.unsaved * 0, 0.5, training=True) + torch.rand(4)


class Undefined(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x + torch.empty(1000, 4).nan_to_num(0, 0, 0).sum() * 0


class Written(Weighted):
    def forward(self, x: Tensor) -> Tensor:
        self.unsaved.add_(1)
        return x * (self.unsaved * 2)


class Trained(Weighted):
    def forward(self, x: Tensor) -> Tensor:
        return x * torch.exp(self.a)


class ResultWritten(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        total = torch.zeros(4)
        total.view(2, 2).add_(x.mean())
        return x + total


class WrittenAndReadElsewhere(Weighted):
    def forward(self, x: Tensor) -> Tensor:
        made = self.a + self.b
        view = made.view(2, 2)
        return x * view.mul_(2).sum() + made


class WrittenOnTheWay(Weighted):
    def forward(self, x: Tensor) -> Tensor:
        made = self.a + self.b
        made.view(2, 2).mul_(2)
        return x * made.sum()


class ResultReturned(Weighted):
    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        made = self.a + self.b
        return x * made, made.view(2, 2)


class HangsOnData(Weighted):
    def forward(self, x: Tensor) -> Tensor:
        return x * self.a[self.a.nonzero().view(-1)] + self.rows.sum().item()


class StaysFloat32(Weighted):
    def forward(self, x: Tensor) -> Tensor:
        return x * (torch.ones(4) / 3 * self.a)


class StaysBehind(Weighted):
    def forward(self, x: Tensor) -> Tensor:
        return x[:, (self.rows + 1).to("cpu") - 1]


class RoundsOnPurpose(Weighted):
    def forward(self, x: Tensor) -> Tensor:
        return x * (self.a / 3).to(torch.float8_e4m3fn).type_as(self.a)


class HangsOnRounding(Weighted):
    def forward(self, x: Tensor) -> Tensor:
        return x + ((torch.arange(4) + 6) / 10 * 3 * 10).floor()


def case(module: nn.Module, example: Tensor = X, **how: Any) -> Model:
    return Model(module, (example,), **{"training": False, **how})


REFUSED: dict[Condition[Any], Model] = {
    subject.calls_are_all_alike: case(DrawsForNothing()),
    subject.sources_are_never_written: case(Written()),
    subject.no_source_is_trained: case(Trained(), training=True),
    subject.result_is_never_written: case(ResultWritten()),
    subject.nothing_else_writes_on_the_way: case(WrittenOnTheWay()),
    subject.result_stays_inside: case(ResultReturned()),
    subject.shape_is_known_ahead: case(HangsOnData()),
    subject.result_follows_the_model: case(StaysFloat32(), then=lambda module: module.half()),
    subject.nothing_is_rounded_on_purpose: case(RoundsOnPurpose().half(), X.half()),
    subject.value_does_not_hang_on_rounding: case(HangsOnRounding()),
}


@pytest.mark.parametrize("condition", REFUSED, ids=lambda c: c.__name__)
def test_refuses(condition: Condition[Any]) -> None:
    refused = REFUSED[condition]
    module = traced(refused.module, *refused.inputs)

    result = apply(ConstantFold(), module, training=refused.training)

    assert condition.__name__ in reasons(result)
    assert not any(refusal.legal for refusal in result.refusals)


def test_every_condition_has_its_refusal() -> None:
    assert ConstantFold.legal_if == tuple(REFUSED)


def test_keeps_the_promises_of_a_pass() -> None:
    models = [Model(model(), (X,), training=False) for model in (Chain, Numbers)]
    check_pass(ConstantFold, models=models, goes_wrong=REFUSED)


@pytest.mark.parametrize(
    ("model", "condition"),
    [
        (Drawn, "calls_are_all_alike"),
        (Undefined, "calls_are_all_alike"),
        (StaysBehind, "result_follows_the_model"),
        (WrittenAndReadElsewhere, "result_is_never_written"),
    ],
)
def test_also_refuses(model: type[nn.Module], condition: str) -> None:
    module = traced(model(), X)
    assert condition in reasons(apply(ConstantFold(), module))


class DependsOnTheInput(Weighted):
    def forward(self, x: Tensor) -> Tensor:
        where = torch.arange(x.shape[0])
        causal = x.new_ones((x.size(0), x.size(0))).tril()
        return causal @ x + self.w[where % 4] + torch.zeros_like(x)


def test_what_depends_on_a_shape_of_the_input_is_not_constant() -> None:
    module = traced(DependsOnTheInput(), X)
    other = torch.randn(9, 4)
    expected = module(other)

    assert not apply(ConstantFold(), module).modified
    assert torch.equal(module(other), expected)


def test_a_write_that_others_see_is_not_lost() -> None:
    assert goes_wrong(ConstantFold(), case(WrittenAndReadElsewhere())) is None


class ViewsOnly(Weighted):
    def forward(self, x: Tensor) -> Tensor:
        return x @ self.w.t() + self.a.view(-1)[:4] + self.b.expand(5, 4).detach()


def test_views_of_weights_stay_views() -> None:
    module = traced(ViewsOnly(), X)

    result = apply(ConstantFold(), module)

    assert not result.modified
    assert not result.refusals


def test_tensors_that_are_trained_do_not_keep_others_from_being_folded() -> None:
    class Mixed(Weighted):
        def __init__(self) -> None:
            super().__init__()
            self.b.requires_grad_(False)

        def forward(self, x: Tensor) -> Tensor:
            return x * (self.a * self.b.exp())

    module = traced(Mixed(), X)
    expected = module(X)
    result = apply(ConstantFold(), module, training=True)

    assert [applied.node for applied in result.rewrites] == ["exp"]
    module(X).sum().backward()
    assert module.a.grad is not None
    torch.testing.assert_close(module(X), expected)


# -- the bound


class Grows(Weighted):
    def forward(self, x: Tensor) -> Tensor:
        return x * (self.a[:, None] * self.b)[0] + (self.a * self.b) + self.a * self.b.sum()


def test_the_model_grows_no_more_than_allowed() -> None:
    for allowed in (0, 16, 32, 1000):
        module = traced(Grows(), X)
        expected, before = module(X), _bytes(module)

        for _ in range(4):
            apply(ConstantFold(largest_bytes=allowed), module)
            apply(Dce(), module)

        assert _bytes(module) <= before + allowed
        torch.testing.assert_close(module(X), expected)


def test_what_is_too_large_is_said_to_be() -> None:
    class Large(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x + torch.ones(1000, 4).exp().sum()

    module = traced(Large(), X)

    result = apply(ConstantFold(largest_bytes=1000), module)

    assert not result.modified
    assert {(r.condition, r.legal) for r in result.refusals} == {("model_stays_small", True)}


def test_weights_that_nothing_reads_any_more_make_room() -> None:
    class Replaced(Weighted):
        def forward(self, x: Tensor) -> Tensor:
            return x @ (self.w * 2).tanh()

    module = traced(Replaced(), X)

    assert apply(ConstantFold(largest_bytes=0), module).modified
    (constant,) = [n for n in module.graph.nodes if n.op == "get_attr"]
    assert constant.meta[GROWTH] == 0


def _bytes(module: nn.Module) -> int:
    state = {*module.parameters(), *module.buffers()}
    state |= {t for t in vars(module).values() if isinstance(t, Tensor)}
    return sum(t.untyped_storage().nbytes() for t in state)


def test_keeps_the_metadata() -> None:
    module = traced(Chain(), X)
    (softmax,) = [n for n in module.graph.nodes if n.name == "softmax"]
    known = softmax.meta[VALUE]

    apply(ConstantFold(), module)

    (constant,) = [n for n in module.graph.nodes if n.op == "get_attr"]
    assert constant.meta[VALUE] is known
    assert constant.meta["origin"][:2] == ("constant_fold", "softmax")


class OfNumbers(nn.Module):
    """Normalises what is made of whole numbers: statistics are written, and compared with care."""

    def __init__(self, make: Any) -> None:
        super().__init__()
        self.make, self.linear, self.norm = make, nn.Linear(4, 4), nn.BatchNorm1d(3)

    def forward(self, x: Tensor) -> Tensor:
        made = self.make(torch.arange(4) * 2)
        return self.norm(self.linear(made.repeat(6).reshape(2, 3, 4))) + x.sum()


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize(
    "make",
    [
        lambda n: n.sigmoid(),
        lambda n: n / 3,
        lambda n: n.to(torch.float32).sigmoid().to(torch.float32),
    ],
    ids=["a function of integers", "a quotient", "a cast to the same"],
)
def test_floats_of_whole_numbers_are_made_in_float64(make: Any, training: bool) -> None:
    result = fxpasses.run(OfNumbers(make).train(training), "constant_fold", X)
    record = fxpasses.report(result).record
    assert record.verification.ok is True
    assert record.passes[0].rewrites

"""Products merged: in every spelling, right, and nowhere that it would be wrong or slower."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.fx import GraphModule

import fxpasses
from fxpasses.core import Condition
from fxpasses.manager import apply
from fxpasses.ops import Op
from fxpasses.passes import merge_linears as subject
from fxpasses.passes.merge_linears import MergeLinears, Site
from fxpasses.testing import check_pass
from tests.support import bare, exported, ops, reasons, traced

X = torch.randn(3, 4, generator=torch.Generator().manual_seed(0))
BATCH = torch.randn(2, 3, 4, generator=torch.Generator().manual_seed(1))
IMAGE = torch.randn(2, 4, 6, 6, generator=torch.Generator().manual_seed(2))
PRODUCTS = (Op.LINEAR, Op.CONV, Op.MATMUL, Op.MM, Op.ADDMM)


class Subject(nn.Module):
    """Computes what it is given, with layers at hand."""

    def __init__(self, compute: Callable[["Subject", Tensor], Any]) -> None:
        super().__init__()
        self.compute = compute
        torch.manual_seed(0)
        self.a, self.b, self.c = nn.Linear(4, 8), nn.Linear(4, 6, bias=False), nn.Linear(4, 8)
        self.w, self.v = nn.Parameter(torch.randn(4, 6)), nn.Parameter(torch.randn(4, 8))
        self.register_buffer("state", torch.randn(4, 8))
        self.narrow = nn.Parameter(torch.randn(8, 2))
        self.bias = nn.Parameter(torch.randn(6))
        self.conv, self.other = nn.Conv2d(4, 5, 1), nn.Conv2d(4, 3, 1, bias=False)
        self.padded, self.strided = nn.Conv2d(4, 3, 3, padding=1), nn.Conv2d(4, 3, 1, stride=2)
        self.grouped, self.mirrored = (
            nn.Conv2d(4, 4, 1, groups=2),
            nn.Conv2d(4, 5, 3, padding=1, padding_mode="reflect"),
        )
        self.relu, self.elu = nn.ReLU(inplace=True), nn.ELU(inplace=True)

    def forward(self, x: Tensor) -> Any:
        return self.compute(self, x)


def subject_of(compute: Any) -> Subject:
    return Subject(compute).eval()


def _heads(x: Tensor, layer: nn.Module) -> Tensor:
    rows, length, _ = x.shape
    return layer(x).view(rows, length, 2, -1).transpose(1, 2)


def _gates(s: Subject, x: Tensor) -> Tensor:
    one, other = s.a(x).chunk(2, -1)
    return one * other + s.c(x)[:, :4].sigmoid()


MERGED: dict[str, tuple[Any, Tensor]] = {
    "modules": (lambda s, x: s.a(x).sum() * s.c(x).cos(), X),
    "some with a bias": (lambda s, x: s.a(x).sum() + s.b(x).cos(), X),
    "functions": (
        lambda s, x: F.linear(x, s.a.weight).sum() + F.linear(x, weight=s.c.weight).cos(),
        X,
    ),
    "matrices": (lambda s, x: (x @ s.w).sum() + torch.matmul(x, s.v).cos(), X),
    "mm": (lambda s, x: torch.mm(x, s.w).sum() + x.mm(s.v).cos(), X),
    "addmm": (lambda s, x: torch.addmm(s.bias, x, s.w).sum() + s.a(x).cos(), X),
    "a buffer": (lambda s, x: (x @ s.state).sum() + s.a(x).cos(), X),
    "turned": (lambda s, x: (x @ s.a.weight.t()).sum() + s.b(x).cos(), X),
    "three axes": (lambda s, x: s.a(x).sum(1) + s.c(x).amax(1), BATCH),
    "heads": (lambda s, x: _heads(x, s.a) @ _heads(x, s.c).transpose(-1, -2), BATCH),
    "gates": (_gates, X),
    "flattened": (lambda s, x: s.a(x).view(-1).sum() + s.c(x).reshape(-1).exp(), X),
    "read in place": (lambda s, x: s.relu(s.a(x)).sum() + F.elu(s.c(x), inplace=True), X),
    "convolutions": (lambda s, x: s.conv(x).sum() + s.other(x).exp(), IMAGE),
    "padded": (
        lambda s, x: s.padded(x).sum() + F.conv2d(x, s.padded.weight, padding=(1, 1)).cos(),
        IMAGE,
    ),
    "joined": (lambda s, x: torch.cat([s.relu(s.conv(x)), s.elu(s.other(x))], 1), IMAGE),
    "one image": (lambda s, x: s.conv(y := x[0]).sum() + s.other(y).exp(), IMAGE),
}


def products(module: GraphModule) -> int:
    return sum(op in PRODUCTS for op in ops(module))


@pytest.mark.parametrize(("compute", "x"), MERGED.values(), ids=MERGED)
def test_products_of_one_value_become_one(compute: Any, x: Tensor) -> None:
    model = subject_of(compute)
    module = traced(model, x)
    before = products(module)

    result = apply(MergeLinears(), module)

    assert result.modified
    assert products(module) == before - 1
    assert not apply(MergeLinears(), module).modified
    for example in (x, x[:1], torch.cat([x, x * 2])):
        torch.testing.assert_close(module(example), model(example))


def test_a_graph_that_knows_nothing_of_sizes_and_one_of_torch_export() -> None:
    model = subject_of(MERGED["modules"][0])
    for module in (bare(model), exported(model, X)):
        assert apply(MergeLinears(), module).modified
        assert products(module) == 1
        torch.testing.assert_close(module(X), model(X))


def test_any_number_become_one() -> None:
    def many(s: Subject, x: Tensor) -> Tensor:
        return sum(layer(x).sum() for layer in (s.a, s.c, s.b)) + (x @ s.w).sum() + (x @ s.v).sum()

    module = traced(subject_of(many), X)
    apply(MergeLinears(), module)
    assert products(module) == 1


STAY: dict[str, tuple[Any, Tensor]] = {
    "other inputs": (lambda s, x: s.a(x).exp() * s.c(x * 2), X),
    "one after the other": (lambda s, x: s.a(x).exp() @ s.v.t() @ s.w, X),
    "strides": (lambda s, x: s.conv(x).sum() + s.strided(x).exp(), IMAGE),
    "kernels": (lambda s, x: s.conv(x).sum() + s.padded(x).exp(), IMAGE),
    "groups": (lambda s, x: s.conv(x).sum() + s.grouped(x).exp(), IMAGE),
    "padding": (lambda s, x: s.padded(x).sum() + s.mirrored(x).exp(), IMAGE),
    "computed weights": (lambda s, x: s.a(x).exp() + x @ (s.v * x.mean()), X),
    "factors": (lambda s, x: s.b(x).exp() + torch.addmm(s.bias, x, s.w, alpha=2), X),
}


@pytest.mark.parametrize(("compute", "x"), STAY.values(), ids=STAY)
def test_what_cannot_be_one_stays(compute: Any, x: Tensor) -> None:
    assert not apply(MergeLinears(), traced(subject_of(compute), x)).modified


# -- sums of products


def _chain(s: Subject, x: Tensor) -> Tensor:
    return s.a(x) + s.c(x.exp()) + x.cos() @ s.v


SUMS: dict[str, Any] = {
    "layers": lambda s, x: s.a(x) + s.c(x.relu()),
    "matrices": lambda s, x: x.cos() @ s.state + x.sin() @ s.v,
    "mixed": lambda s, x: s.a(x.cos()) + torch.mm(x.sin(), s.v),
    "through layers": lambda s, x: s.a(x) + s.c(F.layer_norm(x.exp() @ s.w @ s.w.t() + x, (4,))),
    "parts": lambda s, x: s.a(s.a(x).chunk(2, -1)[1].tanh()) + s.c(x.relu()),
    "in place": lambda s, x: s.a(x).add_(s.c(x.relu())),
}


@pytest.mark.parametrize("compute", SUMS.values(), ids=SUMS)
def test_a_sum_of_products_is_one_product(compute: Any) -> None:
    model = subject_of(compute)
    module = traced(model, X)
    before = products(module)

    apply(MergeLinears(), module)

    assert products(module) == before - 1
    assert Op.CAT in ops(module)
    for example in (X, X[:1], X[:0]):
        torch.testing.assert_close(module(example), model(example))


def test_a_chain_of_sums_is_one_product_of_one_join() -> None:
    module = traced(subject_of(_chain), X)
    apply(MergeLinears(), module)
    assert [op for op in ops(module) if op in (*PRODUCTS, Op.CAT)] == [Op.CAT, Op.LINEAR]
    torch.testing.assert_close(module(X), subject_of(_chain)(X))


# -- refusals


class Doubling(Tensor):
    """A tensor of its own kind: products with it come out doubled."""

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        out = super().__torch_function__(func, types, args, kwargs)
        return out * 2 if func is F.linear else out

    def __deepcopy__(self, memo):
        return self.clone().detach().as_subclass(Doubling)


def odd() -> Subject:
    model = subject_of(MERGED["modules"][0])
    model.a.weight = nn.Parameter(model.a.weight.detach().as_subclass(Doubling))
    return model


def _weight_written(s: Subject, x: Tensor) -> Tensor:
    first = x @ s.state
    s.state.mul_(2)
    return first.exp() + x @ s.v


def _input_written(s: Subject, x: Tensor) -> Tensor:
    h = x * 2
    first = s.a(h)
    h.add_(1)
    return first.exp() * s.c(h)


def _term_written(s: Subject, x: Tensor) -> Tensor:
    h = x * 2
    first = s.a(h)
    h.add_(1)
    return first + s.c(h.cos())


def _wide_inputs(s: Subject, x: Tensor) -> Tensor:
    tall = x.repeat(10_000, 2)
    return (tall @ s.narrow).cos() @ s.narrow.t() @ s.narrow + tall.cos() @ s.narrow


def _large(s: Subject, x: Tensor) -> tuple[Tensor, Tensor]:
    wide = x.repeat(10_000, 1)
    return s.a(wide), s.c(wide)


REFUSED: dict[Condition[Site], nn.Module] = {
    subject.parameters_are_plain_tensors: odd(),
    subject.nothing_writes_the_parameters: subject_of(_weight_written),
    subject.nothing_writes_between: subject_of(_input_written),
    subject.they_have_the_same_rows: subject_of(lambda s, x: s.a(x) + s.c(x[:1].exp())),
    subject.each_weight_keeps_its_gradient: subject_of(
        lambda s, x: s.a(x).sum() + s.c(x).detach().exp()
    ).train(),
    subject.only_the_sum_reads_them: subject_of(
        lambda s, x: torch.sigmoid(y := s.a(x)) * (y + s.c(x.exp()))
    ),
    subject.it_saves_time: subject_of(_large),
}

ALSO_REFUSED: list[tuple[Condition[Site], nn.Module]] = [
    (subject.nothing_writes_between, subject_of(_term_written)),
    (subject.each_weight_keeps_its_gradient, subject_of(MERGED["some with a bias"][0]).train()),
    (subject.it_saves_time, subject_of(_wide_inputs).train()),
    (subject.it_saves_time, subject_of(_wide_inputs)),
    *(
        (subject.they_have_the_same_rows, subject_of(compute))
        for compute in (
            lambda s, x: s.a(x) + s.c(x.mean(0, keepdim=True)),
            lambda s, x: s.a(x) + s.c(x.chunk(3)[0].cos()),
            lambda s, x: s.a(x) + s.c(torch.cat([x, x])[:3].cos()),
            lambda s, x: s.a(x.exp()) + s.c(s.v[:, :1].t() * 1),
        )
    ),
]


@pytest.mark.parametrize(
    ("condition", "model"),
    [*REFUSED.items(), *ALSO_REFUSED],
    ids=lambda v: getattr(v, "__name__", ""),
)
def test_refuses(condition: Condition[Site], model: nn.Module) -> None:
    module = traced(model, X)
    before = ops(module)

    result = apply(MergeLinears(), module, training=model.training)

    assert reasons(result) == [condition.__name__]
    assert all(refusal.remedy for refusal in result.refusals)
    assert ops(module) == before


def test_every_refusal_is_tested_here() -> None:
    conditions = (*MergeLinears.legal_if, *MergeLinears.worthwhile_if)
    assert conditions == tuple(REFUSED)
    assert set(MergeLinears.remedies) == set(conditions)


def test_one_that_cannot_join_leaves_the_others_their_chance() -> None:
    def writes(s: Subject, x: Tensor) -> Tensor:
        first = s.a(x).sum() + (x @ s.state).sum() + s.b(x).sum()
        s.state.mul_(2)
        return first

    module = traced(subject_of(writes), X)
    result = apply(MergeLinears(), module)
    assert reasons(result) == ["nothing_writes_the_parameters"]
    assert products(module) == 2


def test_keeps_the_promises_of_a_pass() -> None:
    check_pass(
        MergeLinears,
        models=[
            *((subject_of(MERGED[name][0]), MERGED[name][1]) for name in ("heads", "joined")),
            (subject_of(SUMS["layers"]), X),
        ],
        goes_wrong={c: (REFUSED[c], X) for c in MergeLinears.legal_if},
        still_right={c: (REFUSED[c], X) for c in MergeLinears.worthwhile_if},
    )


# -- results


def _handed_out(s: Subject, x: Tensor) -> list[Tensor]:
    return [s.a(x), s.b(x), s.c(x), x @ s.w, x @ s.v]


@pytest.mark.parametrize("rows", [1, 3])
def test_what_is_handed_out_has_memory_of_its_own(rows: int) -> None:
    model = subject_of(_handed_out)
    module = traced(model, X)
    assert apply(MergeLinears(), module).modified

    got, wanted = module(X[:rows]), model(X[:rows])

    torch.testing.assert_close(got, wanted)
    assert [t.stride() for t in got] == [t.stride() for t in wanted]
    assert len({t.untyped_storage().data_ptr() for t in got}) == len(got)


def test_what_is_written_has_memory_of_its_own() -> None:
    def writes(s: Subject, x: Tensor) -> list[Tensor]:
        first, *others = _handed_out(s, x)
        first.view(-1)[:3].mul_(2)
        return [first.sum(), *(other.sum() for other in others)]

    model = subject_of(writes)
    module = traced(model, X)
    apply(MergeLinears(), module)
    assert ops(module).count(Op.CLONE) == 1
    # Autograd does not let parts of one split be written.
    torch.testing.assert_close(module(X.clone().requires_grad_()), model(X))


def test_gradients_reach_the_terms_of_a_sum() -> None:
    model = subject_of(lambda s, x: s.a(x) + s.c(x.cos())).train()

    result = fxpasses.run(model, "merge_linears", (X,), training=True)

    assert products(result) == 1
    assert fxpasses.report(result).record.verification.ok is True
    result(X).sum().backward()
    trained = {name for name, p in result.named_parameters() if p.grad is not None}
    assert trained == {"a.weight", "a.bias", "c.weight", "c.bias"}
    assert result.state_dict().keys() == model.state_dict().keys()


def test_large_weights_that_are_trained_are_not_joined_in_each_step() -> None:
    class Wide(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one, self.other = nn.Linear(64, 256), nn.Linear(64, 256)

        def forward(self, x: Tensor) -> Tensor:
            return self.one(x) + self.other(x.cos())

    x = torch.randn(5, 64)
    trained = fxpasses.run(Wide().train(), "merge_linears", (x,), training=True)
    (refusal,) = fxpasses.report(trained).record.passes[0].refusals
    assert "joined anew in each step" in refusal.reason
    assert products(fxpasses.run(Wide().eval(), "merge_linears", (x,))) == 1


def test_the_branches_of_an_inception_block_become_one() -> None:
    googlenet = pytest.importorskip("torchvision.models.googlenet")
    model = googlenet.Inception(4, 4, 4, 6, 2, 4, 4).eval()

    result = fxpasses.run(model, "fuse_conv_bn,merge_linears,dce", (IMAGE,))

    assert products(result) == 4  # of six
    assert fxpasses.report(result).record.verification.ok is True
    torch.testing.assert_close(result(IMAGE[:1]), model(IMAGE[:1]))

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import fxpasses
from fxpasses.core import Condition
from fxpasses.manager import apply
from fxpasses.ops import Op
from fxpasses.passes import cse as subject
from fxpasses.passes.cse import Cse, Site
from fxpasses.testing import check_pass
from fxpasses.text import graph_text
from tests.support import ops, reasons, traced

X = torch.randn(3, 4, generator=torch.Generator().manual_seed(0))
N = torch.arange(4)


class Subject(nn.Module):
    """Computes what it is given, with layers at hand."""

    def __init__(self, compute: Callable[["Subject", Tensor], Any]) -> None:
        super().__init__()
        self.compute = compute
        torch.manual_seed(0)
        self.linear, self.other, self.relu, self.again = (
            nn.Linear(4, 4),
            nn.Linear(4, 4),
            nn.ReLU(),
            nn.ReLU(),
        )
        self.tied = nn.Linear(4, 4)
        self.tied.weight, self.tied.bias = self.linear.weight, self.linear.bias
        self.leaky, self.leakier = nn.LeakyReLU(0.1), nn.LeakyReLU(0.2)
        self.dropout = nn.Dropout(0.5)
        self.norm = nn.BatchNorm1d(4)
        self.hooked = nn.ReLU()
        self.register_buffer("state", torch.ones(4))

    def forward(self, x: Tensor) -> Any:
        return self.compute(self, x)


def subject_of(compute: Any) -> Subject:
    return Subject(compute).eval()


MERGED: dict[str, Any] = {
    "functions": lambda s, x: torch.cos(x) + torch.cos(x),
    "spellings": lambda s, x: torch.cos(x) + x.cos(),
    "keywords": lambda s, x: torch.add(x, 2) + torch.add(x, other=2),
    "operators": lambda s, x: (x * 2) / (2 * x),
    "one module": lambda s, x: s.linear(x) + s.linear(x),
    "equal modules": lambda s, x: s.relu(x) - s.again(x),
    "tied modules": lambda s, x: s.linear(x) - s.tied(x),
    "a parameter": lambda s, x: x @ s.linear.weight + x @ s.linear.weight,
    "lists": lambda s, x: torch.cat([x, x]) + torch.cat([x, x]),
    "slices": lambda s, x: x[:, 1:3] + x[:, 1:3],
    "factories": lambda s, x: x + torch.zeros(4) + torch.zeros(4),
    "dropout in eval": lambda s, x: s.dropout(x) + s.dropout(x),
    "casts": lambda s, x: x.double() + x.double(),
}


@pytest.mark.parametrize("compute", MERGED.values(), ids=MERGED)
def test_what_is_computed_twice_is_computed_once(compute: Any) -> None:
    module = traced(subject_of(compute), X)
    expected, before = module(X), len(module.graph.nodes)

    result = apply(Cse(), module)

    assert result.modified
    assert len(module.graph.nodes) < before
    assert not apply(Cse(), module).modified
    torch.testing.assert_close(module(X), expected, rtol=0, atol=0)


def test_chains_become_one_in_one_sweep() -> None:
    def twice(_: Subject, x: Tensor) -> Tensor:
        return (x.cos().exp() * 2) + (2 * torch.exp(torch.cos(x)))

    module = traced(subject_of(twice), X)
    apply(Cse(), module)

    text = "%0 = input\n%1 = cos(%0)\n%2 = exp(%1)\n%3 = mul(%2)\n%4 = add(%3)\nreturn %4"
    assert graph_text(module) == text


DIFFERENT: dict[str, tuple[Any, Tensor]] = {
    "types of numbers": (lambda s, n: (n + 1, n + 1.0, n * True, n * 1, n * 1.0), N),
    "fills": (lambda s, n: (torch.full((2,), 1), torch.full((2,), 1.0), n), N),
    "zeros of two signs": (lambda s, x: torch.copysign(x, 0.0) - torch.copysign(x, -0.0), X),
    "dtypes": (lambda s, x: x.double() + x.half(), X),
    "targets of a cast": (lambda s, x: x.to(torch.float64) + x.to(torch.float16), X),
    "settings": (lambda s, x: s.leaky(x) + s.leakier(x), X),
    "weights": (lambda s, x: s.linear(x) + s.other(x), X),
    "operands": (lambda s, x: (x - 1) + (1 - x), X),
    "an index of lists or tuples": (lambda s, x: x[[0, 1]].sum() + x[(0, 1)], X),
    "alphas": (lambda s, x: torch.add(x, s.state, alpha=2) + torch.add(s.state, x, alpha=2), X),
    "shapes joined": (lambda s, x: (x.shape + (1,), (1,) + x.shape, x), X),  # noqa: RUF005
}


@pytest.mark.parametrize(("compute", "x"), DIFFERENT.values(), ids=DIFFERENT)
def test_what_differs_stays(compute: Any, x: Tensor) -> None:
    module = traced(subject_of(compute), x)
    before = [op for op in ops(module) if op not in (Op.SIZE, Op.GETATTR)]

    result = apply(Cse(), module)

    assert [op for op in ops(module) if op not in (Op.SIZE, Op.GETATTR)] == before
    assert not result.refusals


def _input_written(_: Subject, x: Tensor) -> Tensor:
    y = x.clone()
    first = y.cos()
    y.add_(1)
    return first + y.cos()


def _statistics_written(s: Subject, x: Tensor) -> Tensor:
    first = s.norm(x)
    s.norm.running_mean.add_(1)
    return first - s.norm(x)


def _result_written(_: Subject, x: Tensor) -> Tensor:
    first = x.cos()
    first.add_(1)
    return first + x.cos()


def _first_writes(_: Subject, x: Tensor) -> Tensor:
    y = x + 1
    return y.mul_(2) - y * 2


def _second_written(_: Subject, x: Tensor) -> Tensor:
    first, second = torch.zeros(4), torch.zeros(4)
    second.view(2, 2).add_(1)
    return first + second + x


REFUSED: dict[Condition[Site], Any] = {
    subject.both_only_compute: lambda s, x: torch.rand_like(x) - torch.rand_like(x),
    subject.nothing_writes_what_it_reads: _input_written,
    subject.its_state_is_never_written: _statistics_written,
    subject.neither_is_written: _result_written,
    subject.not_both_are_handed_out: lambda s, x: (x.cos(), x.cos()),
}

ALSO_REFUSED: list[tuple[Condition[Site], Any]] = [
    (subject.both_only_compute, lambda s, x: F.dropout(x, 0.5) - F.dropout(x, 0.5)),
    (subject.both_only_compute, lambda s, x: torch.bernoulli(x.abs()) - torch.bernoulli(x.abs())),
    (subject.both_only_compute, _first_writes),
    (subject.neither_is_written, _second_written),
    (subject.not_both_are_handed_out, lambda s, x: [x.cos(), {"b": x.cos().view(-1)}]),
]


@pytest.mark.parametrize(
    ("condition", "compute"),
    [*REFUSED.items(), *ALSO_REFUSED],
    ids=lambda v: getattr(v, "__name__", ""),
)
def test_refuses(condition: Condition[Site], compute: Any) -> None:
    module = traced(subject_of(compute), X / 4)

    result = apply(Cse(), module)

    assert condition.__name__ in reasons(result)
    assert all(refusal.remedy for refusal in result.refusals)


def test_every_refusal_is_tested_here() -> None:
    assert Cse.legal_if == tuple(REFUSED)
    assert set(Cse.remedies) == set(Cse.legal_if)


def test_keeps_the_promises_of_a_pass() -> None:
    check_pass(
        Cse,
        models=[(subject_of(MERGED[name]), X) for name in ("operators", "one module")],
        goes_wrong={c: (subject_of(compute), X) for c, compute in REFUSED.items()},
    )


def test_what_is_hooked_is_never_merged() -> None:
    calls: list[int] = []
    model = subject_of(lambda s, x: s.hooked(x) + s.hooked(x))
    model.hooked.register_forward_hook(lambda *_: calls.append(1))

    result = fxpasses.run(model, "cse", (X,))
    calls.clear()
    result(X)

    assert len(calls) == 2


def test_gradients_are_equal() -> None:
    model = subject_of(lambda s, x: s.linear(x).relu() * s.linear(x)).train()

    result = fxpasses.run(model, "cse", (X,), training=True)

    assert len(fxpasses.report(result).record.passes[0].rewrites) == 1


def test_the_same_is_found_across_a_captured_model() -> None:
    model = subject_of(lambda s, x: s.linear(x).softmax(-1) + s.linear(x).softmax(-1))

    result = fxpasses.run(model, "cse,dce", (X,))

    assert [op for op in ops(result) if op in (Op.LINEAR, Op.SOFTMAX)] == [Op.LINEAR, Op.SOFTMAX]

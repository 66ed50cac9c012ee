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
from fxpasses.passes import simplify as subject
from fxpasses.passes.simplify import RULES, Simplify, Site
from fxpasses.testing import check_pass
from tests.support import ops, reasons, traced

X = torch.randn(2, 3, 4, generator=torch.Generator().manual_seed(0))
N = torch.arange(6).reshape(2, 3)
FLAGS = N > 2


class Subject(nn.Module):
    def __init__(self, compute: Callable[["Subject", Tensor], Any]) -> None:
        super().__init__()
        self.compute = compute
        self.dropout, self.identity = nn.Dropout(0.5), nn.Identity()
        self.linear = nn.Linear(4, 4)
        self.register_buffer("weight", torch.linspace(1, 2, 4))

    def forward(self, x: Tensor) -> Any:
        return self.compute(self, x)


def subject_of(compute: Any) -> Subject:
    return Subject(compute).eval()


GONE: dict[str, tuple[Any, list[Op]]] = {
    "dropout": (lambda s, x: s.dropout(x.cos()) + 1, [Op.COS, Op.ADD]),
    "functional dropout": (lambda s, x: F.dropout(x.cos(), 0.5, False) + 1, [Op.COS, Op.ADD]),
    "the identity": (lambda s, x: s.identity(x.cos()) + 1, [Op.COS, Op.ADD]),
    "times one": (lambda s, x: (x.cos() * 1).sin(), [Op.COS, Op.SIN]),
    "one times": (lambda s, x: (1.0 * x.cos()).sin(), [Op.COS, Op.SIN]),
    "by one": (lambda s, x: (x.cos() / 1).sin(), [Op.COS, Op.SIN]),
    "plus zero": (lambda s, x: (x.cos() + 0).sin(), [Op.COS, Op.SIN]),
    "zero plus": (lambda s, x: torch.add(0, x.cos()).sin(), [Op.COS, Op.SIN]),
    "minus zero": (lambda s, x: (x.cos() - 0.0).sin(), [Op.COS, Op.SIN]),
    "to the first": (lambda s, x: (x.cos() ** 1).sin(), [Op.COS, Op.SIN]),
    "factors": (lambda s, x: x.cos() * 0.5 * 0.25, [Op.COS, Op.MUL]),
    "large factors": (lambda s, x: 3 * (x.cos() * 2), [Op.COS, Op.MUL]),
    "negations": (lambda s, x: x.cos().neg().neg().sin(), [Op.COS, Op.SIN]),
    "a cast to itself": (lambda s, x: x.cos().float().sin(), [Op.COS, Op.SIN]),
    "a widening cast": (lambda s, x: x.half().float().double().sin(), [Op.CAST, Op.CAST, Op.SIN]),
    "there and back": (lambda s, x: x.cos().double().float().sin(), [Op.COS, Op.SIN]),
    "transpositions": (lambda s, x: x.transpose(0, 1).transpose(1, 0).sin(), [Op.SIN]),
    "permutations": (lambda s, x: x.permute(1, 2, 0).permute(2, 0, 1).sin(), [Op.SIN]),
    "permutations into one": (
        lambda s, x: x.permute(1, 2, 0).transpose(0, 1).sin(),
        [Op.PERMUTE, Op.SIN],
    ),
    "reshapes": (
        lambda s, x: s.linear(x.cos().reshape(24).reshape(-1, 4)),
        [Op.COS, Op.RESHAPE, Op.LINEAR],
    ),
    "views": (lambda s, x: x.view(6, 4).view(-1).sin(), [Op.VIEW, Op.SIN]),
    "flattenings": (
        lambda s, x: x.cos().flatten(1).flatten(1).contiguous().sin(),
        [Op.COS, Op.FLATTEN, Op.CONTIGUOUS, Op.SIN],
    ),
    "flattening more": (
        lambda s, x: x.cos().flatten(1).flatten().contiguous().sin(),
        [Op.COS, Op.FLATTEN, Op.CONTIGUOUS, Op.SIN],
    ),
    "a join of one": (lambda s, x: s.linear(torch.cat([x.cos()], 1)), [Op.COS, Op.LINEAR]),
    "slices of all": (lambda s, x: x.cos()[:][..., 0:][:, ::1].sin(), [Op.COS, Op.SIN]),
    "a clone": (lambda s, x: x.cos().clone().sin(), [Op.COS, Op.SIN]),
    "contiguous twice": (
        lambda s, x: x.contiguous().view(6, 4).contiguous().sin(),
        [Op.CONTIGUOUS, Op.VIEW, Op.SIN],
    ),
    "a contiguous factory": (
        lambda s, x: x + torch.ones(3, 4).contiguous(),
        [Op.ONES, Op.ADD],
    ),
    "a result": (lambda s, x: x.cos() * 1, [Op.COS]),
}


@pytest.mark.parametrize(("compute", "left"), GONE.values(), ids=GONE)
def test_what_changes_nothing_goes(compute: Any, left: list[Op]) -> None:
    module = traced(subject_of(compute), X)
    expected = module(X)

    result = apply(Simplify(), module)

    assert result.modified
    assert ops(module) == left
    assert not apply(Simplify(), module).modified
    torch.testing.assert_close(module(X), expected)


def test_every_rule_is_tested() -> None:
    used = set()
    for compute, _ in GONE.values():
        module = traced(subject_of(compute), X)
        facts = _facts(module)
        used |= {rule for rule in RULES for node in module.graph.nodes if rule(node, facts)}
    assert used == set(RULES)


def _facts(module: torch.fx.GraphModule) -> Any:
    from fxpasses.analysis.facts import GraphFacts

    return GraphFacts(module)


KEPT: dict[str, tuple[Any, Tensor]] = {
    "times zero": (lambda s, x: (x * 0, x - x, x / x), X),
    "zero minus, one by": (lambda s, x: (0 - x, 1 / x, torch.rsub(x, 0), 1**x), X),
    "an alpha of zero": (lambda s, x: torch.add(x, x, alpha=0), X),
    "a narrowing cast": (lambda s, x: (x.half().float(), x.int().float()), X),
    "a cast through integers": (lambda s, n: n.float().long(), N + 2**30),
    "factors that both overflow": (lambda s, x: x * 1e30 * 1e30, X),
    "factors that both vanish": (lambda s, x: x * 1e-30 * 1e-30 * 1e30, X),
    "factors that are subnormal": (lambda s, x: x * 3e-22 * 3e-22, X),
    "factors that overflow": (lambda s, x: x * 1e30 * 1e-30, X),
    "factors of integers": (lambda s, n: n * 3 * 5, N),
    "a floor division": (lambda s, x: torch.div(x, 1, rounding_mode="floor"), X),
    "a part": (lambda s, x: (x[1:], x[:, :-1], x[::2], x[None]), X),
    "another layout": (lambda s, x: x.transpose(0, 1).contiguous(), X),
    "active dropout": (lambda s, x: F.dropout(x, 0.5), X),
    "a copy that is asked for": (lambda s, x: x.to(torch.float32, copy=True), X),
    "flattening other axes": (lambda s, x: x.flatten(1).unflatten(1, (3, 4)).flatten(0, 1), X),
    "a sum of lists": (lambda s, x: x.sum() + len([1] * 1), X),
}


@pytest.mark.parametrize(("compute", "x"), KEPT.values(), ids=KEPT)
def test_what_is_no_identity_stays(compute: Any, x: Tensor) -> None:
    module = traced(subject_of(compute), x)
    before = ops(module)

    result = apply(Simplify(), module)

    assert ops(module) == before
    assert not result.modified


def _written_between(_: Subject, x: Tensor) -> Tensor:
    inner = x.cos() * 2
    inner.add_(1)
    return inner * 3


def _written_later(_: Subject, x: Tensor) -> Tensor:
    y = x.cos()
    kept = y * 1
    y.add_(1)
    return kept + y


def _result_written(_: Subject, x: Tensor) -> Tensor:
    y = x.cos()
    kept = y.clone()
    kept.add_(1)
    return kept * y


def _dense_view(_: Subject, x: Tensor) -> Tensor:
    return (x[..., 1:] * 1).view(-1).sin()


def _negated_in_place(_: Subject, x: Tensor) -> Tensor:
    y = x.cos()
    return -y.neg_() + y


REFUSED: dict[Condition[Site], tuple[Any, Tensor]] = {
    subject.it_only_computes: (_negated_in_place, X),
    subject.dtype_stays: (lambda s, n: (n.abs() * 1.0).sum(), N),
    subject.nothing_writes_in_between: (_written_between, X),
    subject.no_write_is_seen: (_written_later, X),
    subject.nothing_new_is_shared: (lambda s, x: (y := x.cos(), y * 1), X),
    subject.layout_stays: (_dense_view, X),
    subject.inner_call_goes: (lambda s, x: (y := x.cos() * 2, (y * 3) + y)[1], X),
}

ALSO_REFUSED: list[tuple[Condition[Site], Any, Tensor]] = [
    (subject.dtype_stays, lambda s, n: n + 0.0, N),
    (subject.dtype_stays, lambda s, n: n / 1, N),
    (subject.dtype_stays, lambda s, n: n - 0.0, N),
    (subject.dtype_stays, lambda s, n: n * 1, FLAGS),
    (subject.dtype_stays, lambda s, n: n + 0, FLAGS),
    (subject.it_only_computes, lambda s, x: (y := x.cos(), y.mul_(1.0), y.sin())[2], X),
    (subject.no_write_is_seen, _result_written, X),
    (subject.nothing_new_is_shared, lambda s, x: s.weight * 1, X),
    (subject.nothing_new_is_shared, lambda s, x: x * 1, X),
    (subject.dtype_stays, lambda s, n: n * 1.0, N),
    (subject.layout_stays, lambda s, x: x.cos()[..., ::2] * 1, X),
    (subject.layout_stays, lambda s, x: torch.cat([x]) * 2, X),
    (subject.layout_stays, lambda s, x: torch.cat([x.cos()]), X),
    (subject.layout_stays, lambda s, x: (x * 1).sin(), X),
    (subject.nothing_new_is_shared, lambda s, x: x[:], X),
    (subject.nothing_new_is_shared, lambda s, x: x.transpose(0, 1).transpose(1, 0), X),
    (subject.nothing_new_is_shared, lambda s, x: (y := x.cos(), y[:]), X),
    (subject.no_write_is_seen, lambda s, x: (y := x.cos(), y[:].unsqueeze_(0), y.sin())[2], X),
    (subject.layout_stays, lambda s, x: (x.clone().view(-1)).sin(), X),
]


@pytest.mark.parametrize(
    ("condition", "compute", "x"),
    [*((c, *case) for c, case in REFUSED.items()), *ALSO_REFUSED],
    ids=lambda v: getattr(v, "__name__", "") if callable(v) else "",
)
def test_refuses(condition: Condition[Site], compute: Any, x: Tensor) -> None:
    module = traced(subject_of(compute), x)
    before = ops(module)

    result = apply(Simplify(), module)

    assert condition.__name__ in reasons(result)
    assert ops(module) == before
    assert all(refusal.remedy for refusal in result.refusals)


def test_every_refusal_is_tested_here() -> None:
    assert (*Simplify.legal_if, *Simplify.worthwhile_if) == tuple(REFUSED)
    assert set(Simplify.remedies) == set(REFUSED)


def test_keeps_the_promises_of_a_pass() -> None:
    cases = {condition: (subject_of(compute), x) for condition, (compute, x) in REFUSED.items()}
    check_pass(
        Simplify,
        models=[(subject_of(GONE[name][0]), X) for name in ("factors", "permutations into one")],
        goes_wrong={condition: cases[condition] for condition in Simplify.legal_if},
        still_right={condition: cases[condition] for condition in Simplify.worthwhile_if},
    )


def test_gradients_and_a_captured_model() -> None:
    def compute(s: Subject, x: Tensor) -> Tensor:
        return (s.weight * x.transpose(1, 2).transpose(1, 2) * 0.5 * 0.5).flatten(1).flatten(1)

    result = fxpasses.run(subject_of(compute), "simplify", (X,), training=True)

    assert ops(result) == [Op.MUL, Op.MUL, Op.FLATTEN]

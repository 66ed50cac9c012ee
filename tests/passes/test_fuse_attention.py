import math
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
from fxpasses.passes import fuse_attention as subject
from fxpasses.passes.fuse_attention import FuseAttention, Site
from fxpasses.testing import Model, check_pass
from fxpasses.text import graph_text
from tests.support import exported, ops

GENERATOR = torch.Generator().manual_seed(0)
SHAPE = (2, 3, 5, 4)
"""Batch, heads, queries, features."""
Q, K, V = (torch.randn(SHAPE, generator=GENERATOR) for _ in range(3))
K7, V7 = (torch.randn(2, 3, 7, 4, generator=GENERATOR) for _ in range(2))
KEEP = torch.rand(2, 1, 5, 5, generator=GENERATOR) > 0.4
KEEP[0, 0, 1] = False
X = torch.randn(2, 5, 12, generator=GENERATOR)
BIAS = torch.randn(3, 5, 5, generator=GENERATOR)
MIN = torch.finfo(torch.float32).min


class Subject(nn.Module):
    """`compute(self, *args)`, with weights that a model might have."""

    def __init__(self, compute: Callable[..., Any]) -> None:
        super().__init__()
        self.compute = compute
        torch.manual_seed(0)
        self.drop, self.softmax = nn.Dropout(0.5), nn.Softmax(dim=-1)
        self.mix, self.out = nn.Linear(5, 5), nn.Linear(12, 12)
        self.table = nn.Parameter(torch.randn(3, 5, 5))
        self.temperature = nn.Parameter(torch.rand(3, 1, 1) + 1)
        self.register_buffer("windows", torch.randn(2, 5, 5))
        self.register_buffer("triangle", torch.ones(9, 9).tril().view(1, 1, 9, 9))

    def forward(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        m: Tensor | None = None,
        b: Tensor | None = None,
    ) -> Any:
        return self.compute(self, *[one for one in (q, k, v, m, b) if one is not None])


def subject_of(compute: Callable[..., Any]) -> Subject:
    return Subject(compute).eval()


def scores(q: Tensor, k: Tensor) -> Tensor:
    return q @ k.transpose(-2, -1)


def heads(x: Tensor) -> Tensor:
    return x.view(2, 5, 3, 4).transpose(1, 2)


def windowed(x: Tensor, heads: int = 3) -> Tensor:
    return x.view(-1, 5, heads, 12 // heads).transpose(1, 2)


# What becomes of an attention: nothing but the call, and what stands around it.
CALL = "sdpa"
SPELLINGS: dict[str, tuple[Any, tuple[Tensor, ...], list[str]]] = {
    "operators": (lambda s, q, k, v: torch.softmax(scores(q, k) / 2.0, -1) @ v, (Q, K, V), []),
    "functions": (
        lambda s, q, k, v: torch.matmul(
            F.softmax(torch.mul(torch.matmul(q, k.transpose(2, 3)), 0.5), dim=3), v
        ),
        (Q, K, V),
        [],
    ),
    "methods": (
        lambda s, q, k, v: q.matmul(k.swapaxes(-1, -2)).mul(0.5).softmax(dim=-1).matmul(v),
        (Q, K, V),
        [],
    ),
    "modules": (lambda s, q, k, v: s.drop(s.softmax(scores(q, k) * 0.5)) @ v, (Q, K, V), []),
    "no scale": (lambda s, q, k, v: scores(q, k).softmax(-1) @ v, (Q, K, V), []),
    "scaled queries": (lambda s, q, k, v: scores(q * 0.5, k).softmax(-1) @ v, (Q, K, V), []),
    "scaled keys": (lambda s, q, k, v: scores(q, k / 2).softmax(-1) @ v, (Q, K, V), []),
    "all scaled": (
        lambda s, q, k, v: (scores(0.7 * q, k / 1.5) * 1.3).softmax(-1) @ v,
        (Q, K, V),
        [],
    ),
    "queries scaled in place that are read on": (
        lambda s, q, k, v: (
            q := q.clone(),
            s.drop(scores(q.mul_(0.5), k).softmax(-1)) @ v + q.sum(),
        )[1],
        (Q, K, V),
        ["clone", "mul", "sum", "add"],
    ),
    "negative scale": (
        lambda s, q, k, v: (scores(q, k) * -0.5).softmax(-1) @ v,
        (Q, K, V),
        ["mul"],
    ),
    "keys laid out for the product": (
        lambda s, q, k, v: torch.softmax(q @ k, -1) @ v,
        (Q, K.transpose(-2, -1).contiguous(), V),
        ["transpose"],
    ),
    "weights on the right": (
        lambda s, q, k, v: v.transpose(-2, -1) @ scores(k, q).softmax(-2),
        (Q, K, V),
        ["permute"],
    ),
    "einsum": (
        lambda s, q, k, v: torch.einsum(
            "bhij,bhjd->bhid", torch.einsum("bhid,bhjd->bhij", q, k).softmax(-1), v
        ),
        (Q, K, V),
        [],
    ),
    "einsum with the heads behind": (
        lambda s, q, k, v: torch.einsum(
            "b h q k, b k h d -> b q h d",
            (torch.einsum("bqhd,bkhd->bhqk", q, k) / 2).softmax(-1),
            v,
        ),
        (Q, K, V),
        ["permute"] * 4,
    ),
    "three axes": (
        lambda s, q, k, v: torch.bmm(torch.bmm(q, k.transpose(1, 2)).softmax(-1), v),
        (Q[0], K[0], V[0]),
        ["unsqueeze"] * 3 + ["squeeze"],
    ),
    "two axes": (
        lambda s, q, k, v: torch.mm(torch.mm(q, k.t()).softmax(1), v),
        (Q[0, 0], K[0, 0], V[0, 0]),
        ["unsqueeze"] * 6 + ["squeeze"] * 2,
    ),
    "baddbmm": (
        lambda s, q, k, v, m: torch.bmm(
            torch.baddbmm(m, q, k.transpose(1, 2), beta=0.5, alpha=0.25).softmax(-1), v
        ),
        (Q[0], K[0], V[0], BIAS),
        ["mul"] + ["unsqueeze"] * 4 + ["squeeze", "amax", "isfinite", "where"],
    ),
    "an integer bias": (
        lambda s, q, k, v, m: (scores(q, k) + m.long()).softmax(-1) @ v,
        (Q, K, V, 3 * BIAS[0]),
        ["cast", "cast"],
    ),
    "other lengths": (lambda s, q, k, v: scores(q, k).softmax(-1) @ v, (Q, K7, V7), []),
    "a bias of the model": (
        lambda s, q, k, v: (scores(q, k) * 0.5 + s.table).softmax(-1) @ v,
        (Q, K, V),
        ["unsqueeze"],
    ),
    "a bias in place": (
        lambda s, q, k, v: scores(q, k).mul_(0.5).add_(s.table).softmax(-1) @ v,
        (Q, K, V),
        ["unsqueeze"],
    ),
    "a bias that is scaled later": (
        lambda s, q, k, v: ((scores(q, k) - 2 * s.table) * 0.5).softmax(-1) @ v,
        (Q, K, V),
        ["mul", "neg", "mul", "unsqueeze"],
    ),
    "a factor for each head": (
        lambda s, q, k, v: (
            (scores(F.normalize(q), F.normalize(k)) * s.temperature.clamp(max=9).exp()).softmax(-1)
            @ v
        ),
        (Q, K, V),
        ["normalize", "normalize", "clamp", "exp", "mul"],
    ),
    "scaled by the size": (
        lambda s, q, k, v: (scores(q, k) * (1.0 / math.sqrt(k.size(-1)))).softmax(-1) @ v,
        (Q, K, V),
        ["size", "div", "mul"],
    ),
    "grouped queries": (
        lambda s, q, k, v: (
            scores(q, k.repeat_interleave(3, 1)).softmax(-1) @ v.expand(-1, 3, -1, -1)
        ),
        (Q, K[:, :1], V[:, :1]),
        ["repeat_interleave", "expand"],
    ),
    "a finite additive mask": (
        lambda s, q, k, v, m: (scores(q, k) + torch.where(m, 0.0, MIN)).softmax(-1) @ v,
        (Q, K, V, KEEP),
        ["where"],
    ),
    "any additive mask": (
        lambda s, q, k, v, m: (scores(q, k) + m).softmax(-1) @ v,
        (Q, K, V, torch.zeros(2, 1, 5, 5).masked_fill(~KEEP, -math.inf)),
        ["amax", "isfinite", "where"],
    ),
    "masked_fill": (
        lambda s, q, k, v, m: scores(q, k).masked_fill(~m, -math.inf).softmax(-1) @ v,
        (Q, K, V, KEEP),
        ["any", "where"],
    ),
    "masked_fill with a number": (
        lambda s, q, k, v, m: scores(q, k).masked_fill(m, -1e9).softmax(-1) @ v,
        (Q, K, V, ~KEEP),
        ["logical_not", "any", "mean", "where"],
    ),
    "where": (
        lambda s, q, k, v, m: torch.where(m, scores(q, k), torch.full([], MIN)).softmax(-1) @ v,
        (Q, K, V, KEEP),
        ["any", "mean", "where"],
    ),
    "where the other way": (
        lambda s, q, k, v, m: torch.where(m, -math.inf, scores(q, k)).softmax(-1) @ v,
        (Q, K, V, KEEP[0, 0]),
        ["logical_not", "any", "where"],
    ),
    "a bias and a mask": (
        lambda s, q, k, v, m: (scores(q, k) + s.table).masked_fill(m, -1e9).softmax(-1) @ v,
        (Q, K, V, ~KEEP),
        ["masked_fill", "amax", "isfinite", "mean", "where"],
    ),
    "two masks": (
        lambda s, q, k, v, m, n: (
            scores(q, k).masked_fill(m, -math.inf).masked_fill(~n, -math.inf).softmax(-1) @ v
        ),
        (Q, K, V, ~KEEP, KEEP[1, 0, 0]),
        ["bitwise_or", "bitwise_not", "logical_not", "any", "where"],
    ),
    "a triangle made on the way": (
        lambda s, q, k, v: (
            scores(q, k)
            .masked_fill(torch.ones(5, 5, dtype=torch.bool).triu(1), -math.inf)
            .softmax(-1)
            @ v
        ),
        (Q, K, V),
        ["ones", "triu", "logical_not"],
    ),
    "a triangle that the model holds": (
        lambda s, q, k, v: (
            scores(q, k)
            .masked_fill(
                s.triangle[:, :, k.size(2) - q.size(2) : k.size(2), : k.size(2)] == 0, -math.inf
            )
            .softmax(-1)
            @ v
        ),
        (Q, K7, V7),
        ["eq", "logical_not", "any", "where"],
    ),
    "float32 for the softmax": (
        lambda s, q, k, v: scores(q, k).softmax(-1, dtype=torch.float32).to(q.dtype) @ v,
        (Q, K, V),
        [],
    ),
    "half precision, masked in float32": (
        lambda s, q, k, v, m: (
            F.softmax(scores(q, k).float().masked_fill(m, MIN), -1).to(q.dtype) @ v
        ),
        (Q.bfloat16(), K.bfloat16(), V.bfloat16(), ~KEEP),
        ["logical_not", "any", "mean", "where"],
    ),
    "half precision": (
        lambda s, q, k, v: (
            F.softmax(scores(q, k) * 0.5, -1, dtype=torch.float32).to(torch.bfloat16) @ v
        ),
        (Q.bfloat16(), K.bfloat16(), V.bfloat16()),
        [],
    ),
}
PLUMBING = ("size", "sub", "getitem", "get_attr", "contiguous", "identity", "dropout")


@pytest.mark.parametrize(("compute", "inputs", "around"), SPELLINGS.values(), ids=SPELLINGS)
def test_every_spelling_is_one_call(compute: Any, inputs: Any, around: list[str]) -> None:
    model = subject_of(compute)

    result = fxpasses.run(model, ["fuse_attention", "dce"], inputs, verify=False)

    found = [op for op in ops(result) if op not in PLUMBING]
    assert found.count(Op.SDPA) == 1
    assert Op.SOFTMAX not in found
    expected = model(*inputs)
    tolerance = 2e-2 if expected.dtype is torch.bfloat16 else 1e-5
    torch.testing.assert_close(
        result(*inputs), expected, rtol=tolerance, atol=tolerance, equal_nan=True
    )
    assert sorted(op for op in found if op != CALL) == sorted(
        a for a in around if a not in PLUMBING
    )


def test_exported_and_functional_graphs() -> None:
    model = subject_of(lambda s, q, k, v: s.drop((scores(q, k) * 0.5 + s.table).softmax(-1)) @ v)
    module = exported(model, Q, K, V)

    apply(FuseAttention(), module)

    assert graph_text(module).count(CALL) == 1
    torch.testing.assert_close(module(Q, K, V), model(Q, K, V))


@pytest.mark.parametrize("fill", [-math.inf, MIN, -1e9])
def test_rows_that_are_hidden_whole_come_out_as_they_did(fill: float) -> None:
    model = subject_of(lambda s, q, k, v, m: scores(q, k).masked_fill(m, fill).softmax(-1) @ v)
    hidden = torch.zeros(5, 5, dtype=torch.bool)
    hidden[1] = True

    result = fxpasses.run(model, "fuse_attention", (Q, K, V, torch.zeros_like(hidden)))

    expected = model(Q, K, V, hidden)
    assert expected[:, :, 1].isnan().all() == (fill == -math.inf)
    torch.testing.assert_close(result(Q, K, V, hidden), expected, equal_nan=True)


def test_a_mask_of_another_size_than_the_scores_is_still_accepted() -> None:
    model = subject_of(lambda s, q, k, v, m: (scores(q, k) + m).softmax(-1) @ v)
    result = fxpasses.run(model, "fuse_attention", (Q, K, V, torch.zeros(2, 1, 5, 5)))

    inputs = (Q[:1], K[:1], V[:1], torch.randn(2, 1, 5, 5))

    torch.testing.assert_close(result(*inputs), model(*inputs))


def test_what_reads_the_layout_finds_the_one_it_had() -> None:
    def compute(s: Subject, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return (scores(heads(q), heads(k)).softmax(-1) @ heads(v)).view(6, 5, 4)

    model = subject_of(compute)

    result = fxpasses.run(model, "fuse_attention", (X, X, X))

    assert Op.CONTIGUOUS in ops(result)
    torch.testing.assert_close(result(X, X, X), model(X, X, X))


def test_no_copy_is_made_where_nothing_reads_the_layout() -> None:
    def compute(s: Subject, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        joined = (scores(heads(q), heads(k)).softmax(-1) @ heads(v)).transpose(1, 2)
        return s.out(joined.reshape(2, 5, 12))

    result = fxpasses.run(subject_of(compute), ["fuse_attention", "dce"], (X, X, X))

    assert Op.SDPA in ops(result)
    assert Op.CONTIGUOUS not in ops(result)


def test_other_sizes_than_the_example_s() -> None:
    model = subject_of(
        lambda s, q, k, v: (
            scores(q, k)
            .masked_fill(
                s.triangle[:, :, k.size(2) - q.size(2) : k.size(2), : k.size(2)] == 0, -math.inf
            )
            .softmax(-1)
            @ v
        )
    )
    result = fxpasses.run(model, "fuse_attention", (Q, K, V))
    for inputs in ((Q[:, :, -1:], K7, V7), (Q[:1], K[:1], V[:1])):
        torch.testing.assert_close(result(*inputs), model(*inputs))


def shifted(s: Subject, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    met = (scores(windowed(q) * 0.5, windowed(k)) + s.table).view(-1, 2, 3, 5, 5)
    met = met + s.windows.unsqueeze(1).unsqueeze(0)
    return s.softmax(met.view(-1, 3, 5, 5)) @ windowed(v)


def shifted_by_sizes(s: Subject, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    met = scores(windowed(q), windowed(k))
    length = windowed(q).size(2)
    met = met.view(q.size(0) // 2, 2, 3, length, length)
    met = met.masked_fill(s.windows.unsqueeze(1).unsqueeze(0) > 0.5, -1e10) / 2
    return met.reshape(q.size(0), 3, length, length).softmax(-1) @ windowed(v)


def shifted_in_groups(s: Subject, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    met = scores(windowed(q), windowed(k)).view(q.size(0) // 2, -1, 3, 5, 5)
    met = s.windows[1].unsqueeze(0).unsqueeze(0).unsqueeze(0) + met
    return met.view(-1, 3, 5, 5).softmax(-1) @ windowed(v)


@pytest.mark.parametrize("compute", [shifted, shifted_by_sizes, shifted_in_groups])
def test_a_mask_of_shifted_windows_is_one_for_every_group(compute: Any) -> None:
    model = subject_of(compute)
    inputs = tuple(torch.randn(4, 5, 12, generator=GENERATOR) for _ in range(3))

    result = fxpasses.run(model, "fuse_attention,dce", inputs)

    assert Op.SDPA in ops(result)
    assert Op.SOFTMAX not in ops(result)
    assert fxpasses.report(result).record.verification.ok is True
    for batch in (inputs, tuple(x[:2] for x in inputs), tuple(torch.cat([x, x]) for x in inputs)):
        torch.testing.assert_close(result(*batch), model(*batch))


def joined_otherwise(s: Subject, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    met = scores(windowed(q, 1), windowed(k, 1)).view(-1, 2, 1, 5, 5)
    met = met + s.windows.unsqueeze(1).unsqueeze(0)
    return met.view(-1, 5, 1, 5).softmax(-1) @ windowed(v, 1)


def mask_of_four_axes(s: Subject, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    met = scores(windowed(q), windowed(k)).view(-1, 2, 3, 5, 5) + s.windows.unsqueeze(1)
    return met.view(-1, 3, 5, 5).softmax(-1) @ windowed(v)


def windows_of_unknown_sizes(s: Subject, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    met = scores(q, k).view(-1, 2, 3, 5, 5) + s.windows.unsqueeze(1).unsqueeze(0)
    return met.view(-1, 3, 5, 5).softmax(-1) @ v


def factor_for_each_window(s: Subject, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    met = scores(windowed(q), windowed(k)).view(-1, 2, 3, 5, 5)
    met = met * s.windows[:, :, :1].unsqueeze(1).unsqueeze(0)
    return met.view(-1, 3, 5, 5).softmax(-1) @ windowed(v)


def head_mask(s: Subject, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return (scores(q, k).softmax(-1) * s.temperature) @ v


def writes_in_between(s: Subject, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    weights = scores(q, k).softmax(-1)
    q.add_(1)
    return weights @ v


def writes_the_bias(s: Subject, q: Tensor, k: Tensor, v: Tensor, m: Tensor) -> Tensor:
    return m.add_(scores(q, k)).softmax(-1) @ v


def with_weights(s: Subject, q: Tensor, k: Tensor, v: Tensor) -> Any:
    weights = scores(q, k).softmax(-1)
    return weights @ v, weights


def causal(s: Subject, q: Tensor, k: Tensor, v: Tensor, m: Tensor) -> Tensor:
    return scores(q, k).masked_fill(m, -math.inf).softmax(-1) @ (v * s.temperature)


PLAIN: Any = SPELLINGS["operators"][0]
REFUSED: dict[Condition[Site], tuple[Model, str]] = {
    subject.scores_are_only_scaled_and_masked: (
        Model(subject_of(head_mask), (Q, K, V)),
        "mul changes the weights",
    ),
    subject.nothing_is_dropped: (
        Model(Subject(SPELLINGS["modules"][0]).train(), (Q, K, V)),
        "drop drops weights at random",
    ),
    subject.dtypes_agree: (
        Model(
            subject_of(lambda s, q, k, v, m: (scores(q, k) + m).softmax(-1) @ v),
            (Q, K, V.double(), BIAS.double()),
        ),
        "v is torch.float64, the queries are torch.float32",
    ),
    subject.tensors_meet_the_scores_alike: (
        Model(
            subject_of(lambda s, q, k, v, m: (scores(k, q) + m).softmax(-2).transpose(-2, -1) @ v),
            (Q, K, V, BIAS.tril()),
        ),
        "m meets the scores in another order of axes",
    ),
    subject.windows_are_those_of_the_scores: (
        Model(subject_of(joined_otherwise), (X, X, X)),
        "view_3 may put heads, queries or keys elsewhere",
    ),
    subject.factors_are_the_same_for_all_keys: (
        Model(
            subject_of(lambda s, q, k, v, m: (scores(q, k) * m).softmax(-1) @ v),
            (Q, K, V, BIAS[0]),
        ),
        "m may scale the scores of each key in another way",
    ),
    subject.fills_hide_their_scores: (
        Model(
            subject_of(lambda s, q, k, v, m: scores(q, k).masked_fill(m, -2.0).softmax(-1) @ v),
            (Q, K, V, ~KEEP),
        ),
        "-2 hides a score only where others are not as low",
    ),
    subject.what_is_added_leaves_fills_alone: (
        Model(
            subject_of(
                lambda s, q, k, v, m, b: (scores(q, k).masked_fill(m, -1e9) + b).softmax(-1) @ v
            ),
            (Q, K, V, ~KEEP, 1e9 * BIAS),
        ),
        "b may be as low as what a mask fills in",
    ),
    subject.hidden_rows_have_no_gradients: (
        Model(
            subject_of(causal),
            (Q, K, V, ~KEEP),
            training=True,
        ),
        "a mask may hide all keys from a query, whose gradients would be others",
    ),
    subject.only_scores_are_written: (
        Model(subject_of(writes_the_bias), (Q, K, V, torch.zeros(2, 3, 5, 5))),
        "add_ writes m",
    ),
    subject.nothing_writes_in_between: (
        Model(subject_of(writes_in_between), (Q, K, V)),
        "add_ may write q before matmul_1",
    ),
    subject.nothing_else_reads_the_scores: (
        Model(subject_of(with_weights), (Q, K, V)),
        "output reads the weights too",
    ),
    subject.a_kernel_takes_the_axes: (
        Model(subject_of(PLAIN), (Q[None], K[None], V[None])),
        "no fused kernel takes 5 axes",
    ),
}


@pytest.mark.parametrize(
    ("condition", "model", "reason"), [(c, *rest) for c, rest in REFUSED.items()]
)
def test_refuses(condition: Condition[Site], model: Model, reason: str) -> None:
    module, inputs = model.module, model.inputs
    plan = fxpasses.plan(module, "fuse_attention", inputs, training=model.training)

    (refusal,) = plan.record.passes[0].refusals
    assert (refusal.condition, refusal.reason) == (condition.__name__, reason)
    assert refusal.remedy


def test_every_condition_has_its_refusal() -> None:
    assert (*FuseAttention.legal_if, *FuseAttention.worthwhile_if) == tuple(REFUSED)


MORE_REFUSED: dict[str, tuple[Any, tuple[Tensor, ...], Condition[Site] | None]] = {
    "a mask of windows with four axes": (
        mask_of_four_axes,
        (X, X, X),
        subject.windows_are_those_of_the_scores,
    ),
    "windows of sizes that are not known": (
        windows_of_unknown_sizes,
        (Q, K, V),
        subject.windows_are_those_of_the_scores,
    ),
    "a factor for each window": (
        factor_for_each_window,
        (X, X, X),
        subject.tensors_meet_the_scores_alike,
    ),
    "no scores": (
        lambda s, q, k, v: k.softmax(-2).transpose(-2, -1) @ v,
        (Q, K, V),
        subject.scores_are_only_scaled_and_masked,
    ),
    "talking heads": (
        lambda s, q, k, v: s.mix(scores(q, k)).softmax(-1) @ v,
        (Q, K, V),
        subject.scores_are_only_scaled_and_masked,
    ),
    "soft cap": (
        lambda s, q, k, v: (9 * torch.tanh(scores(q, k) / 9)).softmax(-1) @ v,
        (Q, K, V),
        subject.scores_are_only_scaled_and_masked,
    ),
    "softmax over the queries": (
        lambda s, q, k, v: scores(q, k).softmax(-2) @ v,
        (Q, K, V),
        subject.scores_are_only_scaled_and_masked,
    ),
    "softmax over an axis that is not told": (
        lambda s, q, k, v: F.softmax(scores(q, k), _stacklevel=9) @ v,
        (Q[0], K[0], V[0]),
        subject.scores_are_only_scaled_and_masked,
    ),
    "attention to itself along the features": (
        lambda s, q, k, v: (q @ k).softmax(-1) @ v,
        (Q, K.transpose(-2, -1).contiguous(), V),
        None,
    ),
    "several numbers": (
        lambda s, q, k, v, m: (
            scores(q, k).masked_fill(m, -math.inf).masked_fill(m, MIN).softmax(-1) @ v
        ),
        (Q, K, V, ~KEEP),
        subject.fills_hide_their_scores,
    ),
    "a bias of more axes": (
        lambda s, q, k, v, m: torch.bmm((torch.bmm(q, k) + m)[0].softmax(-1), v),
        (Q[0], K[0].transpose(1, 2).contiguous(), V[0], KEEP[:1].float()),
        subject.scores_are_only_scaled_and_masked,
    ),
    "a bias that half precision does not hold": (
        lambda s, q, k, v, m: (scores(q, k) + m).softmax(-1).to(q.dtype) @ v,
        (Q.bfloat16(), K.bfloat16(), V.bfloat16(), torch.where(KEEP, 0.0, MIN)),
        subject.dtypes_agree,
    ),
    "scores that are read": (
        lambda s, q, k, v: (w := scores(q, k), w.softmax(-1) @ v + w.size(-1))[1],
        (Q, K, V),
        subject.nothing_else_reads_the_scores,
    ),
    "in place with another reader": (
        lambda s, q, k, v: (w := scores(q, k), x := w.mul_(2).softmax(-1) @ v, x + w.sum())[2],
        (Q, K, V),
        subject.only_scores_are_written,
    ),
}


@pytest.mark.parametrize(
    ("compute", "inputs", "condition"), MORE_REFUSED.values(), ids=MORE_REFUSED
)
@pytest.mark.filterwarnings("ignore:Implicit dimension choice")
def test_refuses_too(compute: Any, inputs: Any, condition: Condition[Site] | None) -> None:
    record = fxpasses.plan(subject_of(compute), "fuse_attention", inputs).record.passes[0]

    found = [refusal.condition for refusal in record.refusals]
    assert found == ([] if condition is None else [condition.__name__])
    assert len(record.rewrites) == (condition is None)


def test_other_products_are_left_alone() -> None:
    model = subject_of(lambda s, q, k, v: torch.sigmoid(scores(q, k)) @ v)
    record = fxpasses.plan(model, "fuse_attention", (Q, K, V)).record.passes[0]
    assert (record.rewrites, record.refusals) == ([], [])


def test_gradients_of_a_bias() -> None:
    model = subject_of(lambda s, q, k, v: (scores(q, k) * 0.5 + s.table).softmax(-1) @ v)
    inputs = tuple(t.clone().requires_grad_() for t in (Q, K, V))
    result = fxpasses.run(model, "fuse_attention", inputs, training=True)
    assert Op.SDPA in ops(result)
    result(*inputs).sum().backward()
    assert model.table.grad is not None


def test_keeps_the_promises_of_a_pass() -> None:
    # Gradients that are NaN cannot be compared: the mask hides nothing whole.
    inputs = {"einsum with the heads behind": (Q, K, V), "any additive mask": (Q, K, V, BIAS)}
    check_pass(
        FuseAttention,
        models=[(subject_of(SPELLINGS[name][0]), given) for name, given in inputs.items()],
        goes_wrong={condition: REFUSED[condition][0] for condition in FuseAttention.legal_if},
        still_right={condition: REFUSED[condition][0] for condition in FuseAttention.worthwhile_if},
    )

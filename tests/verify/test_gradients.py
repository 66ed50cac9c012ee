"""Gradients of what is to be trained, in float64 on both sides."""

import operator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from fxpasses.core import Numerics
from fxpasses.verify import Verdict, check
from tests.verify.faults import replace
from tests.verify.support import Call, Case, Reference, captured

VECTORS = torch.randn(5, 4, generator=torch.Generator().manual_seed(1))


class Trained(nn.Module):
    """Norm, dropout, kinks, a tied weight, and a bias whose gradient is zero but for rounding."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm = nn.Linear(4, 4), nn.BatchNorm1d(4)
        self.drop, self.last = nn.Dropout(0.25), nn.Linear(4, 4)
        self.last.weight = self.first.weight

    def forward(self, x: Tensor) -> Tensor:
        y = self.drop(torch.relu(self.norm(self.first(x))))
        return self.last(y) * 2.0


def judged(at: str, build: Any, *, level: Any = "sites") -> Verdict:
    model = Trained().train()
    case = captured(model)
    case.apply(replace(case, at, build), at)
    return verdict_on(case, model, level=level)


def verdict_on(case: Case, model: nn.Module, *, level: Any = "sites") -> Verdict:
    model.first.weight.grad = torch.ones(4, 4)
    state = torch.get_rng_state()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    program = case.original.root
    with torch.no_grad():
        held = {k: v.clone() for k, v in program.state_dict().items()}
        reference = Reference(program(VECTORS.clone()))
        program.load_state_dict(held)
    torch.set_rng_state(state)

    verdict = check(
        case.original,
        case.work,
        case.done,
        Call((VECTORS,)),
        reference,
        level=level,
        training=True,
    )

    assert all(torch.equal(before[name], now) for name, now in model.state_dict().items())
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.equal(model.first.weight.grad, torch.ones(4, 4))
    return verdict


def gradient_checks(verdict: Verdict) -> list[Any]:
    return [one for one in verdict.record.checks if one.name == "gradient"]


@pytest.mark.parametrize("level", ["sites", "full"])
def test_equal_gradients_pass(level: str) -> None:
    def build(edit: Any, node: Any) -> Any:
        return edit.call_function(torch.add, node.args[0], node.args[0])

    verdict = judged("mul", build, level=level)

    assert verdict.ok, verdict.failures
    checks = gradient_checks(verdict)
    assert {check.where for check in checks} > {"last.weight", "norm.bias", "argument 0"}
    assert len({check.probe for check in checks}) == (4 if level == "full" else 2)


def test_a_gradient_that_stops_is_seen() -> None:
    def build(edit: Any, node: Any) -> Any:
        return edit.call_function(operator.mul, edit.call_method("detach", node.args[0]), 2.0)

    verdict = judged("mul", build)

    assert any("no gradients" in check.message for check in gradient_checks(verdict))


class Scaled(torch.autograd.Function):
    """Right forwards, and a thousandth too much backwards."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x * 2.0

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return gradient * 2.002


def scaled(x: Tensor) -> Tensor:
    return Scaled.apply(x)


def test_a_gradient_off_by_a_thousandth_is_seen() -> None:
    verdict = judged("mul", lambda e, n: e.call_function(scaled, n.args[0]))

    wrong = {check.where: check.error for check in gradient_checks(verdict) if not check.ok}
    assert wrong["norm.weight"] == pytest.approx(1e-3, rel=0.01)


def test_folded_weights_are_compared_by_what_they_were_folded_from() -> None:
    model = Trained().train()
    model.norm.eval()
    case = captured(model)
    factor = case.work.graphs[""].get_submodule("last")

    def merged(edit: Any) -> None:
        node = case.named("mul")
        weight = edit.fold(lambda w: w * 2, factor.weight)
        bias = edit.fold(lambda b: b * 2, factor.bias)
        held = [edit.parameter(fold, requires_grad=True) for fold in (weight, bias)]
        constants = [edit.constant(one, "merged") for one in held]
        new = edit.call_function(nn.functional.linear, node.args[0].args[0], *constants)
        edit.replace(node, new)

    case.apply(merged, "mul", numerics=Numerics.ROUNDING)
    verdict = verdict_on(case, model)

    gradients = [check for check in gradient_checks(verdict) if not check.ok]
    assert gradients == []
    folds = {check.message for check in verdict.record.checks if check.name == "fold"}
    assert folds == {"folded from a weight that needs a gradient"}


class Rooted(Trained):
    """The gradient of a root is no number where it is taken of zero."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x).sum() + torch.sqrt(self.last.bias * 0).sum() * 2.0


class PlainRoot(torch.autograd.Function):
    """A root whose gradient is no number in fewer places, or in none."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, count: int) -> Tensor:
        ctx.count = count
        return torch.sqrt(x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        return torch.where(torch.arange(4) < ctx.count, torch.nan, gradient), None


def verdict_on_roots(at: str, build: Any, *, level: Any = "sites") -> Verdict:
    model = Rooted().train()
    case = captured(model)
    case.apply(replace(case, at, build), at)
    return verdict_on(case, model, level=level)


@pytest.mark.parametrize("level", ["sites", "full"])
def test_gradients_that_are_no_numbers_on_both_sides_agree(level: str) -> None:
    def build(edit: Any, node: Any) -> Any:
        return edit.call_function(torch.add, node.args[0], node.args[0])

    verdict = verdict_on_roots("mul", build, level=level)

    assert verdict.ok, verdict.failures
    assert "last.bias" in {check.where for check in gradient_checks(verdict)}
    assert any("no numbers" in note for note in verdict.record.notes) is (level == "full")


@pytest.mark.parametrize(("count", "missing"), [(0, 4), (3, 1)])
def test_no_numbers_at_other_places_are_seen(count: int, missing: int) -> None:
    def root(x: Tensor) -> Tensor:
        return PlainRoot.apply(x, count)

    verdict = verdict_on_roots("sqrt", lambda e, n: e.call_function(root, n.args[0]))

    (wrong,) = [check for check in gradient_checks(verdict) if not check.ok]
    assert wrong.where == "last.bias"
    assert f"{missing} of 4 elements" in wrong.message


class Overflowing(Rooted):
    """In float32 a gradient overflows that float64 can hold."""

    def forward(self, x: Tensor) -> Tensor:
        return Trained.forward(self, x) + self.last.bias * 1e-30 * 1e30 * 1e30


def test_a_gradient_may_overflow_where_the_originals_does() -> None:
    def build(edit: Any, node: Any) -> Any:
        return edit.call_function(torch.add, node.args[0], node.args[0])

    model = Overflowing().train()
    case = captured(model)
    case.apply(replace(case, "mul", build), "mul")
    assert verdict_on(case, model).ok

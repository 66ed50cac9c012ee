"""What site checks see, what they forgive, and what they do not claim to have verified."""

import operator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fxpasses.core import Numerics
from fxpasses.verify import check
from tests.verify.faults import IMAGE, Plain, fold_norm, replace
from tests.verify.formulas import VECTORS, Function, judged, site_errors
from tests.verify.support import Call, Reference, captured


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("onednn", [True, False])
def test_a_badly_conditioned_norm_folds_without_alarm(dtype: torch.dtype, onednn: bool) -> None:
    model = Plain().eval()
    norm = model.parts.bn
    norm.running_mean.copy_(torch.tensor([3e3, -5e3, 1e4, 0.0]))
    norm.running_var.copy_(torch.tensor([1e-6, 1e-8, 1e-4, 1e-10]))
    model.parts.conv.bias.data.copy_(norm.running_mean)
    model = model.to(dtype)
    x = torch.randn(IMAGE).to(dtype)
    torch.backends.mkldnn.enabled = onednn
    try:
        case = captured(model)
        case.apply(fold_norm(case), "parts_bn")
        with torch.no_grad():
            verdict = check(case.original, case.work, case.done, Call((x,)), Reference(model(x)))
    finally:
        torch.backends.mkldnn.enabled = True

    assert site_errors(verdict) == []
    assert verdict.blame == []


def test_bounds_grow_only_with_the_conditioning() -> None:
    """Subtracting what is nearly equal enlarges rounding; a fault is enlarged as well."""
    far = 1e6

    def cancelling(x: Tensor, w: Tensor) -> Tensor:
        return ((x + far) * 3.0 - 3 * far) * 1e3

    def merged(factor: float) -> Any:
        def build(edit: Any, node: Any) -> Any:
            moved = node.args[0].args[0].args[0]
            scaled = edit.call_function(operator.mul, moved, 3.0 * factor * 1e3)
            return edit.call_function(operator.sub, scaled, 3 * far * 1e3)

        return build

    right, _ = judged(cancelling, "mul_1", merged(1.0))
    wrong, _ = judged(cancelling, "mul_1", merged(1 + 1e-9))

    assert site_errors(right) == []
    assert len(site_errors(wrong)) == 1


def test_a_value_written_in_between_shows() -> None:
    """The rewritten part reads what was written since; values are taken as they stand."""

    def written(x: Tensor, w: Tensor) -> Tensor:
        y = x @ w
        z = y * 2
        y.add_(1)
        return z + y

    def late(edit: Any, node: Any) -> Any:
        product = node.args[0].args[0]
        return edit.call_function(
            operator.add, edit.call_function(operator.mul, product, 2), node.args[1]
        )

    verdict, _ = judged(written, "add", late)

    assert len(site_errors(verdict)) == 1


def test_a_rewrite_behind_a_written_argument_reads_what_was_written() -> None:
    def written(x: Tensor, w: Tensor) -> Tensor:
        x.add_(1)
        return (x @ w) * 2

    def earlier(edit: Any, node: Any) -> Any:
        x, weight = node.args[0].args
        return edit.call_function(operator.matmul, x, edit.call_function(operator.mul, weight, 2))

    verdict, _ = judged(written, "mul", earlier)

    assert verdict.ok
    assert site_errors(verdict) == []


def test_an_in_place_op_may_be_rewritten() -> None:
    def clamped(x: Tensor, w: Tensor) -> Tensor:
        return (x @ w).relu_() + 1

    verdict, _ = judged(
        clamped, "relu_", lambda e, n: e.call_function(torch.clamp, n.args[0], min=0)
    )

    assert verdict.ok, verdict.failures
    assert verdict.record.unverified == []


def test_a_rewrite_that_writes_its_inputs_does_not_disturb_the_walk() -> None:
    def reused(x: Tensor, w: Tensor) -> Tensor:
        y = x @ w
        return torch.relu(y) + y

    verdict, _ = judged(reused, "relu", lambda e, n: e.call_method("relu_", n.args[0]))

    # The site itself is right; the whole shows that the other reader sees what was written.
    assert site_errors(verdict) == []
    assert not verdict.ok


def test_random_ops_draw_the_same_in_both() -> None:
    def noisy(x: Tensor, w: Tensor) -> Tensor:
        y = F.dropout(x @ w, 0.5, True)
        return F.dropout(y, 0.25, True) * 2

    def pushed_in(edit: Any, node: Any) -> Any:
        second = node.args[0]
        doubled = edit.call_function(operator.mul, second.args[0], 2)
        edit.erase(second)
        return edit.call_function(F.dropout, doubled, 0.25, True)

    def both_again(edit: Any, node: Any) -> Any:
        second = node.args[0]
        first = second.args[0]
        again = edit.call_function(F.dropout, first.args[0], 0.5, True)
        edit.erase(first)
        edit.erase(second)
        return edit.call_function(operator.mul, edit.call_function(F.dropout, again, 0.25, True), 2)

    for build in (pushed_in, both_again):
        verdict, _ = judged(noisy, "mul", build)
        assert verdict.ok, verdict.failures


def test_a_lost_random_op_is_seen() -> None:
    verdict, _ = judged(lambda x, w: F.dropout(x @ w, 0.5, True), "dropout", lambda e, n: n.args[0])

    assert site_errors(verdict)


@pytest.mark.parametrize("change", ["double", "half"])
def test_a_changed_dtype_is_seen_where_float64_hides_it(change: str) -> None:
    verdict, _ = judged(
        lambda x, w: torch.relu(x @ w).float() * 2.0,
        "relu",
        lambda e, n: e.call_function(torch.relu, e.call_method(change, n.args[0])),
    )

    (message,) = site_errors(verdict)
    assert message.startswith("the dtype is torch.float")


def test_a_dropped_cast_is_seen() -> None:
    verdict, _ = judged(
        lambda x, w: torch.relu((x @ w).half()).float(), "half", lambda e, n: n.args[0]
    )

    assert [blame.node for blame in verdict.blame] == ["half"]


def test_exact_passes_must_not_move_a_bit() -> None:
    def build(edit: Any, node: Any) -> Any:
        return edit.call_function(operator.truediv, node.args[0], 10.0)

    verdict, _ = judged(lambda x, w: (x @ w) * 0.1, "mul", build, numerics=Numerics.EXACT)
    rounding, _ = judged(lambda x, w: (x @ w) * 0.1, "mul", build)

    (message,) = site_errors(verdict)
    assert message.startswith("declared exact")
    assert rounding.ok


def test_a_tie_decided_otherwise_is_no_fault() -> None:
    def doubled(x: Tensor, w: Tensor) -> Tensor:
        return torch.argmax(torch.cat([x @ w, w.new_zeros(1) + x @ w], 1), 1)

    def build(edit: Any, node: Any) -> Any:
        scaled = edit.call_function(operator.mul, node.args[0], 0.1)
        return edit.call_function(torch.argmax, scaled, 1)

    verdict, _ = judged(doubled, "argmax", build)

    assert site_errors(verdict) == []


def test_what_no_probe_reaches_is_not_called_verified() -> None:
    def dead(x: Tensor, w: Tensor) -> Tensor:
        return torch.relu(torch.tanh(x @ w) - 5).sqrt() + x

    verdict, case = judged(dead, "sqrt", lambda e, n: e.call_method("square", n.args[0]))

    (rewrite,) = case.done[0].record.rewrites
    assert verdict.ok
    assert verdict.record.unverified == [f"{rewrite.id}: no probe changes its value"]
    assert rewrite.verified.startswith("no: ")


def test_behind_a_value_that_is_always_zero_made_up_ones_are_tried() -> None:
    def blocked(x: Tensor, w: Tensor) -> Tensor:
        return (x * 0.0) @ w

    verdict, _ = judged(blocked, "matmul", lambda e, n: e.call_function(torch.mm, *n.args))
    assert verdict.record.unverified == []

    verdict, _ = judged(
        blocked,
        "matmul",
        lambda e, n: e.call_function(torch.mm, n.args[0], e.call_method("t", n.args[1])),
    )
    assert len(verdict.record.unverified) == 1


def test_folds_are_checked_element_by_element() -> None:
    model = Plain().eval()
    case = captured(model)
    case.apply(fold_norm(case), "parts_bn")
    weight = next(n for n in case.graph.nodes if n.op == "get_attr" and n.target == "weight")
    tensor = getattr(case.work.graphs[""], weight.target)
    tensor.data.view(torch.int32)[0, 0, 0, 0] += 1

    x = torch.randn(IMAGE)
    with torch.no_grad():
        verdict = check(case.original, case.work, case.done, Call((x,)), Reference(model(x)))

    assert not verdict.ok
    assert [check.where for check in verdict.failures if check.name == "fold"] == ["weight"]
    assert verdict.blame[0].id == case.done[0].record.rewrites[0].id


def test_the_author_of_an_early_rounding_is_told_what_to_do() -> None:
    def build(edit: Any, node: Any) -> Any:
        return edit.call_function(
            operator.mul, node.args[0], edit.constant(torch.tensor(1 / 3), "third")
        )

    verdict, _ = judged(lambda x, w: (x @ w) / 3, "truediv", build)

    (message,) = site_errors(verdict)
    assert "edit.fold" in message


def test_values_of_nodes_made_by_earlier_passes_are_compared() -> None:
    """The second rewrite replaces what the first one made, which no captured node stands for."""
    model = Function(lambda x, w: torch.relu(x @ w) * 2.0)
    case = captured(model)

    def first(edit: Any) -> None:
        node = case.named("mul")
        halves = edit.call_function(operator.mul, node.args[0], 1.0)
        edit.replace(node, edit.call_function(operator.add, halves, halves))

    case.apply(first, "mul")

    def second(edit: Any) -> None:
        node = case.named("mul_1")
        wrong = edit.call_function(operator.mul, node.args[0], 1.0 + 1e-9)
        edit.replace(node, wrong)

    identifier = case.apply(second, "mul_1")
    with torch.no_grad():
        reference = Reference(model(VECTORS))
    verdict = check(case.original, case.work, case.done, Call((VECTORS,)), reference)

    assert [blame.id for blame in verdict.blame] == [identifier]


class Drops(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return F.dropout(x, 0.5, True) * 2


def test_what_earlier_passes_made_draws_the_same_before_and_after() -> None:
    case = captured(Drops())

    def first(edit: Any) -> None:
        node = case.named("dropout")
        again = edit.copy(node)
        edit.replace(node, edit.call_function(operator.mul, again, 1.0))

    def second(edit: Any) -> None:
        node = case.named("dropout_1")
        edit.replace(node, edit.copy(node))

    case.apply(first, "dropout")
    case.apply(second, "dropout_1")
    torch.manual_seed(0)
    with torch.no_grad():
        reference = Reference(case.original.root(VECTORS))
    verdict = check(case.original, case.work, case.done, Call((VECTORS,)), reference)

    assert site_errors(verdict) == []


def test_a_norm_that_stays_may_be_part_of_a_rewrite() -> None:
    model = Plain().eval()
    case = captured(model)
    case.apply(replace(case, "parts_bn", lambda e, n: e.copy(n)), "parts_bn")

    x = torch.randn(IMAGE)
    with torch.no_grad():
        verdict = check(case.original, case.work, case.done, Call((x,)), Reference(model(x)))

    assert verdict.ok, verdict.failures
    assert verdict.record.unverified == []


@pytest.mark.parametrize("numerics", [Numerics.EXACT, Numerics.ROUNDING])
def test_an_example_of_one_sign_hides_nothing_that_signs_decide(numerics: Numerics) -> None:
    def positive(x: Tensor, w: Tensor) -> Tensor:
        return torch.relu(x * 2.0) + 1.0

    def dropped(edit: Any, node: Any) -> Any:
        return edit.copy(node.args[0])

    verdict, _ = judged(positive, "relu", dropped, x=VECTORS.abs(), numerics=numerics)

    assert [blame.node for blame in verdict.blame] == ["relu"]


def test_a_model_of_positive_numbers_is_tried_on_positive_ones() -> None:
    def roots(x: Tensor, w: Tensor) -> Tensor:
        return torch.sqrt(x) * 2.0

    right, _ = judged(roots, "sqrt", lambda edit, node: edit.copy(node), x=VECTORS.abs())

    assert right.ok, right.failures
    assert any(check.probe.startswith("example, other values") for check in right.record.checks)
    assert right.record.forwards <= 8


def straight_through(x: Tensor, w: Tensor) -> Tensor:
    y = (x @ w) * 2.0
    return y + (y.round() - y).detach()


@pytest.mark.parametrize("numerics", [Numerics.EXACT, Numerics.ROUNDING])
def test_a_detach_that_is_gone_is_found(numerics: Numerics) -> None:
    verdict, _ = judged(
        straight_through, "detach", lambda edit, node: edit.copy(node.args[0]), numerics=numerics
    )

    assert [blame.node for blame in verdict.blame] == ["detach"]
    assert "the gradient reaches" in site_errors(verdict)[0]


def test_a_detach_that_is_new_is_found() -> None:
    def cut(edit: Any, node: Any) -> Any:
        return edit.call_method("detach", edit.copy(node))

    verdict, _ = judged(straight_through, "mul", cut, numerics=Numerics.EXACT)

    assert "no longer reaches matmul" in site_errors(verdict)[0]


def test_a_detach_may_move_where_gradients_do_not_tell() -> None:
    def cut_first(edit: Any, node: Any) -> Any:
        difference = node.args[0]
        cut = tuple(edit.call_method("detach", operand) for operand in difference.args)
        return edit.copy(difference, args=cut)

    verdict, _ = judged(straight_through, "detach", cut_first, numerics=Numerics.EXACT)

    assert verdict.ok, verdict.failures

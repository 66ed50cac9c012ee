"""Precision that rewrites lose in the model's own dtypes, which float64 does not show."""

import copy
import operator
from collections.abc import Callable
from functools import reduce
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.fx import GraphModule
from torch.nn.utils.fusion import fuse_conv_bn_eval

import fxpasses
from fxpasses.core import Numerics, TensorInfo
from fxpasses.errors import VerificationError
from fxpasses.verify import Verdict, check
from fxpasses.verify.own_dtype import NotComparableError, Way, precision_lost
from tests.verify.faults import HIDDEN, IMAGE, Plain, fold_norm, replace
from tests.verify.formulas import judged, site_errors
from tests.verify.support import Call, Case, Reference, captured

F16, BF16, F32, F64 = torch.float16, torch.bfloat16, torch.float32, torch.float64
ROWS = torch.randn(4, 8, generator=torch.Generator().manual_seed(3))
LONG_ROWS = torch.randn(4, 512, generator=torch.Generator().manual_seed(3))
Build = Callable[[Any, Any], Any]


def then(*steps: tuple[Any, Any]) -> Build:
    """The same call, and then binary ops with constants."""

    def build(edit: Any, node: Any) -> Any:
        return reduce(
            lambda x, step: edit.call_function(step[0], x, step[1]), steps, edit.copy(node)
        )

    return build


def detour(over: float) -> Build:
    return then((operator.add, over), (operator.sub, over))


def detour_of_channel_1(edit: Any, node: Any) -> Any:
    far = edit.constant(torch.tensor([0.0, 1e4, 0, 0, 0, 0, 0, 0]), "far")
    there = edit.call_function(operator.add, edit.copy(node), far)
    return edit.call_function(operator.sub, there, far)


def softmax_of_large_numbers(edit: Any, node: Any) -> Any:
    powers = edit.call_function(torch.exp, node.args[0])
    total = edit.call_method("sum", powers, -1, True)
    return edit.call_function(operator.truediv, powers, total)


def sum_of_columns(x: Tensor) -> Tensor:
    return reduce(operator.add, x.unbind(-1))


def squares_less_square_of_mean(edit: Any, node: Any) -> Any:
    x = node.args[0]
    mean = edit.call_method("mean", x, -1, True)
    squares = edit.call_method("mean", edit.call_function(operator.mul, x, x), -1, True)
    squared = edit.call_function(operator.mul, mean, mean)
    variance = edit.call_function(operator.sub, squares, squared)
    root = edit.call_function(torch.rsqrt, edit.call_function(operator.add, variance, 1e-5))
    return edit.call_function(operator.mul, edit.call_function(operator.sub, x, mean), root)


def product(x: Tensor, w: Tensor) -> Tensor:
    return torch.relu(x @ w)


def through_half(x: Tensor, w: Tensor) -> Tensor:
    return torch.relu(((x @ w).half() * 0.5).float())


LOSING: dict[str, tuple[torch.dtype, Any, str, Build]] = {
    "a detour over 1e4": (F32, product, "matmul", detour(1e4)),
    "a detour over 30 in bfloat16": (BF16, product, "matmul", detour(30.0)),
    "a detour over 30 in float16": (F16, product, "matmul", detour(30.0)),
    "a detour over 30 in the model's own cast": (F32, through_half, "mul", detour(30.0)),
    "a detour of one channel": (F32, product, "matmul", detour_of_channel_1),
    "very small numbers": (
        F16,
        product,
        "matmul",
        then((operator.mul, 1e-30), (operator.truediv, 1e-30)),
    ),
    "very small numbers in float32": (
        F32,
        product,
        "matmul",
        then(*[(operator.mul, 1e-15)] * 3, *[(operator.truediv, 1e-15)] * 3),
    ),
    "a softmax that overflows": (
        F16,
        lambda x, w: torch.softmax((x @ w) * 8, -1),
        "softmax",
        softmax_of_large_numbers,
    ),
    "a sum rounded at every step": (
        BF16,
        lambda x, w: ((x * w[0]) ** 2).sum(-1),
        "sum_1",
        lambda edit, node: edit.call_function(sum_of_columns, node.args[0]),
    ),
    "a sum rounded at every step, and not in float32": (
        F16,
        lambda x, w: ((x * w[0]) ** 2).float().sum(-1).half(),
        "half",
        lambda edit, node: edit.call_function(sum_of_columns, node.args[0].args[0].args[0]),
    ),
    "a variance of large numbers": (
        F32,
        lambda x, w: F.layer_norm(x @ w + 50.0, (8,)),
        "layer_norm",
        squares_less_square_of_mean,
    ),
}


@pytest.mark.parametrize("fault", LOSING)
def test_lost_precision_is_blamed_on_its_rewrite(fault: str) -> None:
    dtype, formula, at, build = LOSING[fault]
    rows = LONG_ROWS if "sum" in fault else ROWS

    verdict, case = judged(formula, at, build, x=rows.to(dtype))

    (message,) = site_errors(verdict)
    assert message.startswith("in torch.")
    assert [blame.id for blame in verdict.blame] == [case.done[0].record.rewrites[0].id]


def verdict_on(case: Case, model: nn.Module) -> Verdict:
    x = torch.randn(IMAGE).to(next(model.parameters()).dtype)
    with torch.no_grad():
        return check(case.original, case.work, case.done, Call((x,)), Reference(model(x)))


@pytest.mark.parametrize(("dtype", "over"), [(F32, 1e4), (BF16, 60.0), (F16, 60.0)])
@pytest.mark.parametrize("model", HIDDEN)
def test_nothing_downstream_hides_lost_precision(
    model: type[nn.Module], dtype: torch.dtype, over: float
) -> None:
    original = model().eval().to(dtype)
    case = captured(original)
    identifier = case.apply(replace(case, "parts_bn", detour(over)), "parts_bn")

    verdict = verdict_on(case, original)

    assert [blame.id for blame in verdict.blame] == [identifier]


def gelu(edit: Any, node: Any) -> Any:
    x = node.args[0]
    share = edit.call_function(torch.erf, edit.call_function(operator.mul, x, 0.5**0.5))
    half = edit.call_function(operator.mul, x, 0.5)
    return edit.call_function(operator.mul, half, edit.call_function(operator.add, share, 1.0))


def silu(edit: Any, node: Any) -> Any:
    (x,) = node.all_input_nodes
    return edit.call_function(operator.mul, x, edit.call_function(torch.sigmoid, x))


def softmax(edit: Any, node: Any) -> Any:
    x = node.args[0]
    less = edit.call_function(operator.sub, x, edit.call_method("amax", x, -1, True))
    powers = edit.call_function(torch.exp, less)
    total = edit.call_method("sum", powers, -1, True)
    return edit.call_function(operator.truediv, powers, total)


def layer_norm(edit: Any, node: Any) -> Any:
    x = node.args[0]
    less = edit.call_function(operator.sub, x, edit.call_method("mean", x, -1, True))
    squares = edit.call_function(operator.mul, less, less)
    variance = edit.call_method("mean", squares, -1, True)
    root = edit.call_function(torch.rsqrt, edit.call_function(operator.add, variance, 1e-5))
    return edit.call_function(operator.mul, less, root)


def split_product(edit: Any, node: Any) -> Any:
    x, w = node.args
    columns, rows = (edit.call_function(torch.split, *one) for one in ((x, 4, -1), (w, 4, 0)))
    parts = [
        edit.call_function(
            torch.matmul,
            edit.call_function(operator.getitem, columns, i),
            edit.call_function(operator.getitem, rows, i),
        )
        for i in (0, 1)
    ]
    return edit.call_function(operator.add, *parts)


def scale_and_shift(edit: Any, node: Any) -> Any:
    scaled = edit.call_function(operator.mul, node.args[0].args[0], 3.7)
    return edit.call_function(operator.sub, scaled, 3.7 * 30.0)


SOUND: dict[str, tuple[Any, str, Build]] = {
    "gelu": (lambda x, w: F.gelu(x @ w), "gelu", gelu),
    "silu": (lambda x, w: F.silu(x @ w), "silu", silu),
    "softmax": (lambda x, w: torch.softmax(x @ w, -1), "softmax", softmax),
    "sharp softmax": (lambda x, w: torch.softmax(x @ w * 10, -1), "softmax", softmax),
    "layer norm": (lambda x, w: F.layer_norm(x @ w, (8,)), "layer_norm", layer_norm),
    "layer norm far out": (lambda x, w: F.layer_norm(x @ w + 50, (8,)), "layer_norm", layer_norm),
    "product in two sums": (lambda x, w: x @ w, "matmul", split_product),
    "reciprocal": (
        lambda x, w: (x @ w) / 3.3,
        "truediv",
        lambda e, n: e.call_function(operator.mul, n.args[0], 1 / 3.3),
    ),
    "affine map of a value that was rounded far out": (
        lambda x, w: ((x @ w + 30.0) - 30.0) * 3.7,
        "mul",
        scale_and_shift,
    ),
    "small numbers that fit": (
        lambda x, w: torch.relu(x @ w),
        "matmul",
        then((operator.mul, 2.0**-10), (operator.truediv, 2.0**-10)),
    ),
}


@pytest.mark.parametrize("dtype", [F32, BF16, F16])
@pytest.mark.parametrize("sound", SOUND)
def test_what_only_rounds_otherwise_is_no_alarm(sound: str, dtype: torch.dtype) -> None:
    verdict, _ = judged(*SOUND[sound], x=ROWS.to(dtype))

    assert site_errors(verdict) == []
    assert verdict.record.unverified == []


def test_where_lower_precision_is_asked_for_there_is_no_such_rule() -> None:
    verdict, _ = judged(product, "matmul", detour(1e4), x=ROWS, numerics=Numerics.PRECISION)

    assert site_errors(verdict) == []


# -- cancellation


def bias_cancels(model: Plain, size: float) -> None:
    model.parts.conv.bias.data.fill_(size)
    model.parts.bn.running_mean.fill_(size)


def shift_cancels(model: Plain, size: float) -> None:
    norm = model.parts.bn
    norm.running_mean.fill_(size)
    norm.bias.data.copy_(norm.weight.data * size / torch.sqrt(norm.running_var + norm.eps))


@pytest.mark.parametrize("dtype", [F32, BF16, F16, F64])
@pytest.mark.parametrize("size", [1e4, 1e6])
@pytest.mark.parametrize("cancels", [bias_cancels, shift_cancels])
def test_a_fold_of_what_cancels_is_no_alarm(
    cancels: Callable[[Plain, float], None], size: float, dtype: torch.dtype
) -> None:
    model = Plain().eval()
    cancels(model, min(size, 6e4) if dtype is F16 else size)
    verdict = folded(model.to(dtype))

    assert site_errors(verdict) == []
    assert [check for check in verdict.failures if check.name == "meaning"] == []


def folded(model: Plain) -> Verdict:
    case = captured(model)
    case.apply(fold_norm(case), "parts_bn")
    return verdict_on(case, model)


@pytest.mark.parametrize("size", [1e4, 1e6])
def test_what_cancels_hides_no_fault(size: float) -> None:
    """A lost mean is as large as what cancels; a thousandth of it is a fault as well."""
    model = Plain().eval()
    bias_cancels(model, size)
    case = captured(model)

    def bias(b: Tensor, g: Tensor, v: Tensor, m: Tensor, a: Tensor) -> Tensor:
        return (b - m * (1 + 1e-9)) * g / torch.sqrt(v + 1e-5) + a

    identifier = case.apply(fold_norm(case, bias=bias), "parts_bn")
    verdict = verdict_on(case, model)

    assert [blame.id for blame in verdict.blame] == [identifier]


# -- passes that keep no sites


class Layers(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(8, 16), nn.Linear(16, 8)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(torch.relu(self.first(x)))


@pytest.mark.parametrize(
    ("dtype", "layer", "over"),
    [(F32, "first", 1e4), (F32, "last", 1e4), (BF16, "last", 60.0), (F16, "last", 60.0)],
)
def test_a_foreign_pass_that_loses_precision_is_blamed(
    dtype: torch.dtype, layer: str, over: float
) -> None:
    def takes_a_detour(module: GraphModule) -> GraphModule:
        graph = module.graph
        (node,) = [one for one in graph.nodes if one.target == layer]
        with graph.inserting_after(node):
            there = graph.call_function(operator.add, (node, over))
        with graph.inserting_after(there):
            back = graph.call_function(operator.sub, (there, over))
        node.replace_all_uses_with(back, delete_user_cb=lambda user: user is not there)
        module.recompile()
        return module

    model = Layers().eval().to(dtype)

    with pytest.raises(VerificationError) as caught:
        fxpasses.run(model, [takes_a_detour], ROWS.to(dtype))

    assert [blame.pass_name for blame in caught.value.blame] == ["takes_a_detour"]


# -- the comparison itself


def way(own: Callable[[Tensor], Tensor], *, known: bool = True) -> Way:
    """A way from `ROWS` to their double, in float32 off as `own` is."""
    kinds = [TensorInfo.of(ROWS) if known else None]
    return Way([ROWS.double()], kinds, lambda b: own(b[0]), lambda b: b[0] * 2)


def off_by(roundings: float, *, on_example: float | None = None) -> Callable[[Tensor], Tensor]:
    def own(x: Tensor) -> Tensor:
        is_example = torch.equal(x, ROWS)
        share = roundings if on_example is None or not is_example else on_example
        return (x.double() * 2 * (1 + share * 2.0**-24)).float()

    return own


TRUTH = ROWS.double() * 2


def lost(new: Callable[[Tensor], Tensor], old: Callable[[Tensor], Tensor]) -> str:
    return precision_lost(way(new), way(old), TRUTH).message


def test_eight_times_the_error_of_the_original_is_allowed() -> None:
    assert lost(off_by(70), off_by(10)) == ""
    assert "more than 8 times" in lost(off_by(90), off_by(10))


def test_an_original_without_error_counts_as_rounded_once() -> None:
    assert lost(off_by(3), off_by(0)) == ""
    assert lost(off_by(6), off_by(0))


def test_one_alarm_may_be_luck() -> None:
    assert lost(off_by(90), off_by(20, on_example=0)) == ""


@pytest.mark.parametrize("seed", range(4))
def test_little_that_is_left_of_large_numbers_is_no_yardstick(seed: int) -> None:
    """A sample of large numbers beside others: few of its values cancel to the others' size."""
    torch.manual_seed(seed)
    conv = nn.Conv2d(2000, 2000, 3, padding=1, groups=2000, bias=False)
    norm = nn.BatchNorm2d(2000).eval().requires_grad_(requires_grad=False)
    norm.running_var.uniform_(1e-5, 1e-3)
    fused = fuse_conv_bn_eval(conv.eval().requires_grad_(requires_grad=False), norm)
    x = torch.randn(3, 2000, 7, 7).relu() * torch.tensor([0.01, 1e6, 0.01]).reshape(3, 1, 1, 1)

    def way(*layers: nn.Module, then: Callable[[Tensor], Tensor] = lambda y: y) -> Way:
        own = nn.Sequential(*layers)
        wide = copy.deepcopy(own).double()
        return Way([x.double()], [TensorInfo.of(x)], lambda b: then(own(b[0])), lambda b: wide(*b))

    def detours_in_one_channel(y: Tensor) -> Tensor:
        y[:, 1234] += (large := 256 * y[:, 1234].abs().max())
        y[:, 1234] -= large
        return y

    old = way(conv, norm)
    truth = old.wide(old.borders)
    assert precision_lost(way(fused), old, truth).message == ""
    assert precision_lost(way(fused, then=detours_in_one_channel), old, truth).message


def test_an_original_that_is_far_off_is_looked_at_again() -> None:
    """A write that its slice of the graph lacks makes it so: then it is no yardstick."""
    assert lost(off_by(1e4), off_by(1, on_example=1e6))
    assert lost(off_by(1e4), off_by(1e4)) == ""


def test_overflows_are_counted() -> None:
    def overflows(x: Tensor) -> Tensor:
        return (x * 2).masked_fill(x > 1, float("inf"))

    elements = int((ROWS > 1).sum())
    assert f"{elements} of 32 elements are NaN or infinite" in lost(overflows, off_by(0))
    assert lost(overflows, overflows) == ""


def test_what_raises_in_the_own_dtype_alone_is_a_finding() -> None:
    def raises(x: Tensor) -> Tensor:
        raise RuntimeError("no kernel")

    assert "raises RuntimeError: no kernel" in lost(raises, off_by(0))
    with pytest.raises(NotComparableError, match="the original raises RuntimeError"):
        lost(off_by(0), raises)


def test_an_unknown_dtype_is_said() -> None:
    with pytest.raises(NotComparableError, match="not known"):
        precision_lost(way(off_by(0), known=False), way(off_by(0)), TRUTH)

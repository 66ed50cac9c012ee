from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torchvision.models import mobilenet_v2, resnet18

import fxpasses
from fxpasses.core import Condition
from fxpasses.core.record import PassRecord
from fxpasses.manager import apply
from fxpasses.ops import Op
from fxpasses.passes import inplace as subject
from fxpasses.passes.inplace import Inplace, Site
from fxpasses.testing import Model, check_pass
from fxpasses.text import graph_text
from fxpasses.views.in_place import HAVE_FORMS
from tests.support import exported, reasons, traced

X = torch.randn(4, 4, generator=torch.Generator().manual_seed(0))
N = torch.arange(4)


class Subject(nn.Module):
    """Computes what it is given, with layers at hand."""

    def __init__(self, compute: Callable[..., Any]) -> None:
        super().__init__()
        self.compute = compute
        torch.manual_seed(0)
        self.linear, self.other, self.relu = nn.Linear(4, 4), nn.Linear(4, 4), nn.ReLU()
        self.leaky, self.gelu, self.hard = nn.LeakyReLU(0.3), nn.GELU(), nn.Hardtanh(-0.2, 0.7)
        self.weight = nn.Parameter(torch.tensor([0.7, -0.4, 0.2, -0.1]))
        self.norm = nn.LayerNorm(4)

    def forward(self, x: Tensor) -> Any:
        return self.compute(self, x)


def written(module: nn.Module, *example: Tensor, **options: Any) -> tuple[Any, PassRecord]:
    """What `run` makes of the model, and what the pass did."""
    result = fxpasses.run(module, "inplace", example, **options)
    return result, fxpasses.report(result).record.passes[0]


FIRES: dict[str, tuple[int, Any]] = {
    "module": (1, lambda s, x: s.relu(s.linear(x))),
    "function": (1, lambda s, x: F.relu(s.linear(x))),
    "method": (1, lambda s, x: s.linear(x).relu()),
    "operator": (1, lambda s, x: s.linear(x) * 2),
    "with settings": (2, lambda s, x: (s.leaky(s.linear(x)), s.hard(s.other(x)))),
    "a module without a form in place": (1, lambda s, x: s.gelu(s.linear(x))),
    "several in a row": (3, lambda s, x: (s.linear(x) * 2 + 1).clamp(-1, 1)),
    "a sum": (1, lambda s, x: s.linear(x) + s.other(x)),
    "into the second operand": (1, lambda s, x: s.norm(s.other(x + s.linear(x)))),
    "a residual": (1, lambda s, x: s.norm(s.linear(x) + x)),
    "after a reader that keeps nothing": (
        2,
        lambda s, x: torch.cat([h := s.linear(x), x]) + torch.cat([F.relu(h), x]).tanh(),
    ),
    "a broadcast operand": (1, lambda s, x: s.linear(x) * s.weight),
    "a number that is a tensor": (1, lambda s, x: s.linear(x) * x.sum()),
    "a mask": (1, lambda s, x: s.linear(x).masked_fill(x > 0, 1.0)),
}


@pytest.mark.parametrize("name", FIRES)
def test_results_take_the_memory_of_what_dies(name: str) -> None:
    count, compute = FIRES[name]
    model = Subject(compute).eval()

    result, record = written(model, X)

    assert len(record.rewrites) == count
    torch.testing.assert_close(result(X), model(X), rtol=0, atol=0)
    assert written(model.train(), X, training=True)[1].rewrites


def test_the_graph_says_what_is_written() -> None:
    module = traced(Subject(lambda s, x: s.leaky(s.linear(x)) + 1), X)
    apply(Inplace(), module)
    assert "leaky_relu_" in module.code
    assert "add_" not in module.code  # the backward of leaky_relu_ needs its result
    assert (
        graph_text(module)
        == "%0 = input\n%1 = linear(%0)\n%2 = leaky_relu(%1)\n%3 = add(%2)\nreturn %3"
    )


def test_exported_graphs_are_written_in_place_too() -> None:
    model = Subject(FIRES["several in a row"][1]).eval()
    module = exported(model, X)
    assert apply(Inplace(), module).modified
    torch.testing.assert_close(module(X), model(X), rtol=0, atol=0)


_GIVEN: dict[Op, Any] = {
    **dict.fromkeys((Op.ADD, Op.SUB, Op.MUL, Op.DIV), lambda f, x: f(x, 1.5)),
    Op.POW: lambda f, x: f(x, 2),
    Op.CLAMP: lambda f, x: f(x, 0.2, 0.6),
    Op.CLAMP_MIN: lambda f, x: f(x, 0.2),
    Op.CLAMP_MAX: lambda f, x: f(x, 0.6),
    Op.THRESHOLD: lambda f, x: f(x, 0.4, -1.0),
    Op.MASKED_FILL: lambda f, x: f(x, x > 0.5, 1.5),
    Op.BITWISE_NOT: lambda f, x: f((x * 9).long() + 1),
}


@pytest.mark.parametrize("op", sorted(HAVE_FORMS))
def test_every_form_computes_the_same_bits(op: Op) -> None:
    function = getattr(F, op, None) or getattr(torch, op)
    given = _GIVEN.get(op, lambda f, x: f(x))
    inputs = X.sigmoid() + (1 if op is Op.ACOSH else 0)
    model = Subject(lambda s, x: given(function, x * 1)).eval()
    module = traced(model, inputs)

    rewritten = apply(Inplace(), module).modified

    assert rewritten or op is Op.LOGICAL_NOT  # it makes booleans
    torch.testing.assert_close(module(inputs), model(inputs), rtol=0, atol=0)
    ours, theirs = inputs.clone().requires_grad_(), inputs.clone().requires_grad_()
    if op not in (Op.BITWISE_NOT, Op.LOGICAL_NOT):
        module(ours).sum().backward()
        model(theirs).sum().backward()
        torch.testing.assert_close(ours.grad, theirs.grad)


# -- what stays


def _halves(s: Subject, x: Tensor) -> Tensor:
    a, b = s.linear(x).chunk(2, -1)
    c = b + 1
    return c + F.relu(a)


def _memory_order(s: Subject, x: Tensor) -> Tensor:
    return (s.linear.weight.t() + s.linear(s.other.weight)).as_strided((4, 4), (4, 1)) + x


def _training(compute: Any) -> Model:
    return Model(Subject(compute).train(), (X,))


REFUSED: dict[Condition[Site], Model] = {
    subject.dtype_stays: Model(Subject(lambda s, n: torch.sigmoid(n + 1)).eval(), (N,)),
    subject.memory_is_of_a_result: _training(lambda s, x: F.relu(x)),
    subject.nothing_looks_into_it: _training(_halves),
    subject.it_is_read_once: _training(lambda s, x: (h := s.linear(x)) * h),
    subject.nothing_reads_it_again: _training(lambda s, x: F.relu(h := s.linear(x)) - h),
    subject.no_backward_needs_it: _training(lambda s, x: s.linear(x).sigmoid() * 0.5),
    subject.it_is_no_leaf: _training(lambda s, x: torch.ones(4, requires_grad=True) * 2 + x),
    subject.its_backward_is_known_in_place: _training(lambda s, x: F.leaky_relu(s.linear(x), -0.5)),
    subject.shape_stays: _training(lambda s, x: s.linear(x).mean(0, keepdim=True) + x),
    subject.layout_stays: _training(_memory_order),
}

ALSO_REFUSED: dict[str, tuple[str, Any]] = {
    "a weight": ("memory_is_of_a_result", lambda s, x: F.relu(s.weight) * x),
    "a view of an argument": ("memory_is_of_a_result", lambda s, x: F.relu(x.view(-1))),
    "what is returned": ("memory_is_of_a_result", lambda s, x: (h := s.linear(x), h + 1)),
    "a view that is returned": (
        "memory_is_of_a_result",
        lambda s, x: ((h := s.linear(x)).view(-1), h + 1),
    ),
    "a view that is read later": (
        "nothing_looks_into_it",
        lambda s, x: ((v := (h := s.linear(x)).view(4, 4)) * 0, F.relu(h), v * 1.5)[1:],
    ),
    "an expanded value": (
        "nothing_looks_into_it",
        lambda s, x: F.relu(s.linear(x).sum(0, keepdim=True).expand(4, 4)),
    ),
    "what a layer keeps for its backward": (
        "no_backward_needs_it",
        lambda s, x: s.other(h := s.linear(x)) + (h + 1).exp(),
    ),
    "a view of itself": ("nothing_looks_into_it", lambda s, x: (h := s.linear(x)) + h.t()),
    "a mask that may be larger": (
        "shape_stays",
        lambda s, x: s.linear(x).sum(0, keepdim=True).masked_fill(x > 0, 1.0),
    ),
}


@pytest.mark.parametrize("condition", REFUSED, ids=lambda condition: condition.__name__)
def test_refuses(condition: Condition[Site]) -> None:
    model = REFUSED[condition]
    result = apply(Inplace(), traced(model.module, *model.inputs))
    assert condition.__name__ in reasons(result)
    assert all(refusal.remedy for refusal in result.refusals)


@pytest.mark.parametrize("name", ALSO_REFUSED)
def test_refuses_for_the_reason(name: str) -> None:
    condition, compute = ALSO_REFUSED[name]
    model = Subject(compute).train()

    result, record = written(model, X, training=True)

    assert condition in [refusal.condition for refusal in record.refusals]
    torch.testing.assert_close(result(X), model(X), rtol=0, atol=0)


def test_what_writes_already_is_left_alone() -> None:
    result = apply(Inplace(), traced(Subject(lambda s, x: s.linear(x).relu_().add_(1)), X))
    assert not result.modified
    assert not result.refusals


def test_every_refusal_is_tested_here() -> None:
    assert Inplace.legal_if == tuple(REFUSED)
    assert set(Inplace.remedies) == set(Inplace.legal_if)


def test_keeps_the_promises_of_a_pass() -> None:
    check_pass(
        Inplace,
        models=[(Subject(FIRES[name][1]).eval(), X) for name in ("several in a row", "a residual")],
        goes_wrong=REFUSED,
    )


def test_other_sizes_fit() -> None:
    model = Subject(FIRES["a residual"][1]).eval()
    result, _ = written(model, X)
    for rows in (0, 1, 7):
        x = torch.randn(rows, 4)
        torch.testing.assert_close(result(x), model(x), rtol=0, atol=0)
    assert "0 by the module's own code" in str(fxpasses.report(result))


def test_a_later_example_of_one_row_does_not_decide() -> None:
    """With one row both have the same shape, with more they have not."""
    model = Subject(lambda s, x: s.linear(x).mean(0, keepdim=True) + x).eval()
    result, record = written(model, X[:1])
    assert not record.rewrites
    torch.testing.assert_close(result(X), model(X), rtol=0, atol=0)


# -- what it saves


class Wide(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(4, 256), nn.Linear(256, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(F.silu(self.first(x)))


def test_the_activations_saved_are_measured() -> None:
    _, record = written(Wide().eval(), X)
    assert record.bytes_saved == 4 * 4 * (256 - 4)
    assert written(Wide().eval(), X, verify=False)[1].bytes_saved is None
    assert "3.9 KiB" in str(fxpasses.report(written(Wide().eval(), X)[0]))


@pytest.mark.parametrize("make", [resnet18, mobilenet_v2])
def test_image_models(make: Callable[..., nn.Module]) -> None:
    torch.manual_seed(0)
    model = make(num_classes=5).eval()
    for module in model.modules():
        if hasattr(module, "inplace"):
            module.inplace = False
    images = torch.randn(2, 3, 32, 32)

    result, record = written(model, images)

    assert record.rewrites
    assert record.bytes_saved is not None
    assert record.bytes_saved >= 0
    more = torch.randn(3, 3, 64, 64)
    torch.testing.assert_close(result(more), model(more), rtol=0, atol=0)
    assert "0 by the module's own code" in str(fxpasses.report(result))

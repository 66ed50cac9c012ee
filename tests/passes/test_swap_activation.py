from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import fxpasses
from fxpasses.core import Condition
from fxpasses.errors import PipelineError
from fxpasses.manager import apply
from fxpasses.ops import ACTIVATIONS, Op
from fxpasses.passes import swap_activation as subject
from fxpasses.passes.swap_activation import NAMES, Site, SwapActivation
from fxpasses.testing import check_pass
from tests.support import ops, reasons, traced

X = torch.randn(3, 4, generator=torch.Generator().manual_seed(0))
TO_SILU = SwapActivation(mapping={"relu": "silu"})
TO_GELU = SwapActivation(mapping={"relu": "gelu"})  # has no in-place form


class Subject(nn.Module):
    def __init__(self, compute: Callable[["Subject", Tensor], Any]) -> None:
        super().__init__()
        self.compute = compute
        torch.manual_seed(0)
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)
        self.act, self.written = nn.ReLU(), nn.ReLU(inplace=True)

    def forward(self, x: Tensor) -> Any:
        return self.compute(self, x)


SPELLINGS: dict[str, Any] = {
    "module": lambda s, x: s.act(s.first(x)),
    "shared module": lambda s, x: s.act(s.second(s.act(s.first(x)))),
    "in-place module": lambda s, x: s.written(s.first(x)),
    "function": lambda s, x: F.relu(s.first(x)),
    "in-place function": lambda s, x: F.relu(s.first(x), inplace=True),
    "torch's function": lambda s, x: torch.relu(s.first(x)),
    "torch's in-place function": lambda s, x: torch.relu_(s.first(x)),
    "method": lambda s, x: s.first(x).relu(),
    "in-place method": lambda s, x: s.first(x).relu_(),
    "overload": lambda s, x: torch.ops.aten.relu.default(s.first(x)),
}


@pytest.mark.parametrize("compute", SPELLINGS.values(), ids=SPELLINGS)
def test_every_spelling_is_swapped(compute: Any) -> None:
    module = traced(Subject(compute), X)

    apply(TO_SILU, module)

    model = Subject(compute)
    first, second = model.first, model.second
    expected = F.silu(first(X))
    if Op.LINEAR in ops(module)[2:]:
        expected = F.silu(second(expected))
    assert Op.RELU not in ops(module)
    assert Op.COPY not in ops(module), "nothing sees the write"
    torch.testing.assert_close(module(X), expected)


IN_PLACE: dict[str, Any] = {
    "read again": lambda act: lambda s, x: (h := s.first(x), s.second(act(h)) + h)[1],
    "a view read again": lambda act: (
        lambda s, x: (h := s.first(x), v := h.view(-1), act(h) + v[0])[2]
    ),
    "the input": lambda act: lambda s, x: act(x) + 1,
    "a view of the input": lambda act: lambda s, x: act(x.view(-1)) + 1,
    "read through the result": lambda act: lambda s, x: (y := act(s.first(x)), y.view(-1) * 2)[1],
}


@pytest.mark.parametrize("swap", [TO_SILU, TO_GELU], ids=["own form", "none"])
@pytest.mark.parametrize("model", IN_PLACE.values(), ids=IN_PLACE)
def test_what_was_written_in_place_still_is(model: Any, swap: SwapActivation) -> None:
    new = F.silu if swap is TO_SILU else F.gelu
    module = traced(Subject(model(lambda t: F.relu(t, inplace=True))), X.clone())
    reference = Subject(model(lambda t: t.copy_(new(t.clone()))))

    apply(swap, module)

    given, expected = X.clone(), X.clone()
    torch.testing.assert_close(module(given), reference(expected))
    torch.testing.assert_close(given, expected)


@pytest.mark.parametrize("swap", [TO_SILU, TO_GELU], ids=["own form", "none"])
def test_what_was_written_in_place_is_trained(swap: SwapActivation) -> None:
    model = IN_PLACE["read again"](lambda t: F.relu(t, inplace=True))
    new = F.silu if swap is TO_SILU else F.gelu
    reference = Subject(IN_PLACE["read again"](lambda t: t.copy_(new(t.clone()))))

    result = fxpasses.run(Subject(model).train(), [swap], (X,), training=True)
    for trained in (result, reference):
        trained(X).square().sum().backward()

    for name, parameter in reference.named_parameters():
        torch.testing.assert_close(result.get_parameter(name).grad, parameter.grad)


def test_options_and_names_of_the_new_one() -> None:
    compute = SPELLINGS["function"]
    for mapping in (
        {"relu": {"gelu": {"approximate": "tanh"}}},
        {"ReLU": {"nn.GELU": {"approximate": "tanh"}}},
    ):
        module = traced(Subject(compute), X)
        apply(SwapActivation(mapping=mapping), module)
        expected = F.gelu(Subject(compute).first(X), approximate="tanh")
        torch.testing.assert_close(module(X), expected)


def test_only_some_modules() -> None:
    model = nn.ModuleDict({"a": nn.Sequential(nn.ReLU()), "b": nn.Sequential(nn.ReLU())})
    chain = nn.Sequential(model["a"], model["b"])

    result = fxpasses.run(
        chain.eval(), [SwapActivation(mapping={"relu": "silu"}, within=("1.*",))], (X,)
    )

    assert [op for op in ops(result) if op in ACTIVATIONS] == [Op.RELU, Op.SILU]


@pytest.mark.parametrize(
    ("compute", "mapping", "swapped"),
    [
        (lambda s, x: F.relu(x), {"relu": "relu"}, False),
        (lambda s, x: s.act(x), {"relu": "ReLU"}, False),
        (lambda s, x: F.gelu(x), {"gelu": {"gelu": {"approximate": "tanh"}}}, True),
        (
            lambda s, x: F.gelu(x, approximate="tanh"),
            {"gelu": {"gelu": {"approximate": "tanh"}}},
            False,
        ),
        (lambda s, x: F.leaky_relu(x, 0.2), {"leaky_relu": "leaky_relu"}, True),
    ],
)
def test_what_is_as_asked_for_already_stays(compute: Any, mapping: Any, swapped: bool) -> None:
    swap = SwapActivation(mapping=mapping)
    module = traced(Subject(compute), X)

    assert apply(swap, module).modified is swapped
    assert not apply(swap, module).modified


def test_several_at_once_and_never_twice() -> None:
    module = traced(Subject(lambda s, x: F.relu(F.silu(x))), X)
    swap = SwapActivation(mapping={"relu": "silu", "silu": "relu"})

    apply(swap, module)

    assert [op for op in ops(module) if op in ACTIVATIONS] == [Op.RELU, Op.SILU]


@pytest.mark.parametrize("old", sorted(set(NAMES.values())))
@pytest.mark.parametrize("written", [False, True])
def test_every_activation_can_be_swapped(old: Op, written: bool) -> None:
    def compute(_: Subject, x: Tensor) -> Tensor:
        function = getattr(F, "logsigmoid" if old is Op.LOG_SIGMOID else old)
        if old is Op.PRELU:
            return function(x, torch.ones(1))
        return function(x, 0.1, 0.2) if old is Op.THRESHOLD else function(x)

    module = traced(Subject(compute), X)
    apply(SwapActivation(mapping={str(old): "mish"}), module)
    torch.testing.assert_close(module(X), F.mish(X))


REFUSED: dict[Condition[Site], tuple[Any, Tensor]] = {
    subject.input_is_a_float: (lambda s, x: F.relu(x), torch.arange(-2, 4)),
}


@pytest.mark.parametrize("condition", REFUSED)
def test_refuses(condition: Condition[Site]) -> None:
    compute, x = REFUSED[condition]
    result = apply(TO_GELU, traced(Subject(compute), x))
    assert reasons(result) == [condition.__name__]
    assert not result.modified


def test_keeps_the_promises_of_a_pass() -> None:
    check_pass(
        SwapActivation,
        options={"mapping": {"relu": "gelu"}},
        models=[(Subject(SPELLINGS[name]).eval(), X) for name in ("module", "in-place method")],
        goes_wrong={c: (Subject(compute).eval(), x) for c, (compute, x) in REFUSED.items()},
    )


def test_every_refusal_is_tested_here() -> None:
    assert SwapActivation.legal_if == tuple(REFUSED)


@pytest.mark.parametrize(
    ("mapping", "message"),
    [
        ("{}", "mapping is empty"),
        ("{rela=gelu}", "'rela' is no activation that can be swapped; did you mean"),
        ("{relu=glu}", "'glu' is no activation that can be swapped"),
        ("{relu=prelu}", "prelu has weights"),
        ("{relu={gelu={approx=tanh}}}", "gelu does not take"),
        ("{relu={gelu={},silu={}}}", "pass one activation"),
    ],
)
def test_wrong_options_are_errors(mapping: str, message: str) -> None:
    with pytest.raises(PipelineError, match=message):
        fxpasses.run(Subject(SPELLINGS["module"]), f"swap_activation{{mapping={mapping}}}", (X,))


def test_the_pipeline_is_cut_and_each_piece_is_verified() -> None:
    model = Subject(lambda s, x: s.act(s.first(x)) + s.act(s.first(x))).eval()

    result = fxpasses.run(model, "cse,swap_activation{mapping={relu=silu}},dce", (X,))

    torch.testing.assert_close(result(X), 2 * F.silu(model.first(X)))
    assert fxpasses.report(result).record.verification.pieces

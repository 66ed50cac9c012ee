"""Constant factors and summands folded into layers: either way round, and only where exact."""

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import fxpasses
from fxpasses.core import Condition
from fxpasses.folding import affine
from fxpasses.manager import apply
from fxpasses.ops import Op
from fxpasses.passes import fold_scale as subject
from fxpasses.passes.fold_scale import FoldScale
from fxpasses.testing import Model, check_pass
from fxpasses.text import graph_text
from tests.passes.test_fuse_conv_bn import IMAGE, Doubling
from tests.support import bare, exported, ops, reasons, the_node, traced

Body = Callable[[Any, Tensor], Any]
WIDE = IMAGE.double()


class Net(nn.Module):
    """`body(self, x)` with layers of 4 channels, 8 of them transposed, and constants."""

    def __init__(self, body: Body, layer: nn.Module | None = None) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(3)
        self.body = [body]
        self.layer = nn.Conv2d(4, 4, 3) if layer is None else layer
        self.second = nn.Conv2d(4, 4, 1, bias=False)
        self.register_buffer("channels", torch.rand(4, 1, 1, generator=generator) + 0.5)
        self.register_buffer("last", torch.rand(8, generator=generator) + 0.5)
        self.register_buffer("wholes", torch.arange(1, 5).view(4, 1, 1))
        self.register_buffer("one", torch.tensor(1.5, dtype=torch.float64))
        self.register_buffer("batched", torch.rand(1, 4, 1, 1, generator=generator) + 0.5)
        self.eval()

    def forward(self, x: Tensor) -> Any:
        return self.body[0](self, x)


BEHIND: dict[str, Body] = {
    "times": lambda m, x: m.layer(x) * 2,
    "times_left": lambda m, x: 3.5 * m.layer(x),
    "over": lambda m, x: m.layer(x) / 4,
    "plus": lambda m, x: m.layer(x) + 1,
    "plus_left": lambda m, x: True + m.layer(x),
    "minus": lambda m, x: m.layer(x) - 0.5,
    "minus_left": lambda m, x: 2 - m.layer(x),
    "rsub": lambda m, x: torch.rsub(m.layer(x), 2, alpha=3),
    "alpha": lambda m, x: torch.add(m.layer(x), m.channels, alpha=2),
    "alpha_left": lambda m, x: torch.sub(m.channels, m.layer(x), alpha=2),
    "negative": lambda m, x: -m.layer(x),
    "a_channel": lambda m, x: m.channels * m.layer(x),
    "over_a_channel": lambda m, x: m.layer(x) / m.channels,
    "batched": lambda m, x: m.layer(x) - m.batched,
    "integers": lambda m, x: m.layer(x) * m.wholes,
    "one_wide_number": lambda m, x: m.one.float() * 0 + m.layer(x) * m.one.float(),
    "in_place": lambda m, x: m.layer(x).mul_(2).add_(m.channels),
    "chain": lambda m, x: (1 - (m.layer(x) * 2 + m.channels) / 3) * m.channels - 4,
    "in_another_shape": lambda m, x: m.layer(x) * m.last[:4].view(-1, 1, 1) - m.batched[0],
    "of_numbers": lambda m, x: m.layer(x) + torch.tensor([1.0, 2, 3, 4])[:, None, None],
    "identity": lambda m, x: F.dropout(m.layer(x), 0.5, training=False) * 2,
    "aten": lambda m, x: torch.ops.aten.mul.Tensor(m.layer(x), m.channels),
}
LAYERS: dict[str, Callable[[], nn.Module]] = {
    "conv": lambda: nn.Conv2d(4, 4, 3, padding=1),
    "grouped": lambda: nn.Conv2d(4, 4, 3, groups=2, bias=False),
    "depthwise": lambda: nn.Conv2d(4, 4, 3, groups=4, stride=2),
    "transposed": lambda: nn.ConvTranspose2d(4, 4, 3, stride=2, bias=False),
    "transposed_in_groups": lambda: nn.ConvTranspose2d(4, 4, 3, groups=2),
}


def folded(model: nn.Module, example: Tensor = WIDE, graph_of: Any = traced) -> list[Op]:
    """The ops that are left; the outputs are equal to float64."""
    model = model.double()
    module = graph_of(model, example)
    expected = module(example)

    apply(FoldScale(), module)

    torch.testing.assert_close(module(example), expected, rtol=1e-12, atol=1e-12)
    return ops(module)


@pytest.mark.parametrize("name", BEHIND)
def test_folds_what_lies_behind_a_layer(name: str) -> None:
    left = folded(Net(BEHIND[name]))

    assert left.count(Op.CONV) == 1
    left_to_dce = {Op.VIEW, Op.GETITEM, Op.TENSOR}
    more = {Op.CAST, Op.MUL, Op.ADD} if "wide" in name else left_to_dce
    assert {*left} <= {Op.CONV, Op.DROPOUT, *more}


@pytest.mark.parametrize("layer", LAYERS)
@pytest.mark.parametrize("name", ["chain", "minus_left", "over_a_channel"])
def test_folds_into_layers_of_every_kind(layer: str, name: str) -> None:
    assert folded(Net(BEHIND[name], LAYERS[layer]())) in ([Op.CONV], [Op.CONV_TRANSPOSE])


@pytest.mark.parametrize("name", ["times", "minus_left", "chain"])
def test_folds_what_torch_exports(name: str) -> None:
    assert Op.CONV in (left := folded(Net(BEHIND[name]), graph_of=exported))
    assert not {*left} & {Op.MUL, Op.ADD, Op.SUB, Op.DIV}


IN_FRONT: dict[str, tuple[Body, Callable[[], nn.Module]]] = {
    "factor": (lambda m, x: m.layer(x * 2 / m.channels), LAYERS["conv"]),
    "shift": (lambda m, x: m.layer((x - 0.4) / 0.25), LAYERS["grouped"]),
    "shift_left": (lambda m, x: m.layer(m.channels - x), LAYERS["depthwise"]),
    "reflected": (
        lambda m, x: m.layer(x * m.channels + m.channels),
        lambda: nn.Conv2d(4, 4, 3, padding=1, padding_mode="reflect"),
    ),
    "transposed": (lambda m, x: m.layer(-x * m.channels), LAYERS["transposed_in_groups"]),
    "linear": (lambda m, x: m.layer(x * m.last + 1), lambda: nn.Linear(8, 3)),
}


@pytest.mark.parametrize("name", IN_FRONT)
def test_folds_what_lies_in_front_of_a_layer(name: str) -> None:
    body, layer = IN_FRONT[name]
    assert folded(Net(body, layer())) in ([Op.CONV], [Op.CONV_TRANSPOSE], [Op.LINEAR])


def test_folds_behind_a_linear_layer() -> None:
    model = Net(lambda m, x: (m.layer(x) * m.last[None] - m.last) * 2, nn.Linear(8, 8))
    assert folded(model, WIDE[0]) == [Op.LINEAR, Op.GETITEM]
    model.body = [lambda m, x: m.last - m.layer(x) * m.last]
    assert folded(model, WIDE[0]) == [Op.LINEAR]


def test_what_padding_keeps_out_of_one_layer_goes_into_the_other() -> None:
    model = Net(lambda m, x: m.layer(m.second(x) * 2 + 1), LAYERS["conv"]())
    assert folded(model) == [Op.CONV, Op.CONV]


def test_two_layers_with_factors_of_their_own() -> None:
    assert folded(Net(lambda m, x: (m.layer(x) * 2, m.second(x) * 5))) == [Op.CONV, Op.CONV]


def test_a_layer_that_is_called_twice_keeps_its_weights_elsewhere() -> None:
    left = folded(Net(lambda m, x: m.second(x) * 2 + m.second(x)))
    assert left == [Op.CONV, Op.CONV, Op.ADD]


def test_a_chain_is_rounded_once_and_leaves_nothing_behind() -> None:
    model = Net(BEHIND["chain"])
    weights = []
    for one, x in ((copy.deepcopy(model), IMAGE), (copy.deepcopy(model).double(), WIDE)):
        module = traced(one, x)
        apply(FoldScale(), module)
        (made,) = [
            p for n, p in module.named_parameters() if n.startswith("layer_") and p.dim() > 1
        ]
        weights.append(made)
    assert torch.equal(weights[0], weights[1].float())


def test_a_factor_alone_makes_no_bias() -> None:
    module = traced(Net(lambda m, x: -m.second(x) * m.channels), IMAGE)
    apply(FoldScale(), module)
    made = module.get_submodule(str(the_node(module, Op.CONV).target))
    assert made.bias is None


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_keeps_the_dtype(dtype: torch.dtype) -> None:
    model, x = Net(BEHIND["chain"]).to(dtype), IMAGE.to(dtype)
    module = traced(model, x)
    expected = module(x)

    apply(FoldScale(), module)

    assert ops(module) == [Op.CONV]
    assert module(x).dtype is dtype
    torch.testing.assert_close(module(x), expected, rtol=0.05, atol=0.05)


def test_the_parameters_of_a_unit_take_up_what_lies_in_front() -> None:
    model = Net(lambda m, x: torch.relu(m.layer(x * m.channels) + 1), LAYERS["conv"]())
    passes = ["fuse_conv_bn_relu", "fold_scale", "fuse_conv_bn_relu", "dce"]
    result = fxpasses.run(model, passes, IMAGE)

    assert ops(result) == [Op.CONV_UNIT]
    torch.testing.assert_close(result(IMAGE), model(IMAGE))


# -- refusals


def _parameter_of_one(m: Any, x: Tensor) -> Tensor:
    return F.conv2d(x, m.layer.weight * x.mean()) * 2


def _constant_written(m: Any, x: Tensor) -> Tensor:
    m.channels.add_(1)
    return m.layer(x) * m.channels


def _constant_handed_out(m: Any, x: Tensor) -> Any:
    seen = m.last[:4].view(4, 1, 1)
    return m.layer(x) * seen, seen


def _written_in_place(m: Any, x: Tensor) -> Tensor:
    y = m.layer(x)
    y.mul_(2)
    return y + 0 * x.mean()


def _written_between(m: Any, x: Tensor) -> Tensor:
    y = m.layer(x)
    y.relu_()
    return y * 2


def _read_twice(m: Any, x: Tensor) -> Tensor:
    y = m.layer(x)
    return y * 2 + y.exp()


def _odd() -> nn.Module:
    layer = nn.Conv2d(4, 4, 3)
    layer.weight = nn.Parameter(layer.weight.detach().as_subclass(Doubling))
    return layer


def case(
    body: Body, layer: nn.Module | None = None, example: Tensor = IMAGE, *, training: bool = False
) -> Model:
    return Model(Net(body, layer), (example,), training=training)


class Given(Net):
    """The constant that the body uses is a buffer of its own."""

    def __init__(self, body: Body, constant: Tensor, layer: nn.Module | None = None) -> None:
        super().__init__(body, layer)
        self.register_buffer("constant", constant)


def times(m: Any, x: Tensor) -> Tensor:
    return m.layer(x) * m.constant


def given(body: Body, constant: Tensor, layer: nn.Module | None = None, x: Tensor = IMAGE) -> Model:
    return Model(Given(body, constant, layer), (x,), training=False)


HALF = nn.Conv2d(4, 4, 3).half()


REFUSED: dict[Condition[Any], Model] = {
    subject.constant_is_no_dividend: case(lambda m, x: 2 / m.layer(x)),
    subject.constant_is_finite: case(lambda m, x: m.layer(x) * float("inf")),
    affine.parameters_are_constant: case(_parameter_of_one),
    affine.parameters_are_plain_tensors: case(lambda m, x: m.layer(x) + 1, _odd()),
    affine.nothing_writes_the_parameters: case(_constant_written),
    affine.constants_stay_inside: case(_constant_handed_out),
    affine.no_parameter_is_trained: case(lambda m, x: m.layer(x) * 2, training=True),
    subject.constant_is_one_number_a_channel: given(times, torch.rand(6) + 1),
    subject.dtype_is_known_to_stay: given(times, torch.rand(4, 1, 1).double()),
    subject.no_write_is_seen: case(_written_in_place),
    affine.nothing_writes_between: case(_written_between),
    affine.padding_is_not_shifted: case(lambda m, x: m.layer(x + 1), LAYERS["conv"]()),
    subject.little_cancels: case(lambda m, x: m.layer(x - 1e5), example=IMAGE + 1e5),
    affine.weights_fit_their_dtype: case(lambda m, x: m.layer(x * 1e6), HALF, IMAGE.half() * 1e-3),
    affine.nothing_else_reads_between: case(_read_twice),
}


ALSO_REFUSED: list[tuple[Condition[Any], Model]] = [
    (subject.constant_is_finite, case(lambda m, x: m.layer(x) / 0)),
    (
        subject.constant_is_one_number_a_channel,
        given(times, torch.rand(1, 4, 1, 1), x=IMAGE[0]),
    ),
    (
        subject.constant_is_one_number_a_channel,
        given(times, torch.rand(5, 1, 1), nn.Conv2d(4, 1, 3)),
    ),
    (
        subject.constant_is_one_number_a_channel,
        given(lambda m, x: m.layer(x * m.constant), torch.rand(8)),
    ),
    (
        subject.dtype_is_known_to_stay,
        case(lambda m, x: m.layer(x / 255), example=torch.ones(1, 4, 8, 8, dtype=torch.uint8)),
    ),
    (subject.no_write_is_seen, case(lambda m, x: m.layer(x.mul_(2)))),
    (affine.padding_is_not_shifted, case(lambda m, x: m.layer(x - 1), LAYERS["transposed"]())),
    (affine.nothing_else_reads_between, case(lambda m, x: m.layer(y := x * 2).mean() + y.exp())),
]


@pytest.mark.parametrize(("condition", "refused"), [*REFUSED.items(), *ALSO_REFUSED])
def test_refuses(condition: Condition[Any], refused: Model) -> None:
    module = traced(refused.module, *refused.inputs)
    before = graph_text(module)

    result = apply(FoldScale(), module, training=refused.training)

    assert condition.__name__ in reasons(result)
    assert {r.legal for r in result.refusals} == {condition in FoldScale.worthwhile_if}
    assert graph_text(module) == before


def test_every_condition_has_its_refusal() -> None:
    assert {*FoldScale.legal_if, *FoldScale.worthwhile_if} == set(REFUSED)


def test_keeps_the_promises_of_a_pass() -> None:
    check_pass(
        FoldScale,
        models=[
            (Net(BEHIND["chain"]), IMAGE),
            (Net(lambda m, x: m.layer(x * 2 + 1), nn.Linear(8, 3)), IMAGE),
        ],
        goes_wrong={condition: REFUSED[condition] for condition in FoldScale.legal_if},
        still_right={condition: REFUSED[condition] for condition in FoldScale.worthwhile_if},
    )


def test_nothing_is_folded_where_nothing_is_known_of_the_dtypes() -> None:
    result = apply(FoldScale(), bare(Net(BEHIND["times"])))
    assert reasons(result) == ["dtype_is_known_to_stay"]


@pytest.mark.parametrize(
    ("body", "is_folded"),
    [
        (lambda m, x: m.layer((x - 128) / 64), True),
        (lambda m, x: m.layer((x - 0.45) / 0.001), False),
    ],
)
def test_cancellation_is_measured_after_all_factors(body: Body, is_folded: bool) -> None:
    module = traced(Net(body), IMAGE)
    apply(FoldScale(), module)
    apply(FoldScale(), module)
    assert (Op.SUB not in ops(module)) is is_folded

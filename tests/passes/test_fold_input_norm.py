"""Normalisations of inputs folded into the layer behind them: in every spelling, and no others."""

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torchvision
from torch import Tensor, nn
from torchvision.transforms import Normalize
from torchvision.transforms.functional import normalize

import fxpasses
from fxpasses.core import Condition
from fxpasses.errors import StaleWeightsError
from fxpasses.folding import affine
from fxpasses.manager import apply
from fxpasses.ops import Op
from fxpasses.passes import fold_input_norm as subject
from fxpasses.passes.fold_input_norm import FoldInputNorm
from fxpasses.testing import Model, check_pass
from fxpasses.text import graph_text
from tests.support import bare, ops, reasons, traced

Body = Callable[[Any, Tensor], Any]

GENERATOR = torch.Generator().manual_seed(0)
IMAGE = torch.rand(2, 3, 8, 8, generator=GENERATOR)
PIXELS = torch.randint(0, 256, (2, 3, 8, 8), dtype=torch.uint8, generator=GENERATOR)
MEAN, STD = [0.485, 0.456, 0.406], [0.229, 0.224, 0.225]


class Net(nn.Module):
    """A layer behind `body(self, x)`, with constants of every kind."""

    def __init__(self, body: Body, layer: nn.Module | None = None) -> None:
        super().__init__()
        self.body = [body]
        self.layer = nn.Conv2d(3, 4, 3, padding=1) if layer is None else layer
        self.norm = Normalize(MEAN, STD)
        self.register_buffer("mean", torch.tensor(MEAN))
        self.std = nn.Parameter(torch.tensor(STD), requires_grad=False)
        self.trained = nn.Parameter(torch.tensor(STD))
        self.columns = torch.arange(8.0)
        self.shaped = torch.tensor(MEAN).view(1, 3, 1, 1)
        self.eval()

    def forward(self, x: Tensor) -> Any:
        return self.layer(self.body[0](self, x))


def plain() -> nn.Module:
    return nn.Conv2d(3, 4, 3)


def reflecting() -> nn.Module:
    return nn.Conv2d(3, 4, 3, padding=1, padding_mode="reflect")


def channels(each: Callable[[Any, Tensor, int], Tensor], join: Any = torch.cat) -> Body:
    return lambda m, x: join([each(m, x, n) for n in range(3)], 1)


SPELLINGS: dict[str, tuple[Body, Tensor]] = {
    "numbers": (lambda _, x: x * 2 - 1, IMAGE),
    "numbers of integers": (lambda _, x: (x / 255 - 0.5) / 0.25, PIXELS),
    "buffer and parameter": (
        lambda m, x: (x - m.mean[None, :, None, None]) / m.std.view(-1, 1, 1),
        IMAGE,
    ),
    "shaped": (lambda m, x: (x - m.shaped) * 4, IMAGE),
    "tensors made of lists": (
        lambda _, x: (x - torch.tensor(MEAN).view(3, 1, 1)) / torch.as_tensor(STD)[:, None, None],
        IMAGE,
    ),
    "factor first": (lambda m, x: x * m.std[:, None, None] + m.shaped, IMAGE),
    "integers": (lambda m, x: (x / 255 - m.shaped) / m.std.view(3, 1, 1), PIXELS),
    "in place": (lambda m, x: x.clone().sub_(m.shaped).div_(0.5), IMAGE),
    "in place on what is new": (lambda m, x: (x - m.shaped).div_(0.5), IMAGE),
    "module of torchvision": (lambda m, x: m.norm(x), IMAGE),
    "function of torchvision": (lambda _, x: normalize(x, MEAN, STD), IMAGE),
    "in place by torchvision": (lambda _, x: normalize(x.clone(), MEAN, STD, inplace=True), IMAGE),
    "as torchvision transforms its input": (
        channels(lambda _, x, n: torch.unsqueeze(x[:, n], 1) * (STD[n] / 0.5) + (MEAN[n] - 0.5)),
        IMAGE,
    ),
    "stacked": (channels(lambda m, x, n: (x[:, n] - m.mean[n]) / m.std[n], torch.stack), IMAGE),
    "sliced": (channels(lambda m, x, n: (x[:, n : n + 1] - m.mean[n]) / STD[n]), IMAGE),
    "selected": (channels(lambda _, x, n: (x.select(1, n) / 255 - n)[:, None] * 2), PIXELS),
    "narrowed": (channels(lambda _, x, n: x.narrow(-3, n, 1) * 2 - n), IMAGE),
    "axis made at once": (channels(lambda _, x, n: x[:, n, None] * 2 - n), IMAGE),
    "handed on in between": (lambda m, x: (nn.Identity()(x - m.shaped).contiguous()) / 0.5, IMAGE),
}


def run(model: nn.Module, x: Tensor) -> torch.fx.GraphModule:
    """The model with its normalisation folded; verified, and equal for another batch."""
    result = fxpasses.run(model, "fold_input_norm,dce", x)
    assert fxpasses.report(result).record.verification.ok is True
    for image in (x, torch.cat([x.flip(-1), x[:1]])):
        torch.testing.assert_close(result(image.clone()), model(image.clone()))
    return result


def left(result: torch.fx.GraphModule) -> list[Op]:
    """What computes, but for what hands values on or picks the channels that count."""
    return [op for op in ops(result) if op not in (Op.IDENTITY, Op.CONTIGUOUS, Op.NARROW)]


@pytest.mark.parametrize("name", SPELLINGS)
@pytest.mark.parametrize("layer", [plain, reflecting])
def test_goes_into_a_layer_that_does_not_pad_with_zeros(
    name: str, layer: Callable[[], nn.Module]
) -> None:
    body, x = SPELLINGS[name]
    cast = [Op.CAST] if x is PIXELS else []
    assert left(run(Net(body, layer()), x)) == [*cast, Op.CONV]


@pytest.mark.parametrize("name", SPELLINGS)
def test_leaves_one_sum_in_front_of_zeros(name: str) -> None:
    body, x = SPELLINGS[name]
    assert left(run(Net(body), x)) == [Op.ADD, Op.CONV]


@pytest.mark.parametrize(
    ("body", "layer"),
    [
        (lambda _, x: ((x - 0.13) / 0.3).flatten(1), nn.Linear(192, 5)),
        (lambda _, x: (x - 0.13).view(x.size(0), -1) / 0.3, nn.Linear(192, 5)),
        (lambda _, x: ((x - 0.13) / 0.3).permute(0, 2, 3, 1), nn.Linear(3, 5)),
        (lambda m, x: (x.permute(0, 2, 3, 1) - m.mean) / m.std, nn.Linear(3, 5)),
        (lambda _, x: (x / 0.3).transpose(2, 3), nn.ConvTranspose2d(3, 4, 3, bias=False)),
        (lambda _, x: 2 - x, nn.Conv2d(3, 6, 3, groups=3, bias=False)),
    ],
)
def test_layers_of_every_kind(body: Body, layer: nn.Module) -> None:
    moving = {Op.FLATTEN, Op.VIEW, Op.PERMUTE, Op.TRANSPOSE, Op.SIZE}
    (only,) = {*ops(run(Net(body, layer), IMAGE))} - moving
    assert only in (Op.LINEAR, Op.CONV, Op.CONV_TRANSPOSE)


def test_other_channels_than_those_that_are_joined_count_for_nothing() -> None:
    body, _ = SPELLINGS["stacked"]
    with_alpha = torch.cat([IMAGE, IMAGE[:, :1]], 1)
    assert left(run(Net(body), with_alpha)) == [Op.ADD, Op.CONV]


def test_a_grey_image_is_spread_as_before() -> None:
    model = Net(lambda m, x: (x - m.shaped) / 0.25, plain())
    result = run(model, IMAGE)
    torch.testing.assert_close(result(IMAGE[:, :1]), model(IMAGE[:, :1]))


def test_what_cancels_stays_one_sum_in_front() -> None:
    model = Net(lambda _, x: (x - 1000) / 0.5, plain())
    assert left(run(model, IMAGE + 1000)) == [Op.ADD, Op.CONV]


def test_what_was_folded_is_watched() -> None:
    model = Net(lambda m, x: (x - m.mean[:, None, None]) / m.std[:, None, None])
    result = run(model, IMAGE)
    with torch.no_grad():
        model.std.add_(1)
    with pytest.raises(StaleWeightsError, match="std"):
        result(IMAGE)


def test_gradients_reach_the_input_as_before() -> None:
    model = Net(lambda m, x: (x - m.shaped) / 0.25).requires_grad_(False)
    result = fxpasses.run(model, "fold_input_norm,dce", IMAGE, training=True, verify="full")

    assert ops(result) == [Op.ADD, Op.CONV]
    grads: list[Any] = []
    for one in (model, result):
        x = IMAGE.clone().requires_grad_()
        one(x).square().mean().backward()
        grads.append(x.grad)
    torch.testing.assert_close(*grads)


def test_the_result_is_cast_as_the_model_is() -> None:
    model = Net(SPELLINGS["factor first"][0])
    result = run(copy.deepcopy(model), IMAGE).double()
    torch.testing.assert_close(result(IMAGE.double()), model.double()(IMAGE.double()))


@pytest.mark.parametrize("name", ["googlenet", "inception_v3"])
def test_the_models_that_transform_their_input(name: str) -> None:
    options = {"transform_input": True, "init_weights": False, "aux_logits": False}
    torch.manual_seed(0)
    model = getattr(torchvision.models, name)(weights=None, **options).eval()
    image = torch.rand(1, 3, 96, 96)

    result = fxpasses.run(model, "fold_input_norm,dce", image)

    assert fxpasses.report(result).record.verification.ok is True
    conv = next(n for n, op in enumerate(ops(result)) if op is Op.CONV)
    assert ops(result)[:conv] == [Op.NARROW, *([Op.ADD] if name == "googlenet" else [])]
    two = torch.rand(2, 3, 96, 96)
    torch.testing.assert_close(result(two), model(two), rtol=1e-4, atol=1e-4)


# -- refusals


def _mean_written(m: Any, x: Tensor) -> Tensor:
    m.mean.mul_(2)
    return (x - m.mean[:, None, None]) / 0.5


def _mean_handed_out(m: Any, x: Tensor) -> Any:
    mean = m.std.view(3, 1, 1)
    return (x - mean) / 0.5, mean


def _made_constant_written(_: Any, x: Tensor) -> Tensor:
    mean = torch.tensor(MEAN).view(3, 1, 1)
    mean.add_(1)
    return (x - mean) / 0.5


def _input_written(m: Any, x: Tensor) -> Tensor:
    return x.sub_(m.shaped).div_(0.5)


def _clone_read(m: Any, x: Tensor) -> Tensor:
    y = x.clone()
    z = y.view(-1)
    return y.sub_(m.shaped).div_(0.5), z


def _written_between(_: Any, x: Tensor) -> Tensor:
    y = x - 0.5
    y.relu_()
    return y / 0.25


def _input_written_between(_: Any, x: Tensor) -> Tensor:
    y = x.relu()
    z = (y - 0.5) / 0.25
    y.zero_()
    return z


def _read_between(_: Any, x: Tensor) -> Tensor:
    y = x - 0.5
    return y / 0.25, y.exp()


class Both(Net):
    """Other readers of what is normalised."""

    def forward(self, x: Tensor) -> Any:
        z, y = self.body[0](self, x)
        return self.layer(z), y


class Squared(Tensor):
    """A tensor of its own kind: convolutions are with the square of it."""

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        if func is torch.conv2d:
            args = [*args[:1], args[1].as_subclass(Tensor).square(), *args[2:]]
        return super().__torch_function__(func, types, args, kwargs)

    def __deepcopy__(self, memo):
        return self.clone().detach().as_subclass(Squared)


def _odd() -> nn.Module:
    layer = plain()
    layer.weight = nn.Parameter(layer.weight.detach().as_subclass(Squared))
    return layer


def case(
    body: Body, layer: nn.Module | None = None, x: Tensor = IMAGE, *, training: bool = False
) -> Model:
    return Model(Net(body, layer), (x,), training=training)


def both(m: Any, x: Tensor) -> Tensor:
    return (x - m.shaped) / 0.5


HALF = nn.Conv2d(3, 4, 3, padding=1).half()

REFUSED: dict[Condition[Any], Model] = {
    affine.parameters_are_plain_tensors: case(both, _odd()),
    affine.nothing_writes_the_parameters: case(_mean_written, plain()),
    affine.constants_stay_inside: Model(Both(_mean_handed_out), (IMAGE,), training=False),
    affine.no_parameter_is_trained: case(
        lambda m, x: x / m.trained.view(3, 1, 1) - 1, training=True
    ),
    subject.constants_are_finite: case(
        lambda _, x: x / 0.0, nn.Conv2d(3, 3, 1, padding=1, groups=3)
    ),
    subject.constants_are_one_number_a_channel: case(lambda m, x: (x - m.columns) * 2, plain()),
    subject.dtype_becomes_the_layers: case(lambda _, x: x * 3 / 255 - 0.5, plain(), PIXELS),
    subject.no_write_is_seen: Model(
        Both(lambda m, x: (_input_written(m, x), x)), (IMAGE,), training=False
    ),
    subject.nothing_writes_between: case(_input_written_between, plain()),
    subject.sum_can_come_first: case(
        lambda _, x: x * 0.25 + 40, HALF, torch.full((1, 3, 4, 4), 65472.0).half()
    ),
    affine.weights_fit_their_dtype: case(
        lambda _, x: x * 1e3 * 1e3, copy.deepcopy(HALF), IMAGE.half() * 1e-3
    ),
    affine.nothing_else_reads_between: Model(Both(_read_between), (IMAGE,), training=False),
    subject.calls_are_saved: case(lambda m, x: x - m.shaped),
}

ALSO_REFUSED: list[tuple[Condition[Any], Model]] = [
    (affine.constants_stay_inside, case(_made_constant_written)),
    (subject.constants_are_finite, case(lambda _, x: x * float("nan") + 1)),
    (subject.constants_are_one_number_a_channel, case(both, x=IMAGE[0])),
    (
        subject.constants_are_one_number_a_channel,
        case(lambda m, x: ((x - m.shaped) / 0.5).flatten(1), nn.Linear(192, 5)),
    ),
    (subject.no_write_is_seen, case(_input_written)),
    (subject.no_write_is_seen, Model(Both(_clone_read), (IMAGE,), training=False)),
    (subject.no_write_is_seen, case(lambda m, x: x.contiguous().sub_(m.shaped) / 0.5)),
    (subject.no_write_is_seen, case(channels(lambda _, x, n: x[:, n : n + 1].mul_(2)))),
    (subject.nothing_writes_between, case(_written_between)),
    (subject.sum_can_come_first, case(lambda _, x: x * 0.0 + 1)),
]


@pytest.mark.parametrize(("condition", "refused"), [*REFUSED.items(), *ALSO_REFUSED])
def test_refuses(condition: Condition[Any], refused: Model) -> None:
    module = traced(refused.module, *refused.inputs)
    before = graph_text(module)

    result = apply(FoldInputNorm(), module, training=refused.training)

    assert reasons(result) == [condition.__name__]
    assert {r.legal for r in result.refusals} == {condition in FoldInputNorm.worthwhile_if}
    assert all(refusal.remedy for refusal in result.refusals)
    assert graph_text(module) == before


def test_every_condition_has_its_refusal() -> None:
    assert (*FoldInputNorm.legal_if, *FoldInputNorm.worthwhile_if) == tuple(REFUSED)


def test_nothing_is_folded_where_nothing_is_known_of_the_dtypes() -> None:
    result = apply(FoldInputNorm(), bare(Net(lambda _, x: x * 2 + 1)))
    assert reasons(result) == ["dtype_becomes_the_layers"]


@pytest.mark.parametrize(
    "body",
    [
        lambda _, x: 1 / (x + 2),
        lambda _, x: torch.cat([x[:, n : n + 1] * 2 for n in (2, 1, 0)], 1),
        lambda _, x: torch.cat([x[:, n : n + 1] * 2 for n in (0, 1, -1)], 1),
        lambda _, x: torch.cat([x[:, n : n + 1] for n in range(3)], 1),
        lambda _, x: torch.cat([(x, x + 1, x)[n][:, n : n + 1] * 2 for n in range(3)], 1),
        lambda _, x: torch.cat([x[:, n : n + 1] * 2 for n in range(3)], 2)[:, :, :, :3].mT,
    ],
)
def test_other_arithmetic_is_none_of_its_business(body: Body) -> None:
    module = traced(Net(body, nn.LazyConv2d(4, 1)), IMAGE)
    before = graph_text(module)
    assert apply(FoldInputNorm(), module).refusals == ()
    assert graph_text(module) == before


def test_keeps_the_promises_of_a_pass() -> None:
    check_pass(
        FoldInputNorm,
        models=[
            (Net(both), IMAGE),
            (Net(SPELLINGS["integers"][0], plain()), PIXELS),
            (Net(SPELLINGS["sliced"][0]), IMAGE),
        ],
        goes_wrong={condition: REFUSED[condition] for condition in FoldInputNorm.legal_if},
        still_right={condition: REFUSED[condition] for condition in FoldInputNorm.worthwhile_if},
    )

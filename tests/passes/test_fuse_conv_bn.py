"""Batch norms folded into layers: in every spelling, right, and nowhere that it would be wrong."""

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.fx import GraphModule
from torch.nn.utils import parametrizations
from torchvision.ops.misc import FrozenBatchNorm2d

from fxpasses.core import Condition
from fxpasses.folding import affine
from fxpasses.folding import norms as subject
from fxpasses.folding.norms import NormSite as Site
from fxpasses.manager import apply
from fxpasses.ops import Op
from fxpasses.passes.fuse_conv_bn import FuseConvBn
from fxpasses.testing import Model, check_pass
from fxpasses.text import graph_text
from tests.support import (
    bare,
    exported,
    ops,
    reasons,
    the_node,
    traced,
)

IMAGE = torch.randn(2, 4, 8, 8, generator=torch.Generator().manual_seed(0))
SERIES = torch.randn(2, 4, 8, generator=torch.Generator().manual_seed(1))
VOLUME = torch.randn(2, 4, 6, 6, 6, generator=torch.Generator().manual_seed(2))
ROWS = torch.randn(3, 4, generator=torch.Generator().manual_seed(3))

NORMS = {1: nn.BatchNorm1d, 2: nn.BatchNorm2d, 3: nn.BatchNorm3d}
EXAMPLES = {1: SERIES, 2: IMAGE, 3: VOLUME}


def drawn(norm: Any) -> Any:
    """The norm in evaluation, with statistics and affine values far from the identity."""
    generator = torch.Generator().manual_seed(7)
    drawn_from = {
        "running_mean": (-1, 1),
        "running_var": (0.5, 2),
        "weight": (-2, 2),
        "bias": (-1, 1),
    }
    with torch.no_grad():
        for name, (low, high) in drawn_from.items():
            if (tensor := getattr(norm, name)) is not None:
                tensor.copy_(torch.empty_like(tensor).uniform_(low, high, generator=generator))
    return norm.eval()


class InARow(nn.Module):
    """`parts` one after the other."""

    def __init__(self, *parts: nn.Module) -> None:
        super().__init__()
        self.first, self.second = parts[:2]
        self.rest = nn.Sequential(*parts[2:])

    def forward(self, x: Tensor) -> Tensor:
        x = self.second(self.first(x))
        for part in self.rest:
            x = part(x)
        return x


class ConvNorm(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(4, 4, 3), drawn(nn.BatchNorm2d(4))

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(self.conv(x))

    @property
    def statistics(self) -> tuple[Tensor | None, Tensor | None]:
        return self.norm.running_mean, self.norm.running_var


class Functional(ConvNorm):
    def forward(self, x: Tensor) -> Tensor:
        y = F.conv2d(x, self.conv.weight, self.conv.bias)
        return F.batch_norm(y, *self.statistics, self.norm.weight, self.norm.bias)


class ByKeyword(ConvNorm):
    def forward(self, x: Tensor) -> Tensor:
        y = F.conv2d(weight=self.conv.weight, input=x, bias=self.conv.bias, stride=1)
        mean, var = self.statistics
        return F.batch_norm(
            running_var=var,
            running_mean=mean,
            input=y,
            bias=self.norm.bias,
            weight=self.norm.weight,
        )


class ModuleThenFunction(ConvNorm):
    def forward(self, x: Tensor) -> Tensor:
        return F.batch_norm(self.conv(x), *self.statistics, eps=1e-2)


class Aten(ConvNorm):
    def forward(self, x: Tensor) -> Tensor:
        ones, zeros = [1, 1], [0, 0]
        aten = torch.ops.aten
        y = aten.convolution.default(
            x, self.conv.weight, self.conv.bias, ones, zeros, ones, False, zeros, 1
        )
        return aten.batch_norm.default(
            y, self.norm.weight, self.norm.bias, *self.statistics, False, 0.1, 1e-5, True
        )


class FrozenNorm(nn.BatchNorm2d):
    """Overrides nothing that computes."""

    def train(self, mode: bool = True) -> "FrozenNorm":
        return super().train(False)


GraphOf = Callable[[nn.Module, Tensor], GraphModule]
FRONT_ENDS: dict[str, GraphOf] = {"traced": traced, "exported": exported}


@pytest.mark.parametrize("model", [ConvNorm, Functional, ByKeyword, ModuleThenFunction, Aten])
@pytest.mark.parametrize("graph_of", FRONT_ENDS.values(), ids=FRONT_ENDS)
def test_folds_the_norm_in_every_spelling(model: type[nn.Module], graph_of: GraphOf) -> None:
    module = graph_of(model(), IMAGE)
    expected = module(IMAGE)

    result = apply(FuseConvBn(), module)

    assert len(result.rewrites) == 1
    assert not result.refusals
    assert graph_text(module) == "%0 = input\n%1 = conv(%0)\nreturn %1"
    torch.testing.assert_close(module(IMAGE), expected)


def test_modules_fold_where_nothing_is_known_of_the_values() -> None:
    module = bare(ConvNorm())
    expected = module(IMAGE)

    assert apply(FuseConvBn(), module).modified
    torch.testing.assert_close(module(IMAGE), expected)


def _convs() -> list[Any]:
    cases: list[Any] = []
    for rank, norm in NORMS.items():
        conv = getattr(nn, f"Conv{rank}d")
        transposed = getattr(nn, f"ConvTranspose{rank}d")
        settings = [
            {},
            {"bias": False},
            {"groups": 2},
            {"groups": 4, "bias": False},
            {"stride": 2, "padding": 1, "dilation": 2},
        ]
        made = [(conv, s) for s in [*settings, {"padding": "same"}]]
        made += [(conv, {"padding": 1, "padding_mode": mode}) for mode in ("reflect", "circular")]
        made += [(transposed, s) for s in [*settings, {"stride": 2, "output_padding": 1}]]
        cases += [
            pytest.param(rank, layer, norm, s, id=f"{layer.__name__}-{s}") for layer, s in made
        ]
    return cases


@pytest.mark.parametrize(("rank", "layer", "norm", "settings"), _convs())
@pytest.mark.parametrize("channels", [4, 8])
def test_folds_convolutions_of_every_kind(
    rank: int,
    layer: type[nn.Module],
    norm: type[nn.modules.batchnorm._BatchNorm],
    settings: dict[str, Any],
    channels: int,
) -> None:
    example = EXAMPLES[rank].double()
    model = InARow(layer(4, channels, 3, **settings), drawn(norm(channels))).double()
    module = traced(model, example)
    expected = module(example)

    apply(FuseConvBn(), module)

    assert Op.BATCH_NORM not in ops(module)
    torch.testing.assert_close(module(example), expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(
    "layer",
    [
        nn.Conv2d(4, 8, 3, groups=2, stride=2, padding="valid", bias=False),
        nn.ConvTranspose2d(4, 8, 3, groups=2, stride=2, output_padding=1, dilation=2),
    ],
    ids=["conv", "transposed"],
)
def test_folds_grouped_convolutions_as_torch_exports_them(layer: nn.Module) -> None:
    module = exported(InARow(layer, drawn(nn.BatchNorm2d(8))), IMAGE)
    expected = module(IMAGE)

    apply(FuseConvBn(), module)

    assert Op.BATCH_NORM not in ops(module)
    torch.testing.assert_close(module(IMAGE), expected)


@pytest.mark.parametrize(
    "norm",
    [
        nn.BatchNorm2d(4, affine=False),
        nn.BatchNorm2d(4, eps=0.1),
        nn.BatchNorm2d(4, momentum=None),
        FrozenNorm(4),
        nn.SyncBatchNorm(4),
    ],
    ids=repr,
)
def test_folds_norms_of_every_kind(norm: nn.BatchNorm2d) -> None:
    module = traced(InARow(nn.Conv2d(4, 4, 3), drawn(norm)), IMAGE)
    expected = module(IMAGE)

    apply(FuseConvBn(), module)

    assert ops(module) == [Op.CONV]
    torch.testing.assert_close(module(IMAGE), expected)


def test_folds_torchvision_s_frozen_norm() -> None:
    module = traced(InARow(nn.Conv2d(4, 4, 3), drawn(FrozenBatchNorm2d(4, eps=1e-3))), IMAGE)
    expected = module(IMAGE)

    apply(FuseConvBn(), module)

    assert ops(module) == [Op.CONV]
    torch.testing.assert_close(module(IMAGE), expected)


@pytest.mark.parametrize("bias", [True, False])
def test_folds_linear_layers_on_rows(bias: bool) -> None:
    module = traced(InARow(nn.Linear(4, 5, bias=bias), drawn(nn.BatchNorm1d(5))), ROWS)
    expected = module(ROWS)

    apply(FuseConvBn(), module)

    assert ops(module) == [Op.LINEAR]
    torch.testing.assert_close(module(ROWS), expected)


class LinearNorm(nn.Module):
    """As levit writes it."""

    def __init__(self, start: int = 0, end: int = 1) -> None:
        super().__init__()
        self.linear, self.norm = nn.Linear(4, 4), drawn(nn.BatchNorm1d(4))
        self.flatten = nn.Flatten(start, end)

    def forward(self, x: Tensor) -> Tensor:
        y = self.linear(x)
        return self.norm(self.flatten(y)).reshape_as(y)


class MethodLinearNorm(LinearNorm):
    def forward(self, x: Tensor) -> Tensor:
        y = self.linear(x)
        rows = y.flatten(0, 1)
        return self.norm(rows).view(y.shape) * rows.shape[0]


SEQUENCE = IMAGE[0, :, :4, :4]


@pytest.mark.parametrize("model", [LinearNorm(), LinearNorm(0, -2), MethodLinearNorm()])
def test_folds_through_what_makes_rows(model: nn.Module) -> None:
    module = traced(model, SEQUENCE)
    expected = module(SEQUENCE)

    apply(FuseConvBn(), module)

    assert [op for op in ops(module) if op in (Op.LINEAR, Op.FLATTEN, Op.BATCH_NORM)] == [
        Op.LINEAR,
        Op.FLATTEN,
    ]
    torch.testing.assert_close(module(SEQUENCE), expected)


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize(
    "layer",
    [
        lambda bias: nn.Conv2d(4, 8, 3, bias=bias),
        lambda bias: nn.Conv2d(4, 8, 3, bias=bias, groups=2),
        lambda bias: nn.Conv2d(4, 8, 3, bias=bias, padding="valid"),
        lambda bias: nn.Conv2d(4, 8, 3, bias=bias, padding=2, padding_mode="reflect"),
        lambda bias: nn.Conv2d(4, 8, 3, bias=bias, padding=2, padding_mode="circular", groups=4),
    ],
)
def test_folds_a_norm_in_front_of_a_convolution(
    layer: Callable[[bool], nn.Module], bias: bool
) -> None:
    module = traced(InARow(drawn(nn.BatchNorm2d(4)), layer(bias)), IMAGE)
    expected = module(IMAGE)

    apply(FuseConvBn(), module)

    assert ops(module) == [Op.CONV]
    torch.testing.assert_close(module(IMAGE), expected)


def test_folds_a_norm_in_front_of_a_linear_layer() -> None:
    module = traced(InARow(drawn(nn.BatchNorm1d(4)), nn.Linear(4, 5)), ROWS)
    expected = module(ROWS)

    apply(FuseConvBn(), module)

    assert ops(module) == [Op.LINEAR]
    torch.testing.assert_close(module(ROWS), expected)


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize(
    "layer",
    [
        lambda bias: nn.Conv2d(4, 8, 3, bias=bias, padding=1),
        lambda bias: nn.ConvTranspose2d(4, 8, 3, bias=bias, stride=2, padding=1, groups=2),
    ],
)
def test_folds_a_norm_without_shift_in_front_of_padding(
    layer: Callable[[bool], nn.Module], bias: bool
) -> None:
    norm = drawn(nn.BatchNorm2d(4))
    nn.init.zeros_(norm.bias)
    norm.running_mean.zero_()
    module = traced(InARow(norm, layer(bias)), IMAGE)
    expected = module(IMAGE)

    apply(FuseConvBn(), module)

    assert Op.BATCH_NORM not in ops(module)
    torch.testing.assert_close(module(IMAGE), expected)


class Functional(nn.Module):
    """A dropout written as a function."""

    def __init__(self, p: float = 0.5, *, training: bool = False) -> None:
        super().__init__()
        self.p, self.drops = p, training

    def forward(self, x: Tensor) -> Tensor:
        return F.dropout(x, self.p, training=self.drops)


class Contiguous(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.contiguous()


HANDS_ON: dict[str, Callable[[], nn.Module]] = {
    "identity": nn.Identity,
    "dropout": lambda: nn.Dropout(0.3).eval(),
    "feature": lambda: nn.FeatureAlphaDropout(0.3).eval(),
    "alpha": lambda: nn.AlphaDropout(0.3).eval(),
    "function": Functional,
    "certain": lambda: nn.Dropout(1.0).eval(),
    "never": lambda: nn.Dropout(0.0).train(),
    "contiguous": Contiguous,
}
STAYS = {Op.IDENTITY, Op.DROPOUT, Op.FEATURE_ALPHA_DROPOUT, Op.ALPHA_DROPOUT, Op.CONTIGUOUS}


@pytest.mark.parametrize("between", HANDS_ON.values(), ids=HANDS_ON)
@pytest.mark.parametrize(
    ("parts", "example"),
    [
        (lambda b: (nn.Conv2d(4, 4, 3), b(), drawn(nn.BatchNorm2d(4))), IMAGE),
        (lambda b: (drawn(nn.BatchNorm2d(4)), b(), nn.Conv2d(4, 4, 3)), IMAGE),
        (lambda b: (drawn(nn.BatchNorm1d(4)), b(), b(), nn.Linear(4, 5)), ROWS),
        (lambda b: (nn.Linear(4, 4), b(), nn.Flatten(0, 1), b(), drawn(nn.BatchNorm1d(4))), SERIES),
    ],
    ids=["behind", "in front", "twice", "rows"],
)
def test_folds_through_what_hands_values_on(
    parts: Callable[[Any], tuple[nn.Module, ...]], example: Tensor, between: Any
) -> None:
    if example is SERIES:
        example = SERIES[:, :, :4]
    module = traced(InARow(*parts(between)), example)
    before, expected = ops(module), module(example)

    apply(FuseConvBn(), module)

    assert ops(module) == [op for op in before if op is not Op.BATCH_NORM]
    assert STAYS & set(ops(module))
    torch.testing.assert_close(module(example), expected)


@pytest.mark.parametrize(
    "between",
    [
        lambda: nn.Dropout(0.3),
        lambda: nn.Dropout(1.0),
        lambda: nn.Dropout2d(0.3),
        lambda: Functional(training=True),
    ],
    ids=["dropout", "certain", "dropout2d", "function"],
)
def test_what_drops_is_no_way_through(between: Callable[[], nn.Module]) -> None:
    for parts in (
        (nn.Conv2d(4, 4, 3), between().train(), drawn(nn.BatchNorm2d(4))),
        (drawn(nn.BatchNorm2d(4)), between().train(), nn.Conv2d(4, 4, 3)),
    ):
        module = traced(InARow(*parts), IMAGE)
        assert not apply(FuseConvBn(), module).modified


class DropoutReadTwice(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.linear = drawn(nn.BatchNorm1d(4)), nn.Linear(4, 4)
        self.dropout = nn.Dropout(0.3).eval()

    def forward(self, x: Tensor) -> Tensor:
        y = self.dropout(self.norm(x))
        return self.linear(y) + y


class DropoutWritten(DropoutReadTwice):
    def forward(self, x: Tensor) -> Tensor:
        y = self.dropout(self.norm(x))
        y.add_(1)
        return self.linear(y)


def test_folds_norms_in_a_row_rounding_once() -> None:
    parts = (nn.Conv2d(4, 4, 3), *(drawn(nn.BatchNorm2d(4)) for _ in range(3)))
    narrow, wide = InARow(*copy.deepcopy(parts)), InARow(*parts).double()

    weights = []
    for model, image in ((narrow, IMAGE), (wide, IMAGE.double())):
        module = traced(model, image)
        apply(FuseConvBn(), module)
        assert ops(module) == [Op.CONV]
        weights.append(module.get_submodule(str(the_node(module, Op.CONV).target)).weight)

    assert torch.equal(weights[0], weights[1].float())


class ConvCalledTwice(ConvNorm):
    def forward(self, x: Tensor) -> Tensor:
        return self.norm(self.conv(x)) + self.conv(x * 2)


class ConvUnderTwoNames(ConvNorm):
    def __init__(self) -> None:
        super().__init__()
        self.twin = self.conv
        self.other = drawn(nn.BatchNorm2d(4, eps=0.5))

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(self.conv(x)) + self.other(self.twin(x)) + self.conv(x)


class WeightReadDirectly(ConvNorm):
    def forward(self, x: Tensor) -> Tensor:
        return self.norm(self.conv(x)) + self.conv.weight.sum()


class NormBehindTwoConvs(ConvNorm):
    def __init__(self) -> None:
        super().__init__()
        self.other = nn.Conv2d(4, 4, 3, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(self.conv(x)) + self.norm(self.other(x))


class NormWrittenAfterwards(ConvNorm):
    def forward(self, x: Tensor) -> Tensor:
        y = self.norm(self.conv(x))
        return F.relu(y, inplace=True) * y


class TiedAffine(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.convs = nn.ModuleList(nn.Conv2d(4, 4, 3, padding=1) for _ in range(3))
        self.norms = nn.ModuleList(drawn(nn.BatchNorm2d(4)) for _ in range(3))
        for number, norm in enumerate(self.norms):
            norm.weight, norm.bias = self.norms[0].weight, self.norms[0].bias
            norm.running_mean.add_(number)

    def forward(self, x: Tensor) -> Tensor:
        for conv, norm in zip(self.convs, self.norms, strict=True):
            x = norm(conv(x))
        return x


class NormFoldedOnce(ConvNorm):
    """The norm is called a second time where there is no layer."""

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(self.conv(x)).mean() + self.norm(torch.tanh(x))


SHARING = [
    ConvCalledTwice,
    ConvUnderTwoNames,
    WeightReadDirectly,
    NormBehindTwoConvs,
    NormWrittenAfterwards,
    TiedAffine,
    NormFoldedOnce,
]


@pytest.mark.parametrize("model", SHARING)
@pytest.mark.parametrize("graph_of", FRONT_ENDS.values(), ids=FRONT_ENDS)
def test_what_is_shared_keeps_its_value(model: type[nn.Module], graph_of: GraphOf) -> None:
    original = model()
    state = copy.deepcopy(original.state_dict())
    module = graph_of(original, IMAGE)
    expected = module(IMAGE)

    assert apply(FuseConvBn(), module).modified

    torch.testing.assert_close(module(IMAGE), expected)
    torch.testing.assert_close(original.state_dict(), state, rtol=0, atol=0)


class ReadsTheSize(ConvNorm):
    def forward(self, x: Tensor) -> Tensor:
        y = self.conv(x)
        z = self.norm(y)
        return z.reshape(y.shape[0], y.size(1), -1)


class ReadsTheSizeOfTheFirstNorm(ConvNorm):
    def forward(self, x: Tensor) -> Tensor:
        y = self.norm(x)
        return self.conv(y) * y.shape[1]


@pytest.mark.parametrize("model", [ReadsTheSize, ReadsTheSizeOfTheFirstNorm])
def test_readers_of_the_size_do_not_stand_in_the_way(model: type[nn.Module]) -> None:
    module = traced(model(), IMAGE)
    expected = module(IMAGE)

    apply(FuseConvBn(), module)

    assert ops(module).count(Op.CONV) == 1
    assert Op.BATCH_NORM not in ops(module)
    torch.testing.assert_close(module(IMAGE), expected)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16])
def test_keeps_the_dtype(dtype: torch.dtype) -> None:
    image = IMAGE.to(dtype)
    module = traced(ConvNorm().to(dtype), image)
    expected = module(image)

    apply(FuseConvBn(), module)

    assert ops(module) == [Op.CONV]
    folded = module.get_submodule(str(the_node(module, Op.CONV).target))
    assert {p.dtype for p in folded.parameters()} == {dtype}
    torch.testing.assert_close(module(image), expected, rtol=0.05, atol=0.05)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_folds_a_wide_norm_into_a_narrow_convolution(dtype: torch.dtype) -> None:
    model = ConvNorm()
    model.conv.to(dtype)
    image = IMAGE.to(dtype)
    module = traced(model, image)
    expected = module(image)

    apply(FuseConvBn(), module)

    assert ops(module) == [Op.CONV]
    assert module(image).dtype is dtype
    torch.testing.assert_close(module(image), expected, rtol=0.05, atol=0.05)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("running_var", 0.0),
        ("running_var", float("inf")),
        ("running_var", float("nan")),
        ("running_mean", float("nan")),
        ("running_mean", float("-inf")),
        ("weight", 0.0),
        ("bias", float("inf")),
    ],
)
def test_odd_statistics_fold_to_what_the_model_computes(name: str, value: float) -> None:
    model = ConvNorm()
    with torch.no_grad():
        getattr(model.norm, name)[1] = value
    module = traced(model, IMAGE)
    expected = module(IMAGE)

    apply(FuseConvBn(), module)

    assert ops(module) == [Op.CONV]
    torch.testing.assert_close(module(IMAGE), expected, equal_nan=True, rtol=1e-4, atol=1e-4)


# -- refusals


class WeightComputedAtRunTime(ConvNorm):
    def forward(self, x: Tensor) -> Tensor:
        return self.norm(F.conv2d(x, self.conv.weight * x.mean()))


class Doubling(Tensor):
    """A tensor of its own kind: convolutions with it come out doubled."""

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        out = super().__torch_function__(func, types, args, kwargs)
        return out * 2 if func is torch.conv2d else out

    def __deepcopy__(self, memo):
        return self.clone().detach().as_subclass(Doubling)


class OddWeight(ConvNorm):
    def __init__(self) -> None:
        super().__init__()
        self.conv.weight = nn.Parameter(self.conv.weight.detach().as_subclass(Doubling))


class StatisticsWritten(ConvNorm):
    def forward(self, x: Tensor) -> Tensor:
        self.norm.running_mean.add_(1)
        return self.norm(self.conv(x))


class WrittenBetween(ConvNorm):
    def forward(self, x: Tensor) -> Tensor:
        y = self.conv(x)
        y.relu_()
        return self.norm(y)


class InputWrittenBetween(ConvNorm):
    def forward(self, x: Tensor) -> Tensor:
        x = x * 1
        y = self.conv(x)
        x.mul_(2)
        return self.norm(y) * x.mean()


class ConvReadTwice(ConvNorm):
    def forward(self, x: Tensor) -> Tensor:
        y = self.conv(x)
        return self.norm(y) + y


class NormReadTwice(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.conv = drawn(nn.BatchNorm2d(4)), nn.Conv2d(4, 4, 1)

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm(x)
        return self.conv(y) + y


def _dividing_by_zero() -> nn.Module:
    norm = drawn(nn.BatchNorm2d(4, eps=2**-17))
    norm.running_var[2] = -norm.eps
    return InARow(nn.Conv2d(4, 4, 3), norm)


def _out_of_range(scale: float, weight: float) -> nn.Module:
    model = ConvNorm().half()
    with torch.no_grad():
        model.conv.weight.fill_(weight)
        model.norm.weight.fill_(scale)
    return model


def case(module: nn.Module, example: Tensor = IMAGE, *, training: bool = False) -> Model:
    return Model(module, (example,), training=training)


FROZEN_WIDE = InARow(nn.Conv2d(4, 4, 3).bfloat16(), drawn(FrozenBatchNorm2d(4)))


def _far_from_its_mean(deviations: float) -> nn.Module:
    """A norm in front of a convolution that takes away a mean of so many standard deviations."""
    norm = drawn(nn.BatchNorm2d(4))
    norm.running_var.fill_(1)
    norm.running_mean.fill_(deviations)
    return InARow(norm, nn.Conv2d(4, 4, 3))


REFUSED: dict[Condition[Site], Model] = {
    subject.norm_uses_running_statistics: case(
        InARow(nn.Conv2d(4, 4, 3), nn.BatchNorm2d(4, track_running_stats=False)).eval()
    ),
    affine.parameters_are_constant: case(WeightComputedAtRunTime()),
    affine.parameters_are_plain_tensors: case(OddWeight()),
    affine.nothing_writes_the_parameters: case(StatisticsWritten()),
    affine.no_parameter_is_trained: case(ConvNorm(), training=True),
    subject.norm_works_on_the_channels: case(
        InARow(nn.Linear(4, 4), drawn(nn.BatchNorm1d(4))), IMAGE[0, :, :4, :4]
    ),
    affine.result_keeps_its_dtype: case(FROZEN_WIDE, IMAGE.bfloat16()),
    affine.nothing_writes_between: case(WrittenBetween()),
    affine.padding_is_not_shifted: case(
        InARow(drawn(nn.BatchNorm2d(4)), nn.Conv2d(4, 4, 3, padding=1))
    ),
    affine.scale_is_finite: case(_dividing_by_zero()),
    subject.little_cancels: case(_far_from_its_mean(1e5), IMAGE + 1e5),
    affine.weights_fit_their_dtype: case(_out_of_range(3e4, 8), IMAGE.half() * 1e-3),
    affine.nothing_else_reads_between: case(ConvReadTwice()),
}

UNBATCHED = torch.randn(4, 6, generator=torch.Generator().manual_seed(4))


class FunctionalUnbatched(ConvNorm):
    def forward(self, x: Tensor) -> Tensor:
        return F.batch_norm(F.conv2d(x, self.conv.weight, padding=1), *self.statistics)


ALSO_REFUSED: list[tuple[Condition[Site], Model]] = [
    (subject.norm_uses_running_statistics, case(ConvNorm().train())),
    (
        subject.norm_works_on_the_channels,
        case(InARow(nn.Conv1d(4, 4, 3), drawn(nn.BatchNorm1d(4))), UNBATCHED),
    ),
    (subject.norm_works_on_the_channels, case(FunctionalUnbatched(), IMAGE[0, :, :4, :4])),
    (
        subject.norm_works_on_the_channels,
        case(InARow(drawn(nn.BatchNorm1d(4)), nn.Linear(4, 4)), IMAGE[0, :, :4, :4]),
    ),
    (subject.norm_works_on_the_channels, case(LinearNorm(1, 2), torch.ones(3, 1, 4))),
    (affine.nothing_writes_between, case(InputWrittenBetween())),
    (
        affine.padding_is_not_shifted,
        case(InARow(drawn(nn.BatchNorm2d(4)), nn.Conv2d(4, 4, 3, padding="same"))),
    ),
    (
        affine.padding_is_not_shifted,
        case(InARow(drawn(nn.BatchNorm2d(4)), nn.ConvTranspose2d(4, 4, 3))),
    ),
    (affine.weights_fit_their_dtype, case(_out_of_range(1e-3, 1e-3), IMAGE.half())),
    (affine.nothing_else_reads_between, case(NormReadTwice())),
    (affine.nothing_else_reads_between, case(DropoutReadTwice(), ROWS)),
    (affine.nothing_writes_between, case(DropoutWritten(), ROWS)),
]


@pytest.mark.parametrize(
    ("condition", "refused"),
    [*REFUSED.items(), *ALSO_REFUSED],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_refuses(condition: Condition[Site], refused: Model) -> None:
    module = traced(refused.module, *refused.inputs)
    before = graph_text(module)

    result = apply(FuseConvBn(), module, training=refused.training)

    assert reasons(result) == [condition.__name__]
    assert [r.legal for r in result.refusals] == [condition in FuseConvBn.worthwhile_if]
    assert not result.modified
    assert graph_text(module) == before


def test_every_condition_has_its_refusal() -> None:
    assert (*FuseConvBn.legal_if, *FuseConvBn.worthwhile_if) == tuple(REFUSED)


def test_keeps_the_promises_of_a_pass() -> None:
    check_pass(
        FuseConvBn,
        models=[
            (ConvNorm().eval(), IMAGE),
            (InARow(drawn(nn.BatchNorm1d(4)), nn.Linear(4, 5)).eval(), ROWS),
        ],
        goes_wrong={condition: REFUSED[condition] for condition in FuseConvBn.legal_if},
        still_right={condition: REFUSED[condition] for condition in FuseConvBn.worthwhile_if},
    )


@pytest.mark.parametrize(("deviations", "folds"), [(0.0, True), (3.0, True), (5.0, False)])
def test_a_mean_of_few_standard_deviations_is_folded(deviations: float, folds: bool) -> None:
    module = traced(_far_from_its_mean(deviations), IMAGE + deviations)

    result = apply(FuseConvBn(), module)

    assert result.modified is folds
    assert reasons(result) == ([] if folds else ["little_cancels"])


def test_an_unknown_rank_is_refused_where_it_matters() -> None:
    known, unknown = ConvNorm(), InARow(nn.Conv1d(4, 4, 3), drawn(nn.BatchNorm1d(4)))

    assert apply(FuseConvBn(), bare(known)).modified
    assert reasons(apply(FuseConvBn(), bare(unknown))) == ["norm_works_on_the_channels"]


def _hooked() -> nn.Module:
    model = ConvNorm()
    model.conv.register_forward_hook(lambda _, args, out: out + 1)
    return model


def _norm_hooked() -> nn.Module:
    model = ConvNorm()
    model.norm.register_forward_pre_hook(lambda _, args: args[0] * 2)
    return model


def _parametrized() -> nn.Module:
    model = ConvNorm()
    parametrizations.weight_norm(model.conv)
    return model


def _spectral() -> nn.Module:
    model = ConvNorm()
    parametrizations.spectral_norm(model.conv)
    return model.eval()


@pytest.mark.parametrize("build", [_hooked, _norm_hooked, _parametrized, _spectral])
def test_layers_that_do_more_are_left_alone(build: Callable[[], nn.Module]) -> None:
    model = build()
    module = traced(model, IMAGE)

    result = apply(FuseConvBn(), module)

    assert not result.modified
    torch.testing.assert_close(module(IMAGE), model(IMAGE))


def test_the_folded_parameters_have_no_history_and_new_names() -> None:
    module = traced(ConvNorm(), IMAGE)
    names = set(module.state_dict())

    apply(FuseConvBn(), module)

    folded = {n: p for n, p in module.named_parameters() if n not in names}
    assert len(folded) == 2
    assert all(p.is_leaf for p in folded.values())
    copy.deepcopy(module)


class WeightIsABuffer(ConvNorm):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("kernel", self.conv.weight.detach().clone())

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(F.conv2d(x, self.kernel))


def test_a_weight_that_is_a_buffer_stays_one() -> None:
    module = traced(WeightIsABuffer(), IMAGE)

    apply(FuseConvBn(), module)

    assert {"conv2d_weight", "conv2d_bias"} <= set(dict(module.named_buffers()))
    assert {"conv2d_weight", "conv2d_bias"} <= set(module.state_dict())


def test_keeps_the_metadata() -> None:
    module = exported(ConvNorm(), IMAGE)
    value = the_node(module, Op.BATCH_NORM).meta["val"]

    apply(FuseConvBn(), module)

    conv = the_node(module, Op.CONV)
    assert conv.meta["val"] is value
    assert conv.meta["origin"] == ("fuse_conv_bn", "batch_norm", "conv2d")

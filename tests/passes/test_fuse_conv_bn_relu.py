"""Units in the place of layers and what follows them: in every spelling, and as exact as before."""

import copy
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.fx import GraphModule
from torchvision.models import mobilenet_v3_small, resnet18, vgg11
from torchvision.models.densenet import DenseNet

import fxpasses
from fxpasses.core import Condition
from fxpasses.manager import apply
from fxpasses.nn import ConvUnit, LinearUnit, Unit
from fxpasses.ops import UNITS, Op, op_of
from fxpasses.passes import fuse_conv_bn_relu as subject
from fxpasses.passes.fuse_conv_bn_relu import FuseConvBnRelu
from fxpasses.testing import Model, check_pass
from fxpasses.text import graph_text
from tests.passes import test_fuse_conv_bn as norms
from tests.passes.test_fuse_conv_bn import IMAGE, ROWS, drawn
from tests.support import bare, exported, ops, reasons, traced

Act = Callable[[Tensor], Tensor]
aten = torch.ops.aten


class Net(nn.Module):
    """`body(self, x)` with a convolution that keeps the size of its input, and more beside it."""

    def __init__(self, body: Callable[[Any, Tensor], Any], act: nn.Module | None = None) -> None:
        super().__init__()
        self.body = [body]
        self.conv, self.norm = nn.Conv2d(4, 4, 3, padding=1), drawn(nn.BatchNorm2d(4))
        self.other, self.linear = nn.Conv2d(4, 4, 1), nn.Linear(8, 8)
        self.act = act or nn.ReLU()
        self.eval()

    def forward(self, x: Tensor) -> Any:
        return self.body[0](self, x)


def fused(model: nn.Module, *example: Any, graph_of: Any = traced, **settings: Any) -> GraphModule:
    """The graph after the pass, which computes what it did before, bit by bit."""
    module = graph_of(model, *example)
    expected = module(*copy.deepcopy(example))

    assert apply(FuseConvBnRelu(), module, **settings).modified

    torch.testing.assert_close(module(*copy.deepcopy(example)), expected, rtol=0, atol=0)
    return module


RELUS: dict[str, Act] = {
    "F": F.relu,
    "F_in_place": lambda x: F.relu(x, inplace=True),
    "torch": torch.relu,
    "torch_in_place": torch.relu_,
    "method": lambda x: x.relu(),
    "method_in_place": lambda x: x.relu_(),
    "module": nn.ReLU(),
    "module_in_place": nn.ReLU(inplace=True),
    "aten": aten.relu.default,
    "aten_in_place": aten.relu_.default,
}


@pytest.mark.parametrize("act", RELUS.values(), ids=RELUS)
@pytest.mark.parametrize("graph_of", [traced, exported])
def test_every_spelling_of_relu_is_fused(act: Act, graph_of: Any) -> None:
    model = Net(lambda m, x: m.act(m.conv(x)), act if isinstance(act, nn.Module) else None)
    if not isinstance(act, nn.Module):
        model.body = [lambda m, x: act(m.conv(x))]

    module = fused(model, IMAGE, graph_of=graph_of)

    assert graph_text(module) == "%0 = input\n%1 = conv+relu(%0)\nreturn %1"


ACTIVATIONS: dict[str, Act] = {
    "relu6": nn.ReLU6(),
    "F.relu6": F.relu6,
    "leaky_relu": nn.LeakyReLU(0.3, inplace=True),
    "F.leaky_relu": lambda x: F.leaky_relu(x, 0.3),
    "gelu": nn.GELU(),
    "gelu_tanh": nn.GELU("tanh"),
    "F.gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
    "silu": nn.SiLU(inplace=True),
    "sigmoid": torch.sigmoid,
    "tanh": nn.Tanh(),
    "hardswish": nn.Hardswish(),
    "hardsigmoid": F.hardsigmoid,
    "hardtanh": nn.Hardtanh(-0.5, 0.25),
    "aten_hardtanh": lambda x: aten.hardtanh.default(x, -0.5, 0.25),
}


@pytest.mark.parametrize("name", ACTIVATIONS)
@pytest.mark.parametrize("layer", ["conv", "linear"])
def test_activations_keep_their_options(name: str, layer: str) -> None:
    act = ACTIVATIONS[name]
    model = Net(
        lambda m, x: m.act(getattr(m, layer)(x)), act if isinstance(act, nn.Module) else None
    )
    if not isinstance(act, nn.Module):
        model.body = [lambda m, x: act(getattr(m, layer)(x))]

    module = fused(model, IMAGE * 3)

    op = name.rsplit(".", maxsplit=1)[-1].removesuffix("_tanh").removeprefix("aten_")
    assert f"%1 = {layer}+{op}(%0)" in graph_text(module)


RESIDUALS: dict[str, Callable[[Any, Tensor], Tensor]] = {
    "right": lambda m, x: torch.relu(m.conv(x) + x),
    "left": lambda m, x: torch.relu(x + m.conv(x)),
    "torch.add": lambda m, x: torch.relu(torch.add(m.conv(x), x)),
    "method": lambda m, x: m.conv(x).add(x).relu(),
    "in_place": lambda m, x: m.conv(x).add_(x).relu_(),
    "aten": lambda m, x: aten.relu.default(aten.add.Tensor(x, m.conv(x))),
    "identity": lambda m, x: torch.relu(F.dropout(m.conv(x), 0.3, training=False) + x),
    "two_layers": lambda m, x: torch.relu(m.conv(x) + m.other(x)),
}


@pytest.mark.parametrize("name", RESIDUALS)
def test_a_residual_is_added_whichever_side_it_stands_on(name: str) -> None:
    module = fused(Net(RESIDUALS[name]), IMAGE)

    assert [str(op) for op in ops(module) if op is not Op.CONV] == ["conv_unit"]
    assert "conv+add+relu(" in graph_text(module)


@pytest.mark.parametrize(
    "body",
    [
        lambda m, x: torch.relu(torch.add(m.conv(x), x, alpha=2)),
        lambda m, x: torch.relu(m.conv(x) - x),
        lambda m, x: torch.relu(m.conv(x) * x),
        lambda m, x: torch.relu(m.conv(x).contiguous(memory_format=torch.channels_last)),
        lambda m, x: F.glu(m.conv(x), 1),
        lambda m, x: torch.relu(m.norm(x)),
        lambda m, x: F.leaky_relu(m.conv(x), x.mean().item()),
    ],
)
def test_what_is_no_site(body: Callable[[Any, Tensor], Tensor]) -> None:
    module = bare(Net(body))

    result = apply(FuseConvBnRelu(), module)

    assert not result.modified
    assert not result.refusals


CONVS = {
    "1d": (lambda: nn.Conv1d(4, 6, 3, stride=2, bias=False), torch.randn(2, 4, 9)),
    "3d": (lambda: nn.Conv3d(4, 6, 3, dilation=2), torch.randn(1, 4, 6, 6, 6)),
    "same": (lambda: nn.Conv2d(4, 6, (3, 5), padding="same", groups=2), IMAGE),
    "valid": (lambda: nn.Conv2d(4, 6, 3, padding="valid"), IMAGE),
    "reflect": (lambda: nn.Conv2d(4, 6, 3, padding=(1, 2), padding_mode="reflect"), IMAGE),
    "circular": (
        lambda: nn.Conv2d(4, 6, (4, 3), padding="same", dilation=(1, 2), padding_mode="circular"),
        IMAGE,
    ),
    "transposed": (
        lambda: nn.ConvTranspose2d(4, 6, 3, stride=2, padding=1, output_padding=1, groups=2),
        IMAGE,
    ),
    "unbatched": (lambda: nn.Conv2d(4, 6, 3), IMAGE[0]),
}


@pytest.mark.parametrize("name", CONVS)
def test_units_compute_convolutions_of_every_kind(name: str) -> None:
    make, example = CONVS[name]
    model = nn.Sequential(make(), nn.ReLU())
    module = fused(model, example)

    assert isinstance(module.get_submodule("0"), ConvUnit)
    assert module.state_dict().keys() == nn.Sequential(make()).state_dict().keys()
    assert repr(module.get_submodule("0")).startswith("ConvUnit(4, 6, kernel_size=(")


def test_functions_are_given_their_parameters_where_they_are() -> None:
    model = Net(
        lambda m, x: (
            F.relu(F.conv2d(x, m.other.weight * x.mean(), m.conv.bias, padding=0))
            + F.relu(F.conv2d(x, m.conv.weight, padding=(1, 1)))
        )
    )
    module = fused(model, IMAGE)

    assert ops(module).count(Op.CONV_UNIT) == 2
    assert set(module.state_dict()) == {"conv.weight", "conv.bias", "other.weight"}
    assert not any(isinstance(p, Unit) and list(p.parameters()) for p in module.modules())


def test_a_layer_that_is_called_twice_keeps_its_place() -> None:
    model = Net(lambda m, x: torch.relu(m.conv(torch.relu(m.conv(x)))) + m.conv(x))
    module = fused(model, IMAGE)

    assert ops(module) == [Op.CONV_UNIT, Op.CONV_UNIT, Op.CONV, Op.ADD]
    assert set(module.state_dict()) == {"conv.weight", "conv.bias"}
    assert isinstance(module.conv, nn.Conv2d)


def test_norms_are_folded_first() -> None:
    module = traced(Net(lambda m, x: torch.relu(m.norm(m.conv(x)) + x)), IMAGE)
    expected = module(IMAGE)

    result = apply(FuseConvBnRelu(), module)

    assert [rewrite.node for rewrite in result.rewrites] == ["norm", "relu"]
    assert graph_text(module) == "%0 = input\n%1 = conv+add+relu(%0)\nreturn %1"
    assert isinstance(module.conv_1, ConvUnit)
    assert not hasattr(module, "conv_2")
    torch.testing.assert_close(module(IMAGE), expected)


def test_a_norm_behind_a_unit_is_not_folded_and_one_in_front_is() -> None:
    model = nn.Sequential(
        drawn(nn.BatchNorm2d(4)), nn.Conv2d(4, 4, 3), nn.ReLU(), drawn(nn.BatchNorm2d(4))
    ).eval()
    model[0].running_mean.zero_()
    module = traced(model, IMAGE)
    expected = module(IMAGE)
    # Only what makes units: nothing is folded yet.
    for _ in range(2):
        apply(FuseConvBnRelu(), module)

    assert graph_text(module).splitlines()[1:3] == ["%1 = conv+relu(%0)", "%2 = batch_norm(%1)"]
    torch.testing.assert_close(module(IMAGE), expected)


def test_later_passes_see_through_units() -> None:
    class FrontNorm(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm = drawn(nn.BatchNorm2d(4))
            self.unit = ConvUnit(
                nn.Parameter(torch.randn(4, 4, 3, 3)),
                stride=(1, 1),
                padding=(0, 0),
                dilation=(1, 1),
                adds=True,
                activation="relu",
            )

        def forward(self, x: Tensor) -> Tensor:
            return self.unit(self.norm(x), x[:, :, 1:-1, 1:-1])

    module = traced(FrontNorm(), IMAGE)
    expected = module(IMAGE)

    assert apply(fxpasses.registry.get("fuse_conv_bn")(), module).modified

    assert Op.BATCH_NORM not in ops(module)
    torch.testing.assert_close(module(IMAGE), expected)


# -- in-place calls and other readers


def _skip(m: Any, x: Tensor) -> Tensor:
    y = m.conv(x)
    return m.act(y) * 2 + y


def _both_returned(m: Any, x: Tensor) -> tuple[Tensor, Tensor]:
    y = m.conv(x)
    return torch.relu_(y), y


def _size_read(m: Any, x: Tensor) -> Tensor:
    y = m.conv(x)
    return torch.relu(y) * y.shape[1]


def test_later_readers_of_a_written_value_read_the_unit() -> None:
    module = fused(Net(_skip, nn.ReLU(inplace=True)), IMAGE)
    assert ops(module) == [Op.CONV_UNIT, Op.MUL, Op.ADD]

    first, second = fused(Net(_both_returned), IMAGE)(IMAGE)
    assert first is second


def test_readers_of_the_size_ask_the_unit() -> None:
    assert Op.CONV not in ops(fused(Net(_size_read), IMAGE))


def _input_written(m: Any, x: Tensor) -> Tensor:
    x = x * 1
    y = m.conv(x)
    x.mul_(2)
    return torch.relu(y) * x.mean()


def _weight_written(m: Any, x: Tensor) -> Tensor:
    y = m.conv(x)
    m.conv.weight.data.mul_(2)
    return torch.relu(y)


def _residual_written(m: Any, x: Tensor) -> Tensor:
    r = x * 1
    y = m.conv(x) + r
    r.mul_(2)
    return torch.relu(y) * r


def _view_read_later(m: Any, x: Tensor) -> Tensor:
    y = m.conv(x)
    view = y.flatten()
    torch.relu_(y)
    return view * 2


def _written_residual(m: Any, x: Tensor) -> Tensor:
    r = x * 1
    z = r.add_(m.conv(x))
    return torch.relu(z) + r


def _sum_written(m: Any, x: Tensor) -> Tensor:
    y = m.conv(x)
    z = y.add_(x)
    return torch.relu(z) + y


def _read_twice(m: Any, x: Tensor) -> Tensor:
    y = m.conv(x)
    return torch.relu(y) + y


def case(body: Callable[[Any, Tensor], Any], example: Tensor = IMAGE) -> Model:
    return Model(Net(body), (example,))


REFUSED: dict[Condition[Any], Model] = {
    subject.operands_stay_as_they_are: case(_input_written),
    subject.no_write_is_seen: case(_view_read_later),
    subject.target_has_such_a_kernel: case(lambda m, x: F.elu(m.conv(x))),
    subject.residual_is_like_the_output: case(
        lambda m, x: torch.relu(m.conv(x) + x.mean((2, 3), keepdim=True))
    ),
    subject.nothing_else_reads_the_parts: case(_read_twice),
}
ALSO_REFUSED: list[tuple[Condition[Any], Model]] = [
    (subject.operands_stay_as_they_are, case(_residual_written)),
    (subject.no_write_is_seen, case(_written_residual)),
    (subject.no_write_is_seen, case(_sum_written)),
    (subject.residual_is_like_the_output, case(lambda m, x: torch.relu(m.conv(x) + x.double()))),
    (subject.target_has_such_a_kernel, case(lambda m, x: F.gelu(m.conv(x) + x))),
    (subject.target_has_such_a_kernel, case(lambda m, x: torch.relu(m.linear(x) + x))),
]


@pytest.mark.parametrize(("condition", "refused"), [*REFUSED.items(), *ALSO_REFUSED])
def test_refuses(condition: Condition[Any], refused: Model) -> None:
    module = traced(refused.module, *refused.inputs)
    before = graph_text(module)

    result = apply(FuseConvBnRelu(), module)

    assert reasons(result) == [condition.__name__]
    assert [r.legal for r in result.refusals] == [condition in subject.WORTHWHILE_IF]
    assert graph_text(module) == before


def test_every_condition_has_its_refusal() -> None:
    own = (*subject.LEGAL_IF, *subject.WORTHWHILE_IF)
    assert own == tuple(REFUSED)
    every = {*FuseConvBnRelu.legal_if, *FuseConvBnRelu.worthwhile_if}
    assert every == {*own, *norms.REFUSED}


def test_keeps_the_promises_of_a_pass() -> None:
    tables = {**norms.REFUSED, **REFUSED}
    check_pass(
        FuseConvBnRelu,
        models=[
            (Net(lambda m, x: torch.relu(m.norm(m.conv(x)) + x)), IMAGE),
            (nn.Sequential(nn.Linear(4, 5), nn.GELU()).eval(), ROWS),
        ],
        goes_wrong={condition: tables[condition] for condition in FuseConvBnRelu.legal_if},
        still_right={condition: tables[condition] for condition in FuseConvBnRelu.worthwhile_if},
    )


# -- targets


@pytest.mark.parametrize(
    ("target", "act", "layer", "fuses"),
    [
        ("cuda", F.relu, "conv", True),
        ("cuda", F.silu, "conv", False),
        ("cpu", F.silu, "conv", True),
        ("cuda", F.gelu, "linear", False),
        ("cuda", lambda x: F.gelu(x, approximate="tanh"), "linear", True),
        ("cpu", F.elu, "linear", False),
        (None, F.gelu, "linear", True),
    ],
)
def test_the_target_says_what_has_a_kernel(
    target: str | None, act: Act, layer: str, fuses: bool
) -> None:
    module = traced(Net(lambda m, x: act(getattr(m, layer)(x))), IMAGE)

    result = apply(FuseConvBnRelu(), module, target=target)

    assert result.modified is fuses
    assert reasons(result) == ([] if fuses else ["target_has_such_a_kernel"])


def test_the_target_of_a_run_is_asked() -> None:
    model = Net(lambda m, x: F.silu(m.conv(x)))

    plan = fxpasses.plan(model, "fuse_conv_bn_relu", IMAGE, target="cuda")
    result = fxpasses.run(model, "fuse_conv_bn_relu", IMAGE, target="cpu")

    assert not plan.record.passes[0].rewrites
    assert ops(result) == [Op.CONV_UNIT]


# -- the result


def test_names_of_parameters_stay_and_the_model_is_as_it_was() -> None:
    model = vgg11(num_classes=3).eval()
    model.avgpool = nn.AdaptiveAvgPool2d(1)
    model.classifier = nn.Sequential(nn.Linear(512, 8), nn.ReLU(), nn.Linear(8, 3))
    kinds = [type(part) for part in model.modules()]
    x = torch.randn(1, 3, 32, 32)
    result = fxpasses.run(model, ["fuse_conv_bn_relu", "dce"], x)

    assert [type(part) for part in model.modules()] == kinds
    assert result.state_dict().keys() == model.state_dict().keys()
    result.load_state_dict(model.state_dict())
    assert isinstance(result.get_submodule("features.0"), ConvUnit)
    assert isinstance(result.get_submodule("classifier.0"), LinearUnit)
    for other in (copy.deepcopy(result), pickle.loads(pickle.dumps(result))):
        assert torch.equal(other(x), model(x))
    doubled = copy.deepcopy(result).double()
    torch.testing.assert_close(doubled(x.double()), copy.deepcopy(model).double()(x.double()))


def test_results_can_be_trained() -> None:
    model = Net(lambda m, x: F.silu(m.conv(x)) + torch.relu(m.other(x) + x)).train()
    result = fxpasses.run(copy.deepcopy(model), "fuse_conv_bn_relu", IMAGE)
    assert ops(result).count(Op.CONV_UNIT) == 2

    for one in (model, result):
        one(IMAGE).square().mean().backward()

    wanted = {n: p.grad for n, p in model.named_parameters()}
    assert wanted.keys() == dict(result.named_parameters()).keys()
    for name, parameter in result.named_parameters():
        torch.testing.assert_close(parameter.grad, wanted[name])


MODELS: dict[str, tuple[Callable[[], nn.Module], int]] = {
    "resnet18": (lambda: resnet18(num_classes=3), 17),
    "mobilenet_v3_small": (lambda: mobilenet_v3_small(num_classes=3), 42),
    "densenet": (lambda: DenseNet(8, (2, 2), 16, num_classes=3), 5),
}


@pytest.mark.parametrize("name", MODELS)
def test_real_models_get_units(name: str) -> None:
    make, units = MODELS[name]
    torch.manual_seed(0)
    model, x = make().eval(), torch.randn(2, 3, 64, 64)
    result = fxpasses.run(model, ["fuse_conv_bn_relu", "dce"], x)

    assert sum(op_of(node) in UNITS for node in result.graph.nodes) == units
    assert fxpasses.report(result).record.verification.ok is True
    with torch.no_grad():
        more = torch.randn(5, 3, 96, 64)
        torch.testing.assert_close(result(more), model(more), rtol=1e-4, atol=1e-4)

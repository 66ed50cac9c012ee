"""Operands have one name, whatever the spelling."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.fx import GraphModule, Node, symbolic_trace
from torch.nn.utils import parametrizations

from fxpasses.core import Editor, Folds
from fxpasses.ops import Op, bind, op_of
from fxpasses.views import (
    Activation,
    Attention,
    BatchNorm,
    Binary,
    Cast,
    Cat,
    ConstantView,
    Conv,
    Dropout,
    Flatten,
    Linear,
    Matmul,
    Norm,
    Permute,
    Pool,
    Reduce,
    Reshape,
    Softmax,
    Split,
    View,
    reads_only_metadata,
    seen_through,
    view_at,
)
from tests.support import bare

IMAGE = torch.randn(2, 4, 8, 8, generator=torch.Generator().manual_seed(0))
aten = torch.ops.aten


class Model(nn.Module):
    """Layers of every kind, and a forward that uses some of them."""

    def __init__(self, forward: Callable[..., Any]) -> None:
        super().__init__()
        self.conv = nn.Conv2d(4, 6, 3, stride=2, padding=1, groups=2)
        self.transposed = nn.ConvTranspose2d(4, 6, 3, stride=2, output_padding=1, groups=2)
        self.linear = nn.Linear(8, 5)
        self.norm = nn.BatchNorm2d(4, eps=1e-3).eval()
        self.layer_norm = nn.LayerNorm(8, eps=1e-3)
        self.leaky = nn.LeakyReLU(0.2)
        self.softmax = nn.Softmax(1)
        self.dropout = nn.Dropout(0.3).eval()
        self.pool = nn.MaxPool2d(3, 2, 1)
        self.adaptive = nn.AdaptiveAvgPool2d((2, None))
        self.flatten = nn.Flatten()
        self.used = forward

    def forward(self, x: Tensor) -> Any:
        return self.used(self, x)


def traced(forward: Callable[..., Any]) -> GraphModule:
    return symbolic_trace(Model(forward))


def exported(forward: Callable[..., Any]) -> GraphModule:
    program = torch.export.export(Model(forward).eval(), (IMAGE,))
    return program.module(check_guards=False)


def the_view(module: GraphModule, kind: type[View]) -> Any:
    views = [view for node in module.graph.nodes if (view := kind.at(node)) is not None]
    assert len(views) == 1, module.graph
    return views[0]


CONVS: list[Callable[..., Any]] = [
    lambda m, x: m.conv(x),
    lambda m, x: m.conv(input=x),
    lambda m, x: F.conv2d(x, m.conv.weight, m.conv.bias, 2, 1, 1, 2),
    lambda m, x: F.conv2d(x, m.conv.weight, bias=m.conv.bias, stride=(2, 2), padding=1, groups=2),
    lambda m, x: aten.convolution.default(
        x, m.conv.weight, m.conv.bias, [2, 2], [1, 1], [1, 1], False, [0, 0], 2
    ),
    lambda m, x: torch.convolution(
        x, m.conv.weight, m.conv.bias, [2, 2], [1, 1], [1, 1], False, [0, 0], 2
    ),
]
TRANSPOSED: list[Callable[..., Any]] = [
    lambda m, x: m.transposed(x),
    lambda m, x: F.conv_transpose2d(x, m.transposed.weight, m.transposed.bias, 2, 0, 1, groups=2),
    lambda m, x: aten.convolution.default(
        x, m.transposed.weight, m.transposed.bias, [2, 2], [0, 0], [1, 1], True, [1, 1], 2
    ),
]


@pytest.mark.parametrize("make", [traced, exported])
@pytest.mark.parametrize("forward", CONVS)
def test_a_convolution_in_each_spelling(make: Any, forward: Any) -> None:
    module = make(forward)

    conv = the_view(module, Conv)

    assert conv.op is Op.CONV
    assert not conv.is_transposed
    assert (conv.spatial_rank, conv.stride, conv.padding) == (2, (2, 2), (1, 1))
    assert (conv.dilation, conv.groups, conv.padding_mode) == ((1, 1), 2, "zeros")
    assert conv.pads_with_values
    assert conv.input.op == "placeholder"
    assert conv.has_constant_parameters
    assert conv.weight.shape == (6, 2, 3, 3)
    assert conv.bias.shape == (6,)


@pytest.mark.parametrize("make", [traced, exported])
@pytest.mark.parametrize("forward", TRANSPOSED)
def test_a_transposed_convolution_in_each_spelling(make: Any, forward: Any) -> None:
    conv = the_view(make(forward), Conv)

    assert conv.op is Op.CONV_TRANSPOSE
    assert conv.is_transposed
    assert (conv.stride, conv.padding, conv.groups) == ((2, 2), (0, 0), 2)
    assert conv.output_padding == (1, 1)
    assert conv.weight.shape == (4, 3, 3, 3)


def test_padding_by_name_stays_a_name() -> None:
    conv = the_view(traced(lambda m, x: F.conv2d(x, m.conv.weight, padding="valid")), Conv)

    assert conv.padding == "valid"
    assert not conv.pads_with_values
    assert conv.bias is None
    assert not conv.has_bias


@pytest.mark.parametrize("make", [traced, exported])
@pytest.mark.parametrize(
    "forward",
    [
        lambda m, x: m.linear(x),
        lambda m, x: F.linear(x, m.linear.weight, m.linear.bias),
        lambda m, x: F.linear(x, bias=m.linear.bias, weight=m.linear.weight),
        lambda m, x: aten.linear.default(x, m.linear.weight, m.linear.bias),
    ],
)
def test_a_linear_layer_in_each_spelling(make: Any, forward: Any) -> None:
    linear = the_view(make(forward), Linear)

    assert linear.has_constant_parameters
    assert (linear.weight.shape, linear.bias.shape) == ((5, 8), (5,))


NORM = "running_mean", "running_var", "weight", "bias"


@pytest.mark.parametrize("make", [traced, exported])
@pytest.mark.parametrize(
    "forward",
    [
        lambda m, x: m.norm(x),
        lambda m, x: F.batch_norm(x, *(getattr(m.norm, n) for n in NORM), False, 0.1, 1e-3),
        lambda m, x: F.batch_norm(x, **{n: getattr(m.norm, n) for n in NORM}, eps=1e-3),
        lambda m, x: torch.batch_norm(
            x,
            *(m.norm.weight, m.norm.bias, m.norm.running_mean, m.norm.running_var),
            *(False, 0.1, 1e-3, False),
        ),
    ],
)
def test_a_batch_norm_in_each_spelling(make: Any, forward: Any) -> None:
    module = make(forward)

    norm = the_view(module, BatchNorm)

    assert norm.uses_running_statistics
    assert norm.has_constant_parameters
    assert (norm.eps, norm.momentum, norm.is_affine) == (1e-3, 0.1, True)
    assert torch.equal(norm.running_var, torch.ones(4))
    assert torch.equal(norm.running_mean, torch.zeros(4))
    assert torch.equal(norm.weight, torch.ones(4))
    assert torch.equal(norm.bias, torch.zeros(4))


@pytest.mark.parametrize(
    "forward",
    [
        lambda m, x: F.batch_norm(x, m.norm.running_mean, m.norm.running_var, training=True),
        lambda m, x: F.batch_norm(x, None, None, training=False),
    ],
)
def test_a_batch_norm_that_measures_its_batch(forward: Any) -> None:
    assert not the_view(traced(forward), BatchNorm).uses_running_statistics


@pytest.mark.parametrize(
    ("norm", "uses"),
    [
        (nn.BatchNorm2d(4), False),
        (nn.BatchNorm2d(4).eval(), True),
        (nn.BatchNorm2d(4, track_running_stats=False).eval(), False),
        (nn.BatchNorm2d(4, affine=False).eval(), True),
    ],
)
def test_a_batch_norm_module_by_mode(norm: nn.Module, uses: bool) -> None:
    view = the_view(symbolic_trace(nn.Sequential(norm)), BatchNorm)

    assert view.uses_running_statistics is uses
    assert view.has_constant_parameters


def test_frozen_batch_norms_always_use_running_statistics() -> None:
    misc = pytest.importorskip("torchvision.ops.misc")
    graph_module = symbolic_trace(nn.Sequential(nn.Identity()))
    graph_module.add_submodule("frozen", misc.FrozenBatchNorm2d(4))
    graph_module.graph.nodes  # noqa: B018
    (identity,) = [n for n in graph_module.graph.nodes if n.op == "call_module"]
    identity.target = "frozen"

    view = BatchNorm.at(identity)

    assert view is not None
    assert view.is_frozen
    assert view.uses_running_statistics
    assert view.input.op == "placeholder"
    assert view.eps == 1e-5


VIEWED: list[tuple[type[View], dict[str, Any], list[Callable[..., Any]]]] = [
    (
        Norm,
        {"op": Op.LAYER_NORM, "eps": 1e-3, "is_affine": True},
        [
            lambda m, x: m.layer_norm(x),
            lambda m, x: F.layer_norm(x, [8], m.layer_norm.weight, m.layer_norm.bias, 1e-3),
            lambda m, x: torch.layer_norm(x, [8], m.layer_norm.weight, eps=1e-3),
        ],
    ),
    (
        Activation,
        {"op": Op.LEAKY_RELU, "is_in_place": False},
        [
            lambda m, x: m.leaky(x),
            lambda m, x: F.leaky_relu(x, 0.2),
            lambda m, x: F.leaky_relu(negative_slope=0.2, input=x),
            lambda m, x: aten.leaky_relu.default(x, 0.2),
        ],
    ),
    (
        Softmax,
        {"dim": 1},
        [
            lambda m, x: m.softmax(x),
            lambda m, x: F.softmax(x, 1),
            lambda m, x: x.softmax(dim=1),
            lambda m, x: torch.softmax(x, 1),
            lambda m, x: aten._softmax.default(x, 1, False),
        ],
    ),
    (
        Dropout,
        {"p": 0.3, "is_active": False},
        [
            lambda m, x: m.dropout(x),
            lambda m, x: F.dropout(x, 0.3, False),
            lambda m, x: torch.dropout(x, 0.3, train=False),
        ],
    ),
    (
        Pool,
        {"kernel_size": (3, 3), "stride": (2, 2), "padding": (1, 1), "ceil_mode": False},
        [
            lambda m, x: m.pool(x),
            lambda m, x: F.max_pool2d(x, 3, 2, 1),
            lambda m, x: F.max_pool2d(x, kernel_size=(3, 3), stride=2, padding=1),
            lambda m, x: aten.max_pool2d.default(x, [3, 3], [2, 2], [1, 1]),
        ],
    ),
    (
        Pool,
        {"output_size": (2, None), "is_adaptive": True, "spatial_rank": 2},
        [
            lambda m, x: m.adaptive(x),
            lambda m, x: F.adaptive_avg_pool2d(x, (2, None)),
        ],
    ),
    (
        Flatten,
        {"start_dim": 1, "end_dim": -1},
        [
            lambda m, x: m.flatten(x),
            lambda m, x: x.flatten(1),
            lambda m, x: torch.flatten(x, start_dim=1),
        ],
    ),
    (
        Matmul,
        {"alpha": 2, "beta": 1},
        [
            lambda m, x: torch.addmm(x, x, x, alpha=2),
            lambda m, x: x.addmm(x, x, alpha=2),
            lambda m, x: aten.addmm.default(x, x, x, alpha=2),
        ],
    ),
    (
        Reshape,
        {"size": (2, -1)},
        [
            lambda m, x: x.view(2, -1),
            lambda m, x: x.view((2, -1)),
            lambda m, x: x.reshape(2, -1),
            lambda m, x: torch.reshape(x, (2, -1)),
        ],
    ),
    (
        Cat,
        {"dim": 1},
        [
            lambda m, x: torch.cat([x, x], 1),
            lambda m, x: torch.cat(tensors=[x, x], dim=1),
            lambda m, x: torch.concat([x, x], axis=1),
        ],
    ),
    (
        Split,
        {"dim": 1, "split_size": 2},
        [
            lambda m, x: x.split(2, 1),
            lambda m, x: torch.split(x, 2, dim=1),
            lambda m, x: aten.split.Tensor(x, 2, 1),
        ],
    ),
    (
        Cast,
        {"dtype": torch.float16, "is_named": True},
        [
            lambda m, x: x.half(),
            lambda m, x: x.to(torch.float16),
            lambda m, x: x.to("cpu", torch.float16),
            lambda m, x: x.to(dtype=torch.float16),
            lambda m, x: x.type(torch.float16),
            lambda m, x: aten._to_copy.default(x, dtype=torch.float16),
        ],
    ),
    (
        Cast,
        {"device": "cpu", "dtype": None},
        [lambda m, x: x.to("cpu"), lambda m, x: x.to(device="cpu"), lambda m, x: x.cpu()],
    ),
    (
        Reduce,
        {"dim": (1,), "keepdim": True},
        [
            lambda m, x: x.sum(1, keepdim=True),
            lambda m, x: x.sum((1,), True),
            lambda m, x: torch.sum(x, dim=1, keepdim=True),
            lambda m, x: torch.sum(x, axis=1, keepdims=True),
            lambda m, x: aten.sum.dim_IntList(x, [1], True),
        ],
    ),
    (Reduce, {"dim": None, "keepdim": False}, [lambda m, x: x.mean(), lambda m, x: torch.amax(x)]),
]


@pytest.mark.parametrize(
    ("kind", "expected", "forward"),
    [(kind, expected, f) for kind, expected, forwards in VIEWED for f in forwards],
)
def test_each_view_in_each_spelling(kind: Any, expected: dict[str, Any], forward: Any) -> None:
    view = the_view(traced(forward), kind)

    assert {name: getattr(view, name) for name in expected} == expected
    if kind not in (Cat, Matmul):
        assert view.input.op == "placeholder"


@pytest.mark.parametrize(
    ("forward", "left_is_input"),
    [
        (lambda m, x: x - 1.5, True),
        (lambda m, x: 1.5 - x, False),
        (lambda m, x: x.sub(1.5), True),
        (lambda m, x: x.sub_(1.5), True),
        (lambda m, x: torch.sub(x, other=1.5), True),
        (lambda m, x: torch.rsub(x, 1.5), False),
        (lambda m, x: aten.sub.Scalar(x, 1.5), True),
        (lambda m, x: aten.rsub.Scalar(x, 1.5), False),
    ],
)
def test_the_sides_of_a_difference(forward: Any, left_is_input: bool) -> None:
    view = the_view(traced(forward), Binary)

    left, right = (view.left, view.right) if left_is_input else (view.right, view.left)
    assert isinstance(left, Node)
    assert right == 1.5
    assert view.alpha == 1


def test_attention_and_matmul_name_their_factors() -> None:
    def forward(m: Model, x: Tensor) -> Tensor:
        y = F.scaled_dot_product_attention(x, x, value=x, is_causal=True)
        return torch.matmul(y, x)

    module = traced(forward)
    attention, product = the_view(module, Attention), the_view(module, Matmul)

    assert attention.query is attention.key is attention.value
    assert (attention.mask, attention.is_causal, attention.scale) == (None, True, None)
    assert attention.dropout_p == 0.0
    assert (product.left, product.right) == (attention.node, attention.query)
    assert product.addend is None


@pytest.mark.parametrize(
    ("forward", "order"),
    [
        (lambda m, x: x.permute(0, 2, 3, 1), (0, 2, 3, 1)),
        (lambda m, x: x.permute((0, 2, 3, -3)), (0, 2, 3, 1)),
        (lambda m, x: torch.permute(x, (0, 2, 3, 1)), (0, 2, 3, 1)),
        (lambda m, x: x.transpose(1, -1), (0, 3, 2, 1)),
        (lambda m, x: torch.swapaxes(x, axis0=1, axis1=3), (0, 3, 2, 1)),
    ],
)
def test_the_order_of_permuted_axes(forward: Any, order: tuple[int, ...]) -> None:
    assert the_view(traced(forward), Permute).order(4) == order


def test_the_axes_of_a_number_are_none() -> None:
    assert the_view(traced(lambda m, x: x.transpose(0, -1)), Permute).order(0) == ()


def test_sizes_given_one_by_one_or_as_one_node() -> None:
    one_by_one = the_view(traced(lambda m, x: x.view(x.size(0), -1)), Reshape)
    at_once = the_view(traced(lambda m, x: x.view(x.size())), Reshape)

    assert isinstance(one_by_one.size, tuple)
    assert isinstance(at_once.size, Node)


def test_defaults_are_values_that_a_caller_could_give() -> None:
    module = traced(lambda m, x: (x.contiguous(), torch.randperm(x.dim())))
    contiguous, _, drawn = filter(None, map(View.at, module.graph.nodes))

    assert contiguous.operand("memory_format") is torch.contiguous_format
    assert drawn.operand("dtype") is torch.int64


def test_a_call_that_no_signature_fits_has_no_view() -> None:
    module = traced(lambda m, x: F.conv2d(x, m.conv.weight))
    (node,) = [n for n in module.graph.nodes if op_of(n) is Op.CONV]
    node.kwargs = {**node.kwargs, "no_such_operand": 1}

    assert bind(node) is None
    assert Conv.at(node) is None


# -- which tensors are constant


def test_computed_weights_are_not_constant() -> None:
    conv = the_view(traced(lambda m, x: F.conv2d(x, m.conv.weight * 2)), Conv)

    assert conv.tensor("weight") is None
    assert not conv.has_constant_parameters


def test_parametrized_weights_are_not_constant() -> None:
    module = traced(lambda m, x: F.conv2d(x, m.conv.weight))
    module.set_submodule("conv", parametrizations.weight_norm(nn.Conv2d(4, 6, 3)))

    assert the_view(module, Conv).tensor("weight") is None


def test_buffers_and_plain_tensors_are_constant() -> None:
    module = traced(lambda m, x: F.conv2d(x, m.conv.weight))
    (read,) = [n for n in module.graph.nodes if n.op == "get_attr"]
    plain = torch.ones(6, 4, 3, 3)
    module.plain = plain
    read.target = "plain"

    assert the_view(module, Conv).tensor("weight") is plain


def test_a_module_that_does_more_than_its_class_is_not_recognised() -> None:
    hooked, replaced, parametrized = (nn.Conv2d(4, 4, 3) for _ in range(3))
    hooked.register_forward_hook(lambda *_: None)
    replaced.forward = lambda x: x  # pyright: ignore[reportAttributeAccessIssue]
    parametrizations.spectral_norm(parametrized)
    module = symbolic_trace(nn.Sequential(nn.Conv2d(4, 4, 3)))
    (node,) = [n for n in module.graph.nodes if n.op == "call_module"]
    assert Conv.at(node)

    for conv in (hooked, replaced, parametrized):
        module.set_submodule(node.target, conv)
        assert Conv.at(node) is None


class Renamed(nn.Conv2d):
    """Says nothing about the computation."""

    settings = "mine"

    def helper(self) -> int:
        return 1


class Overridden(nn.Conv2d):
    def _conv_forward(self, *operands: Any) -> Tensor:
        return 2 * super()._conv_forward(*operands)


class WithComputedWeight(nn.Conv2d):
    @property
    def weight(self) -> Tensor:
        return self._parameters["weight"] * 2

    @weight.setter
    def weight(self, value: Tensor) -> None:
        self._parameters["weight"] = value


@pytest.mark.parametrize(
    ("cls", "known"), [(Renamed, True), (Overridden, False), (WithComputedWeight, False)]
)
def test_subclasses_count_where_they_override_nothing(cls: type[nn.Conv2d], known: bool) -> None:
    module = symbolic_trace(nn.Sequential(nn.Conv2d(4, 4, 3)))
    (node,) = [n for n in module.graph.nodes if n.op == "call_module"]
    made = cls.__new__(cls)
    made.__dict__ = nn.Conv2d(4, 4, 3).__dict__
    module.set_submodule(node.target, made)

    assert (op_of(node) is Op.CONV) is known


# -- the same call with other parameters


@pytest.mark.parametrize("make", [traced, exported])
@pytest.mark.parametrize("forward", [*CONVS, *TRANSPOSED])
def test_a_convolution_with_folded_parameters(make: Any, forward: Any) -> None:
    module = make(forward)
    expected, conv = module(IMAGE), the_view(module, Conv)
    weight, bias = conv.weight, conv.bias
    before = weight.detach().clone()

    replace_parameters(module, conv)

    assert the_view(module, Conv).weight.shape == weight.shape
    torch.testing.assert_close(module(IMAGE), 2 * expected + 1)
    assert torch.equal(weight, before)
    assert bias.requires_grad == the_view(module, Conv).bias.requires_grad


@pytest.mark.parametrize(
    "forward", [lambda m, x: m.linear(x), lambda m, x: F.linear(x, m.linear.weight, m.linear.bias)]
)
def test_a_linear_layer_with_folded_parameters(forward: Any) -> None:
    module = traced(forward)
    expected = module(IMAGE)

    replace_parameters(module, the_view(module, Linear))

    torch.testing.assert_close(module(IMAGE), 2 * expected + 1)


def replace_parameters(module: GraphModule, layer: Any) -> Folds:
    with Editor(module, "double") as edit, edit.rewrite("1", layer.node):
        weight = edit.fold(lambda w: 2 * w, layer.weight)
        bias = edit.fold(lambda b: 2 * b + 1, layer.bias)
        edit.replace(layer.node, layer.with_parameters(edit, weight, bias))
    made = the_view(module, type(layer))
    assert edit.folds.find(made.weight) is not None
    return edit.folds


def test_a_new_module_shares_nothing_that_can_change() -> None:
    model = Model(lambda m, x: m.conv(x))
    model.conv.padding_mode = "reflect"
    model.conv.note = {"a": [1]}  # pyright: ignore[reportArgumentType]
    module = symbolic_trace(model)
    old = module.get_submodule("conv")
    replace_parameters(module, the_view(module, Conv))

    new = the_view(module, Conv).module

    assert type(new) is nn.Conv2d
    assert new is not old
    assert repr(new) == repr(old)
    assert new.training == old.training
    mutable = {k: v for k, v in vars(new).items() if isinstance(v, (list, dict))}
    assert not any(value is vars(old)[name] for name, value in mutable.items())
    assert not hasattr(new, "note")


def test_a_bias_can_be_left_out() -> None:
    module = traced(lambda m, x: m.conv(x))
    conv = the_view(module, Conv)

    with Editor(module, "drop") as edit, edit.rewrite("1", conv.node):
        weight = edit.fold(lambda w: w, conv.weight)
        edit.replace(conv.node, conv.with_parameters(edit, weight, None))

    assert the_view(module, Conv).operand("bias") is None


# -- who reads no values


@pytest.mark.parametrize(
    ("forward", "reads_no_value"),
    [
        (lambda m, x: x.size(0), True),
        (lambda m, x: x.shape, True),
        (lambda m, x: x.dtype, True),
        (lambda m, x: x.dim(), True),
        (lambda m, x: torch.zeros_like(x), True),
        (lambda m, x: x.new_zeros(3), True),
        (lambda m, x: x.T, False),
        (lambda m, x: x + 1, False),
        (lambda m, x: x.item(), False),
        (lambda m, x: x.grad, False),
    ],
)
def test_readers_of_metadata(forward: Any, reads_no_value: bool) -> None:
    module = traced(forward)
    node, user = list(module.graph.nodes)[:2]

    assert reads_only_metadata(user) is reads_no_value
    assert reads_only_metadata(user, node) is reads_no_value


def test_the_second_operand_may_be_only_a_pattern() -> None:
    module = traced(lambda m, x: (x + 1).view_as(x))
    x, plus, view, _ = module.graph.nodes

    assert reads_only_metadata(view, x)
    assert not reads_only_metadata(view, plus)
    assert not reads_only_metadata(view)


def test_the_first_kind_that_shows_the_op_is_taken() -> None:
    module = traced(lambda m, x: m.norm(m.conv(x)).relu())
    _, conv, norm, relu, _ = module.graph.nodes

    assert type(view_at(conv, BatchNorm, Conv, Linear)) is Conv
    assert type(view_at(norm, View, BatchNorm)) is View
    assert view_at(relu, BatchNorm, Conv, Linear) is None
    assert view_at(None, View) is None


@pytest.mark.parametrize(
    ("look", "shape"),
    [
        (lambda m: m.norm.weight, (4,)),
        (lambda m: m.norm.weight[None, :, None].view(-1, 1), (4, 1)),
        (lambda m: m.conv.weight.permute(1, 0, 2, 3).select(2, 0).flatten(), (36,)),
        (lambda m: torch.tensor([1.0, 2.0])[1], ()),
        (lambda m: torch.as_tensor([[1.0, 2.0]]).t(), (2, 1)),
    ],
)
def test_constants_are_known_in_any_shape(look: Any, shape: tuple[int, ...]) -> None:
    module = bare(Model(lambda m, x: x.sum() * look(m)))
    *_, product, _ = module.graph.nodes

    found = ConstantView.at(product.args[1])

    assert found is not None
    assert found.shape == shape
    seen = module.graph.owning_module(torch.zeros(2, 4, 8, 8) + 1)
    torch.testing.assert_close(found.of(found.tensor) * 512, seen)


@pytest.mark.parametrize(
    "look",
    [
        lambda m, x: m.norm.weight.view(torch.int32),
        lambda m, x: m.norm.weight.view(x.size(1), -1),
        lambda m, x: m.norm.weight.unsqueeze(0).exp(),
        lambda m, x: torch.tensor([x.size(0)]),
    ],
)
def test_what_hangs_on_more_than_a_constant_is_none(look: Any) -> None:
    module = bare(Model(lambda m, x: x.sum() * look(m, x)))
    *_, product, _ = module.graph.nodes
    assert ConstantView.at(product.args[1]) is None


def test_what_only_hands_on_is_seen_through() -> None:
    module = traced(lambda m, x: m.dropout(m.conv(x).contiguous()).relu())
    _, conv, contiguous, dropout, relu, _ = module.graph.nodes

    found, passing = seen_through(dropout, Conv)

    assert found is not None
    assert found.node is conv
    assert passing == (contiguous, dropout)
    assert seen_through(relu, Conv) == (None, ())
    assert seen_through(dropout.args[0], Linear)[0] is None


def test_dropout_that_drops_is_not_seen_through() -> None:
    module = traced(lambda m, x: m.dropout.train()(m.conv(x)))
    dropout = next(n for n in module.graph.nodes if n.target == "dropout")

    assert seen_through(dropout, Conv) == (None, ())

"""Python constructs of model code: captured or opaque as said, and equal on other values."""

import collections
import copy
import dataclasses
import math
import operator
import re
import warnings
import weakref
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
import torch.nn.functional as F
import torchvision.ops as vision
from torch import Tensor, fx, nn

from fxpasses.capture.tracing.structures import map_leaves
from fxpasses.capture.tracing.tracer import OpaqueKind
from tests.capture.tracing import module, run, same, traced

X = torch.arange(2 * 3 * 8 * 8, dtype=torch.float32).reshape(2, 3, 8, 8) / 100 - 1
Y = -X[:, :, :6, :6].repeat(2, 1, 1, 1) * 1.5
WEIGHT = torch.linspace(-1, 1, 8)
ONES = torch.ones(8)
TELLS_OF_PROXIES = re.compile(r"proxies|\b(Made|Held)\b|'(Attribute|Item|Field|Size)'")
CAPTURED = None
CONTROL_FLOW = OpaqueKind.CONTROL_FLOW
VALUE = OpaqueKind.UNTRACEABLE_VALUE
ERROR = OpaqueKind.ERROR
COMPILED = OpaqueKind.COMPILED


@torch.library.custom_op("fxpasses_tests::twice", mutates_args=())
def twice(x: Tensor) -> Tensor:
    return x * 2


@twice.register_fake
def _(x: Tensor) -> Tensor:
    return torch.empty_like(x)


def sign_dependent(x: Tensor) -> Tensor:
    return x + 1 if x.sum() > 0 else x - 1


fx.wrap("sign_dependent")


with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # scripting is deprecated

    @torch.jit.script
    def scripted(x: Tensor) -> Tensor:
        return x + 1


def assigned_unbound(self: Any, x: Tensor) -> Tensor:
    y = x * 2
    Tensor.__setitem__(y, 0, 1.0)
    Tensor.__iadd__(y, x)
    return y


@torch.jit.script_if_tracing
def add_often(x: Tensor, n: int) -> Tensor:
    for _ in range(n):
        x = x + 1
    return x


class Pair(NamedTuple):
    a: Tensor
    b: Tensor


@dataclasses.dataclass
class Record:
    a: Tensor
    b: Tensor | None = None


def masked(self: Any, x: Tensor) -> Tensor:
    mask = torch.zeros(8)
    mask[2:4] = 1
    return x * mask


def masked_by_input(self: Any, x: Tensor) -> Tensor:
    copied = torch.zeros(2, 3, 8, 8)
    copied[:, :, 2:4] = x[:, :, 2:4]
    return x * copied


def _branch_on_numbers(_: Any, x: Tensor) -> Tensor:
    spread = torch.tensor([0.5, 0.25])
    return x if (spread == 0).any() else x / spread.view(-1)[0]


def _branch_where_x_is(_: Any, x: Tensor) -> Tensor:
    spread = torch.as_tensor([0.5, 0.25], dtype=x.dtype, device=x.device)
    return x * 2 if bool((spread > 0).all()) else x


def _branch_on_written(_: Any, x: Tensor) -> Tensor:
    spread = torch.zeros(2)
    spread.add_(x.sum())
    return x if (spread > 0).any() else x * 2


def _branch_on_view(_: Any, x: Tensor) -> Tensor:
    spread = torch.zeros(2)
    spread[:1].copy_(x.flatten()[:1])
    return x if (spread > 0).any() else x * 2


def _branch_on_random(_: Any, x: Tensor) -> Tensor:
    return x if torch.rand(1) > 0.5 else x * 2


def added_in_place(self: Any, x: Tensor) -> Tensor:
    y = x * 2
    alias = y
    y += 1
    return alias + y


def number_added_in_place(self: Any, x: Tensor) -> Tensor:
    n = x.shape[1]
    m = n
    n += 1
    return x * n + m


def asserted(self: Any, x: Tensor) -> Tensor:
    assert x.ndim == 4
    return x


def asserted_by_torch(self: Any, x: Tensor) -> Tensor:
    torch._assert(x.shape[1] == 3, f"bad {x.shape}")
    return x * 2


def filled_default(self: Any, x: Tensor) -> Any:
    found: dict[str, Any] = collections.defaultdict(list)
    found["a"] = x
    return found


def batch_first(self: Any, x: Tensor) -> Tensor:
    b, c, h, w = x.shape
    return torch.zeros(b, c, h, w) + x


# name, forward, attributes, kind without guards, kind with guards
CONSTRUCTS: list[tuple[str, Any, dict[str, Any], OpaqueKind | None, OpaqueKind | None]] = [
    ("plain_tensor", lambda s, x: x[..., :6] + s.t[:6], {"t": WEIGHT}, CAPTURED, CAPTURED),
    (
        "parameter_arithmetic",
        lambda s, x: x.mean() * (s.p * 2 + 1),
        {"p": nn.Parameter(WEIGHT)},
        CAPTURED,
        CAPTURED,
    ),
    (
        "parameter_in_a_list",
        lambda s, x: x.mean() * s.l[0],
        {"l": [nn.Parameter(WEIGHT)]},
        CAPTURED,
        CAPTURED,
    ),
    (
        "branch_on_a_weight_shape",
        lambda s, x: x * 2 if s.p.shape[0] == 8 else x,
        {"p": nn.Parameter(WEIGHT)},
        CAPTURED,
        CAPTURED,
    ),
    (
        "parameter_data",
        lambda s, x: x.mean() * s.p.data,
        {"p": nn.Parameter(WEIGHT)},
        CAPTURED,
        CAPTURED,
    ),
    (
        "parameter_by_registry",
        lambda s, x: x.mean() * s._parameters["p"],
        {"p": nn.Parameter(WEIGHT)},
        CAPTURED,
        CAPTURED,
    ),
    (
        "parameter_by_iterator",
        lambda s, x: x.mean() * next(s.parameters()),
        {"p": nn.Parameter(WEIGHT)},
        CAPTURED,
        CAPTURED,
    ),
    (
        "dtype_of_a_parameter",
        lambda s, x: x.to(next(s.parameters()).dtype),
        {"p": nn.Parameter(WEIGHT)},
        CAPTURED,
        CAPTURED,
    ),
    ("zeros", lambda s, x: x.sum() + torch.zeros(8), {}, CAPTURED, CAPTURED),
    (
        "zeros_on_device",
        lambda s, x: x.sum() + torch.zeros(8, device=x.device),
        {},
        CAPTURED,
        CAPTURED,
    ),
    ("zeros_of_size", lambda s, x: torch.zeros(x.size(0)) + x[..., 0, 0].T, {}, CAPTURED, CAPTURED),
    ("zeros_of_shape", lambda s, x: torch.zeros(x.shape) + x, {}, CAPTURED, CAPTURED),
    ("zeros_of_unpacked_shape", lambda s, x: torch.zeros(*x.shape) + x, {}, CAPTURED, CAPTURED),
    ("zeros_of_names", batch_first, {}, CAPTURED, CAPTURED),
    (
        "arange_of_size",
        lambda s, x: x + torch.arange(x.shape[-1], device=x.device),
        {},
        CAPTURED,
        CAPTURED,
    ),
    ("full_of_size", lambda s, x: x + torch.full((x.shape[-1],), 2.0), {}, CAPTURED, CAPTURED),
    ("tensor_of_numbers", lambda s, x: x.sum() + torch.tensor([1.0, 2.0]), {}, CAPTURED, CAPTURED),
    ("tensor_of_size", lambda s, x: x + torch.tensor(x.shape[0]), {}, CAPTURED, CAPTURED),
    (
        "as_tensor",
        lambda s, x: x.sum() + torch.as_tensor(s.l),
        {"l": [1.0] * 8},
        CAPTURED,
        CAPTURED,
    ),
    ("rand", lambda s, x: x.sum() + torch.rand(8), {}, CAPTURED, CAPTURED),
    ("rand_of_shape", lambda s, x: x + torch.rand(x.shape), {}, CAPTURED, CAPTURED),
    ("rand_of_sizes", lambda s, x: x + torch.rand(x.shape[0], 1, 1, 1), {}, CAPTURED, CAPTURED),
    ("rand_like", lambda s, x: x + torch.rand_like(x), {}, CAPTURED, CAPTURED),
    ("new_zeros", lambda s, x: x.new_zeros(x.shape[0], 3) + x[..., 0, 0], {}, CAPTURED, CAPTURED),
    (
        "bernoulli_of_a_constant",
        lambda s, x: x.sum() + torch.bernoulli(s.t),
        {"t": torch.full((8,), 0.5)},
        CAPTURED,
        CAPTURED,
    ),
    ("constant_written", lambda s, x: torch.zeros(1).add_(x.mean()), {}, CAPTURED, CAPTURED),
    ("element_written", lambda s, x: (x.__setitem__(0, 5), x)[1], {}, CAPTURED, CAPTURED),
    ("mask", lambda s, x: masked(s, F.pad(x, (0, 8 - x.shape[3]))), {}, CAPTURED, CAPTURED),
    (
        "constant_takes_an_input",
        lambda s, x: masked_by_input(s, x[:2].repeat(1, 1, 2, 2)[..., :8, :8]),
        {},
        CAPTURED,
        CAPTURED,
    ),
    (
        "from_numpy",
        lambda s, x: x.sum() + torch.from_numpy(np.ones(8, dtype="float32")),
        {},
        CAPTURED,
        CAPTURED,
    ),
    (
        "from_numpy_written",
        lambda s, x: torch.from_numpy(np.ones(8, dtype="float32")).add_(x.sum()),
        {},
        CAPTURED,
        CAPTURED,
    ),
    (
        "float_tensor",
        lambda s, x: torch.FloatTensor([1.0, 2.0]).mul_(x.sum()),
        {},
        CAPTURED,
        CAPTURED,
    ),
    ("numpy_scalar", lambda s, x: x * np.float64(2.5) + np.int64(2), {}, CAPTURED, CAPTURED),
    ("custom_op", lambda s, x: twice(x), {}, CAPTURED, CAPTURED),
    ("custom_op_by_name", lambda s, x: torch.ops.fxpasses_tests.twice(x), {}, CAPTURED, CAPTURED),
    ("wrapped_function", lambda s, x: sign_dependent(x), {}, CAPTURED, CAPTURED),
    ("script_if_tracing", lambda s, x: add_often(x, 3), {}, CAPTURED, CAPTURED),
    ("einsum", lambda s, x: torch.einsum("bchw,bkhw->bck", x, x), {}, CAPTURED, CAPTURED),
    (
        "roi_align",
        lambda s, x: vision.roi_align(x, s.b, 2),
        {"b": torch.tensor([[0, 0.0, 0, 4, 4]])},
        CAPTURED,
        CAPTURED,
    ),
    ("frozen_norm", lambda s, x: s.d(x), {"d": vision.FrozenBatchNorm2d(3)}, CAPTURED, CAPTURED),
    (
        "stochastic_depth",
        lambda s, x: s.d(x),
        {"d": vision.StochasticDepth(0.5, "row")},
        CAPTURED,
        CAPTURED,
    ),
    (
        "pool_with_indices",
        lambda s, x: F.max_pool2d(x, 2, return_indices=True),
        {},
        CAPTURED,
        CAPTURED,
    ),
    (
        "pool_unpacked",
        lambda s, x: F.max_pool2d(x, 2, return_indices=True)[0],
        {},
        CAPTURED,
        CAPTURED,
    ),
    (
        "attention",
        lambda s, x: s.m(x[0], x[0], x[0])[0],
        {"m": nn.MultiheadAttention(8, 2)},
        CAPTURED,
        CAPTURED,
    ),
    (
        "assert_of_torch",
        asserted_by_torch,
        {},
        CAPTURED,
        CAPTURED,
    ),
    ("assert_statement", asserted, {}, CAPTURED, CAPTURED),
    ("unbound_method", lambda s, x: Tensor.sum(Tensor.relu(x), dim=1), {}, CAPTURED, CAPTURED),
    (
        "unbound_in_place",
        lambda s, x: Tensor.add_(x * 2, Tensor.size(x, 0)),
        {},
        CAPTURED,
        CAPTURED,
    ),
    ("unbound_of_weight", lambda s, x: x + Tensor.sum(s.w), {"w": WEIGHT}, CAPTURED, CAPTURED),
    ("unbound_on_module", lambda s, x: s.f(x), {"f": Tensor.relu}, ERROR, ERROR),
    ("unbound_operator", lambda s, x: Tensor.__add__(x, 2), {}, CAPTURED, CAPTURED),
    ("unbound_comparison", lambda s, x: Tensor.__eq__(x, x.abs()), {}, CAPTURED, CAPTURED),
    ("unbound_negative", lambda s, x: Tensor.__neg__(x), {}, CAPTURED, CAPTURED),
    (
        "unbound_item",
        lambda s, x: Tensor.__getitem__(x, (0, slice(1, None))),
        {},
        CAPTURED,
        CAPTURED,
    ),
    ("unbound_assignment", assigned_unbound, {}, CAPTURED, CAPTURED),
    (
        "unbound_operator_of_weight",
        lambda s, x: Tensor.__mul__(s.w, x[0, 0]),
        {"w": WEIGHT},
        CAPTURED,
        CAPTURED,
    ),
    (
        "unbound_and_real",
        lambda s, x: ONES + Tensor.__add__(x, 1) + ONES.mul(Tensor.mul(x, 2)),
        {},
        CAPTURED,
        CAPTURED,
    ),
    (
        "unbound_without_answer",
        lambda s, x: x * (Tensor.__eq__(x, None) is NotImplemented),
        {},
        VALUE,
        VALUE,
    ),
    ("weak_reference", lambda s, x: x * len([weakref.ref(s.w)]), {"w": WEIGHT}, VALUE, VALUE),
    (
        "attribute_of_torch",
        lambda s, x: torch._C._nn.linear(x, 3.5),
        {},
        ERROR,
        ERROR,
    ),
    ("unbound_decision", lambda s, x: x * Tensor.__bool__(x.sum() > 0), {}, ERROR, ERROR),
    ("iadd_to_literal", lambda s, x: x * operator.iadd(3, x.size(0)), {}, CAPTURED, CAPTURED),
    ("scripted_function", lambda s, x: scripted(x), {}, COMPILED, COMPILED),
    ("type_is", lambda s, x: x * 2 if type(x) is Tensor else x, {}, CAPTURED, CAPTURED),
    ("type_as_key", lambda s, x: {Tensor: x * 2}[type(x)], {}, CAPTURED, CAPTURED),
    ("type_of_size", lambda s, x: x * (type(x.shape[0]) is int), {}, CAPTURED, CAPTURED),
    ("type_of_shape", lambda s, x: x * (type(x.shape) is torch.Size), {}, CAPTURED, CAPTURED),
    (
        "type_of_types",
        lambda s, x: (
            x * (type(int) is type and isinstance(int, type) and issubclass(type, type))
            + len(type("New", (), {}).__mro__)
        ),
        {},
        CAPTURED,
        CAPTURED,
    ),
    ("len_of_tensor", lambda s, x: x * len(x), {}, CONTROL_FLOW, CAPTURED),
    (
        "isinstance_tensor",
        lambda s, x: x * 2 if isinstance(x, Tensor) else x,
        {},
        CAPTURED,
        CAPTURED,
    ),
    (
        "isinstance_tuple",
        lambda s, x: x[0] if isinstance(x, (tuple, list)) else x,
        {},
        CAPTURED,
        CAPTURED,
    ),
    (
        "isinstance_shape",
        lambda s, x: x * 2 if isinstance(x.shape, torch.Size) else x,
        {},
        CAPTURED,
        CAPTURED,
    ),
    (
        "isinstance_size",
        lambda s, x: x * 2 if isinstance(x.shape[0], int) else x,
        {},
        CAPTURED,
        CAPTURED,
    ),
    (
        "isinstance_proxy",
        lambda s, x: x * 2 if isinstance(x, fx.Proxy) else x,
        {},
        CAPTURED,
        CAPTURED,
    ),
    ("is_tensor", lambda s, x: x * 2 if torch.is_tensor(x) else x, {}, CAPTURED, CAPTURED),
    ("hasattr", lambda s, x: x * 2 if hasattr(x, "foo") else x, {}, CAPTURED, CAPTURED),
    ("getattr_default", lambda s, x: x * (getattr(x, "foo", None) or 3), {}, CAPTURED, CAPTURED),
    ("callable", lambda s, x: x * 2 if callable(x) else x, {}, CAPTURED, CAPTURED),
    (
        "size_in_tuple",
        lambda s, x: x * 2 if x.shape[2] in (8, 4) else x,
        {},
        CONTROL_FLOW,
        CAPTURED,
    ),
    ("size_in_set", lambda s, x: x * 2 if x.shape[2] in {8, 4} else x, {}, CONTROL_FLOW, CAPTURED),
    (
        "shape_as_key",
        lambda s, x: x * {(2, 3, 8, 8): 5.0}.get(tuple(x.shape), 1.0),
        {},
        CONTROL_FLOW,
        CAPTURED,
    ),
    (
        "dtype_branch",
        lambda s, x: x * 2 if x.dtype in (torch.float32,) else x,
        {},
        CAPTURED,
        CAPTURED,
    ),
    ("finfo", lambda s, x: x.clamp(min=torch.finfo(x.dtype).min), {}, CAPTURED, CAPTURED),
    ("is_cuda", lambda s, x: x * 2 if not x.is_cuda else x, {}, CAPTURED, CAPTURED),
    ("device_type", lambda s, x: x * 2 if x.device.type == "cpu" else x, {}, CAPTURED, CAPTURED),
    ("int", lambda s, x: x * int(x.shape[2]), {}, CONTROL_FLOW, CAPTURED),
    ("float", lambda s, x: x * float(x.shape[2]), {}, CONTROL_FLOW, CAPTURED),
    ("range", lambda s, x: sum(x[..., i] for i in range(x.shape[3])), {}, CONTROL_FLOW, CAPTURED),
    (
        "list_index",
        lambda s, x: x * [1, 2, 3, 4, 5, 6, 7, 8, 9][x.shape[2]],
        {},
        CONTROL_FLOW,
        CAPTURED,
    ),
    (
        "math_sqrt",
        lambda s, x: x * math.sqrt(x.shape[1]) + math.ceil(x.shape[2] / 5),
        {},
        CAPTURED,
        CAPTURED,
    ),
    ("max_of_sizes", lambda s, x: x * max(x.shape[2], 7), {}, CONTROL_FLOW, CAPTURED),
    ("not_size", lambda s, x: x * (not x.shape[1]), {}, CONTROL_FLOW, CAPTURED),
    ("size_and", lambda s, x: x * (x.shape[1] and 2), {}, CONTROL_FLOW, CAPTURED),
    ("item", lambda s, x: x * x.sum().item(), {}, CAPTURED, CAPTURED),
    ("tolist", lambda s, x: x * x.flatten().tolist()[0], {}, CAPTURED, CAPTURED),
    ("branch_on_numbers", _branch_on_numbers, {}, CAPTURED, CAPTURED),
    ("branch_on_numbers_where_x_is", _branch_where_x_is, {}, CAPTURED, CAPTURED),
    ("branch_on_written_numbers", _branch_on_written, {}, CONTROL_FLOW, CONTROL_FLOW),
    ("branch_on_written_view", _branch_on_view, {}, CONTROL_FLOW, CONTROL_FLOW),
    ("branch_on_random_numbers", _branch_on_random, {}, CONTROL_FLOW, CONTROL_FLOW),
    ("data_branch", lambda s, x: x * 2 if x.sum() > 0 else x, {}, CONTROL_FLOW, CONTROL_FLOW),
    (
        "item_branch",
        lambda s, x: x * 2 if x.sum().item() > 0 else x,
        {},
        CONTROL_FLOW,
        CONTROL_FLOW,
    ),
    ("numpy", lambda s, x: x * float(x.detach().numpy().sum() > 0), {}, VALUE, VALUE),
    ("loop_over_tensor", lambda s, x: sum(t for t in x), {}, CONTROL_FLOW, CAPTURED),
    ("starred_shape", lambda s, x: x.reshape(*x.shape[:2], -1), {}, CAPTURED, CAPTURED),
    ("shape_plus_tuple", lambda s, x: x.reshape((*x.shape[:2], -1)), {}, CAPTURED, CAPTURED),
    ("tuple_plus_shape", lambda s, x: x.reshape((-1, *x.shape[2:])), {}, CAPTURED, CAPTURED),
    ("sum_of_shape", lambda s, x: x * sum(list(x.shape)), {}, CAPTURED, CAPTURED),
    (
        "shapes_compared",
        lambda s, x: x * 2 if x.shape == (x + 1).shape else x,
        {},
        CONTROL_FLOW,
        CAPTURED,
    ),
    (
        "shape_compared",
        lambda s, x: x * 2 if x.shape == (2, 3, 8, 8) else x,
        {},
        CONTROL_FLOW,
        CAPTURED,
    ),
    ("added_in_place", added_in_place, {}, CAPTURED, CAPTURED),
    ("input_added_in_place", lambda s, x: (x.__iadd__(1), x)[1], {}, CAPTURED, CAPTURED),
    ("number_added_in_place", number_added_in_place, {}, CAPTURED, CAPTURED),
    ("negative_base", lambda s, x: (-2.0) ** (x * 0 + 2), {}, CAPTURED, CAPTURED),
    ("keyword_from", lambda s, x: (x * 1).random_(**{"from": 0, "to": 5}), {}, CAPTURED, CAPTURED),
    ("data", lambda s, x: x.data * 2, {}, CAPTURED, CAPTURED),
    ("data_written", lambda s, x: (setattr(x, "data", x * 2), x)[1], {}, VALUE, VALUE),
    ("shape_changed_in_place", lambda s, x: x.mul(1).unsqueeze_(0), {}, VALUE, VALUE),
    ("requires_grad", lambda s, x: x * 2 if x.requires_grad else x, {}, CONTROL_FLOW, CONTROL_FLOW),
    ("where", lambda s, x: torch.where(x > 0, x, x * 2), {}, CAPTURED, CAPTURED),
    (
        "contiguous_branch",
        lambda s, x: x * 2 if x.is_contiguous() else x,
        {},
        CONTROL_FLOW,
        CAPTURED,
    ),
    (
        "split_loop",
        lambda s, x: torch.stack([c.sum() for c in x.split(2, 2)]),
        {},
        CAPTURED,
        CAPTURED,
    ),
    ("chunk_loop", lambda s, x: sum(c.sum() for c in x.chunk(5, 2)), {}, CAPTURED, CAPTURED),
    ("unbind_loop", lambda s, x: sum(x.unbind(2)), {}, CAPTURED, CAPTURED),
    ("chunk_unpacked", lambda s, x: torch.add(*x.chunk(2, 2)), {}, CAPTURED, CAPTURED),
    (
        "squeeze_then_ndim",
        lambda s, x: x * x[:, :, : x.shape[2] - 7].squeeze().ndim,
        {},
        CAPTURED,
        CAPTURED,
    ),
    (
        "squeeze_then_branch",
        lambda s, x: x * 2 if x[:, :, : x.shape[2] - 7].squeeze().ndim == 3 else x,
        {},
        CONTROL_FLOW,
        CAPTURED,
    ),
    ("rows_by_mask", lambda s, x: x * x[x > 0].shape[0], {}, CAPTURED, CAPTURED),
    (
        "branch_on_rows_by_mask",
        lambda s, x: x * 2 if x[x > 0].shape[0] > 3 else x,
        {},
        CONTROL_FLOW,
        CONTROL_FLOW,
    ),
    ("len_of_nonzero", lambda s, x: x * len((x > 0).nonzero()), {}, CONTROL_FLOW, CONTROL_FLOW),
    ("unique", lambda s, x: x * x.unique().numel(), {}, CAPTURED, CAPTURED),
    ("named_result", lambda s, x: x.max(1).values + x.max(1)[0], {}, CAPTURED, CAPTURED),
    ("named_result_returned", lambda s, x: x.max(1), {}, CAPTURED, CAPTURED),
    ("shape_returned", lambda s, x: (x.shape, x.shape[1:]), {}, CAPTURED, CAPTURED),
    ("named_tuple_returned", lambda s, x: Pair(x, x * 2), {}, CAPTURED, CAPTURED),
    ("record_returned", lambda s, x: Record(x, x * 2), {}, CAPTURED, CAPTURED),
    ("dict_returned", lambda s, x: {"a": x, "b": [x, None, 3, "s"]}, {}, CAPTURED, CAPTURED),
    ("ordered_dict_returned", lambda s, x: collections.OrderedDict(a=x), {}, CAPTURED, CAPTURED),
    ("default_dict_returned", filled_default, {}, VALUE, VALUE),
    ("set_returned", lambda s, x: {1, 2}, {}, VALUE, VALUE),
    ("none_returned", lambda s, x: None, {}, CAPTURED, CAPTURED),
    ("class_returned", lambda s, x: (x, object), {}, VALUE, VALUE),
    ("input_returned", lambda s, x: x, {}, CAPTURED, CAPTURED),
    ("parameter_returned", lambda s, x: (x, s.p), {"p": nn.Parameter(WEIGHT)}, CAPTURED, CAPTURED),
    ("constant_returned", lambda s, x: (x, torch.ones(2)), {}, CAPTURED, CAPTURED),
    ("new_layer", lambda s, x: nn.ReLU()(x), {}, CAPTURED, CAPTURED),
    (
        "new_weights",
        lambda s, x: nn.Linear(8, 4)(x.mean((0, 1, 2)).new_ones(8)),
        {},
        OpaqueKind.NEW_MODULE,
        OpaqueKind.NEW_MODULE,
    ),
    (
        "list_of_layers",
        lambda s, x: s.l[0](x.mean((2, 3))),
        {"l": [nn.Linear(3, 3)]},
        CAPTURED,
        CAPTURED,
    ),
    (
        "operands_of_any_name",
        lambda s, x: x.masked_fill(mask=x > 0, value=2.0).new_full((2,), fill_value=1) + x.mean(),
        {},
        CAPTURED,
        CAPTURED,
    ),
    ("vmap", lambda s, x: torch.func.vmap(lambda t: t * 2)(x), {}, ERROR, ERROR),
    ("hook_on_tensor", lambda s, x: (x.register_hook(lambda g: g * 2), x)[1], {}, VALUE, VALUE),
    (
        "deepcopy",
        lambda s, x: x.mean() + copy.deepcopy(s.p),
        {"p": nn.Parameter(WEIGHT)},
        VALUE,
        VALUE,
    ),
    (
        "right_operators",
        lambda s, x: (2 - x) + (3 / (x + 5)) + s.t[0] - x,
        {"t": WEIGHT},
        CAPTURED,
        CAPTURED,
    ),
    (
        "constant_times_input",
        lambda s, x: s.l[0][: x.shape[3]] * x,
        {"l": [WEIGHT]},
        CAPTURED,
        CAPTURED,
    ),
]


def is_random(name: str) -> bool:
    return any(word in name for word in ("rand", "bernoulli", "keyword_from", "new_weights"))


def reference(result: Any) -> Any:
    """What the run along returned, or the kind of what it raised."""
    if result.refused is None:
        return result.trace.outputs
    error = result.refused.error
    return result.refused.outputs if error is None else type(error).__name__


def detached(value: Any) -> Any:
    return map_leaves(value, lambda x: x.detach() if isinstance(x, Tensor) else x)


@pytest.mark.parametrize("sizes", ["kinds", "guards"])
@pytest.mark.parametrize("case", CONSTRUCTS, ids=[case[0] for case in CONSTRUCTS])
def test_construct(case: tuple[Any, ...], sizes: str) -> None:
    _, forward, attributes, at_kinds, at_guards = case
    model = module(forward, **attributes)
    expected = at_kinds if sizes == "kinds" else at_guards

    result = traced(model, (X,), sizes=sizes)

    assert result.kinds == ({} if expected is None else {"": expected})
    assert result.refused is None or not TELLS_OF_PROXIES.search(result.refused.reason)
    assert is_random(case[0]) or same(detached(run(model, (X,))), detached(reference(result)))
    for call in (X, Y, -X):
        assert same(run(model, (call,)), run(result, (call,)))


def test_replacements_for_the_trace_stay_out_of_the_graph() -> None:
    def forward(self: Any, x: Tensor) -> Tensor:
        return ONES.mul(Tensor.mul(x, 2)) + (ONES + Tensor.__add__(x, 2))

    graph = traced(module(forward), (X,)).graph_module.graph
    targets = [node.target for node in graph.nodes if node.op == "call_function"]
    assert targets
    assert not any((target.__module__ or "").startswith("fxpasses") for target in targets)


@pytest.mark.parametrize("case", CONSTRUCTS, ids=[case[0] for case in CONSTRUCTS])
def test_construct_without_an_example(case: tuple[Any, ...]) -> None:
    _, forward, attributes, _, _ = case
    model = module(forward, **attributes)

    result = traced(model)

    for call in (X, Y, -X):
        assert same(run(model, (call,)), run(result, (call,)))

"""A model with a bit of everything, right rewrites of its parts, and the same with one fault."""

import operator
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, fx, nn
from torch.fx import Node

from fxpasses.core import Editor
from tests.verify.support import Case

IMAGE = (2, 3, 6, 6)


class Parts(nn.Module):
    """Ends in a value of shape (batch, 6)."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.bn = nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4)
        self.query, self.key = nn.Linear(4, 4), nn.Linear(4, 4)
        self.norm, self.head = nn.LayerNorm(4), nn.Linear(8, 6)
        self.register_buffer("mask", torch.tensor([[0.0, -1e30, 0.0, 0.0]]).repeat(4, 1))
        for norm in (self.bn, self.norm):
            nn.init.normal_(norm.weight)
            nn.init.normal_(norm.bias)
        nn.init.normal_(self.bn.running_mean)
        nn.init.uniform_(self.bn.running_var, 0.5, 2.0)

    def forward(self, x: Tensor) -> Tensor:
        y = torch.relu(self.bn(self.conv(x)))
        tokens = y.flatten(2).transpose(1, 2)
        scores = torch.matmul(self.query(tokens), self.key(tokens).transpose(1, 2))
        weights = torch.softmax(scores / 2.0 + x.mean() * 0.0, dim=-1)
        mixed = torch.matmul(weights, tokens) - tokens
        normed = self.norm(mixed)
        pooled = normed.mean(1)
        both = torch.cat([pooled, F.gelu(pooled)], 1)
        return self.head(both) * 1.5


class Plain(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.parts = Parts()

    def forward(self, x: Tensor) -> Any:
        return self.after(self.parts(x), x)

    def after(self, y: Tensor, x: Tensor) -> Any:
        return y


class ZeroInitialisedBranch(Plain):
    def __init__(self) -> None:
        super().__init__()
        self.gain = nn.Parameter(torch.zeros(6))

    def after(self, y: Tensor, x: Tensor) -> Any:
        return x.mean((1, 2, 3)).unsqueeze(1) + y * self.gain


class LayerScale(ZeroInitialisedBranch):
    def __init__(self) -> None:
        super().__init__()
        self.gain.data.fill_(1e-9)


class SaturatedSoftmax(Plain):
    def after(self, y: Tensor, x: Tensor) -> Any:
        return torch.softmax(y * 1e5, dim=1)


class ArgMax(Plain):
    def after(self, y: Tensor, x: Tensor) -> Any:
        return y.argmax(1)


class DeadRelu(Plain):
    def after(self, y: Tensor, x: Tensor) -> Any:
        return torch.relu(y - 1e6)


HIDDEN = (ZeroInitialisedBranch, LayerScale, SaturatedSoftmax, ArgMax, DeadRelu)

Do = Callable[[Editor], None]


def fold_norm(
    case: Case,
    *,
    weight: Callable[..., Tensor] | None = None,
    bias: Callable[..., Tensor] | None = None,
) -> Do:
    """Fold the batch norm into the convolution, by formulas that can be wrong."""
    root = case.work.graphs[""]
    conv, norm = root.get_submodule("parts.conv"), root.get_submodule("parts.bn")
    eps = norm.eps

    def right_weight(w: Tensor, g: Tensor, v: Tensor) -> Tensor:
        return w * (g / torch.sqrt(v + eps)).reshape(-1, 1, 1, 1)

    def right_bias(b: Tensor, g: Tensor, v: Tensor, m: Tensor, a: Tensor) -> Tensor:
        return (b - m) * g / torch.sqrt(v + eps) + a

    def do(edit: Editor) -> None:
        node = case.named("parts_bn")
        (before,) = node.all_input_nodes
        stats = norm.weight, norm.running_var
        w = edit.fold(weight or right_weight, conv.weight, *stats)
        b = edit.fold(bias or right_bias, conv.bias, *stats, norm.running_mean, norm.bias)
        folded = (edit.constant(w.value, "weight"), edit.constant(b.value, "bias"))
        new = edit.call_function(torch.conv2d, before.args[0], *folded)
        edit.replace(node, new, absorbing=[before])

    return do


def replace(case: Case, at: str, build: Callable[[Editor, Node], Node]) -> Do:
    def do(edit: Editor) -> None:
        node = case.named(at)
        edit.replace(node, build(edit, node))

    return do


def same_call(edit: Editor, node: Node, *args: Any, **kwargs: Any) -> Node:
    return edit.copy(node, args=args or node.args, **kwargs)


def by_hand(case: Case, target: str) -> nn.Module:
    return case.work.graphs[""].get_submodule(target)


def linear(edit: Editor, case: Case, target: str, x: Any, weight: Any, bias: Any) -> Node:
    """A linear layer written out, with a weight and a bias folded by formulas."""
    layer = by_hand(case, target)
    w = edit.fold(weight, layer.weight)
    b = edit.fold(bias, layer.bias)
    constants = edit.constant(w.value, "weight"), edit.constant(b.value, "bias")
    return edit.call_function(F.linear, x, *constants)


def keep(value: Tensor) -> Tensor:
    return value * 1


def _one_changed(factor: float) -> Callable[[Tensor], Tensor]:
    def change(value: Tensor) -> Tensor:
        changed = value.clone()
        changed[1] = changed[1] * factor
        return changed

    return change


def _swapped(value: Tensor) -> Tensor:
    order = list(range(value.shape[0]))
    order[0], order[1] = order[1], order[0]
    return value[order]


def linear_with(weight: Any, bias: Any = keep) -> Callable[[Case], tuple[str, Do]]:
    def make(case: Case) -> tuple[str, Do]:
        def build(edit: Editor, node: Node) -> Node:
            return linear(edit, case, "parts.head", node.args[0], weight, bias)

        return "parts_head", replace(case, "parts_head", build)

    return make


def norm_with(**wrong: Any) -> Callable[[Case], tuple[str, Do]]:
    return lambda case: ("parts_bn", fold_norm(case, **wrong))


def call_with(at: str, build: Callable[[Editor, Node], Node]) -> Callable[[Case], tuple[str, Do]]:
    return lambda case: (at, replace(case, at, build))


def _layer_norm(eps: float) -> Callable[[Case], tuple[str, Do]]:
    def make(case: Case) -> tuple[str, Do]:
        def build(edit: Editor, node: Node) -> Node:
            module = case.work.graphs[""]
            affine = [edit.get_attr(f"parts.norm.{name}") for name in ("weight", "bias")]
            assert isinstance(module.get_submodule("parts.norm"), nn.LayerNorm)
            return edit.call_function(F.layer_norm, node.args[0], (4,), *affine, eps)

        return "parts_norm", replace(case, "parts_norm", build)

    return make


def _unfolded(case: Case) -> tuple[str, Do]:
    """A constant computed in float32 and not told to anybody."""

    def build(edit: Editor, node: Node) -> Node:
        layer = by_hand(case, "parts.head")
        weight = (layer.weight * 1.5).detach()
        bias = (layer.bias * 1.5).detach()
        constants = edit.constant(weight, "weight"), edit.constant(bias, "bias")
        return edit.call_function(F.linear, node.args[0].args[0], *constants)

    return "mul_1", replace(case, "mul_1", build)


RIGHT: dict[str, Callable[[Case], tuple[str, Do]]] = {
    "fold norm": norm_with(),
    "linear written out": linear_with(keep),
    "layer norm written out": _layer_norm(1e-5),
    "head and factor merged": lambda case: (
        "mul_1",
        replace(
            case,
            "mul_1",
            lambda edit, node: linear(
                edit, case, "parts.head", node.args[0].args[0], lambda w: w * 1.5, lambda b: b * 1.5
            ),
        ),
    ),
    "reassociated": call_with(
        "truediv",
        lambda e, n: e.call_function(
            torch.matmul,
            e.call_function(operator.mul, n.args[0].args[0], 0.5),
            n.args[0].args[1],
        ),
    ),
    "softmax written out": call_with(
        "softmax",
        lambda e, n: e.call_function(torch.exp, e.call_function(torch.log_softmax, n.args[0], -1)),
    ),
    "subtraction turned round": call_with(
        "sub",
        lambda e, n: e.call_function(torch.add, e.call_function(torch.neg, n.args[1]), n.args[0]),
    ),
}

WRONG: dict[str, Callable[[Case], tuple[str, Do]]] = {
    "eps ten times": norm_with(
        weight=lambda w, g, v: w * (g / torch.sqrt(v + 1e-4)).reshape(-1, 1, 1, 1)
    ),
    "eps lost": norm_with(weight=lambda w, g, v: w * (g / torch.sqrt(v)).reshape(-1, 1, 1, 1)),
    "variance x 1.001": norm_with(
        weight=lambda w, g, v: w * (g / torch.sqrt(v * 1.001 + 1e-5)).reshape(-1, 1, 1, 1)
    ),
    "root lost": norm_with(weight=lambda w, g, v: w * (g / (v + 1e-5)).reshape(-1, 1, 1, 1)),
    "gain lost": norm_with(
        weight=lambda w, g, v: w * (1 / torch.sqrt(v + 1e-5)).reshape(-1, 1, 1, 1)
    ),
    "folded along the wrong axis": norm_with(
        weight=lambda w, g, v: w * (g / torch.sqrt(v + 1e-5))[:3].reshape(1, -1, 1, 1)
    ),
    "mean x 0.99": norm_with(
        bias=lambda b, g, v, m, a: (b - 0.99 * m) * g / torch.sqrt(v + 1e-5) + a
    ),
    "mean of one channel lost": norm_with(
        bias=lambda b, g, v, m, a: (b - _one_changed(0.0)(m)) * g / torch.sqrt(v + 1e-5) + a
    ),
    "bias of the convolution lost": norm_with(
        bias=lambda b, g, v, m, a: -m * g / torch.sqrt(v + 1e-5) + a
    ),
    "shift lost": norm_with(bias=lambda b, g, v, m, a: (b - m) * g / torch.sqrt(v + 1e-5)),
    "folded in float32": norm_with(
        weight=lambda w, g, v: (
            w.float() * (g.float() / torch.sqrt(v.float() + 1e-5)).reshape(-1, 1, 1, 1)
        ).double()
    ),
    "height and width of a kernel swapped": norm_with(
        weight=lambda w, g, v: w.transpose(2, 3) * (g / torch.sqrt(v + 1e-5)).reshape(-1, 1, 1, 1)
    ),
    "weights x 1.001": linear_with(lambda w: w * 1.001),
    "one row x 1.01": linear_with(_one_changed(1.01)),
    "one bias lost": linear_with(keep, _one_changed(0.0)),
    "two rows swapped": linear_with(_swapped),
    "constant rounded too early": _unfolded,
    "eps of a layer norm": _layer_norm(1e-4),
    "relu lost": call_with("relu", lambda e, n: n.args[0]),
    "leaky relu": call_with("relu", lambda e, n: e.call_function(F.leaky_relu, n.args[0], 1e-3)),
    "operands swapped": call_with("sub", lambda e, n: same_call(e, n, n.args[1], n.args[0])),
    "axis of a softmax": call_with(
        "softmax", lambda e, n: e.call_function(torch.softmax, n.args[0], 1)
    ),
    "softmax lost": call_with("softmax", lambda e, n: n.args[0]),
    "scale of the scores": call_with("truediv", lambda e, n: same_call(e, n, n.args[0], 2.001)),
    "order of a cat": call_with("cat", lambda e, n: same_call(e, n, n.args[0][::-1], 1)),
    "gelu by tanh": call_with("gelu", lambda e, n: same_call(e, n, approximate="tanh")),
    "mean along the wrong axis": call_with(
        "mean_1", lambda e, n: e.call_method("mean", n.args[0], 2, True).args[0]
    ),
    "maximum for mean": call_with("mean_1", lambda e, n: e.call_method("amax", n.args[0], 1)),
    "residual lost": call_with("sub", lambda e, n: n.args[0]),
    "factor lost": call_with("mul_1", lambda e, n: n.args[0]),
    "shape changed": call_with("mean_1", lambda e, n: e.call_method("sum", n.args[0], 2)),
    "raises": call_with("cat", lambda e, n: e.call_function(torch.cat, n.args[0], 3)),
    "through half precision": call_with(
        "gelu",
        lambda e, n: e.call_function(F.gelu, e.call_method("bfloat16", n.args[0])),
    ),
}
del WRONG["mean along the wrong axis"]


def names(model: nn.Module) -> list[str]:
    return [node.name for node in fx.symbolic_trace(model).graph.nodes]

"""Over forty faults put into the project's own passes: each is caught and blamed on its rewrite.

Half of them lie behind something that hides them from the outputs: a branch scaled by zero, a
layer scale, a saturated softmax, an argmax, a dead ReLU.
"""

import operator
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.fx import GraphModule, Node

import fxpasses
from fxpasses.core import Editor, Facts, Fold
from fxpasses.errors import VerificationError
from fxpasses.folding import affine
from fxpasses.folding.norms import NormMap, NormSite
from fxpasses.passes import dce

Patch = pytest.MonkeyPatch
FAULTY_EPS = 1e-3
"""Marks the one norm whose fold is faulty; the other is folded right."""
IMAGE = torch.randn(2, 4, 8, 8, generator=torch.Generator().manual_seed(5))


class Body(nn.Module):
    """A grouped, padded, dilated convolution with a norm, and weights made in the forward."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(4, 4, 3, padding=1)
        self.conv = nn.Conv2d(4, 4, 3, padding=2, dilation=2, groups=2)
        self.norm = nn.BatchNorm2d(4, eps=FAULTY_EPS)
        self.up = nn.ConvTranspose2d(4, 4, 1, groups=2)
        self.up_norm = nn.BatchNorm2d(4)
        self.mix = nn.Parameter(torch.randn(4, 4))
        for norm in (self.norm, self.up_norm):
            nn.init.normal_(norm.weight)
            nn.init.normal_(norm.bias)
            nn.init.normal_(norm.running_mean)
            nn.init.uniform_(norm.running_var, 1e-3, 2.0)

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm(self.conv(torch.relu(self.stem(x))))
        y = torch.relu(self.up_norm(self.up(y)))
        weights = torch.softmax(self.mix * 3.0, dim=0).half().float()
        return torch.matmul(y.mean((2, 3)), torch.exp(self.mix) * weights.sum())


class Plain(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = Body()
        self.gain = nn.Parameter(torch.zeros(4))

    def forward(self, x: Tensor) -> Tensor:
        return self.after(self.body(x), x)

    def after(self, y: Tensor, x: Tensor) -> Tensor:
        return y


class ZeroBranch(Plain):
    def after(self, y: Tensor, x: Tensor) -> Tensor:
        return x.mean((2, 3)) + y * self.gain


class LayerScale(Plain):
    def __init__(self) -> None:
        super().__init__()
        nn.init.constant_(self.gain, 1e-9)

    def after(self, y: Tensor, x: Tensor) -> Tensor:
        return x.mean((2, 3)) + y * self.gain


class Saturated(Plain):
    def after(self, y: Tensor, x: Tensor) -> Tensor:
        return torch.softmax(y * 1e6, dim=1)


class ArgMax(Plain):
    def after(self, y: Tensor, x: Tensor) -> Tensor:
        return y.argmax(1)


class DeadRelu(Plain):
    def after(self, y: Tensor, x: Tensor) -> Tensor:
        return torch.relu(y - 1e6)


def seeded(name: str, wrong: Callable[..., Any]) -> Callable[[Patch], None]:
    """Put a fault into a formula of `fuse_conv_bn`; `wrong` is given the right one first.

    The formulas are evaluated again by the verifier, so the fault stays for as long as it looks.
    """

    def seed(patch: Patch) -> None:
        right = getattr(affine, name)

        def formula(*args: Any) -> Tensor:
            sites = [arg.norm.eps for arg in args if isinstance(arg, NormSite)]
            return wrong(right, *args) if FAULTY_EPS in sites else right(*args)

        patch.setattr(affine, name, formula)

    return seed


def seeded_map(name: str, wrong: Callable[..., Any]) -> Callable[[Patch], None]:
    """The same of what a norm multiplies by, or adds; the right one takes values and an eps."""

    def seed(patch: Patch) -> None:
        method = getattr(NormMap, name)

        def right(values: Any, eps: float) -> Tensor:
            return method(_OtherEps(eps), values)

        def formula(own: Any, values: Any) -> Tensor:
            eps = own.norm.eps
            return wrong(right, values, eps) if eps == FAULTY_EPS else method(own, values)

        patch.setattr(NormMap, name, formula)

    return seed


class _OtherEps:
    """Stands for a norm's map where a formula asks for it."""

    def __init__(self, eps: float) -> None:
        self.norm = SimpleNamespace(eps=eps)

    def scale(self, values: Any) -> Tensor:
        return NormMap.scale(self, values)


def without(operand: str) -> Callable[..., Tensor]:
    """The formula as it would be had the norm no such operand."""

    def wrong(right: Callable[..., Tensor], values: Any, *rest: Any) -> Tensor:
        neutral = {"mean": torch.zeros_like, "var": torch.ones_like}
        if operand in neutral:
            return right({**values, operand: neutral[operand](values[operand])}, *rest)
        return right({key: t for key, t in values.items() if key != operand}, *rest)

    return wrong


def then(change: Callable[[Tensor], Tensor]) -> Callable[..., Tensor]:
    return lambda right, *args: change(right(*args))


def in_channel_1(change: Callable[[Tensor], Tensor]) -> Callable[..., Tensor]:
    def changed(value: Tensor) -> Tensor:
        value = value.clone()
        value[1] = change(value[1])
        return value

    return then(changed)


def edited(name: str, wrong: Callable[..., Any]) -> Callable[[Patch], None]:
    """Put a fault into one method of the editor, at the faulty norm alone."""

    def seed(patch: Patch) -> None:
        right = getattr(Editor, name)

        def method(self: Editor, *args: Any, **kwargs: Any) -> Any:
            is_faulty = self.applied == [] and self.author == "fuse_conv_bn"
            return (wrong if is_faulty else lambda r, *a, **k: r(*a, **k))(
                right, self, *args, **kwargs
            )

        patch.setattr(Editor, name, method)

    return seed


def folded(change: Callable[[Tensor], Tensor]) -> Callable[[Patch], None]:
    """Change a folded tensor after its formula was evaluated and rounded."""

    def wrong(right: Any, self: Editor, *args: Any, **kwargs: Any) -> Fold:
        made = right(self, *args, **kwargs)
        return self.folds.add(Fold(change(made.value), made.formula, made.sources))

    return edited("fold", wrong)


def new_layer(**settings: Any) -> Callable[[Patch], None]:
    """Change the layer that the folded weights are put into."""

    def wrong(right: Any, self: Editor, module: nn.Module, *args: Any, **kwargs: Any) -> Any:
        for name, value in settings.items():
            setattr(module, name, value)
        return right(self, module, *args, **kwargs)

    return edited("call_module", wrong)


def replaced(change: Callable[[Editor, Any], Any]) -> Callable[[Patch], None]:
    """Change what is read in place of the old value."""

    def wrong(right: Any, self: Editor, old: Any, new: Any, **kwargs: Any) -> None:
        right(self, old, change(self, new), **kwargs)

    return edited("replace", wrong)


def detour(over: float) -> Callable[[Editor, Any], Any]:
    """Right in float64, and only there."""

    def change(edit: Editor, new: Any) -> Any:
        there = edit.call_function(operator.add, new, over)
        return edit.call_function(operator.sub, there, over)

    return change


def reads_further_up(edit: Editor, new: Any) -> Any:
    (read,) = new.all_input_nodes
    new.replace_input_with(read, read.args[0])
    return new


def wrong_axis(right: Callable[..., Tensor], weight: Tensor, factor: Tensor, site: Any) -> Tensor:
    """The factor along the input channels of each group, as far as it reaches."""
    columns = factor[: weight.shape[1]]
    return weight * columns.reshape(1, -1, *[1] * (weight.dim() - 2))


def two_ulp_off(value: Tensor) -> Tensor:
    changed = value.clone()
    flat = changed.view(-1)
    at = int(flat.abs().argmax())
    flat[at] = torch.nextafter(torch.nextafter(flat[at], flat[at] + 1), flat[at] + 1)
    return changed


def swapped(value: Tensor) -> Tensor:
    return value[[1, 0, *range(2, len(value))]]


def bias_not_scaled(right: Callable[..., Tensor], site: Any, values: Any) -> Tensor:
    return values["bias"] + site.affine.shift(values)


FAULTS: dict[str, Callable[[Patch], None]] = {
    "eps ten times": seeded_map("scale", lambda right, v, eps: right(v, eps * 10)),
    "eps left out": seeded_map("scale", lambda right, v, eps: right(v, 0.0)),
    "variance left out": seeded_map("scale", without("var")),
    "variance not rooted": seeded_map("scale", then(lambda s: s * s.abs())),
    "gamma left out": seeded_map("scale", without("gamma")),
    "scale 1.001": seeded_map("scale", then(lambda s: s * 1.001)),
    "scale off by 1e-7": seeded_map("scale", then(lambda s: s * (1 + 1e-7))),
    "mean left out": seeded_map("shift", without("mean")),
    "mean 0.99": seeded_map(
        "shift", lambda right, v, eps: right({**v, "mean": v["mean"] * 0.99}, eps)
    ),
    "beta left out": seeded_map("shift", without("beta")),
    "shift with the wrong sign": seeded_map("shift", then(torch.neg)),
    "bias of one channel lost": seeded("folded_bias", in_channel_1(torch.zeros_like)),
    "bias of one channel 1.01": seeded("folded_bias", in_channel_1(lambda b: b * 1.01)),
    "two channels of the bias swapped": seeded("folded_bias", then(swapped)),
    "bias not scaled": seeded("folded_bias", bias_not_scaled),
    "factor on the wrong axis": seeded("times", wrong_axis),
    "factor of another group": seeded("times", lambda right, w, f, s: right(w, f.roll(2), s)),
    "two kernels swapped": seeded("folded_weight", then(swapped)),
    "kernel of one channel 1.01": seeded("folded_weight", in_channel_1(lambda w: w * 1.01)),
    "kernel mirrored": seeded("folded_weight", then(lambda w: w.flip(-1))),
    "weights through bfloat16": folded(lambda value: value.bfloat16().float()),
    "one element two ulp off": folded(two_ulp_off),
    "padding mode lost": new_layer(padding_mode="circular"),
    "dilation lost": new_layer(dilation=(1, 1), padding=(1, 1)),
    "reads a value further up": replaced(reads_further_up),
    "the result negated": replaced(lambda edit, new: edit.call_method("neg", new)),
    "a dtype changed": replaced(lambda edit, new: edit.call_method("double", new)),
    "a cast through float16": replaced(
        lambda edit, new: edit.call_method("float", edit.call_method("half", new))
    ),
    "result transposed": replaced(lambda edit, new: edit.call_method("transpose", new, 2, 3)),
    "a detour over a large number": replaced(detour(1e4)),
    "a detour over a huge number": replaced(detour(1e12)),
    "relu put in": replaced(lambda edit, new: edit.call_function(torch.relu, new)),
}


def blamed(model: nn.Module, graph_pass: str = "fuse_conv_bn", image: Tensor = IMAGE) -> list[str]:
    """The ids that default verification blames."""
    with pytest.raises(VerificationError) as caught:
        fxpasses.run(model, [graph_pass, "dce"], example_inputs=(image,))
    return [blame.id for blame in caught.value.blame]


def test_there_are_thirty() -> None:
    assert len(FAULTS) >= 30


@pytest.mark.parametrize("number", range(len(FAULTS)), ids=list(FAULTS))
def test_a_fault_is_blamed_on_its_rewrite(number: int, monkeypatch: Patch) -> None:
    hidden = (ZeroBranch, LayerScale, Saturated, ArgMax, DeadRelu)
    model = (Plain if number % 2 else hidden[number // 2 % len(hidden)])().eval()
    list(FAULTS.values())[number](monkeypatch)

    assert blamed(model) == ["1:fuse_conv_bn@/body_norm"]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("model", [Plain, ZeroBranch, DeadRelu])
def test_a_detour_in_half_precision_is_blamed_on_its_rewrite(
    model: type[nn.Module], dtype: torch.dtype, monkeypatch: Patch
) -> None:
    replaced(detour(100.0))(monkeypatch)

    found = blamed(model().eval().to(dtype), image=IMAGE.to(dtype))

    assert found == ["1:fuse_conv_bn@/body_norm"]


@pytest.mark.parametrize("model", [Plain, ZeroBranch, LayerScale, Saturated, ArgMax, DeadRelu])
def test_without_a_fault_there_is_no_alarm(model: type[nn.Module]) -> None:
    result = fxpasses.run(model().eval(), ["fuse_conv_bn", "dce"], example_inputs=(IMAGE,))

    assert fxpasses.report(result).record.verification.ok


class FoldsWeights(nn.Module):
    """Has two constants to fold."""

    def __init__(self) -> None:
        super().__init__()
        self.mix = nn.Parameter(torch.randn(4, 4))
        self.gain = nn.Parameter(torch.zeros(4))

    def forward(self, x: Tensor) -> Tensor:
        y = torch.matmul(x.mean((2, 3)), torch.exp(self.mix))
        return x.mean((2, 3)) + y * torch.sin(self.gain)


CONSTANT_FAULTS: dict[str, Callable[[Tensor], Tensor]] = {
    "transposed": lambda value: value.t().contiguous(),
    "one percent off": lambda value: value * 1.01,
    "one element two ulp off": two_ulp_off,
    "through float16": lambda value: value.half().float(),
    "in float64": lambda value: value.double(),
    "a row lost": lambda value: value.index_fill(0, torch.tensor([2]), 0.0),
}


@pytest.mark.parametrize("fault", CONSTANT_FAULTS)
def test_a_wrong_constant_is_blamed_on_its_rewrite(fault: str, monkeypatch: Patch) -> None:
    right = Editor.fold

    def fold(self: Editor, formula: Any, *sources: Tensor, **options: Any) -> Fold:
        made = right(self, formula, *sources, **options)
        if made.value.dim() < 2:
            return made
        wrong = CONSTANT_FAULTS[fault](made.value)
        return self.folds.add(Fold(wrong, made.formula, made.sources))

    monkeypatch.setattr(Editor, "fold", fold)

    assert blamed(FoldsWeights().eval(), "constant_fold") == ["1:constant_fold@/exp"]


class Writes(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        x.mul_(2)
        return x + 1


class Counts(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        self.calls.add_(1)
        return x + 1


class Draws(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        torch.rand(20)
        return x + torch.rand_like(x)


class DrawsLast(nn.Module):
    """Nothing in the output shows that numbers were drawn."""

    def forward(self, x: Tensor) -> Tensor:
        y = x + 1
        torch.rand(20)
        return y


@pytest.mark.parametrize("model", [Writes, Counts, Draws, DrawsLast])
def test_dce_without_effects_is_blamed(model: type[nn.Module], monkeypatch: Patch) -> None:
    def dead(module: GraphModule, facts: Facts) -> list[Node]:
        nodes = reversed(module.graph.nodes)
        return [n for n in nodes if not n.users and n.op not in ("placeholder", "output")]

    monkeypatch.setattr(dce, "_dead_nodes", dead)

    with pytest.raises(VerificationError) as caught:
        fxpasses.run(model().eval(), ["dce"], example_inputs=(IMAGE,))

    assert {blame.pass_name for blame in caught.value.blame} == {"dce"}

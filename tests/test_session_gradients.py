"""Gradients of results: what a pass must keep, and what a result for inference cannot give."""

import copy
import pickle
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.fx import GraphModule
from torch.fx.experimental.optimization import fuse
from torch.utils._python_dispatch import TorchDispatchMode

import fxpasses
from fxpasses.core import Facts, GraphPass, Numerics, Refusal, Step
from fxpasses.errors import GradientError, StaleWeightsError, VerificationError

IMAGE = torch.randn(2, 3, 8, 8, generator=torch.Generator().manual_seed(0))
ROWS = torch.randn(2, 3, generator=torch.Generator().manual_seed(1))


class Folds(nn.Module):
    """`w` is folded, `v` is not."""

    def __init__(self) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(2)
        self.w = nn.Parameter(torch.randn(3, 3, generator=generator))
        self.v = nn.Parameter(torch.ones(3))
        self.eval()

    def forward(self, x: Tensor) -> Tensor:
        return x @ self.w.abs() * self.v


class ConvNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4)
        self.last = nn.Conv2d(4, 4, 1)
        self.eval()

    def forward(self, x: Tensor) -> Tensor:
        return self.last(torch.relu(self.norm(self.conv(x))))


def optimised(model: nn.Module, example: Tensor = ROWS, **options: Any) -> GraphModule:
    return fxpasses.run(model, "inference", (example,), **options)


# -- passes that freeze


def freezes_all(module: GraphModule) -> None:
    module.requires_grad_(False)


def freezes_the_first(module: GraphModule) -> None:
    module.conv.requires_grad_(False)


def makes_buffers(module: GraphModule) -> None:
    weight = module.conv.weight.detach().clone()
    del module.conv.weight
    module.conv.register_buffer("weight", weight)


def detaches(module: GraphModule) -> None:
    (norm,) = [node for node in module.graph.nodes if node.target == "norm"]
    with module.graph.inserting_after(norm):
        cut = module.graph.call_method("detach", (norm,))
    norm.replace_all_uses_with(cut, delete_user_cb=lambda user: user is not cut)
    module.conv.requires_grad_(False)
    module.recompile()


FREEZING = [freezes_all, freezes_the_first, makes_buffers]


@pytest.mark.parametrize("freezing", FREEZING)
@pytest.mark.parametrize("verify", [True, "full"])
def test_a_pass_that_freezes_weights_is_blamed(freezing: Any, verify: Any) -> None:
    model = ConvNet()
    with pytest.raises(VerificationError, match=r"(?s)freezes|makes_buffers") as caught:
        fxpasses.run(model, ["dce", freezing], (IMAGE,), verify=verify)
    assert {blame.pass_name for blame in caught.value.blame} == {freezing.__name__}
    assert "gradient" in str(caught.value)
    assert all(parameter.requires_grad for parameter in model.parameters())


class DropsIdle(GraphPass):
    """Make no result that can be trained, by a rewrite that is right."""

    name = "drops_idle"
    numerics = Numerics.EXACT

    def steps(self, module: GraphModule, facts: Facts) -> Iterator[Step | Refusal]:
        for node in module.graph.find_nodes(op="call_function", target=torch.relu):
            inner = node.args[0]
            if inner.target is torch.relu:
                yield Step(node, "relu twice", lambda e, n=node, i=inner: e.replace(n, i))


class TwoRelus(ConvNet):
    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(torch.relu(super().forward(x)))


@pytest.mark.parametrize("passes", [["dce", freezes_all, DropsIdle()], [DropsIdle(), freezes_all]])
def test_no_other_pass_excuses_the_one_that_freezes(passes: list[Any]) -> None:
    with pytest.raises(VerificationError) as caught:
        fxpasses.run(TwoRelus(), passes, (IMAGE,))
    assert {blame.pass_name for blame in caught.value.blame} == {"freezes_all"}


def test_a_pass_that_freezes_weights_is_left_out_on_request() -> None:
    result = fxpasses.run(
        ConvNet(), ["fuse_conv_bn", freezes_all, "dce"], (IMAGE,), on_failure="skip"
    )
    statuses = {one.name: one.status for one in fxpasses.report(result).record.passes}
    assert statuses == {"fuse_conv_bn": "changed", "freezes_all": "undone", "dce": "changed"}
    assert result(IMAGE).requires_grad


def test_what_is_frozen_already_may_be_exchanged() -> None:
    result = fxpasses.run(ConvNet().requires_grad_(False), [makes_buffers], (IMAGE,))
    assert "conv.weight" in dict(result.named_buffers())


def test_foreign_folds_that_need_gradients_are_no_alarm() -> None:
    model = ConvNet()
    result = fxpasses.run(model, [fuse], (IMAGE,), verify="full")
    torch.testing.assert_close(result(IMAGE), model(IMAGE))


class Detaches(GraphPass):
    """Cut the history of every relu."""

    name = "detaches"
    numerics = Numerics.EXACT

    def steps(self, module: GraphModule, facts: Facts) -> Iterator[Step | Refusal]:
        for node in list(module.graph.nodes):
            if node.target is torch.relu:
                yield Step(node, "cut", lambda edit, old=node: self._cut(edit, old))

    def _cut(self, edit: Any, node: Any) -> None:
        again = edit.copy(node)
        edit.replace(node, edit.call_method("detach", again))


class DetachesAndTrains(Detaches):
    """Cut the history of every relu, and promise to keep it."""

    name = "detaches_and_trains"
    trains = True


class ReluLast(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 3)

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.linear(x))


def test_a_pass_may_declare_that_its_result_cannot_be_trained() -> None:
    result = fxpasses.run(ReluLast().eval(), [Detaches()], (ROWS,))
    (note,) = [n for n in fxpasses.report(result).record.verification.notes if "gradient" in n]
    assert "output 0 needs no gradient" in note
    assert "detaches makes no result that can be trained" in note
    with pytest.raises(
        VerificationError, match=r"at relu .* the gradient no longer reaches linear"
    ):
        fxpasses.run(ReluLast().eval(), [DetachesAndTrains()], (ROWS,))


# -- what was folded


def test_a_backward_through_what_was_folded_says_so() -> None:
    model = Folds()
    with pytest.raises(GradientError, match=r"no gradient reaches w: .*training=True"):
        optimised(model)(ROWS).sum().backward()
    assert model.w.grad is None
    with pytest.raises(GradientError, match=r"no gradient reaches conv\.weight and 3 more"):
        optimised(ConvNet(), IMAGE)(IMAGE).sum().backward()


def test_outputs_need_a_gradient_as_those_of_the_model() -> None:
    class OnlyFolded(Folds):
        def forward(self, x: Tensor) -> Tensor:
            return x @ self.w.abs()

    result = optimised(OnlyFolded(), verify="full")
    assert result(ROWS).requires_grad
    with torch.no_grad():
        assert not result(ROWS).requires_grad
    with torch.inference_mode():
        assert not result(ROWS).requires_grad


def test_no_pass_makes_gradients_that_the_model_does_not_have() -> None:
    class Cut(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x).detach()

    def undone(module: GraphModule) -> None:
        (detach,) = (node for node in module.graph.nodes if node.target == "detach")
        detach.replace_all_uses_with(detach.args[0])
        module.graph.erase_node(detach)

    with pytest.raises(VerificationError, match="output 0 needs a gradient"):
        fxpasses.run(Cut(4, 4).eval(), [undone], (torch.randn(2, 4),))


@pytest.mark.parametrize(("model", "example"), [(Folds(), ROWS), (ConvNet(), IMAGE)])
def test_gradients_of_what_was_not_folded_are_right(model: nn.Module, example: Tensor) -> None:
    kept = model.v if isinstance(model, Folds) else model.last.weight
    x = example.clone().requires_grad_()
    expected = torch.autograd.grad(model(x).square().sum(), [x, kept])

    loss = optimised(model, example, verify="full")(x).square().sum()
    got = torch.autograd.grad(loss, [x, kept], retain_graph=True)
    torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-5)

    loss.backward(inputs=[x, kept])
    torch.testing.assert_close(x.grad, expected[0], rtol=1e-4, atol=1e-5)


class CutOff(Folds):
    def forward(self, x: Tensor) -> Tensor:
        return x @ (self.w.detach().abs() * self.v.exp())


class AllCutOff(Folds):
    def forward(self, x: Tensor) -> Tensor:
        return x @ self.w.detach().abs() + (self.v > 0).float().cumsum(0)


@pytest.mark.parametrize("caller", [torch.enable_grad, torch.no_grad])
def test_what_the_model_cuts_off_needs_no_gradient(caller: Any) -> None:
    model = AllCutOff()
    with caller():
        result = optimised(model)
        partly = optimised(CutOff())
    assert "folded" in result.code
    assert not model(ROWS).requires_grad
    assert not result(ROWS).requires_grad

    with pytest.raises(GradientError, match="no gradient reaches v:"):
        partly(ROWS).sum().backward()
    partly.requires_grad_(False)
    assert not partly(ROWS).requires_grad


def test_nothing_is_asked_of_frozen_weights() -> None:
    model = ConvNet()
    model.conv.requires_grad_(False)
    model.norm.requires_grad_(False)
    result = optimised(model, IMAGE)
    assert not result.get_submodule("conv_1").weight.requires_grad

    result(IMAGE).sum().backward()

    assert model.last.weight.grad is not None


@pytest.mark.parametrize("verify", [False, True])
def test_weights_can_be_frozen_and_trained_again_afterwards(verify: bool) -> None:
    model = Folds()
    result = optimised(model, verify=verify)
    model.requires_grad_(False)
    assert not result(ROWS).requires_grad
    x = ROWS.clone().requires_grad_()
    result(x).sum().backward()
    assert x.grad is not None
    assert result.folded_abs_1.grad is None

    model.requires_grad_(True)
    with pytest.raises(GradientError):
        result(ROWS).sum().backward()


def test_a_result_freezes_the_weights_that_were_folded() -> None:
    model = Folds()
    result = optimised(model)
    result.requires_grad_(False)
    assert not model.w.requires_grad
    assert not result(ROWS).requires_grad
    result.requires_grad_(True)
    assert model.w.requires_grad


def _pickled(result: GraphModule) -> GraphModule:
    return pickle.loads(pickle.dumps(result))


def _again(result: GraphModule) -> GraphModule:
    return fxpasses.run(result, "inference", (ROWS,))


COPIES: dict[str, Callable[[GraphModule], GraphModule]] = {
    "deepcopied": copy.deepcopy,
    "copied": copy.copy,
    "pickled": _pickled,
    "twice": lambda result: _pickled(copy.deepcopy(result)),
    "run again": _again,
    "run again and copied": lambda result: copy.deepcopy(_again(result)),
    "run again and pickled": lambda result: _pickled(_again(result)),
    "moved": lambda result: result.to("cpu"),
    "widened": lambda result: copy.deepcopy(result.double().float()),
}


@pytest.mark.parametrize("how", COPIES)
def test_copies_say_so_too(how: str) -> None:
    model = Folds()
    with_history = optimised(model)
    with_history(ROWS)
    made = COPIES[how](with_history)
    assert made(ROWS).requires_grad
    with pytest.raises(GradientError):
        made(ROWS).sum().backward()


def test_without_the_own_code_it_is_said_too() -> None:
    result = optimised(Folds(), fallback=False)
    with pytest.raises(GradientError):
        result(ROWS).sum().backward()


def test_a_folded_weight_that_was_written_is_stale_first() -> None:
    model = Folds()
    result = optimised(model)
    with torch.no_grad():
        model.w.add_(1)
    with pytest.raises(StaleWeightsError):
        result(ROWS)


class Counting(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.calls: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.calls[func.overloadpacket.__name__] += 1
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("mode", [torch.enable_grad, torch.no_grad, torch.inference_mode])
def test_a_forward_costs_what_its_graph_does(mode: Any) -> None:
    model = Folds()
    result = optimised(model)
    folded = model.w.detach().abs()
    with mode(), Counting() as expected:
        ROWS @ folded * model.v
    with mode(), Counting() as counting:
        result(ROWS)
    assert counting.calls == expected.calls

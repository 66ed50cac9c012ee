"""A whole run: what comes out, what is left alone, and what happens when something is wrong."""

import copy
import pickle
import random
import warnings
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.fx import GraphModule, Node

import fxpasses
from fxpasses.core import Facts, GraphPass, Numerics, Refusal, Step
from fxpasses.errors import (
    ArgumentError,
    GuardError,
    ModeError,
    PassError,
    PipelineError,
    StaleWeightsError,
    TargetError,
    TrainingModeWarning,
    UnverifiedWarning,
    VerificationError,
)

IMAGE = torch.randn(2, 3, 8, 8, generator=torch.Generator().manual_seed(0))
PASSES = ["fuse_conv_bn", "dce"]


class ConvNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4)
        self.second, self.second_norm = nn.Conv2d(4, 4, 3), nn.BatchNorm2d(4)
        for norm in (self.norm, self.second_norm):
            norm.running_mean = torch.tensor([0.5, -1.0, 2.0, 0.0])
            norm.running_var = torch.tensor([0.5, 2.0, 1.0, 4.0])
        self.eval()

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.norm(self.conv(x)))
        return self.second_norm(self.second(x))


class Wrong(GraphPass):
    """Doubles what every call of relu computes: wrong on purpose."""

    name = "wrong"
    numerics = Numerics.ROUNDING

    def steps(self, module: GraphModule, facts: Facts) -> Iterator[Step | Refusal]:
        for node in list(module.graph.nodes):
            if node.target is torch.relu:
                yield Step(node, "wrong", lambda edit, node=node: self._double(edit, node))

    def _double(self, edit: Any, node: Node) -> None:
        edit.replace(node, edit.call_function(torch.mul, edit.copy(node), 2.0))


class Raises(GraphPass):
    """Raises, draws numbers and switches gradients off on the way."""

    name = "raises"
    numerics = Numerics.EXACT
    error: Any = RuntimeError("no more")

    def steps(self, module: GraphModule, facts: Facts) -> Iterator[Step | Refusal]:
        torch.rand(1)
        random.random()
        torch.set_grad_enabled(False)
        yield Step(next(iter(module.graph.nodes)), "", self._fail)

    def _fail(self, edit: Any) -> None:
        raise self.error


def halves_the_output(module: GraphModule) -> GraphModule:
    (output,) = [node for node in module.graph.nodes if node.op == "output"]
    with module.graph.inserting_before(output):
        halved = module.graph.call_function(torch.mul, (output.args[0], 0.5))
    output.args = (halved,)
    module.recompile()
    return module


def state_of(model: nn.Module) -> dict[str, Any]:
    tensors = {name: (id(t), t.clone()) for name, t in model.state_dict(keep_vars=True).items()}
    modes = {name: module.training for name, module in model.named_modules()}
    return {"tensors": tensors, "modes": modes, "keys": sorted(vars(model))}


def assert_untouched(model: nn.Module, before: dict[str, Any]) -> None:
    after = state_of(model)
    assert after["modes"] == before["modes"]
    assert after["keys"] == before["keys"]
    assert after["tensors"].keys() == before["tensors"].keys()
    for name, (identity, value) in before["tensors"].items():
        assert after["tensors"][name][0] == identity
        assert torch.equal(after["tensors"][name][1], value)


# -- what comes out


def test_optimises_and_leaves_the_model_alone() -> None:
    model = ConvNet()
    before, inputs = state_of(model), IMAGE.clone()

    fast = fxpasses.run(model, PASSES, (IMAGE,))

    assert isinstance(fast, GraphModule)
    torch.testing.assert_close(fast(IMAGE), model(IMAGE))
    assert len(fast.meta["fxpasses"]["passes"][0]["rewrites"]) == 2
    assert fast.meta["fxpasses"]["verification"]["ok"] is True
    assert_untouched(model, before)
    assert torch.equal(IMAGE, inputs)


@pytest.mark.parametrize("passes", ["fuse_conv_bn,dce", ("fuse_conv_bn", "dce"), PASSES])
def test_takes_a_pipeline_as_text_or_sequence(passes: Any) -> None:
    fast = fxpasses.run(ConvNet(), passes, IMAGE)
    assert [run["name"] for run in fast.meta["fxpasses"]["passes"]] == PASSES


def test_an_empty_list_captures_and_changes_nothing() -> None:
    model = ConvNet()
    fast = fxpasses.run(model, [], IMAGE)
    assert torch.equal(fast(IMAGE), model(IMAGE))
    assert fast.meta["fxpasses"]["passes"] == []
    assert fast.meta["fxpasses"]["nodes_before"] == fast.meta["fxpasses"]["nodes_after"]


def test_keyword_arguments_of_the_example() -> None:
    model = ConvNet()
    fast = fxpasses.run(model, PASSES, example_kwargs={"x": IMAGE})
    assert fast.meta["fxpasses"]["verification"]["ok"] is True
    torch.testing.assert_close(fast(x=IMAGE), model(IMAGE))
    torch.testing.assert_close(fast(IMAGE), model(IMAGE))


def test_the_record_survives_deepcopy_and_pickle() -> None:
    fast = fxpasses.run(ConvNet(), PASSES, IMAGE)
    for copied in (copy.deepcopy(fast), pickle.loads(pickle.dumps(fast))):
        assert str(fxpasses.report(copied)).startswith("ConvNet, eval mode")
        torch.testing.assert_close(copied(IMAGE), fast(IMAGE))


def test_rewrites_can_be_skipped_chosen_and_counted() -> None:
    def made(**options: Any) -> list[str]:
        record = fxpasses.run(ConvNet(), "fuse_conv_bn", IMAGE, **options).meta["fxpasses"]
        return [rewrite["id"] for rewrite in record["passes"][0]["rewrites"]]

    first, second = made()
    assert first.startswith("1:fuse_conv_bn@/")
    assert made(skip=[first]) == [second]
    assert made(only=[first]) == [first]
    assert made(stop_after=1) == [first]
    assert made(only=[]) == []


def test_a_plan_changes_nothing_and_says_what_would_be() -> None:
    model = ConvNet()
    before = state_of(model)

    plan = fxpasses.plan(model, PASSES, IMAGE)

    assert plan.dry_run
    assert len(plan.record.passes[0].rewrites) == 2
    assert "a plan" in str(plan)
    assert_untouched(model, before)


# -- the example


def test_the_example_is_inferred_where_that_is_unambiguous() -> None:
    fast = fxpasses.run(ConvNet(), PASSES)
    record = fast.meta["fxpasses"]
    assert record["capture"]["example"].startswith("inferred: ")
    assert record["verification"]["ok"] is True


def test_warns_where_no_example_can_be_inferred() -> None:
    class Free(nn.Module):
        def forward(self, x: Any, y: Any) -> Any:
            return x + y

    with pytest.warns(UnverifiedWarning, match="example_inputs"):
        fast = fxpasses.run(Free(), "dce")
    assert fast(1.0, 2.0) == 3.0
    assert fast.meta["fxpasses"]["verification"]["ok"] is None


def test_unverified_by_request_needs_no_example_and_warns_of_nothing() -> None:
    fast = fxpasses.run(ConvNet(), PASSES, verify=False)
    record = fast.meta["fxpasses"]
    assert (record["capture"]["example"], record["verification"]["level"]) == ("none", "off")


def test_warns_of_a_model_in_training_mode() -> None:
    model = ConvNet().train()
    with pytest.warns(TrainingModeWarning, match="eval"):
        fxpasses.run(model, PASSES, IMAGE)
    assert model.training


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"example_inputs": {"x": IMAGE}}, "example_kwargs"),
        ({"example_inputs": 3}, "tuple"),
        ({"example_inputs": "x"}, "tuple"),
        ({"example_kwargs": [IMAGE]}, "mapping"),
        ({"example_kwargs": {1: IMAGE}}, "argument names"),
        ({"verify": "often"}, "each"),
        ({"on_failure": "ignore"}, "skip"),
        ({"target": "tpu"}, "cuda"),
        ({"target": 7}, "cuda"),
        ({"skip": "1:dce@/x"}, "collection"),
        ({"only": [3]}, "text"),
    ],
)
def test_arguments_of_the_wrong_kind(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        fxpasses.run(ConvNet(), PASSES, **options)


class NeverTraced(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        raise AssertionError("traced too early")


@pytest.mark.parametrize("passes", ["fuse_conv_bm", ["fuse_conv_bn", 7], "(dce", 3])
def test_a_broken_pipeline_is_an_error_before_anything_is_traced(passes: Any) -> None:
    with pytest.raises(PipelineError):
        fxpasses.run(NeverTraced(), passes, IMAGE)


# -- failures


def test_a_wrong_rewrite_is_blamed_by_name() -> None:
    model = ConvNet()
    before = state_of(model)
    with pytest.raises(VerificationError, match=r"wrong.*relu"):
        fxpasses.run(model, ["fuse_conv_bn", Wrong()], IMAGE)
    assert_untouched(model, before)


def test_a_wrong_rewrite_is_undone_where_that_is_asked_for() -> None:
    model = ConvNet()
    fast = fxpasses.run(model, ["fuse_conv_bn", Wrong(), "dce"], IMAGE, on_failure="skip")
    record = fast.meta["fxpasses"]
    torch.testing.assert_close(fast(IMAGE), model(IMAGE))
    assert record["verification"]["ok"] is True
    assert [name.partition("@")[0] for name in record["verification"]["undone"]] == ["2:wrong"]
    assert len(record["passes"][0]["rewrites"]) == 2
    assert "undone" in str(fxpasses.report(fast))


def test_a_wrong_foreign_pass_is_found_and_named() -> None:
    with pytest.raises(VerificationError, match="halves_the_output"):
        fxpasses.run(ConvNet(), ["fuse_conv_bn", halves_the_output, "dce"], IMAGE)


def test_a_wrong_foreign_pass_is_left_out_where_that_is_asked_for() -> None:
    model = ConvNet()
    passes = ["fuse_conv_bn", halves_the_output, "dce"]
    fast = fxpasses.run(model, passes, IMAGE, on_failure="skip")
    torch.testing.assert_close(fast(IMAGE), model(IMAGE))
    statuses = {run["name"]: run["status"] for run in fast.meta["fxpasses"]["passes"]}
    assert statuses["halves_the_output"] == "undone"
    assert statuses["fuse_conv_bn"] == "changed"


def test_a_pass_that_raises_is_named_and_skipped_on_request() -> None:
    with pytest.raises(PassError, match=r"raises.*no more"):
        fxpasses.run(ConvNet(), ["fuse_conv_bn", Raises()], IMAGE)

    model = ConvNet()
    fast = fxpasses.run(model, ["fuse_conv_bn", Raises()], IMAGE, on_failure="skip")
    assert [run["status"] for run in fast.meta["fxpasses"]["passes"]] == ["changed", "failed"]
    torch.testing.assert_close(fast(IMAGE), model(IMAGE))


@pytest.mark.parametrize("error", [RuntimeError("no"), KeyboardInterrupt(), MemoryError()])
def test_nothing_global_is_changed_by_a_failure(error: BaseException) -> None:
    model = ConvNet()
    before = state_of(model)
    states = torch.get_rng_state(), random.getstate(), torch.is_grad_enabled()

    with pytest.raises((PassError, type(error))):
        fxpasses.run(model, ["fuse_conv_bn", Raises(error=error)], IMAGE)

    assert torch.equal(torch.get_rng_state(), states[0])
    assert (random.getstate(), torch.is_grad_enabled()) == states[1:]
    assert_untouched(model, before)


def test_a_run_draws_no_random_numbers() -> None:
    model = nn.Sequential(nn.Conv2d(3, 3, 1), nn.Dropout()).eval()
    state = torch.get_rng_state()
    fxpasses.run(model, PASSES, IMAGE, verify="full")
    assert torch.equal(torch.get_rng_state(), state)


# -- weights


def test_weights_are_shared_unless_they_are_to_be_copied() -> None:
    model = nn.Sequential(nn.Conv2d(3, 3, 1), nn.ReLU()).eval()
    shared = fxpasses.run(model, PASSES, IMAGE)
    copied = fxpasses.run(model, PASSES, IMAGE, copy=True)
    address = model[0].weight.data_ptr()
    assert next(shared.parameters()).data_ptr() == address
    assert next(copied.parameters()).data_ptr() != address
    assert torch.equal(copied(IMAGE), model(IMAGE))


def test_a_fold_remembers_its_sources() -> None:
    model = ConvNet()
    fast = fxpasses.run(model, PASSES, IMAGE)
    trusting = fxpasses.run(model, PASSES, IMAGE, guard_weights=False)
    with torch.no_grad():
        model.conv.weight.mul_(2)
    with pytest.raises(StaleWeightsError, match=r"conv\.weight"):
        fast(IMAGE)
    trusting(IMAGE)


def test_a_copy_does_not_watch_the_caller() -> None:
    model = ConvNet()
    fast = fxpasses.run(model, PASSES, IMAGE, copy=True)
    expected = fast(IMAGE)
    with torch.no_grad():
        model.conv.weight.mul_(2)
    assert torch.equal(fast(IMAGE), expected)


def test_folded_weights_cannot_be_trained() -> None:
    fast = fxpasses.run(ConvNet(), PASSES, IMAGE)
    fast.train()
    with pytest.raises(ModeError, match="fuse_conv_bn"):
        fast(IMAGE)
    fast.eval()
    fast(IMAGE)


def test_calls_outside_the_pattern() -> None:
    model = nn.Sequential(nn.Flatten(), nn.Linear(12, 2)).eval()
    example = torch.randn(2, 3, 4)
    other = torch.randn(2, 12)
    fast = fxpasses.run(model, "dce", example)
    strict = fxpasses.run(model, "dce", example, fallback=False)

    torch.testing.assert_close(fast(other), model(other))
    assert fxpasses.report(fast).calls["fallback"] == 1
    with pytest.raises(GuardError):
        strict(other)


class BranchesOnData(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.net = ConvNet()

    def forward(self, x: Tensor) -> Tensor:
        return self.net(x) if x.sum() > 0 else self.net(-x)


def test_calls_of_graphs_below_an_opaque_model_are_counted() -> None:
    model = BranchesOnData().eval()
    fast = fxpasses.run(model, PASSES, IMAGE)
    assert fxpasses.report(fast).calls == {"graph": 0, "fallback": 0, "reasons": {}}
    for image in (IMAGE, -IMAGE):
        torch.testing.assert_close(fast(image), model(image))
    assert fxpasses.report(fast).calls == {"graph": 2, "fallback": 0, "reasons": {}}
    assert len(fxpasses.report(fast).record.passes[0].rewrites) == 2


# -- targets


def test_a_target_that_is_not_there() -> None:
    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    with pytest.raises(TargetError, match="GPU"):
        fxpasses.run(NeverTraced(), PASSES, IMAGE, target="cuda")


@pytest.mark.parametrize("target", ["cpu", "auto", torch.device("cpu")])
def test_a_target_is_recorded(target: Any) -> None:
    fast = fxpasses.run(ConvNet(), PASSES, IMAGE, target=target)
    assert fast.meta["fxpasses"]["target"] in ("cpu", "cuda")


def test_no_warning_on_a_good_run() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        fxpasses.run(ConvNet(), "fuse_conv_bn,constant_fold,dce", IMAGE)

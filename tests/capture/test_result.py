"""A captured module is called, copied, pickled, converted and asked as the module it is of."""

import copy
import inspect
import io
import pickle
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.fx import Interpreter

from fxpasses.capture import (
    CapturedModule,
    calls_of,
    capture,
    fallback_of,
    finish,
    fork,
    guard_weights,
    pickle_fallback,
    release,
)
from fxpasses.core import Watch
from fxpasses.errors import GuardError, ModeError, StaleWeightsError
from tests.capture.graphs import captured

X = torch.randn(3, 4, generator=torch.Generator().manual_seed(0))


class Model(nn.Module):
    """A model with a bit of everything."""

    version = "seven"

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(4, 4), nn.ReLU(inplace=True))
        self.tied = nn.Linear(4, 4)
        self.tied.weight = self.inner[0].weight
        self.norm = nn.BatchNorm1d(4)
        self.unused = nn.Linear(2, 2)
        self.register_buffer("offset", torch.ones(4))
        self.register_buffer("passing", torch.ones(4), persistent=False)
        self.plain = torch.full((4,), 0.5)
        self.scale = 2.0

    def forward(self, x: Tensor, times: float = 1.0) -> Tensor:
        """What it computes."""
        y = self.norm(self.tied(self.inner(x))) + self.offset + self.passing
        y = torch.ops.aten.mul.Tensor(y, self.plain)
        return F.relu_(y) * self.scale * times

    def twice(self) -> float:
        return 2 * self.scale

    @property
    def half_scale(self) -> float:
        return self.scale / 2


@pytest.fixture
def model() -> Model:
    made = Model()
    for buffer in (made.norm.running_mean, made.norm.running_var):
        buffer.uniform_(0.5, 1.5)
    return made.eval()


@pytest.fixture
def result(model: Model) -> CapturedModule:
    return finished(model)


def finished(model: nn.Module, x: Tensor = X, **how: Any) -> CapturedModule:
    program = captured(model, x)
    return finish(fork(program), program, **how)


def equal(a: nn.Module, b: nn.Module, x: Tensor = X) -> bool:
    return torch.equal(a(x), b(x))


class TestCalls:
    def test_the_graph_runs_where_it_holds(self, model: Model, result: CapturedModule) -> None:
        assert equal(result, model)
        assert equal(result, model, X[:1])
        assert torch.equal(result(x=X, times=1.0), model(X))
        assert calls_of(result) == {"graph": 3, "fallback": 0, "reasons": {}}

    def test_any_other_call_runs_the_own_code(self, model: Model, result: CapturedModule) -> None:
        assert torch.equal(result(X, 3.0), model(X, 3.0))
        assert torch.equal(result(X, times=3.0), model(X, times=3.0))
        with torch.autocast("cpu", dtype=torch.bfloat16):
            assert torch.equal(result(X), model(X))
        assert calls_of(result)["fallback"] == 3
        assert calls_of(result)["reasons"] == {
            "times is 3.0 instead of 1.0": 2,
            "autocast for cpu is on": 1,
        }

    def test_what_the_model_rejects_is_rejected_alike(
        self, model: Model, result: CapturedModule
    ) -> None:
        with pytest.raises(RuntimeError) as own:
            model(X.double())
        with pytest.raises(RuntimeError) as ours:
            result(X.double())
        assert str(own.value) == str(ours.value)
        with pytest.raises(TypeError, match="more"):
            result(X, more=1)

    def test_errors_of_the_graph_print_nothing(self, result: CapturedModule, capfd: Any) -> None:
        with pytest.raises(RuntimeError):
            result(torch.ones(3, 5))
        assert capfd.readouterr().err == ""

    def test_after_release_only_the_pattern_is_served(
        self, model: Model, result: CapturedModule
    ) -> None:
        release(result)
        assert fallback_of(result) is None
        assert equal(result, model)
        with pytest.raises(GuardError, match=r"times is 3\.0 instead of 1\.0"):
            result(X, 3.0)
        assert result.scale == 2.0
        assert result.twice() == 4.0

    def test_hooks_of_the_root_run_once(self, model: Model) -> None:
        seen: list[str] = []
        model.register_forward_pre_hook(lambda *_: seen.append("before"))
        model.register_forward_hook(lambda *_: seen.append("after"))
        result = finished(model)
        result(X)
        result(X, 3.0)
        assert seen == ["before", "after"] * 2

    def test_a_hook_may_change_the_arguments(self, model: Model) -> None:
        model.register_forward_pre_hook(lambda module, args: (args[0].double().float(), 3.0))
        result = finished(model)
        assert equal(result, model)
        assert calls_of(result)["fallback"] == 1


class TestMode:
    def test_in_the_other_mode_the_own_code_runs(
        self, model: Model, result: CapturedModule
    ) -> None:
        model.train()
        result.train()
        assert equal(result, model)
        assert calls_of(result)["fallback"] == 1
        assert torch.equal(result.norm.running_mean, model.norm.running_mean)
        model.eval()
        result.eval()
        assert equal(result, model)
        assert calls_of(result)["graph"] == 1

    def test_only_a_call_raises_where_weights_were_changed(self, model: Model) -> None:
        result = finished(model, mode_reasons=["fuse_conv_bn folded 1 norm"])
        result.train()
        with pytest.raises(ModeError, match="fuse_conv_bn folded 1 norm"):
            result(X)
        assert equal(result.eval(), model)

    def test_modes_of_submodules_reach_the_own_code(
        self, model: Model, result: CapturedModule
    ) -> None:
        model.norm.train()
        result.norm.train()
        assert torch.equal(result(X, 3.0), model(X, 3.0))

    def test_the_models_own_idea_of_a_mode_is_kept(self) -> None:
        class Frozen(Model):
            def train(self, mode: bool = True) -> nn.Module:
                super().train(mode)
                self.norm.eval()
                return self

        result = finished(Frozen().eval()).train()
        assert result.training
        assert result.inner.training
        assert not result.norm.training


class TestStaleWeights:
    def test_a_call_after_a_write_raises(self, model: Model) -> None:
        result = finished(model, watches=[Watch.on("tied.bias", model.tied.bias)])
        assert equal(result, model)
        with torch.no_grad():
            model.tied.bias.add_(1)
        with pytest.raises(StaleWeightsError, match=r"tied\.bias"):
            result(X)
        guard_weights(result, False)
        result(X)

    def test_copies_watch_their_own_weights(self, model: Model) -> None:
        result = finished(model, watches=[Watch.on("tied.bias", model.tied.bias)])
        copied = copy.deepcopy(result)
        with torch.no_grad():
            model.tied.bias.add_(1)
        copied(X)
        with torch.no_grad():
            copied.tied.bias.add_(1)
        with pytest.raises(StaleWeightsError):
            copied(X)
        with pytest.raises(StaleWeightsError):
            copy.deepcopy(result)(X)

    def test_watches_follow_a_conversion(self, model: Model) -> None:
        result = finished(model, watches=[Watch.on("tied.bias", model.tied.bias)]).double()
        with torch.no_grad():
            model.tied.bias.add_(1)
        result(X.double())
        with torch.no_grad():
            result.tied.bias.add_(1)
        with pytest.raises(StaleWeightsError):
            result(X.double())


class TestAsTheOriginal:
    def test_weights_are_shared_and_buffers_are_its_own(
        self, model: Model, result: CapturedModule
    ) -> None:
        assert result.inner[0].weight is model.inner[0].weight is result.tied.weight
        assert result.offset is not model.offset
        assert result.offset is fallback_of(result).offset
        assert list(result.state_dict()) == list(model.state_dict())
        assert [n for n, _ in result.named_buffers()] == [n for n, _ in model.named_buffers()]

    def test_what_the_class_offers(self, model: Model, result: CapturedModule) -> None:
        assert type(result).__name__ == "Model"
        assert type(result).__doc__ == Model.__doc__
        assert inspect.signature(result.forward) == inspect.signature(model.forward)
        assert result.forward.__doc__ == "What it computes."
        assert result.version == "seven"
        assert result.half_scale == 1.0
        assert result.twice() == 4.0
        with pytest.raises(AttributeError, match="nothing_like_it"):
            _ = result.nothing_like_it

    def test_attributes_reach_the_own_code(self, model: Model, result: CapturedModule) -> None:
        model.scale = result.scale = 5.0
        assert result.twice() == 10.0
        assert torch.equal(result(X, 3.0), model(X, 3.0))

    def test_extra_state(self) -> None:
        class Extra(Model):
            def get_extra_state(self) -> Any:
                return {"scale": self.scale}

            def set_extra_state(self, state: Any) -> None:
                self.scale = state["scale"]

        model = Extra().eval()
        result = finished(model)
        state = result.state_dict()
        assert list(state) == list(model.state_dict())
        state["_extra_state"] = {"scale": 9.0}
        result.load_state_dict(state)
        assert fallback_of(result).scale == 9.0

    def test_containers_are_indexed(self) -> None:
        model = nn.Sequential(nn.Linear(4, 4), nn.ReLU()).eval()
        result = finished(model)
        assert len(result) == 2
        assert isinstance(result[1], nn.ReLU)
        assert [type(module) for module in result] == [nn.Linear, nn.ReLU]

    def test_code_can_be_read(self, result: CapturedModule) -> None:
        assert "self.tied" in result.code
        assert "class" in result.print_readable(print_output=False)
        assert torch.equal(Interpreter(result).run(X, 1.0), result(X))

    def test_code_is_generated_when_it_is_first_needed(
        self, model: Model, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        compiled: list[str] = []
        recompile = CapturedModule.recompile
        monkeypatch.setattr(
            CapturedModule,
            "recompile",
            lambda module: (compiled.append(str(module.graph)), recompile(module))[1],
        )
        original = capture(model, (X,)).program
        work = fork(original)
        assert not [text for text in compiled if "tied" in text]
        result = finish(work, original)
        assert len([text for text in compiled if "tied" in text]) == 1
        assert torch.equal(original.root(X), model(X))
        assert torch.equal(result(X), model(X))
        assert len([text for text in compiled if "tied" in text]) == 2


class TestCopies:
    def test_a_deep_copy_is_complete_and_apart(self, model: Model, result: CapturedModule) -> None:
        copied = copy.deepcopy(result)
        assert equal(copied, model)
        assert torch.equal(copied(X, 3.0), model(X, 3.0))
        assert copied.tied.weight is copied.inner[0].weight is fallback_of(copied).tied.weight
        assert copied.tied.weight is not result.tied.weight
        with torch.no_grad():
            copied.tied.weight.zero_()
        assert equal(result, model)
        assert calls_of(copied)["graph"] == 1

    def test_a_shallow_copy_shares_the_weights(self, model: Model, result: CapturedModule) -> None:
        copied = copy.copy(result)
        assert equal(copied, model)
        assert copied.tied is result.tied
        assert copied.graph is not result.graph
        assert (calls_of(copied)["graph"], calls_of(result)["graph"]) == (1, 0)

    def test_a_shallow_copy_is_copied_deeply(self, model: Model, result: CapturedModule) -> None:
        copied = copy.deepcopy(copy.copy(result))
        assert equal(copied, model)
        assert calls_of(copied)["graph"] == 1
        assert copied.tied.weight is fallback_of(copied).tied.weight
        assert copied.tied.weight is not result.tied.weight

    def test_a_shallow_copy_has_a_mode_of_its_own(
        self, model: Model, result: CapturedModule
    ) -> None:
        copied = copy.copy(result)
        result.training = not result.training
        assert equal(copied, model)
        assert calls_of(copied)["graph"] == 1

    def test_hooks_are_copied_along(self, model: Model) -> None:
        model.register_forward_hook(double_output)
        result = finished(model)
        for copied in (copy.deepcopy(result), pickle.loads(pickle.dumps(result))):
            assert equal(copied, model)

    def test_a_pickle_needs_no_tracing(self, model: Model, result: CapturedModule) -> None:
        first = result.graph.find_nodes(op="call_function", target=F.relu_)[0]
        first.meta["origin"] = ("a pass", "b")
        loaded = pickle.loads(pickle.dumps(result))

        assert equal(loaded, model)
        assert [n.name for n in loaded.graph.nodes] == [n.name for n in result.graph.nodes]
        assert [n.target for n in loaded.graph.nodes] == [n.target for n in result.graph.nodes]
        assert loaded.graph.find_nodes(op="call_function", target=F.relu_)[0].meta["origin"]
        assert loaded.tied.weight is loaded.inner[0].weight
        assert list(loaded.state_dict()) == list(model.state_dict())
        assert inspect.signature(loaded.forward) == inspect.signature(model.forward)
        assert loaded.scale == 2.0
        with pytest.raises(GuardError):
            loaded(X, 3.0)

    def test_a_pickle_takes_the_own_code_along_where_asked(
        self, model: Model, result: CapturedModule
    ) -> None:
        pickle_fallback(result)
        stream = io.BytesIO()
        torch.save(result, stream)
        loaded = torch.load(io.BytesIO(stream.getvalue()), weights_only=False)
        assert torch.equal(loaded(X, 3.0), model(X, 3.0))
        assert loaded.tied.weight is fallback_of(loaded).tied.weight

    def test_long_graphs_are_pickled_and_copied_without_recursion(self) -> None:
        class Long(nn.Module):
            def forward(self, x: Tensor) -> Tensor:
                for _ in range(3000):
                    x = x + 1
                return x

        program = captured(Long(), X)
        result = finish(fork(program), program)
        for made in (copy.deepcopy(result), pickle.loads(pickle.dumps(result))):
            assert torch.equal(made(X), result(X))


def double_output(module: nn.Module, args: Any, output: Tensor) -> Tensor:
    return output * 2


class TestConversions:
    @pytest.mark.parametrize("convert", [nn.Module.double, nn.Module.bfloat16])
    def test_the_callers_model_is_not_converted(self, model: Model, convert: Any) -> None:
        result = finished(model)
        before = model.tied.weight
        convert(result)
        assert model.tied.weight is before
        assert model.tied.weight.dtype == torch.float32
        assert result.tied.weight.dtype != torch.float32
        assert result.tied.weight is result.inner[0].weight
        assert result.tied.weight is fallback_of(result).inner[0].weight
        assert result.offset is fallback_of(result).offset
        x = X.to(result.tied.weight.dtype)
        expected = convert(copy.deepcopy(model))(x)
        torch.testing.assert_close(result(x), expected)

    def test_another_dtype_is_served_by_the_own_code(self) -> None:
        class Finite(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.table = nn.Embedding(5, 4)

            def forward(self, x: Tensor) -> Tensor:
                return self.table(x)

        model, x = Finite().eval(), torch.tensor([1, 2])
        result = finished(model, x).double()
        assert result(x).dtype == torch.float64
        assert calls_of(result)["reasons"] == {"the weights were converted to another dtype": 1}
        result.float()(x)
        assert calls_of(result)["graph"] == 1

    def test_gradients_are_converted_and_the_callers_stay(self, model: Model) -> None:
        model(X).sum().backward()
        result = finished(model).double()
        assert result.tied.weight.grad.dtype == torch.float64
        assert model.tied.weight.grad.dtype == torch.float32

    def test_recurrent_layers_keep_their_flat_weights(self) -> None:
        model = nn.Sequential(nn.LSTM(4, 4)).eval()
        result = finished(model).double()
        x = X.double()
        assert torch.equal(result(x)[0], copy.deepcopy(model).double()(x)[0])
        assert model[0].weight_ih_l0.dtype == torch.float32

    def test_shared_memory_holds_a_copy(self, model: Model, result: CapturedModule) -> None:
        result.share_memory()
        assert result.tied.weight.is_shared()
        assert not model.tied.weight.is_shared()
        assert result.tied.weight is fallback_of(result).tied.weight
        assert equal(result, model)

    def test_loading_weights_reaches_graph_and_own_code(
        self, model: Model, result: CapturedModule
    ) -> None:
        other = copy.deepcopy(model)
        with torch.no_grad():
            for tensor in other.state_dict().values():
                if tensor.is_floating_point():
                    tensor.mul_(1.5)
        result.load_state_dict(other.state_dict())
        assert equal(result, other)
        assert torch.equal(result(X, 3.0), other(X, 3.0))

    def test_assigned_weights_reach_graph_and_own_code(
        self, model: Model, result: CapturedModule
    ) -> None:
        other = copy.deepcopy(model)
        result.unused.weight = other.unused.weight = nn.Parameter(torch.zeros(2, 2))
        result.tied.bias = other.tied.bias = nn.Parameter(torch.zeros(4))
        assert equal(result, other)
        assert torch.equal(result(X, 3.0), other(X, 3.0))


class TestOtherTools:
    def test_compile(self, model: Model, result: CapturedModule) -> None:
        fast = torch.compile(result, backend="eager", fullgraph=True)
        assert torch.equal(fast(X), model(X))
        assert torch.equal(fast(X, 3.0), model(X, 3.0))

    def test_export(self, model: Model, result: CapturedModule) -> None:
        for strict in (False, True):
            exported = torch.export.export(result, (X,), strict=strict).module()
            torch.testing.assert_close(exported(X), model(X))

    @pytest.mark.filterwarnings("ignore::DeprecationWarning")
    @pytest.mark.filterwarnings("ignore::FutureWarning")
    def test_jit_trace(self, model: Model, result: CapturedModule) -> None:
        traced = torch.jit.trace(result, (X,))
        torch.testing.assert_close(traced(X), model(X))

    def test_training_step(self, model: Model) -> None:
        model.train()
        result = finished(model)
        twins = copy.deepcopy(model)
        result(X).sum().backward()
        twins(X).sum().backward()
        assert calls_of(result)["graph"] == 1
        for name, parameter in twins.named_parameters():
            if parameter.grad is not None:
                torch.testing.assert_close(result.get_parameter(name).grad, parameter.grad)


def test_functions_that_torch_makes_inside_others_are_pickled_by_name() -> None:
    class Pools(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            pooled = F.max_pool2d(x, 2)
            return F.adaptive_max_pool2d(pooled, 1) + F.fractional_max_pool2d(x, 2, output_size=1)

    x = torch.randn(2, 3, 8, 8)
    made = capture(Pools().eval(), (x,))
    assert made.opaque == ()
    result = finish(fork(made.program), made.program)
    loaded = pickle.loads(pickle.dumps(result))
    torch.manual_seed(1)
    expected = Pools()(x)
    torch.manual_seed(1)
    assert torch.equal(loaded(x), expected)

"""Capture loses nothing, and touches nothing of the caller's."""

import copy
import dataclasses
import pickle
import random
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torchvision.ops import StochasticDepth
from torchvision.ops.misc import FrozenBatchNorm2d

from fxpasses.capture import (
    Capture,
    CapturedModule,
    OpaqueKind,
    calls_of,
    capture,
    fallback_of,
    finish,
    fork,
)
from fxpasses.core import Watch
from fxpasses.errors import CaptureError, ModeError, StaleWeightsError

X = torch.randn(3, 4, generator=torch.Generator().manual_seed(0))


def result_of(captured: Capture) -> CapturedModule:
    return finish(fork(captured.program), captured.program)


class Plain(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)
        self.norm = nn.BatchNorm1d(4)

    def forward(self, x: Tensor) -> Tensor:
        return self.second(self.norm(self.first(x)).relu())


class Deciding(nn.Module):
    """Decides on data: opaque, with two children that are not."""

    def __init__(self) -> None:
        super().__init__()
        self.yes, self.no = Plain(), Plain()

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        return self.yes(x) if x.sum() > -1e9 else self.no(x)


class Around(nn.Module):
    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.before, self.inner, self.after = nn.Linear(4, 4), inner, nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.after(self.inner(self.before(x)))


class Counting(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.count, self.layer = 0, nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        self.count += 1
        return self.layer(x) * self.count


class TestWhole:
    def test_a_model_becomes_one_graph(self) -> None:
        model = Plain().eval()
        captured = capture(model, (X,))
        assert list(captured.program.graphs) == [""]
        assert captured.opaque == ()
        assert torch.equal(captured.reference.outputs, model(X))
        assert (captured.coverage().calls, captured.coverage().flops) == (1.0, 1.0)
        result = result_of(captured)
        for x in (X, X[:1], X.repeat(2, 1)):
            assert torch.equal(result(x), model(x))
        assert calls_of(result)["graph"] == 3

    def test_without_an_example(self) -> None:
        model = Plain().eval()
        captured = capture(model)
        result = result_of(captured)
        assert captured.reference is None
        assert torch.equal(result(X), model(X))
        assert torch.equal(result(x=X), model(X))
        assert calls_of(result)["fallback"] == 0

    def test_the_mode_can_be_chosen(self) -> None:
        model = Plain()
        captured = capture(model, (X,), training=False)
        assert model.training
        assert not captured.program.root.training
        assert torch.equal(result_of(captured)(X), copy.deepcopy(model).eval()(X))

    def test_forks_are_independent(self) -> None:
        captured = capture(Plain().eval(), (X,))
        before = [(n.name, n.target, dict(n.meta)) for n in captured.program.root.graph.nodes]
        work = fork(captured.program)
        root = work.graphs[""]
        assert root is work.root
        after = [(n.name, n.target, dict(n.meta)) for n in root.graph.nodes]
        assert after == before
        assert root.first.weight is captured.program.root.first.weight

        (relu,) = [n for n in root.graph.nodes if "relu" in n.name]
        relu.replace_all_uses_with(relu.args[0])
        root.graph.erase_node(relu)
        root.recompile()
        del root.norm

        assert [n.name for n in captured.program.root.graph.nodes] == [name for name, *_ in before]
        result = finish(work, captured.program)
        assert isinstance(fallback_of(result).norm, nn.BatchNorm1d)
        assert "norm" not in dict(result.named_modules())
        assert not hasattr(result, "norm")


def test_layers_of_other_packages_that_passes_know_stay_one_node() -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.norm = nn.Conv2d(4, 4, 1), FrozenBatchNorm2d(4)
            self.drop = StochasticDepth(0.5, "row")

        def forward(self, x: Tensor) -> Tensor:
            return x + self.drop(self.norm(self.conv(x)))

    model, x = Model().eval(), X.reshape(3, 4, 1, 1)
    for call in ((x,), None):
        captured = capture(model, call)
        (graph,) = captured.program.graphs.values()
        called = [str(n.target) for n in graph.graph.nodes if n.op == "call_module"]
        assert called == ["conv", "norm", "drop"]
        assert torch.equal(result_of(captured)(x), model(x))


@pytest.mark.filterwarnings("ignore")  # of tracing and of Dynamo itself
@pytest.mark.parametrize("seal", ["script", "trace", "compile"])
def test_buffers_of_compiled_modules_are_the_results_own(seal: str) -> None:
    sealed: dict[str, Callable[[nn.Module], nn.Module]] = {
        "script": torch.jit.script,
        "trace": lambda norm: torch.jit.trace(norm, X, check_trace=False),
        "compile": lambda norm: torch.compile(norm, backend="eager"),
    }
    model = Around(sealed[seal](nn.BatchNorm1d(4))).train()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    held = list(model.state_dict(keep_vars=True).values())

    captured = capture(model, (X,))
    result = result_of(captured)
    found = result(X)

    assert [leaf.kind for leaf in captured.opaque] == [OpaqueKind.COMPILED]
    kept = model.state_dict(keep_vars=True)
    assert all(one is other for one, other in zip(held, kept.values(), strict=True))
    assert all(torch.equal(value, before[name]) for name, value in kept.items())
    assert list(result.state_dict()) == list(before)
    assert all(a is b for a, b in zip(result.parameters(), model.parameters(), strict=True))
    assert torch.equal(found, model(X))
    theirs = model.state_dict()
    assert all(torch.equal(value, theirs[name]) for name, value in result.state_dict().items())


def test_graph_and_own_code_share_the_state_of_what_lies_below_an_opaque_module() -> None:
    class Parent(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer, self.counter = nn.Linear(4, 4), Counting()

        def forward(self, x: Tensor) -> Tensor:
            y = self.counter(self.layer(x))
            return y if y.sum() > -1e9 else -y

    model = Around(Parent()).eval()
    result = result_of(capture(model, (X,)))
    for made, own in ((result, model), (copy.deepcopy(result), copy.deepcopy(model))):
        for call in (X, X[None], X, X[None], X):
            assert torch.equal(made(call), own(call))
    assert calls_of(result)["graph"] == 3
    assert calls_of(result)["fallback"] == 2


class TestOpaqueModules:
    def test_their_children_are_captured_in_turn(self) -> None:
        model = Around(Deciding()).eval()
        captured = capture(model, (X,))
        assert [(o.path, o.type) for o in captured.opaque] == [("inner", "Deciding")]
        assert captured.opaque[0].source is not None
        assert list(captured.program.graphs) == ["inner.yes", ""]
        assert 0.5 < captured.coverage().calls < 1.0

        result = result_of(captured)
        assert type(result.inner) is Deciding
        assert type(result.inner.yes) is Plain
        assert torch.equal(result(X), model(X))
        assert calls_of(result.inner.yes.forward.serve)["graph"] == 1
        assert list(result.state_dict()) == list(model.state_dict())
        assert "forward" not in vars(model.inner.yes)

    def test_an_opaque_root_is_called_as_the_caller_calls(self) -> None:
        class Picky(Deciding):
            def forward(self, *args: Any, **kwargs: Any) -> Any:
                assert not args
                return {"out": super().forward(**kwargs)}

        model = Picky().eval()
        captured = capture(model, None, {"x": X})
        assert captured.opaque[0].path == ""
        assert list(captured.program.graphs) == ["yes"]
        result = result_of(captured)
        assert torch.equal(result(x=X)["out"], model(x=X)["out"])
        assert list(result.state_dict()) == list(model.state_dict())
        with pytest.raises(AssertionError):
            result(X)

    def test_hooks_of_an_opaque_root_run_once(self) -> None:
        seen: list[str] = []
        model = Deciding().eval()
        model.register_forward_pre_hook(lambda *_: seen.append("before"))
        model.register_forward_hook(lambda *_: seen.append("after"))
        result = result_of(capture(model, (X,)))
        seen.clear()
        result(X)
        assert seen == ["before", "after"]

    def test_their_state_is_one_in_graph_and_own_code(self) -> None:
        model = Around(Counting()).eval()
        reference = copy.deepcopy(model)
        result = result_of(capture(model, (X,)))
        assert model.inner.count == 0
        assert result.inner is fallback_of(result).inner
        for x in (X, X[None], X):
            assert torch.equal(result(x), reference(x))
        assert result.inner.count == 3
        assert calls_of(result) == {"graph": 2, "fallback": 1, "reasons": {
            "x has rank 3 instead of 2": 1}}  # fmt: skip

    def test_state_of_an_opaque_root(self) -> None:
        model = Counting().eval()
        reference = copy.deepcopy(model)
        result = result_of(capture(model, (X,)))
        for _ in range(2):
            assert torch.equal(result(X), reference(X))
        assert result.count == 2
        assert model.count == 0
        for copied in (copy.deepcopy(result), pickle.loads(pickle.dumps(result))):
            copied(X)
            assert (copied.count, result.count) == (3, 2)

    def test_a_module_in_two_places_stays_one(self) -> None:
        shared = Plain()
        model = nn.Sequential(Around(Deciding()), shared).eval()
        model[0].inner.yes = shared
        result = result_of(capture(model, (X,)))
        assert result[0].inner.yes is result[1]
        assert torch.equal(result(X), model(X))

    def test_optional_arguments_of_children(self) -> None:
        class Child(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.layer = nn.Linear(4, 4)

            def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
                return self.layer(x) if mask is None else self.layer(x * mask)

        class Parent(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.child = Child()

            def forward(self, x: Tensor) -> Tensor:
                mask = x.sign() if x.sum() > 0 else None
                return self.child(x, mask=mask)

        model = Parent().eval()
        result = result_of(capture(model, (X.abs(),)))
        for x in (X.abs(), -X.abs(), X.abs()):
            assert torch.equal(result(x), model(x))
        calls = calls_of(result.child.forward.serve)
        assert (calls["graph"], calls["fallback"]) == (2, 1)

    def test_what_passes_remove_below_them_is_put_back(self) -> None:
        captured = capture(Around(Deciding()).eval(), (X,))
        work = fork(captured.program)
        child = work.graphs["inner.yes"]
        del child.norm
        result = finish(work, captured.program)
        assert list(result.state_dict()) == list(captured.program.root.state_dict())
        assert isinstance(result.inner.yes.norm, nn.BatchNorm1d)

    @pytest.mark.parametrize("build", [lambda: Around(Deciding()), Deciding, Plain])
    def test_results_are_copied_and_pickled_with_their_graphs(
        self, build: Callable[[], nn.Module]
    ) -> None:
        model = build().eval()
        result = result_of(capture(model, (X,)))
        for made in (copy.deepcopy(result), pickle.loads(pickle.dumps(result))):
            assert torch.equal(made(X), model(X))
            graphs = [m for m in made.modules() if "forward" in vars(m)]
            assert all(calls_of(m.forward.serve)["graph"] == 1 for m in graphs)
            assert len(graphs) == len([m for m in result.modules() if "forward" in vars(m)])

    @pytest.mark.parametrize("build", [lambda: Around(Deciding()), Deciding])
    def test_conversions_leave_the_callers_model_alone(
        self, build: Callable[[], nn.Module]
    ) -> None:
        model = build().eval()
        result = result_of(capture(model, (X,))).double()
        assert next(model.parameters()).dtype == torch.float32
        expected = copy.deepcopy(model).double()(X.double())
        assert torch.equal(result(X.double()), expected)

    @pytest.mark.parametrize("build", [lambda: Around(Deciding()), Deciding])
    def test_modes(self, build: Callable[[], nn.Module]) -> None:
        model = build().eval()
        result = result_of(capture(model, (X,)))
        model.train()
        result.train()
        assert all(module.training for module in result.modules())
        torch.testing.assert_close(result(X), model(X))
        model.eval()
        result.eval()
        torch.testing.assert_close(result(X), model(X))


class Point(NamedTuple):
    x: Tensor
    y: Tensor | None


@dataclasses.dataclass
class Both:
    left: Tensor
    right: Tensor


class TestArguments:
    @pytest.mark.parametrize(
        ("forward", "args", "kwargs"),
        [
            (lambda s, p: s.layer(p.x) if p.y is None else s.layer(p.y), (Point(X, None),), {}),
            (lambda s, b: s.layer(b.left) + b.right, (Both(X, X.clone()),), {}),
            (lambda s, x, *, more: s.layer(x) + more["a"], (X,), {"more": {"a": X.clone()}}),
            (lambda s, *xs, **named: s.layer(sum(xs)) + named["b"], (X, X.clone()), {"b": X + 1}),
            (lambda s, x, y=None: s.layer(x) * (1 if y is None else 2), (X, None), {}),
            (lambda s, inf, slice: s.layer(inf) + slice, (X,), {"slice": X.clone()}),  # noqa: A006
            (lambda s, x, flag: s.layer(x) if flag else x, (X, True), {}),
            (lambda s, x, y: s.layer(x) if x is y else x, (X, X), {}),
        ],
    )
    def test_structures_flags_and_names(self, forward: Any, args: Any, kwargs: Any) -> None:
        class Model(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.layer = nn.Linear(4, 4)

        Model.forward = forward
        model = Model().eval()
        captured = capture(model, args, kwargs)
        result = result_of(captured)
        assert torch.equal(result(*args, **kwargs), model(*args, **kwargs))
        assert captured.opaque == ()
        assert calls_of(result)["graph"] == 1

    def test_another_structure_runs_the_own_code(self) -> None:
        class Model(nn.Module):
            def forward(self, p: Point) -> Tensor:
                return p.x if p.y is None else p.x + p.y

        result = result_of(capture(Model(), (Point(X, None),)))
        assert torch.equal(result(Point(X, X)), X + X)
        assert calls_of(result)["fallback"] == 1


class TestOddModels:
    def test_names_that_are_no_identifiers(self) -> None:
        model = nn.Module()
        hostile = "a'; print(1)\n\"#"
        model.add_module(hostile, nn.Linear(4, 4))
        model.add_module("class", Deciding())
        model.register_parameter("0 x", nn.Parameter(torch.ones(4)))

        def forward(x: Tensor) -> Tensor:
            inner = model._modules
            return inner["class"](inner[hostile](x)) + model._parameters["0 x"]

        class Hostile(nn.Module):
            def forward(self, x: Tensor) -> Tensor:
                inner = self._modules
                return inner["class"](inner[hostile](x)) + self._parameters["0 x"]

        model.__class__ = Hostile
        model.eval()
        result = result_of(capture(model, (X,)))
        assert torch.equal(result(X), model(X))
        assert list(result.state_dict()) == list(model.state_dict())
        assert torch.equal(copy.deepcopy(result)(X), model(X))

    @pytest.mark.parametrize("x", [X, None])
    def test_names_that_results_have_themselves(self, x: Tensor | None) -> None:
        class Model(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.graph, self.code = nn.Linear(4, 4), nn.Sequential(nn.Linear(4, 4))
                self.register_buffer("calls", torch.ones(4))
                self.register_buffer("meta", torch.ones(4))
                self.recompile = nn.Parameter(torch.ones(4))
                self.entry, self.fallback = Deciding(), nn.Linear(4, 4)
                self.print_readable = torch.ones(4)
                self._code = nn.Linear(4, 4)

            def forward(self, x: Tensor) -> Tensor:
                x = self.code(self.graph(x)) + self.calls * self.recompile + self.meta
                self.calls.add_(1)
                return self._code(self.fallback(self.entry(x))) + self.print_readable

        model = Model().eval()
        reference = copy.deepcopy(model)
        result = result_of(capture(model, None if x is None else (x,)))
        copied, loaded = copy.deepcopy(result), pickle.loads(pickle.dumps(result))
        for _ in range(2):
            expected = reference(X)
            for made in (result, copied, loaded):
                assert torch.equal(made(X), expected)
        assert list(result.state_dict()) == list(model.state_dict())
        assert torch.equal(result.state_dict()["calls"], torch.full((4,), 3.0))
        assert torch.equal(model.calls, torch.ones(4))
        assert calls_of(result)["fallback"] == 0
        assert result.fallback is dict(result.named_modules())["fallback"]
        wide = result.double()(X.double())
        torch.testing.assert_close(wide, reference.double()(X.double()))

    def test_attributes_with_a_history(self) -> None:
        class Model(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.weight = nn.Parameter(torch.ones(4))
                self.scaled = self.weight * 2

            def forward(self, x: Tensor) -> Tensor:
                return x * self.scaled

        model = Model()
        result = result_of(capture(model, (X,)))
        result(X).sum().backward(retain_graph=True)
        assert torch.equal(model.weight.grad, 2 * X.sum(0))

    def test_buffers_that_are_assigned_anew(self) -> None:
        class Model(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.register_buffer("seen", torch.zeros(()))

            def forward(self, x: Tensor) -> Tensor:
                self.seen = self.seen + x.sum()
                return x * self.seen

        model = Around(Model())
        reference = copy.deepcopy(model)
        result = result_of(capture(model, (X,)))
        for x in (X, X[None], X):
            assert torch.equal(result(x), reference(x))
        assert torch.equal(result.state_dict()["inner.seen"], reference.inner.seen)
        assert model.inner.seen == 0

    def test_modules_that_nobody_registered(self) -> None:
        class Model(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.hidden = [Deciding().eval(), nn.Linear(4, 4)]

            def forward(self, x: Tensor) -> Tensor:
                return self.hidden[1](self.hidden[0](x))

        model = Model().eval()
        result = result_of(capture(model, (X,)))
        assert torch.equal(result(X), model(X))
        assert torch.equal(copy.deepcopy(result)(X), model(X))

    def test_a_result_can_be_captured_again(self) -> None:
        for build in (Plain, Deciding, lambda: Around(Deciding())):
            model = build().eval()
            once = result_of(capture(model, (X,)))
            twice = result_of(capture(once, (X,)))
            for x in (X, X[None].double().float()[0]):
                assert torch.equal(twice(x), model(x))
            assert torch.equal(once(X), model(X))

    def test_what_passes_did_before_is_built_upon(self) -> None:
        model = Around(Deciding()).eval()
        captured = capture(model, (X,))
        work = fork(captured.program)
        child = work.graphs["inner.yes"]
        norm = next(node for node in child.graph.nodes if node.target == "norm")
        norm.replace_all_uses_with(norm.args[0])
        child.graph.erase_node(norm)
        child.recompile()
        watched = Watch.on("weight", model.before.weight)
        once = finish(work, captured.program, [watched], ["the norm is gone"])

        again = capture(once, (X,))
        assert not any(n.target == "norm" for n in again.program.graphs["inner.yes"].graph.nodes)
        twice = result_of(again)
        assert torch.equal(twice(X), once(X))
        with pytest.raises(ModeError, match="the norm is gone"):
            twice.train()(X)
        twice.eval()
        with torch.no_grad():
            model.before.weight.add_(1)
        with pytest.raises(StaleWeightsError):
            twice(X)

    def test_a_result_inside_another_model(self) -> None:
        inner = Plain().eval()
        model = Around(result_of(capture(inner, (X,)))).eval()
        captured = capture(model, (X,))
        assert torch.equal(result_of(captured)(X), model(X))

    def test_very_long_and_very_deep_models(self) -> None:
        long = nn.Sequential(*[nn.ReLU() for _ in range(2000)])
        assert torch.equal(result_of(capture(long, (X,)))(X), X.relu())
        deep = nn.Linear(4, 4)
        for _ in range(150):
            deep = nn.Sequential(deep)
        result = result_of(capture(deep, (X,)))
        assert torch.equal(result(X), deep(X))
        assert list(result.state_dict()) == list(deep.state_dict())
        assert torch.equal(copy.deepcopy(result)(X), deep(X))

    @pytest.mark.filterwarnings("ignore::DeprecationWarning")
    @pytest.mark.filterwarnings("ignore::FutureWarning")
    def test_compiled_parts_are_opaque(self) -> None:
        script = torch.jit.script(nn.Sequential(nn.Linear(4, 4)))
        model = Around(script).eval()
        captured = capture(model, (X,))
        assert [o.kind for o in captured.opaque] == ["compiled"]
        result = result_of(captured)
        assert torch.equal(result(X), model(X))
        result.double()
        assert next(script.parameters()).dtype == torch.float32


def parametrized(name: str) -> Callable[[], Any]:
    def lazy() -> Any:
        return nn.Sequential(nn.LazyLinear(4))

    def meta() -> Any:
        return nn.Linear(4, 4, device="meta")

    def scripted() -> Any:
        return torch.jit.script(nn.Sequential(nn.Linear(4, 4)))

    def compiled() -> Any:
        return torch.compile(nn.Linear(4, 4), backend="eager")

    def wrapped() -> Any:
        return nn.DataParallel(nn.Linear(4, 4))

    def function() -> Any:
        return len

    return locals()[name]


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.filterwarnings("ignore::FutureWarning")
@pytest.mark.filterwarnings("ignore:Lazy modules:UserWarning")
@pytest.mark.parametrize(
    ("what", "said"),
    [
        ("lazy", "run the model once"),
        ("meta", "load them first"),
        ("scripted", "TorchScript"),
        ("compiled", "_orig_mod"),
        ("wrapped", "DataParallel"),
        ("function", "not an nn.Module"),
    ],
)
def test_what_cannot_be_captured_says_what_to_do(what: str, said: str) -> None:
    with pytest.raises(CaptureError, match=said):
        capture(parametrized(what)(), (X,))


def test_an_example_that_the_model_rejects_shows_the_models_own_error() -> None:
    for model in (Plain(), Deciding(), Around(Deciding())):
        with pytest.raises(CaptureError, match=r"raises on the example.*shapes") as raised:
            capture(model, (torch.ones(3, 5),))
        assert isinstance(raised.value.__cause__, RuntimeError)
    with pytest.raises(CaptureError, match="missing 1 required"):
        capture(Plain(), ())


# -- the caller's things

GLOBAL = {"n": 0}


class Meddling(nn.Module):
    """Writes everywhere, then does what `last` does."""

    def __init__(self, last: Callable[[], None]) -> None:
        super().__init__()
        self.layer, self.norm = nn.Linear(4, 4), nn.BatchNorm1d(4)
        self.register_buffer("seen", torch.zeros(4))
        self.plain, self.items, self.last = torch.zeros(4), [0], last

    def forward(self, x: Tensor, bag: dict[str, Any]) -> Tensor:
        x.add_(1)
        bag["new"] = x
        self.seen.add_(1)
        self.plain.add_(1)
        self.items.append(len(self.items))
        self.touched = True
        random.random()
        np.random.rand()
        y = torch.nn.functional.dropout(self.norm(self.layer(x)), training=True)
        self.last()
        return y


def nothing() -> None:
    pass


def fails() -> None:
    raise ValueError("on purpose")


def interrupted() -> None:
    raise KeyboardInterrupt


@pytest.mark.parametrize("last", [nothing, fails, interrupted])
@pytest.mark.parametrize("below", [False, True])
def test_nothing_of_the_callers_is_changed(last: Callable[[], None], below: bool) -> None:
    model = Meddling(last)
    model.layer.register_forward_hook(lambda *_: None)
    if below:
        model = Below(model)
    x, bag = X.clone(), {"old": X.clone()}
    tensors = [*model.state_dict(keep_vars=True).values(), x, bag["old"]]
    values, versions = [t.clone() for t in tensors], [t._version for t in tensors]
    attributes = {m: dict(vars(m)) for m in model.modules()}
    states = torch.get_rng_state(), random.getstate(), np.random.get_state()[1].tolist()

    try:
        capture(model, (x, bag))
    except (CaptureError, KeyboardInterrupt):
        assert last is not nothing

    assert all(torch.equal(a, b) for a, b in zip(tensors, values, strict=True))
    assert [t._version for t in tensors] == versions
    assert {m: vars(m) for m in model.modules()} == attributes
    assert list(bag) == ["old"]
    inner = model.inner if below else model
    assert inner.items == [0]
    assert inner.plain.sum() == 0
    assert torch.equal(torch.get_rng_state(), states[0])
    assert random.getstate() == states[1]
    assert np.random.get_state()[1].tolist() == states[2]


class Below(nn.Module):
    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Tensor, bag: dict[str, Any]) -> Tensor:
        return self.inner(x, bag) * 2


def test_a_capture_says_in_a_few_lines_what_it_is() -> None:
    class Branches(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x * 2 if x.sum() > 0 else x

    weights = nn.Linear(500, 500)
    found = capture(nn.Sequential(weights, Branches(), nn.ReLU()).eval(), (torch.ones(2, 500),))
    lines = repr(found).splitlines()
    assert lines[0].startswith("<capture: 1 graph, ")
    assert lines[0].endswith(" 1 opaque module>")
    assert "1 [Branches] control_flow: a branch on a traced value (" in lines[1]
    assert len(repr(found)) < 400
    found.coverage()
    assert "of the calls and 100% of the FLOPs" in repr(found)
    many = capture(nn.Sequential(*[Branches() for _ in range(20)]).eval(), (torch.ones(2),))
    assert repr(many).splitlines()[-1] == "  and 8 more"

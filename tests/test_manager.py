"""The manager: transactions over all graphs, order, rounds, records and observers."""

import random
from collections.abc import Callable, Iterator
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.fx import GraphModule, Node

from fxpasses.core import (
    Editor,
    Facts,
    Gate,
    GraphPass,
    Group,
    Numerics,
    Program,
    Refusal,
    Rewrite,
    Step,
    foreign,
)
from fxpasses.core.record import PassRecord
from fxpasses.errors import BudgetError, FxPassesError, PassError, PipelineError
from fxpasses.manager import Observer, PassManager, PassRun, apply
from tests.core.graphs import Chain, SwapRelu, SwapTanh, captured, description, node_named

IMAGE = torch.randn(1, 2, 4, 4)


class Three(nn.Module):
    """A model of which three parts are graphs."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = captured(Chain()), captured(Chain()), captured(Chain())

    def forward(self, x: Tensor) -> Tensor:
        return self.c(self.b(self.a(x)))


@pytest.fixture
def program() -> Program:
    root = Three()
    return Program(root, {"a": root.a, "b": root.b, "c": root.c})


def whole(module: nn.Module) -> Program:
    graph_module = captured(module)
    return Program(graph_module, {"": graph_module})


def states(program: Program) -> list[Any]:
    return [description(module) for _, module in program]


def names(runs: list[PassRun]) -> list[str]:
    return [run.record.name for run in runs]


class Hostile(Rewrite[Node]):
    """Does `act` at the relu numbered `at`, after having rewritten those before it."""

    name = "hostile"
    numerics = Numerics.EXACT
    act: ClassVar[Callable[..., Any]]
    last: ClassVar[str] = "relu_1"

    def match(self, node: Node, facts: Facts) -> Node | None:
        return node if node.target is torch.relu else None

    def rewrite(self, site: Node, edit: Editor) -> None:
        new = edit.call_function(torch.tanh, *site.args)
        if site.name == self.last and edit.module is type(self).victim:
            type(self).act(edit, site)
        edit.replace(site, new)

    victim: ClassVar[GraphModule]


def hostile(victim: GraphModule, act: Callable[..., Any]) -> Hostile:
    kind = type("Hostile", (Hostile,), {"act": staticmethod(act), "victim": victim})
    return kind()


def raises(error: BaseException) -> Callable[..., None]:
    def act(*args: Any) -> None:
        raise error

    return act


# -- one pass, all graphs


def test_a_pass_runs_on_all_graphs(program: Program) -> None:
    (run,) = PassManager(Group((SwapRelu(),))).run(program)
    assert [applied.id for path in "abc" for applied in run.applied[path]] == [
        f"1:swap_relu@{path}/{name}" for path in "abc" for name in ("relu", "relu_1")
    ]
    assert run.numerics is Numerics.MEANING
    assert not run.foreign
    assert all("tanh" in module.code for _, module in program)


@pytest.mark.parametrize(
    "error", [ZeroDivisionError("oh"), KeyboardInterrupt(), SystemExit(), PassError("own")]
)
def test_what_fails_in_the_third_graph_is_taken_back_in_all(
    program: Program, error: BaseException
) -> None:
    before = states(program)
    manager = PassManager(Group((hostile(program.graphs["c"], raises(error)),)))
    expected = PassError if isinstance(error, Exception) else type(error)
    with pytest.raises(expected) as caught:
        manager.run(program)
    assert states(program) == before
    assert program.root(IMAGE) is not None
    if isinstance(error, ZeroDivisionError):
        assert caught.value.__cause__ is error
        assert "1:hostile@c/relu_1 raised ZeroDivisionError at relu_1 (model.py:5)" in str(
            caught.value
        )


class Peculiar(PassError):
    def __init__(self, first: str, second: str) -> None:
        super().__init__(f"{first} and {second}")


def test_an_error_of_a_kind_of_its_own_is_told_with_its_place(program: Program) -> None:
    cause = Peculiar("this", "that")
    manager = PassManager(Group((hostile(program.graphs["c"], raises(cause)),)))
    with pytest.raises(PassError, match=r"1:hostile@c/relu_1 at relu_1 .*this and that") as caught:
        manager.run(program)
    assert caught.value.__cause__ is cause


def breaks_the_graph(edit: Editor, site: Node) -> None:
    with edit.before(node_named(edit.module, "first")):
        edit.call_function(torch.neg, site)


def edits_another_graph(edit: Editor, site: Node) -> None:
    other: GraphModule = edit.module.other
    node_named(other, "add").replace_all_uses_with(node_named(other, "mul"))


def test_a_graph_broken_at_the_end_is_taken_back_in_all(program: Program) -> None:
    before = states(program)
    manager = PassManager(Group((hostile(program.graphs["c"], breaks_the_graph),)))
    with pytest.raises(PassError, match="hostile left a broken graph behind"):
        manager.run(program)
    assert states(program) == before


@pytest.mark.parametrize("call", [1, 2, 3])
def test_ctrl_c_while_graphs_are_sealed_takes_all_back(
    program: Program, monkeypatch: pytest.MonkeyPatch, call: int
) -> None:
    before = states(program)
    calls: list[GraphModule] = []
    recompile = GraphModule.recompile

    def interrupted(module: GraphModule) -> Any:
        calls.append(module)
        if len(calls) == call:
            raise KeyboardInterrupt
        return recompile(module)

    monkeypatch.setattr(GraphModule, "recompile", interrupted)
    with pytest.raises(KeyboardInterrupt):
        PassManager(Group((SwapRelu(),))).run(program)
    assert states(program) == before
    assert calls[0] is program.graphs["a"]


def test_an_edit_of_another_graph_is_found_and_taken_back(program: Program) -> None:
    program.graphs["c"].__dict__["other"] = program.graphs["a"]
    before = states(program)
    manager = PassManager(Group((hostile(program.graphs["c"], edits_another_graph),)))
    with pytest.raises(PassError, match="hostile edited the graph behind the editor's back"):
        manager.run(program)
    assert states(program) == before


def test_a_pass_that_grows_without_end_has_a_budget(program: Program) -> None:
    def grow(edit: Editor, site: Node) -> None:
        while True:
            edit.call_function(torch.neg, site)

    before = states(program)
    manager = PassManager(Group((hostile(program.graphs["b"], grow),)), node_budget=50)
    with pytest.raises(BudgetError, match="hostile makes the graph grow without end"):
        manager.run(program)
    assert states(program) == before


def test_the_default_budget_is_generous() -> None:
    class Grows(GraphPass):
        """Adds many nodes."""

        name = "grows"
        numerics = Numerics.EXACT

        def steps(self, module: GraphModule, facts: Facts) -> Iterator[Step | Refusal]:
            relu = node_named(module, "relu")
            for _ in range(9_000):
                yield Step(relu, "", lambda edit: edit.call_function(torch.neg, relu.args[0]))

    (run,) = PassManager(Group((Grows(),))).run(whole(Chain()))
    assert run.record.nodes_after - run.record.nodes_before == 9_000


# -- on_failure


def test_a_pass_that_fails_is_skipped_on_request(program: Program) -> None:
    bad = hostile(program.graphs["c"], raises(ZeroDivisionError("oh")))
    runs = PassManager(Group((bad, SwapRelu(), SwapTanh())), on_failure="skip").run(program)
    assert [run.record.status for run in runs] == ["failed", "changed", "changed"]
    assert "ZeroDivisionError" in (runs[0].record.error or "")
    assert runs[0].applied == {}
    assert runs[0].record.nodes_after == runs[0].record.nodes_before
    assert runs[1].record.error is None


def test_ctrl_c_is_never_skipped(program: Program) -> None:
    before = states(program)
    bad = hostile(program.graphs["c"], raises(KeyboardInterrupt()))
    with pytest.raises(KeyboardInterrupt):
        PassManager(Group((bad,)), on_failure="skip").run(program)
    assert states(program) == before


def test_folds_of_a_failed_pass_are_dropped(program: Program) -> None:
    def fold_and_fail(edit: Editor, site: Node) -> None:
        edit.fold(lambda v: v * 2, edit.module.scale)
        raise ZeroDivisionError

    bad = hostile(program.graphs["c"], fold_and_fail)
    PassManager(Group((bad,)), on_failure="skip").run(program)
    assert len(program.folds) == 0


# -- global state


def spoil(*_: Any) -> None:
    torch.manual_seed(99)
    random.seed(99)
    np.random.seed(99)
    torch.rand(3)
    torch.set_grad_enabled(False)
    torch.set_default_dtype(torch.float64)
    torch.use_deterministic_algorithms(True, warn_only=True)
    torch.backends.cudnn.benchmark = not torch.backends.cudnn.benchmark
    torch.backends.mkldnn.enabled = False
    torch.set_autocast_enabled("cpu", True)
    torch.set_default_device("meta")


def surroundings() -> list[Any]:
    return [
        torch.get_rng_state().tolist(),
        random.getstate(),
        np.random.get_state()[1].tolist(),
        torch.is_grad_enabled(),
        torch.get_default_dtype(),
        torch.are_deterministic_algorithms_enabled(),
        torch.backends.cudnn.benchmark,
        torch.backends.mkldnn.enabled,
        torch.is_autocast_enabled("cpu"),
        torch.get_default_device(),
    ]


@pytest.mark.parametrize("fails", [False, True])
def test_global_state_is_put_back_after_each_pass(program: Program, *, fails: bool) -> None:
    def act(*_: Any) -> None:
        spoil()
        if fails:
            raise ZeroDivisionError

    before = surroundings()
    for item in (hostile(program.graphs["c"], act), foreign(act)):
        PassManager(Group((item,)), on_failure="skip").run(program)
        assert surroundings() == before


# -- groups


class Halves(SwapRelu):
    """Replaces one relu a round."""

    name = "halves"

    def match(self, node: Node, facts: Facts) -> Node | None:
        first = next((n for n in node.graph.nodes if n.target is torch.relu), None)
        return node if node is first else None


def test_a_group_repeats_until_nothing_changes() -> None:
    class OneEach(Halves):
        def steps(self, module: GraphModule, facts: Facts) -> Iterator[Step | Refusal]:
            return iter(list(super().steps(module, facts))[:1])

    manager = PassManager(Group((OneEach(),), repeat=9))
    runs = manager.run(whole(Chain()))
    assert [run.record.status for run in runs] == ["changed", "changed", "unchanged"]
    assert [run.record.round for run in runs] == [1, 2, 3]
    ids = [applied.id for run in runs for applied in run.applied.get("", [])]
    assert ids == ["1:halves@/relu", "1:halves@/relu_1#2"]
    assert manager.notes == []


def test_reaching_the_bound_is_a_note() -> None:
    class Adds(SwapRelu):
        """Adds a node every round."""

        name = "adds"

        def rewrite(self, site: Node, edit: Editor) -> None:
            edit.rewire(site, site.args[0], edit.call_function(torch.neg, site.args[0]))

    manager = PassManager(Group((Adds(),), repeat=3, name="grow"))
    assert len(manager.run(whole(Chain()))) == 3
    assert manager.notes == ["grow: still changing after 3 rounds"]


def test_passes_that_undo_each_other_are_named() -> None:
    program = whole(Chain())
    with pytest.raises(PassError, match="swap_relu and swap_tanh undo each other for ever"):
        PassManager(Group((SwapRelu(), SwapTanh()), repeat=10)).run(program)


def test_passes_that_undo_each_other_over_several_rounds_are_named() -> None:
    functions = [torch.relu, torch.tanh, torch.sin]

    class Turns(Rewrite[Node]):
        """Turns each function into the next."""

        name = "turns"
        numerics = Numerics.MEANING

        def match(self, node: Node, facts: Facts) -> Node | None:
            return node if node.target in functions else None

        def rewrite(self, site: Node, edit: Editor) -> None:
            following = functions[(functions.index(site.target) + 1) % 3]
            edit.replace(site, edit.call_function(following, *site.args))

    with pytest.raises(PassError, match="turns undoes itself for ever: every 3 rounds"):
        PassManager(Group((Turns(),), repeat=10)).run(whole(Chain()))


def test_folding_the_same_constant_anew_every_round_is_found() -> None:
    class Refolds(Rewrite[Node]):
        """Reads a folded copy of the scale."""

        name = "refolds"
        numerics = Numerics.EXACT

        def match(self, node: Node, facts: Facts) -> Node | None:
            return node if node.op == "get_attr" else None

        def rewrite(self, site: Node, edit: Editor) -> None:
            value = getattr(edit.module, str(site.target))
            fold = edit.fold(lambda v: v.clone(), value)
            edit.replace(site, edit.constant(edit.parameter(fold), "scale"))

    with pytest.raises(PassError, match="refolds undoes itself for ever"):
        PassManager(Group((Refolds(),), repeat=10)).run(whole(Chain()))


def test_a_module_made_anew_every_round_is_found() -> None:
    class Remakes(Rewrite[Node]):
        """Calls an equal copy of the convolution."""

        name = "remakes"
        numerics = Numerics.EXACT

        def match(self, node: Node, facts: Facts) -> Node | None:
            return node if node.op == "call_module" else None

        def rewrite(self, site: Node, edit: Editor) -> None:
            old = edit.module.get_submodule(str(site.target))
            new = nn.Conv2d(2, 2, 1)
            new.load_state_dict(old.state_dict())
            edit.replace(site, edit.call_module(new, "conv", *site.args))

    with pytest.raises(PassError, match="remakes undoes itself for ever"):
        PassManager(Group((Remakes(),), repeat=10)).run(whole(Chain()))


def test_undoing_once_outside_of_a_repeated_group_is_no_error() -> None:
    runs = PassManager(Group((SwapRelu(), SwapTanh()))).run(whole(Chain()))
    assert [run.record.status for run in runs] == ["changed", "changed"]


def test_positions_count_passes_through_nested_groups() -> None:
    inner = Group((SwapTanh(), Group((SwapRelu(),))), repeat=1)
    runs = PassManager(Group((SwapRelu(), inner, SwapTanh()))).run(whole(Chain()))
    assert [(run.record.position, run.record.name) for run in runs] == [
        (1, "swap_relu"),
        (2, "swap_tanh"),
        (3, "swap_relu"),
        (4, "swap_tanh"),
    ]


def test_ids_stay_apart_in_groups_within_groups() -> None:
    class Toggle(Rewrite[Node]):
        """Adds a neg before every relu."""

        name = "toggle"
        numerics = Numerics.MEANING

        def match(self, node: Node, facts: Facts) -> Node | None:
            return node if node.target is torch.relu else None

        def rewrite(self, site: Node, edit: Editor) -> None:
            edit.rewire(site, site.args[0], edit.call_function(torch.neg, site.args[0]))

    group = Group((Group((Toggle(),), repeat=2),), repeat=2)
    runs = PassManager(group).run(whole(Chain()))
    ids = [applied.id for run in runs for applied in run.applied[""]]
    assert len(set(ids)) == len(ids) == 8
    assert ids[-1] == "1:toggle@/relu_1#4"


class After(SwapRelu):
    """Has to run after another."""

    name = "after"
    runs_after = ("swap_tanh",)


@pytest.mark.parametrize(
    ("items", "fits"),
    [
        ((After(),), True),
        ((SwapTanh(), After()), True),
        ((SwapTanh(), After(), SwapTanh()), True),
        ((Group((SwapTanh(),)), Group((After(),))), True),
        ((After(), SwapTanh()), False),
        ((Group((After(), SwapTanh()), repeat=3),), False),
    ],
)
def test_declared_order_is_checked_before_anything_runs(items: Any, *, fits: bool) -> None:
    if fits:
        PassManager(Group(items))
    else:
        with pytest.raises(PipelineError, match="after has to run after swap_tanh"):
            PassManager(Group(items))


# -- gates, training, settings


def test_a_gate_counts_over_passes_and_graphs(program: Program) -> None:
    gate = Gate(stop_after=3)
    runs = PassManager(Group((SwapRelu(), SwapTanh())), gate=gate).run(program)
    assert [applied.id for run in runs for p in run.applied.values() for applied in p] == [
        "1:swap_relu@a/relu",
        "1:swap_relu@a/relu_1",
        "1:swap_relu@b/relu",
    ]


def test_a_pass_whose_result_cannot_be_trained_is_refused_in_training() -> None:
    class Trains(SwapRelu):
        """Can be trained."""

        name = "trains_too"
        trains = True

    runs = PassManager(Group((SwapRelu(), Trains())), training=True).run(whole(Chain()))
    assert [run.record.status for run in runs] == ["unchanged", "changed"]
    (refusal,) = runs[0].refusals
    assert refusal.condition == "result_is_not_trained"
    assert not refusal.legal


def test_facts_know_of_training_effects_and_state(program: Program) -> None:
    seen: list[Facts] = []

    class Looks(SwapRelu):
        """Looks at the facts."""

        name = "looks"
        trains = True

        def match(self, node: Node, facts: Facts) -> Node | None:
            seen.append(facts)
            return None

    PassManager(Group((Looks(),)), training=True).run(program)
    assert all(facts.training and not facts.owns_state for facts in seen)
    seen.clear()
    PassManager(Group((Looks(), Looks()))).run(whole(Chain()))
    assert all(facts.owns_state and not facts.training for facts in seen)
    assert len(set(map(id, seen))) == 1


# -- records and observers


class Watching(Observer):
    def __init__(self) -> None:
        self.seen: list[tuple[str, str, str]] = []

    def started(self, record: PassRecord, program: Program) -> None:
        self.seen.append(("started", record.name, record.status))

    def finished(self, record: PassRecord, program: Program) -> None:
        self.seen.append(("finished", record.name, record.status))

    def failed(self, record: PassRecord, error: PassError) -> None:
        self.seen.append(("failed", record.name, type(error).__name__))


def test_observers_are_told(program: Program) -> None:
    watching = Watching()
    bad = hostile(program.graphs["c"], raises(ZeroDivisionError()))
    manager = PassManager(Group((SwapTanh(), bad)), observers=[watching])
    with pytest.raises(PassError):
        manager.run(program)
    assert watching.seen == [
        ("started", "swap_tanh", "unchanged"),
        ("finished", "swap_tanh", "unchanged"),
        ("started", "hostile", "unchanged"),
        ("failed", "hostile", "PassError"),
    ]


def test_the_record_says_what_was_done(program: Program) -> None:
    def only_the_first(site: Node, facts: Facts) -> str | None:
        return "it is not the first" if site.name != "relu" else None

    class Folding(SwapRelu):
        """Folds."""

        name = "folding"
        worthwhile_if = (only_the_first,)
        dtype: torch.dtype = torch.float32
        sizes: tuple[int, ...] = (1, 2)

        def rewrite(self, site: Node, edit: Editor) -> None:
            half = edit.parameter(edit.fold(lambda v: v / 2, edit.module.scale))
            product = edit.call_function(torch.mul, site.args[0], edit.constant(half, "half"))
            edit.replace(site, product, absorbing=[site.args[0]])

    (run,) = PassManager(Group((Folding(),))).run(program)
    record = run.record
    assert (record.position, record.name, record.numerics) == (1, "folding", "meaning")
    assert record.options == {"dtype": "float32", "sizes": [1, 2]}
    assert record.status == "changed"
    assert record.bytes_folded == 3 * 2 * 4
    assert record.nodes_after == record.nodes_before + 3
    assert record.seconds > 0
    first = record.rewrites[0]
    assert (first.id, first.path, first.node) == ("1:folding@a/relu", "a", "relu")
    assert first.source == "model.py:3"
    assert first.why == "Folds."
    assert first.replaced == ["relu", "first"]
    assert first.created[-1] == "mul_1"
    refusal = record.refusals[-1]
    assert (refusal.path, refusal.node, refusal.legal) == ("c", "relu_1", True)
    assert (refusal.condition, refusal.reason) == ("only_the_first", "it is not the first")
    assert refusal.source == "model.py:5"


def test_apply_runs_one_pass_on_one_graph() -> None:
    module = captured(Chain())
    result = apply(SwapRelu(), module, keep_regions=True)
    assert result.graph_module is module
    assert result.modified
    assert [applied.id for applied in result.rewrites] == [
        "1:swap_relu@/relu",
        "1:swap_relu@/relu_1",
    ]
    assert result.rewrites[0].after is not None
    assert not apply(SwapRelu(), module).modified


def test_apply_takes_a_failure_back() -> None:
    module = captured(Chain())
    before = description(module)
    with pytest.raises(FxPassesError):
        apply(hostile(module, breaks_the_graph), module)
    assert description(module) == before


def test_an_empty_pipeline_does_nothing(program: Program) -> None:
    before = states(program)
    assert PassManager(Group(())).run(program) == []
    assert states(program) == before


class SaysItIsOurs(SwapRelu):
    """Writes weights, and calls itself one of the package's own passes."""

    def rewrite(self, site: Any, edit: Editor) -> None:
        for parameter in edit.module.parameters():
            parameter.data.mul_(2)


SaysItIsOurs.__module__ = "fxpasses.passes.dce"


def test_no_pass_can_say_that_its_writes_need_no_guard() -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(2))

        def forward(self, x: Tensor) -> Tensor:
            return torch.relu(x * self.weight)

    model = Model()
    with pytest.raises(PassError, match="which the model shares"):
        PassManager(Group((SaysItIsOurs(),))).run(whole(model))
    assert torch.equal(model.weight, torch.ones(2))


class DrawsAndSaysItIsOurs(SwapRelu):
    """Draws random numbers, and calls itself one of the package's own passes."""

    def rewrite(self, site: Any, edit: Editor) -> None:
        torch.rand(3)
        super().rewrite(site, edit)


DrawsAndSaysItIsOurs.__module__ = "fxpasses.passes.dce"


def test_no_pass_can_say_that_it_draws_nothing() -> None:
    program = whole(Chain())
    state = torch.get_rng_state()
    (run,) = PassManager(Group((DrawsAndSaysItIsOurs(),))).run(program)
    assert run.changed
    assert torch.equal(torch.get_rng_state(), state)

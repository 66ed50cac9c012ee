"""Each rule of the kit catches a pass that breaks it, and a pass that keeps them all passes."""

import itertools
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.fx import GraphModule, Node

from fxpasses import testing
from fxpasses.core import Editor, Facts, GraphPass, Numerics, Refusal, Rewrite, Step
from fxpasses.core.values import ORIGIN, SOURCE, VALUE
from fxpasses.errors import ArgumentError, FxPassesError
from fxpasses.ops import Op, op_of
from fxpasses.testing import Failure, Model, NotConformant, Rule, check_pass, goes_wrong
from fxpasses.testing.models import hostile, typical
from fxpasses.testing.rules import gradients
from fxpasses.testing.trial import Trial
from fxpasses.testing.variants import hostile_variants

X = torch.linspace(-2, 2, 8).reshape(2, 4)


class Net(nn.Module):
    """Two ReLUs in a row, a weight, a buffer and something to train."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)
        self.register_buffer("shift", torch.ones(4))

    def forward(self, x: Tensor) -> Tensor:
        y = torch.relu(torch.relu(self.layer(x)))
        return y + self.shift


NET = (Net().eval(), X)


class DropDoubleRelu(GraphPass):
    """Remove a ReLU of a ReLU."""

    name = "drop_double_relu"
    numerics = Numerics.EXACT
    trains = True

    def steps(self, module: GraphModule, facts: Facts) -> Iterator[Step | Refusal]:
        for node in list(module.graph.nodes):
            if is_double_relu(node):
                yield self.step(node)

    def step(self, node: Node) -> Step:
        return Step(node, "one op less", lambda edit: self.rewrite(node, edit))

    def rewrite(self, node: Node, edit: Editor) -> None:
        edit.replace(node, node.args[0])


def is_double_relu(node: Node) -> bool:
    return node.target is torch.relu and getattr(node.args[0], "target", None) is torch.relu


class Renewing(DropDoubleRelu):
    """Writes the second ReLU anew, and marks it so that it does so once."""

    name = "renewing"

    def rewrite(self, node: Node, edit: Editor) -> None:
        if "renewed" not in node.meta:
            new = edit.call_function(torch.relu, node.args[0].args[0])
            edit.replace(node, new)
            new.meta["renewed"] = True
            self.spoil(new, node, edit)

    def spoil(self, new: Node, old: Node, edit: Editor) -> None:
        """For subclasses."""


# -- passes with one fault each


class Raises(DropDoubleRelu):
    name = "raises"

    def rewrite(self, node: Node, edit: Editor) -> None:
        raise ValueError("no reason")


class DropsTheFirst(DropDoubleRelu):
    """Drops both."""

    name = "drops_the_first"

    def rewrite(self, node: Node, edit: Editor) -> None:
        edit.replace(node, node.args[0].args[0])


class NotBitEqual(DropDoubleRelu):
    name = "not_bit_equal"

    def rewrite(self, node: Node, edit: Editor) -> None:
        edit.replace(node, edit.call_function(torch.mul, node.args[0], 1 + 2**-22))


def never_empty(x: Tensor) -> Tensor:
    return x if len(x) else x.new_zeros(1, 4)


class FillsEmptyBatches(DropDoubleRelu):
    name = "fills_empty_batches"

    def rewrite(self, node: Node, edit: Editor) -> None:
        edit.replace(node, edit.call_function(never_empty, node.args[0]))


class CutsTheGradient(DropDoubleRelu):
    name = "cuts_the_gradient"

    def rewrite(self, node: Node, edit: Editor) -> None:
        edit.replace(node, edit.call_method("detach", node.args[0]))


class WritesAWeight(DropDoubleRelu):
    name = "writes_a_weight"

    def rewrite(self, node: Node, edit: Editor) -> None:
        edit.module.get_parameter("layer.bias").detach().numpy()[:] = 0
        super().rewrite(node, edit)


class SetsAGlobal(DropDoubleRelu):
    name = "sets_a_global"

    def rewrite(self, node: Node, edit: Editor) -> None:
        edit.module.get_parameter("layer.weight").grad = torch.zeros(4, 4)
        super().rewrite(node, edit)


class LosesTheSource(Renewing):
    name = "loses_the_source"

    def spoil(self, new: Node, old: Node, edit: Editor) -> None:
        del new.meta[SOURCE]


class LosesTheOrigin(Renewing):
    name = "loses_the_origin"

    def spoil(self, new: Node, old: Node, edit: Editor) -> None:
        new.meta[ORIGIN] = ("somebody", "else")


class LosesTheValue(Renewing):
    name = "loses_the_value"

    def spoil(self, new: Node, old: Node, edit: Editor) -> None:
        del new.meta[VALUE]


class ClearsItsOperand(Renewing):
    name = "clears_its_operand"

    def spoil(self, new: Node, old: Node, edit: Editor) -> None:
        new.args[0].meta.pop(SOURCE)


class LiesAboutTheValue(Renewing):
    name = "lies_about_the_value"

    def spoil(self, new: Node, old: Node, edit: Editor) -> None:
        kind = type(new.meta[VALUE])
        new.meta[VALUE] = kind.of(torch.zeros(3, dtype=torch.float16))


class RefusesInSilence(DropDoubleRelu):
    name = "refuses_in_silence"

    def steps(self, module: GraphModule, facts: Facts) -> Iterator[Step | Refusal]:
        yield from super().steps(module, facts)
        for node in module.graph.nodes:
            if op_of(node) is Op.ADD:
                yield Refusal.at(node, "adds_nothing", " ")


class RefusesNowhere(DropDoubleRelu):
    name = "refuses_nowhere"

    def steps(self, module: GraphModule, facts: Facts) -> Iterator[Step | Refusal]:
        yield from super().steps(module, facts)
        for node in module.graph.nodes:
            if op_of(node) is Op.ADD:
                yield Refusal(node.name, "adds_nothing", "it adds something")


class NeverRests(DropDoubleRelu):
    """Writes the second ReLU anew each time."""

    name = "never_rests"

    def rewrite(self, node: Node, edit: Editor) -> None:
        edit.replace(node, edit.call_function(torch.relu, node.args[0]))


class TossesACoin(DropDoubleRelu):
    name = "tosses_a_coin"
    order = itertools.count()

    def steps(self, module: GraphModule, facts: Facts) -> Iterator[Step | Refusal]:
        if next(self.order) % 2:
            yield from super().steps(module, facts)


class DrawsAWeight(DropDoubleRelu):
    name = "draws_a_weight"

    def rewrite(self, node: Node, edit: Editor) -> None:
        noise = edit.constant(torch.rand(4) * 0, "zeros")
        edit.constant(torch.rand(4), "noise")
        edit.replace(node, edit.call_function(torch.add, node.args[0], noise))


class Unpicklable(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.function = lambda x: torch.relu(x) * 1

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x)


class HoldsALambda(DropDoubleRelu):
    name = "holds_a_lambda"

    def rewrite(self, node: Node, edit: Editor) -> None:
        edit.replace(node, edit.call_module(Unpicklable(), "relu", node.args[0].args[0]))


class ForgetsWhenCopied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.is_copy = False

    def forward(self, x: Tensor) -> Tensor:
        return x * 0 if self.is_copy else torch.relu(x)

    def __deepcopy__(self, memo: Any) -> "ForgetsWhenCopied":
        made = ForgetsWhenCopied()
        made.is_copy = True
        return made


class HoldsWhatForgets(DropDoubleRelu):
    name = "holds_what_forgets"
    numerics = Numerics.ROUNDING

    def rewrite(self, node: Node, edit: Editor) -> None:
        edit.replace(node, edit.call_module(ForgetsWhenCopied(), "relu", node.args[0].args[0]))


def renames_a_weight(module: GraphModule) -> GraphModule:
    module.w = module.layer.weight
    module.b = module.layer.bias
    for node in list(module.graph.nodes):
        if node.target == "layer":
            with module.graph.inserting_before(node):
                held = [module.graph.get_attr(name) for name in ("w", "b")]
                new = module.graph.call_function(nn.functional.linear, (node.args[0], *held))
            node.replace_all_uses_with(new)
            module.graph.erase_node(node)
    del module.layer
    module.recompile()
    return module


def takes_a_name(module: GraphModule) -> GraphModule:
    module.register_buffer("shift", torch.ones(4) * 2)
    for node in module.graph.nodes:
        if op_of(node) is Op.ADD:
            with module.graph.inserting_after(node):
                new = module.graph.call_function(torch.sub, (node, 1.0))
            node.replace_all_uses_with(new, lambda user, new=new: user is not new)
    module.recompile()
    return module


BROKEN: list[tuple[Rule, Any, str]] = [
    (Rule.RUNS, Raises, "ValueError at relu_1"),
    (Rule.NUMERICS, DropsTheFirst, "drops_the_first in 1:drops_the_first@/relu_1"),
    (Rule.NUMERICS, NotBitEqual, "not_bit_equal"),
    (Rule.NUMERICS, FillsEmptyBatches, "called with (0, 4): the output has the shape"),
    (Rule.GRADIENTS, CutsTheGradient, "in training"),
    (Rule.UNTOUCHED, WritesAWeight, "layer.bias was written"),
    (Rule.UNTOUCHED, SetsAGlobal, "layer.weight has another gradient"),
    (Rule.METADATA, LosesTheSource, "without a source (" + __file__),
    (Rule.METADATA, LosesTheOrigin, "without an origin that names the pass"),
    (Rule.METADATA, LosesTheValue, "without the value of relu_1"),
    (Rule.METADATA, ClearsItsOperand, "layer has lost its source"),
    (Rule.METADATA, LiesAboutTheValue, "is said to be of dtype torch.float16"),
    (Rule.REFUSALS, RefusesInSilence, "(adds_nothing) gives no reason in words"),
    (Rule.REFUSALS, RefusesNowhere, "does not give its line, " + __file__),
    (Rule.IDEMPOTENT, NeverRests, "a second run makes 2:never_rests@/"),
    (Rule.DETERMINISTIC, TossesACoin, "1:tosses_a_coin@/relu_1"),
    (Rule.DETERMINISTIC, DrawsAWeight, "noise differs from run to run"),
    (Rule.COPIES, HoldsALambda, "the result cannot be pickled"),
    (Rule.COPIES, HoldsWhatForgets, "copied, the output"),
    (Rule.STATE_DICT, renames_a_weight, "layer.bias is called b in the result"),
    (Rule.STATE_DICT, takes_a_name, "shift is the name of another tensor in the result"),
]


def failures_of(graph_pass: Any, **how: Any) -> tuple[Failure, ...]:
    with pytest.raises(NotConformant) as caught:
        check_pass(graph_pass, **{"models": [NET], "without": [Rule.HOSTILE], **how})
    return caught.value.failures


@pytest.mark.parametrize(
    ("rule", "graph_pass", "text"), BROKEN, ids=[one.__name__ for _, one, _ in BROKEN]
)
def test_a_fault_is_found_by_its_rule(rule: Rule, graph_pass: Any, text: str) -> None:
    found = failures_of(graph_pass, without=[other for other in Rule if other is not rule])
    assert {failure.rule for failure in found} == {rule}
    assert any(text in failure.message for failure in found), found
    assert {failure.model for failure in found} == {"Net"}


class Small(nn.Module):
    """Scales by something that hardly matters, and adds what a norm takes away again."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.shift = nn.BatchNorm1d(4), nn.Parameter(torch.ones(4))
        self.scale = nn.Parameter(torch.ones(4))
        nn.init.ones_(self.norm.bias)

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(torch.add(x, self.shift)) + torch.mul(self.scale, 1e-7)


class Detaches(GraphPass):
    """Cut the gradients of what one operation adds or multiplies."""

    name = "detaches"
    numerics = Numerics.ROUNDING
    trains = True
    of: str = ""

    def steps(self, module: GraphModule, facts: Facts) -> Iterator[Step | Refusal]:
        for node in list(module.graph.nodes):
            if any(getattr(one, "target", None) == self.of for one in node.args):
                yield Step(node, "", lambda edit, old=node: self.rewrite(old, edit))

    def rewrite(self, node: Node, edit: Editor) -> None:
        args = [
            edit.call_method("detach", one) if getattr(one, "target", None) == self.of else one
            for one in node.args
        ]
        edit.replace(node, edit.call_function(node.target, *args))


# The verifier looks at every place: there it tells of a lost gradient whatever its size.
@pytest.mark.parametrize(
    ("of", "verified", "is_found"),
    [("scale", True, True), ("scale", False, True), ("shift", False, False)],
)
def test_a_gradient_that_is_lost_is_found_however_small(
    of: str, verified: bool, is_found: bool
) -> None:
    model = Model(Small().train(), (X * torch.linspace(1, 2, 8).reshape(2, 4),))
    trial = Trial(Detaches(of=of), model, verified=verified)
    assert trial.fires
    assert bool(list(gradients(trial))) is is_found


def test_an_exact_pass_loses_no_gradient_at_all() -> None:
    class Exactly(Detaches):
        numerics = Numerics.EXACT

    trial = Trial(Exactly(of="shift"), Model(Small().train(), (X,)), verified=False)
    assert "the gradient of shift" in " ".join(gradients(trial))


# -- rules that are not about one model


def test_a_pass_that_does_nothing_is_not_taken_for_a_right_one() -> None:
    silent = failures_of(DropDoubleRelu, models=[(nn.Linear(4, 4).eval(), X)])
    assert [str(failure) for failure in silent] == [
        "fires on Linear: nothing was rewritten (the pass finds no site)"
    ]
    with pytest.raises(NotConformant, match=r"fires: nothing was rewritten: pass models="):
        check_pass(DropDoubleRelu, without=[Rule.HOSTILE])


class IgnoresWrites(DropDoubleRelu):
    """Reads what the first ReLU read, as late as the second did."""

    name = "ignores_writes"

    def rewrite(self, node: Node, edit: Editor) -> None:
        first = node.args[0]
        new = edit.call_function(torch.relu, first.args[0])
        edit.replace(node, new, absorbing=[first])


class Layers(nn.Sequential):
    def __init__(self) -> None:
        super().__init__(nn.Linear(4, 4), nn.Dropout(0.5), nn.ReLU())


class IgnoresHooks(GraphPass):
    """Call functions in place of ReLU modules, whatever is hooked to them."""

    name = "ignores_hooks"
    numerics = Numerics.EXACT

    def steps(self, module: GraphModule, facts: Facts) -> Iterator[Step | Refusal]:
        for node in list(module.graph.nodes):
            is_module = node.op == "call_module"
            if is_module and isinstance(module.get_submodule(str(node.target)), nn.ReLU):
                yield Step(node, "", lambda edit, old=node: self.rewrite(old, edit))

    def rewrite(self, node: Node, edit: Editor) -> None:
        edit.replace(node, edit.call_function(torch.relu, node.args[0]))


class IgnoresTheMode(GraphPass):
    """Take dropout for nothing, in training too."""

    name = "ignores_the_mode"
    numerics = Numerics.EXACT
    trains = True

    def steps(self, module: GraphModule, facts: Facts) -> Iterator[Step | Refusal]:
        for node in list(module.graph.nodes):
            if op_of(node) is Op.DROPOUT:
                yield Step(node, "", lambda edit, old=node: edit.replace(old, old.args[0]))


@pytest.mark.parametrize(
    ("graph_pass", "model", "how"),
    [
        (IgnoresWrites, NET, "written in between"),
        (IgnoresHooks, (Layers().eval(), X), "with hooks on its layers"),
        (IgnoresTheMode, (Layers().eval(), X), "in training mode"),
    ],
)
def test_what_only_difficult_models_show_is_found(graph_pass: Any, model: Any, how: str) -> None:
    check_pass(graph_pass, models=[model], without=[Rule.HOSTILE, Rule.GRADIENTS])
    found = failures_of(graph_pass, models=[model], hostile=[], without=[Rule.GRADIENTS])
    assert {failure.rule for failure in found} == {Rule.HOSTILE}
    assert any(how in failure.model for failure in found), found


# -- conditions


def first_is_read_once(site: Node, facts: Facts) -> str | None:
    readers = len(facts.readers(site.args[0]))
    return f"{readers} nodes read the first" if readers > 1 else None


def nothing_writes_between(site: Node, facts: Facts) -> str | None:
    first = site.args[0]
    inner = first.args[0]
    writer = facts.written_between(inner, site, inner) or facts.written_between(first, site, first)
    return f"{writer.name} writes in between" if writer else None


def it_is_not_monday(site: Node, facts: Facts) -> str | None:
    return "it is Monday" if len(site.graph.nodes) == 5 else None


class Careful(Rewrite[Node]):
    """One ReLU in place of two."""

    name = "careful"
    numerics = Numerics.EXACT
    trains = True
    legal_if = (nothing_writes_between,)
    worthwhile_if = (first_is_read_once,)

    def match(self, node: Node, facts: Facts) -> Node | None:
        return node if is_double_relu(node) else None

    def rewrite(self, site: Node, edit: Editor) -> None:
        first = site.args[0]
        edit.replace(site, edit.call_function(torch.relu, first.args[0]), absorbing=[first])


class Written(Net):
    def forward(self, x: Tensor) -> Tensor:
        y = torch.relu(self.layer(x))
        y.mul_(2)
        return torch.relu(y)


class ReadTwice(Net):
    def forward(self, x: Tensor) -> Tensor:
        y = torch.relu(self.layer(x))
        return torch.relu(y) + y


WRITTEN = {nothing_writes_between: (Written().eval(), X)}
READ_TWICE = {first_is_read_once: (ReadTwice().eval(), X)}


def test_a_right_pass_keeps_all_rules() -> None:
    check_pass(Careful, models=[NET], goes_wrong=WRITTEN, still_right=READ_TWICE)


class TooCareful(Careful):
    name = "too_careful"
    legal_if = (nothing_writes_between, first_is_read_once)
    worthwhile_if = ()


class Superstitious(Careful):
    name = "superstitious"
    legal_if = (it_is_not_monday, nothing_writes_between)


class Careless(Careful):
    name = "careless"
    legal_if = ()
    worthwhile_if = (nothing_writes_between,)


def never(site: Node, facts: Facts) -> str | None:
    return "never"


@pytest.mark.parametrize(
    ("graph_pass", "how", "text"),
    [
        (Careful, {}, "nothing shows that nothing_writes_between is needed: pass goes_wrong="),
        (
            TooCareful,
            {"goes_wrong": WRITTEN | READ_TWICE},
            "first_is_read_once is not needed: without it everything comes out right",
        ),
        (
            Superstitious,
            {"goes_wrong": WRITTEN | {it_is_not_monday: (Written().eval(), X)}},
            "it_is_not_monday does not refuse it: nothing_writes_between does",
        ),
        (
            Careful,
            {"goes_wrong": {nothing_writes_between: NET}},
            "nothing_writes_between does not refuse it: nothing does",
        ),
        (Careful, {"goes_wrong": WRITTEN | {never: NET}}, "never is not in legal_if of careful"),
        (Careful, {"goes_wrong": WRITTEN, "still_right": WRITTEN}, "is not in worthwhile_if"),
        (Careless, {"still_right": WRITTEN}, "so that belongs in legal_if: the output"),
    ],
)
def test_conditions_have_to_be_needed(graph_pass: Any, how: Any, text: str) -> None:
    found = failures_of(graph_pass, **how)
    assert {failure.rule for failure in found} == {Rule.CONDITIONS}
    assert any(text in failure.message for failure in found), found


class TwiceCareful(Careful):
    """The second condition says what the first says."""

    name = "twice_careful"

    @staticmethod
    def nothing_writes_at_all(site: Node, facts: Facts) -> str | None:
        return nothing_writes_between(site, facts)

    legal_if = (nothing_writes_between, nothing_writes_at_all)


def test_conditions_that_say_the_same_are_not_needed() -> None:
    models = dict.fromkeys(TwiceCareful.legal_if, (Written().eval(), X))
    texts = [failure.message for failure in failures_of(TwiceCareful, goes_wrong=models)]
    assert texts == [
        "nothing_writes_between is not needed: without it nothing_writes_at_all refuses the model",
        "nothing_writes_at_all does not refuse it: nothing_writes_between does",
    ]


def test_what_goes_wrong_is_told() -> None:
    assert goes_wrong(DropsTheFirst(), NET) is not None
    assert goes_wrong(DropDoubleRelu(), NET) is None
    halved = Model(Net().eval(), (X,), then=lambda module: module.shift.mul_(2))
    assert goes_wrong(DropDoubleRelu(), halved) is None


# -- what can be checked, and how it is said


def drops_double_relu(module: GraphModule) -> None:
    for node in list(module.graph.nodes):
        if is_double_relu(node):
            node.replace_all_uses_with(node.args[0])
            module.graph.erase_node(node)
    module.recompile()


class Largest(DropDoubleRelu):
    name = "largest"
    most: int

    def steps(self, module: GraphModule, facts: Facts) -> Iterator[Step | Refusal]:
        yield from itertools.islice(super().steps(module, facts), self.most)


@pytest.mark.parametrize(
    ("graph_pass", "options"),
    [
        (DropDoubleRelu(), None),
        (drops_double_relu, None),
        (Largest, {"most": 1}),
        (Renewing, {}),
    ],
)
def test_passes_of_every_kind_can_be_checked(graph_pass: Any, options: Any) -> None:
    check_pass(graph_pass, models=[NET], options=options, without=[Rule.HOSTILE])


def test_a_failure_is_an_assertion_that_says_rule_model_and_line() -> None:
    model = Model(Net().eval(), (X,), name="two in a row")
    with pytest.raises(AssertionError) as caught:
        check_pass(DropsTheFirst, models=[model], without=[Rule.HOSTILE])
    assert isinstance(caught.value, FxPassesError)
    first, second = str(caught.value).splitlines()[:2]
    assert first == "drops_the_first breaks 2 rules of a pass"
    assert second.startswith("  numerics on two in a row: the optimised model does not compute")
    assert f"({__file__}:" in second


@pytest.mark.parametrize(
    ("given", "how", "text"),
    [
        ("dce", {}, "'dce' is no pass"),
        (DropDoubleRelu(), {"options": {"most": 1}}, "options are those of a pass class"),
        (DropDoubleRelu, {"models": [Net()]}, "pass .module, inputs. pairs"),
        (DropDoubleRelu, {"models": [(Net(), X, 1)]}, "a tuple of 3"),
        (DropDoubleRelu, {"models": [(Net, X)]}, "is the class Net"),
        (DropDoubleRelu, {"without": ["numerics"]}, "pass members of Rule"),
    ],
)
def test_other_arguments_are_typed_errors(given: Any, how: Any, text: str) -> None:
    with pytest.raises(ArgumentError, match=text):
        check_pass(given, **how)


def test_a_model_that_raises_is_no_fault_of_the_pass() -> None:
    with pytest.raises(FxPassesError, match="mat1 and mat2") as caught:
        check_pass(DropDoubleRelu, models=[(Net().eval(), X[:, :3])])
    assert not isinstance(caught.value, NotConformant)


def test_the_models_of_the_kit_can_be_run_as_often_as_one_likes() -> None:
    for model in (*typical(), *hostile()):
        args, kwargs = model.arguments()
        model.own().module(*args, **kwargs)
    names = [model.name for model in (*typical(), *hostile())]
    assert len(set(names)) == len(names)


def test_variants_are_of_every_kind() -> None:
    names = [variant.name for variant in hostile_variants(Trial(Careful(), Model(*NET[:1], (X,))))]
    ends = ("called twice", "tied to another", "named by code", "written around", "bfloat16")
    for end in (*ends, "in training mode", "returned too", "written in between"):
        assert any(name.endswith(end) for name in names), end


def test_the_random_states_stay_where_they_are() -> None:
    before = torch.get_rng_state(), random.getstate()
    check_pass(DropDoubleRelu, models=[NET], without=[Rule.HOSTILE])
    assert torch.equal(torch.get_rng_state(), before[0])
    assert random.getstate() == before[1]


def test_the_kit_needs_no_runner() -> None:
    files = list(Path(testing.__file__).parent.glob("*.py"))
    assert len(files) > 5
    assert [path.name for path in files if "pytest" in path.read_text("utf-8")] == []

"""A twin shares every tensor and holds nothing else of the tree it was made from."""

import collections
import functools
import weakref
from typing import NamedTuple

import pytest
import torch
from torch import Tensor, nn
from torch.fx import symbolic_trace
from torch.nn.utils import parametrizations, parametrize

from fxpasses.capture.inside import all_modules
from fxpasses.capture.twins.own_tensors import OwnTensors
from fxpasses.capture.twins.twin import twin


class Pair(NamedTuple):
    first: nn.Module
    second: int


class Plain:
    def __init__(self, held: nn.Module) -> None:
        self.held = held

    def work(self, x: Tensor) -> Tensor:
        return self.held(x)


class Slotted:
    __slots__ = ("held",)

    def __init__(self, held: nn.Module) -> None:
        self.held = held


class Odd(nn.Module):
    """Holds a child in every way that Python has."""

    def __init__(self) -> None:
        super().__init__()
        self.child = nn.Linear(4, 4)
        self.again = self.child
        self.register_buffer("kept", torch.ones(4))
        self.register_buffer("passing", torch.ones(4), persistent=False)
        self.register_buffer("nothing", None)
        self.hidden = [nn.Linear(4, 4)]
        self.pair = Pair(self.child, 1)
        self.table = {"a": self.child}
        self.by_module = {self.child: "a"}
        self.ordered = collections.OrderedDict(a=self.child)
        self.default = collections.defaultdict(list, a=[self.child])
        self.queue = collections.deque([self.child], maxlen=3)
        self.modules_set = {self.child}
        self.partial = functools.partial(self.helper, self.child)
        self.bound = self.helper
        self.function = lambda x: self.child(x)  # noqa: PLW0108  a closure over self is meant
        self.plain = Plain(self.child)
        self.work = self.plain.work
        self.slotted = Slotted(self.child)
        self.weak = weakref.ref(self.child)
        self.numbers = [1, 2]
        self.scaled = self.child.weight * 2

    def helper(self, other: nn.Module, x: Tensor) -> Tensor:
        return other(x)

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x)


@pytest.fixture
def odd() -> Odd:
    return Odd()


def test_the_tree_is_new_and_the_tensors_are_the_same(odd: Odd) -> None:
    new, found = twin(odd)

    assert type(new) is Odd
    assert new is not odd
    assert new.child is not odd.child
    assert new.again is new.child
    assert found.old(new.child) is odd.child
    assert found.new(odd.child) is new.child
    assert new.child.weight is odd.child.weight
    assert new.kept is odd.kept
    assert new.scaled is odd.scaled
    assert list(new.state_dict()) == list(odd.state_dict())
    assert new._parameters is not odd._parameters


@pytest.mark.parametrize(
    "held",
    [
        lambda m: m.pair.first,
        lambda m: m.table["a"],
        lambda m: next(iter(m.by_module)),
        lambda m: m.ordered["a"],
        lambda m: m.default["a"][0],
        lambda m: m.queue[0],
        lambda m: next(iter(m.modules_set)),
        lambda m: m.partial.args[0],
        lambda m: m.function.__closure__[0].cell_contents.child,
        lambda m: m.plain.held,
        lambda m: m.work.__self__.held,
        lambda m: m.slotted.held,
        lambda m: m.weak(),
        lambda m: m.bound.__self__.child,
    ],
    ids=lambda held: None,
)
def test_every_reference_leads_to_the_new_child(odd: Odd, held) -> None:
    new, _ = twin(odd)
    assert held(new) is new.child
    assert held(odd) is odd.child


def test_containers_and_unregistered_modules_are_copies(odd: Odd) -> None:
    new, _ = twin(odd)

    assert new.hidden[0] is not odd.hidden[0]
    assert new.hidden[0].weight is odd.hidden[0].weight
    assert new.queue.maxlen == 3
    assert new.default.default_factory is list
    assert new.plain is not odd.plain
    assert new.work.__self__ is new.plain
    new.numbers.append(3)
    assert odd.numbers == [1, 2]


def test_a_child_that_holds_its_parent(odd: Odd) -> None:
    object.__setattr__(odd.child, "parent", odd)
    new, _ = twin(odd)
    assert new.child.parent is new


def test_three_thousand_nested_modules() -> None:
    root = module = nn.Sequential()
    for _ in range(3000):
        inner = nn.Sequential()
        module.add_module("inner", inner)
        module = inner

    new, _ = twin(root)

    assert sum(1 for _ in all_modules(new)) == 3001


def test_hooks_of_the_tree_are_rebound_and_others_stay_the_callers(odd: Odd) -> None:
    seen: list[str] = []

    class Counting(nn.Linear):
        def note(self, *_: object) -> None:
            self.notes = getattr(self, "notes", 0) + 1

    child = odd.child = Counting(4, 4)
    child.register_forward_hook(child.note)
    odd.register_forward_hook(lambda *_: seen.append("mine"))
    odd.child.register_forward_hook(lambda m, *_: seen.append(str(odd.child is m)))
    odd._register_load_state_dict_pre_hook(lambda *_: None, with_module=True)

    new, _ = twin(odd)
    new(torch.ones(1, 4))

    assert new.child.notes == 1
    assert not hasattr(odd.child, "notes")
    assert seen == ["True", "mine"]
    (wrapped,) = new._load_state_dict_pre_hooks.values()
    assert wrapped.module() is new
    new.load_state_dict(new.state_dict())


def test_shared_and_replaced_modules(odd: Odd) -> None:
    shared, _ = twin(odd, share=[odd.child])
    assert shared.child is odd.child
    other = nn.Linear(4, 4)
    replaced, _ = twin(odd, replace={odd.child: other})
    assert replaced.child is replaced.plain.held is other


@pytest.mark.filterwarnings("ignore:`torch.jit.script`:FutureWarning")
@pytest.mark.filterwarnings("ignore:`torch.jit.script`:DeprecationWarning")
def test_sealed_modules_are_shared() -> None:
    script = torch.jit.script(nn.ReLU())
    new, found = twin(nn.Sequential(script))
    assert new[0] is script
    assert found.shared == [script]


def test_a_graph_module_gets_a_class_of_its_own() -> None:
    inner = symbolic_trace(nn.Sequential(nn.Linear(4, 4)))
    model = nn.Sequential(inner)
    new, _ = twin(model)

    assert type(new[0]) is not type(inner)
    (call,) = [node for node in new[0].graph.nodes if node.op == "call_module"]
    call.replace_all_uses_with(next(iter(new[0].graph.nodes)))
    new[0].graph.erase_node(call)
    new[0].recompile()
    x = torch.randn(2, 4)
    torch.testing.assert_close(model(x), inner.get_submodule("0")(x))
    assert torch.equal(new(x), x)


def test_what_cannot_be_copied_is_shared() -> None:
    class Stubborn:
        def __reduce_ex__(self, protocol: object) -> str:
            raise TypeError

    model = nn.Linear(4, 4)
    model.stubborn = Stubborn()
    new, found = twin(model)
    assert new.stubborn is model.stubborn
    assert found.shared == [model.stubborn]


@pytest.mark.parametrize(
    "made",
    [
        lambda: nn.LSTM(4, 4),
        lambda: parametrizations.weight_norm(nn.Linear(4, 4)),
        lambda: parametrizations.spectral_norm(nn.Linear(4, 4)).eval(),
        lambda: nn.Sequential(nn.ModuleList([nn.Linear(4, 4)])[0], nn.ParameterList([])[0:0]),
        lambda: nn.TransformerEncoderLayer(4, 2, batch_first=True).eval(),
    ],
)
def test_layers_with_inner_references_compute_the_same(made) -> None:
    model = made()
    if isinstance(model, nn.Sequential):
        model = model[:1]
    new, _ = twin(model)
    x = torch.randn(2, 3, 4)
    torch.testing.assert_close(new(x), model(x), rtol=0, atol=0)


def test_removing_a_parametrization_needs_the_class_of_the_original() -> None:
    model = parametrizations.weight_norm(nn.Linear(4, 4))
    new, _ = twin(model)
    assert type(new) is type(model)
    assert parametrize.is_parametrized(new)


class TestOwnTensors:
    def test_buffers_and_plain_tensors_are_copied_and_parameters_are_not(self, odd: Odd) -> None:
        odd.plain_tensor = torch.zeros(2)
        new, _ = twin(odd, tensors=OwnTensors(odd))

        assert new.child.weight is odd.child.weight
        assert new.scaled is odd.scaled
        for name in ("kept", "passing", "plain_tensor"):
            assert getattr(new, name) is not getattr(odd, name)
            assert torch.equal(getattr(new, name), getattr(odd, name))
        new.kept.add_(1)
        assert odd.kept.sum() == 4

    def test_ties_stay(self) -> None:
        model = nn.Module()
        model.register_buffer("a", torch.arange(6.0).reshape(2, 3))
        model.register_buffer("b", model.a)
        model.register_buffer("row", model.a[1])
        model.weight = nn.Parameter(torch.ones(4))
        model.register_buffer("head", model.weight.data[:2])

        new, _ = twin(model, tensors=OwnTensors(model))

        assert new.a is new.b
        new.a.fill_(7)
        assert new.row.tolist() == [7, 7, 7]
        assert model.a.sum() == 15
        assert new.head is model.head

    def test_copies_keep_their_strides(self) -> None:
        model = nn.Module()
        model.register_buffer("t", torch.arange(6.0).reshape(2, 3).t())
        new, _ = twin(model, tensors=OwnTensors(model))
        assert new.t.stride() == model.t.stride()
        assert torch.equal(new.t, model.t)


def test_hooks_may_be_held_in_common_where_there_are_none_yet() -> None:
    model = nn.Sequential(nn.ReLU(), nn.Tanh())
    calls: list[object] = []
    model[1].register_forward_hook(lambda module, *_: calls.append(module))

    copy, _ = twin(model, join_hooks=True)
    model[0].register_forward_hook(lambda module, *_: calls.append(module))
    copy[1].register_forward_hook(lambda module, *_: calls.append(module))
    copy(torch.ones(1))

    assert calls == [copy[0], copy[1], copy[1]]
    assert len(model[1]._forward_hooks) == 1


def test_an_attribute_that_is_called_as_a_graph_is_copied() -> None:
    model = nn.ReLU()
    model._graph = settings = [1]

    copy, _ = twin(model)

    assert copy._graph == settings
    assert copy._graph is not settings

"""State that a forward keeps in containers, in helper objects and outside of the model."""

import collections
import copy
import dataclasses
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import fxpasses
from fxpasses.analysis.reach import tensors_within_reach
from fxpasses.capture.tracing.tracer import OpaqueKind

X = torch.linspace(-1, 2, 8).reshape(2, 4)
STATE, DECIDES = OpaqueKind.PYTHON_STATE, OpaqueKind.CONTROL_FLOW
GLOBAL = torch.zeros(4)


@dataclasses.dataclass
class Record:
    t: Tensor


class Slotted:
    __slots__ = ("t",)

    def __init__(self) -> None:
        self.t = torch.ones(4)


class Helper:
    def __init__(self) -> None:
        self.t, self.inner = torch.ones(4), [torch.ones(4)]


def adding(tensor: Tensor) -> Callable[[], Tensor]:
    return lambda: tensor.add_(1)


class Subject(nn.Module):
    on_class = torch.zeros(4)

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.register_buffer("b", torch.zeros(2, 4))
        self.views = [self.b[0], self.b[1]]
        self.cache = {"k": torch.ones(4)}
        self.history = [torch.ones(4), torch.ones(4)]
        self.pair = (torch.ones(4), [torch.ones(4)])
        self.queue = collections.deque([torch.ones(4)], maxlen=2)
        self.members = {torch.ones(4)}
        self.record, self.slotted, self.helper = Record(torch.ones(4)), Slotted(), Helper()
        self.deep = {"x": {"y": [{"z": torch.ones(4)}]}}
        self.hidden = adding(torch.ones(4))
        self.noise = torch.distributions.Normal(torch.zeros(4), torch.ones(4))
        self.weights = [nn.Parameter(torch.ones(4)), self.linear.weight]


def dict_item_added_to(s: Any, x: Tensor) -> Tensor:
    s.cache["k"] += 1
    return s.linear(x) * s.cache["k"]


def list_item_added_to(s: Any, x: Tensor) -> Tensor:
    s.history[0] += x[0]
    return s.linear(x) + s.history[0]


def tuple_of_lists(s: Any, x: Tensor) -> Tensor:
    s.pair[0].add_(x[0])
    s.pair[1][0] *= 2
    return s.linear(x) + s.pair[0] * s.pair[1][0]


def deque_appended_to(s: Any, x: Tensor) -> Tensor:
    s.queue.append(s.queue[-1] + 1)
    return s.linear(x) + s.queue[-1]


def field_of_a_record(s: Any, x: Tensor) -> Tensor:
    s.record.t += 1
    return s.linear(x) + s.record.t


def slot_of_an_object(s: Any, x: Tensor) -> Tensor:
    s.slotted.t = s.slotted.t + x[0]
    return s.linear(x) + s.slotted.t


def attributes_of_an_object(s: Any, x: Tensor) -> Tensor:
    s.helper.t += 1
    s.helper.inner[0].add_(1)
    return s.linear(x) + s.helper.t * s.helper.inner[0]


def deep_item_replaced(s: Any, x: Tensor) -> Tensor:
    inner = s.deep["x"]["y"][0]
    inner["z"] = inner["z"] + x[0]
    return s.linear(x) + inner["z"]


# Those below decide on data as well, so that their own code runs on what they hold.


def dict_item_written(s: Any, x: Tensor) -> Tensor:
    s.cache["k"].copy_(s.cache["k"] + x[0])
    return s.linear(x) * s.cache["k"] if x.sum() > 0 else x


def deque_item_written(s: Any, x: Tensor) -> Tensor:
    s.queue[0].add_(1)
    return s.linear(x) + s.queue[0] if x.sum() > 0 else x


def members_written(s: Any, x: Tensor) -> Tensor:
    for member in s.members:
        member.add_(1)
    return s.linear(x) + sum(s.members) if x.sum() > 0 else x


def deep_item_added_to(s: Any, x: Tensor) -> Tensor:
    s.deep["x"]["y"][0]["z"] += x[0]
    return s.linear(x) + s.deep["x"]["y"][0]["z"] if x.sum() > 0 else x


def view_of_a_buffer_written(s: Any, x: Tensor) -> Tensor:
    s.views[0].add_(1)
    return s.linear(x) + s.b[0] if x.sum() > 0 else x


def closure_written(s: Any, x: Tensor) -> Tensor:
    return s.linear(x) + s.hidden() if x.sum() > 0 else x


def object_of_a_library_written(s: Any, x: Tensor) -> Tensor:
    s.noise.loc.add_(1)
    return s.linear(x) + s.noise.loc if x.sum() > 0 else x


def global_written(s: Any, x: Tensor) -> Tensor:
    GLOBAL.add_(1)
    return s.linear(x) + GLOBAL if x.sum() > 0 else x


def class_attribute_written(s: Any, x: Tensor) -> Tensor:
    s.on_class.add_(1)
    return s.linear(x) + s.on_class if x.sum() > 0 else x


def parameter_in_a_list_written(s: Any, x: Tensor) -> Tensor:
    with torch.no_grad():
        s.weights[0].add_(1)
    return s.linear(x) + s.weights[0]


def parameter_of_another_name_written(s: Any, x: Tensor) -> Tensor:
    with torch.no_grad():
        s.weights[1].mul_(0.5)
    return s.linear(x)


OWN = {
    **dict.fromkeys(
        (
            dict_item_added_to,
            list_item_added_to,
            tuple_of_lists,
            deque_appended_to,
            field_of_a_record,
            slot_of_an_object,
            attributes_of_an_object,
            deep_item_replaced,
        ),
        STATE,
    ),
    **dict.fromkeys(
        (
            dict_item_written,
            deque_item_written,
            members_written,
            deep_item_added_to,
            view_of_a_buffer_written,
        ),
        DECIDES,
    ),
}
SHARED = {
    closure_written: DECIDES,
    object_of_a_library_written: DECIDES,
    global_written: DECIDES,
    class_attribute_written: DECIDES,
    parameter_in_a_list_written: OpaqueKind.REGION,
    parameter_of_another_name_written: OpaqueKind.REGION,
}


def model_of(forward: Any, *, inner: bool) -> nn.Module:
    kind = type("Own", (Subject,), {"forward": forward, "on_class": torch.zeros(4)})
    torch.manual_seed(0)
    model = kind()
    return (nn.Sequential(nn.Linear(4, 4), model) if inner else model).eval()


def held_by(model: nn.Module) -> list[Tensor]:
    found = tensors_within_reach(model)
    assert found is not None
    return found


@pytest.mark.parametrize("inner", [False, True], ids=["root", "inner"])
@pytest.mark.parametrize(("forward", "kind"), [*OWN.items(), *SHARED.items()])
def test_modules_that_keep_state_in_such_places_are_opaque_and_nothing_of_it_changes(
    forward: Any, kind: OpaqueKind, inner: bool
) -> None:
    model = model_of(forward, inner=inner)
    tensors = held_by(model)
    before = [(tensor.clone(), tensor._version) for tensor in tensors]

    captured = fxpasses.capture(model, (X,))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what one step does to rounding is not at issue here
        fxpasses.run(model, [], (X,))

    assert [leaf.kind for leaf in captured.opaque] == [kind]
    assert all(
        torch.equal(now, old) and now._version == version
        for now, (old, version) in zip(tensors, before, strict=True)
    )


@pytest.mark.parametrize("example", [(X,), None], ids=["example", "names"])
@pytest.mark.parametrize("forward", OWN)
def test_the_result_keeps_such_state_as_the_original_does(forward: Any, example: Any) -> None:
    model = model_of(forward, inner=False)
    result = fxpasses.run(model, [], example, verify=example is not None)

    for step in range(3):
        assert torch.equal(result(X + step), model(X + step))


@pytest.mark.parametrize("forward", [dict_item_written, global_written])
def test_coverage_changes_nothing_either(forward: Any) -> None:
    model = model_of(forward, inner=True)
    tensors = held_by(model)
    before = [tensor.clone() for tensor in tensors]

    coverage = fxpasses.capture(model, (X,)).coverage()

    assert coverage is not None
    assert coverage.calls < 1
    assert all(map(torch.equal, tensors, before))


def test_a_tensor_in_a_list_is_written_by_the_graph_as_by_the_model() -> None:
    class Writes(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.history = [torch.zeros(4)]

        def forward(self, x: Tensor) -> Tensor:
            self.history[0].add_(x[0])
            return x + self.history[0]

    model = Writes()
    captured = fxpasses.capture(model, (X,))
    result = fxpasses.run(model, [], (X,))

    assert captured.opaque == ()
    assert not model.history[0].any()
    for step in range(2):
        assert torch.equal(result(X + step), model(X + step))
    assert torch.equal(result.history[0], model.history[0])


def test_tensors_that_are_keys_are_found_in_the_result() -> None:
    class Keyed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("b", torch.ones(4))
            self.factors = {self.b: 3.0}

        def forward(self, x: Tensor) -> Tensor:
            return x * self.factors[self.b] if x.sum() > 0 else x

    model = Keyed()
    assert torch.equal(fxpasses.run(model, [], (X,), verify=False)(X), model(X))


class Argument:
    """A helper object that is given to a forward."""

    def __init__(self) -> None:
        self.x, self.y = X.clone(), None


@dataclasses.dataclass(slots=True)
class SlottedRecord:
    x: Tensor
    y: Any = None


def adds_a_key(s: Any, a: Any) -> Tensor:
    a["y"] = s.linear(a["x"])
    return a["x"] * 2


def pops_a_key(s: Any, a: Any) -> Tensor:
    return s.linear(a.pop("x"))


def clears(s: Any, a: Any) -> Tensor:
    x = a["x"]
    a.clear()
    return s.linear(x)


def moves_a_key(s: Any, a: Any) -> Tensor:
    a.move_to_end("x")
    return s.linear(a["x"])


def appends(s: Any, a: Any) -> Tensor:
    a.append(s.linear(a[0]))
    return a[0] + 1


def sorts(s: Any, a: Any) -> Tensor:
    tensor = a.pop()
    a.sort()
    return s.linear(tensor) * a[0]


def appends_deep(s: Any, a: Any) -> Tensor:
    a["in"][0].append(s.linear(a["in"][0][0]))
    return a["in"][0][0] + 1


def sets_an_attribute(s: Any, a: Any) -> Tensor:
    a.y = s.linear(a.x)
    return a.x + 1


def adds_a_member(s: Any, a: Any) -> Tensor:
    a.add(3)
    return s.linear(X) * len(a)


CHANGES = OpaqueKind.CHANGES_ARGUMENT
WRITERS: list[tuple[Any, Callable[[], Any], OpaqueKind]] = [
    (adds_a_key, lambda: {"x": X.clone()}, CHANGES),
    (pops_a_key, lambda: {"x": X.clone(), "z": 1}, CHANGES),
    (clears, lambda: {"x": X.clone()}, CHANGES),
    (moves_a_key, lambda: collections.OrderedDict(x=X.clone(), z=X.clone()), CHANGES),
    (appends, lambda: [X.clone()], CHANGES),
    (sorts, lambda: [3, 1, X.clone()], CHANGES),
    (appends_deep, lambda: {"in": ([X.clone()],)}, CHANGES),
    (sets_an_attribute, lambda: Record2(X.clone()), CHANGES),
    (sets_an_attribute, lambda: SlottedRecord(X.clone()), CHANGES),
    (sets_an_attribute, Argument, OpaqueKind.STATEFUL_ARGUMENT),
    (adds_a_member, lambda: {1, 2}, CHANGES),
]


@dataclasses.dataclass
class Record2:
    x: Tensor
    y: Any = None


class Between(nn.Module):
    """Passes on what it is given."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, a: Any) -> Tensor:
        return self.inner(a) + 1


class Owner(nn.Module):
    """Makes the argument itself, and returns what has become of it."""

    def __init__(self, inner: nn.Module, make: Callable[[], Any]) -> None:
        super().__init__()
        self.inner, self.make = inner, make

    def forward(self, x: Tensor) -> Any:
        a = self.make()
        return self.inner(a) + x, a


def flat(value: Any) -> list[Any]:
    """Types, keys and leaves of nested containers and objects."""
    if isinstance(value, dict):
        return [type(value), *(part for key, v in value.items() for part in (key, *flat(v)))]
    if isinstance(value, (list, tuple)):
        return [type(value), *(part for item in value for part in flat(item))]
    if isinstance(value, (Argument, Record2, SlottedRecord)):
        return [type(value), *flat(value.x), *flat(value.y)]
    return [value]


def same(a: Any, b: Any) -> bool:
    pairs = zip(flat(a), flat(b), strict=True)
    return all(torch.equal(p, q) if isinstance(p, Tensor) else p == q for p, q in pairs)


@pytest.mark.parametrize("depth", [0, 2])
@pytest.mark.parametrize(("forward", "make", "kind"), WRITERS)
def test_changes_of_an_argument_reach_the_caller(
    forward: Any, make: Callable[[], Any], kind: OpaqueKind, depth: int
) -> None:
    model = model_of(forward, inner=False)
    for _ in range(depth):
        model = Between(model)
    example = make()

    captured = fxpasses.capture(model.eval(), (example,))
    result = fxpasses.run(model, ["dce"], (example,))

    assert same(example, make())
    assert captured.opaque[0].kind is kind or depth
    theirs, ours = make(), make()
    assert same(model(theirs), result(ours))
    assert same(theirs, ours)


@pytest.mark.parametrize("with_example", [True, False])
@pytest.mark.parametrize(("forward", "make", "kind"), WRITERS)
def test_changes_of_what_a_child_is_given_reach_its_parent(
    forward: Any, make: Callable[[], Any], kind: OpaqueKind, with_example: bool
) -> None:
    model = Owner(model_of(forward, inner=False), make).eval()
    result = fxpasses.run(model, [], (X,) if with_example else None, verify=with_example)
    assert same(model(X), result(X)), kind


def test_without_an_example_an_opaque_child_may_change_what_it_is_given() -> None:
    class Sometimes(nn.Module):
        def forward(self, parts: list[Tensor]) -> Tensor:
            if parts[0].sum() > 0:
                parts.append(parts[0])
            return parts[0] * 2

    class Parent(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = Sometimes()

        def forward(self, x: Tensor) -> Any:
            parts = [x]
            return self.inner(parts), len(parts)

    model = Parent()
    result = fxpasses.run(model, [], verify=False)
    for x in (X, -X):
        assert same(copy.deepcopy(model)(x), result(x))


def test_a_generator_that_a_model_holds_is_moved_by_its_own_calls_alone() -> None:
    class Drawing(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.generator = torch.Generator().manual_seed(0)
            self.lists = [self.generator, torch.default_generator]

        def forward(self, x: Tensor) -> Tensor:
            assert self.lists[0] is self.generator
            return x + torch.rand(x.shape, generator=self.generator)

    model, expected = Drawing(), Drawing()
    state = model.generator.get_state()
    result = fxpasses.run(model, [], (torch.zeros(3),))
    assert torch.equal(model.generator.get_state(), state)
    assert result.lists[1] is torch.default_generator
    for _ in range(2):
        assert torch.equal(result(torch.zeros(3)), expected(torch.zeros(3)))
    assert torch.equal(model.generator.get_state(), state)

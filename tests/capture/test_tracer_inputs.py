"""Arguments of every form, and names that generated code must not stumble over."""

import collections
import copy
import dataclasses
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, nn

from fxpasses.capture.tracing.tracer import OpaqueKind
from tests.capture.tracing import module, run, same, traced

X = torch.linspace(-1, 1, 24).reshape(4, 6)


class Pair(NamedTuple):
    a: Tensor
    b: Tensor


@dataclasses.dataclass
class Record:
    a: Tensor
    b: Tensor | None = None


def with_defaults(self: Any, x: Tensor, n: int = 2, *, scale: float = 2.0) -> Tensor:
    return x * n + scale


def rest(self: Any, x: Tensor, **kwargs: Any) -> Tensor:
    return x if kwargs.get("y") is None else x * kwargs["y"]


# name, forward, attributes, args, kwargs
CALLS: list[tuple[str, Any, dict[str, Any], tuple[Any, ...], dict[str, Any]]] = [
    ("dict_by_key", lambda s, d: d["a"] + d["b"], {}, ({"a": X, "b": X + 1},), {}),
    ("dict_iterated", lambda s, d: sum(d.values()), {}, ({"a": X, "b": X + 1},), {}),
    (
        "dict_as_keywords",
        lambda s, d: s.g(**d),
        {"g": module(lambda s, a, b: a - b)},
        ({"a": X, "b": X * 2},),
        {},
    ),
    ("key_in_dict", lambda s, d: d["a"] if "a" in d else d["b"], {}, ({"a": X},), {}),
    ("ordered", lambda s, d: d["a"] * 2, {}, (collections.OrderedDict(a=X),), {}),
    ("named_tuple", lambda s, t: t.a + t.b, {}, (Pair(X, X + 1),), {}),
    ("record", lambda s, t: t.a * 2 if t.b is None else t.a + t.b, {}, (Record(X),), {}),
    ("record_full", lambda s, t: t.a * 2 if t.b is None else t.a + t.b, {}, (Record(X, X),), {}),
    ("nested_lists", lambda s, n: n[0][1] + n[1]["k"][0], {}, ([[X, X + 1], {"k": (X + 2,)}],), {}),
    ("empty_list", lambda s, x, n: x * (len(n) + 1), {}, (X, []), {}),
    ("none", lambda s, x, m=None: x if m is None else x * m, {}, (X,), {}),
    ("not_none", lambda s, x, m=None: x if m is None else x * m, {}, (X, X), {}),
    ("same_twice", lambda s, x, y: x * 2 if x is y else x, {}, (X, X), {}),
    ("written_twice", lambda s, x, y: (x.add_(1), y * 2)[1], {}, (X, X), {}),
    ("flag", lambda s, x, flag=False: x * 2 if flag else x, {}, (X, True), {}),
    ("defaults", with_defaults, {}, (X,), {}),
    ("keyword_only", with_defaults, {}, (X, 3), {"scale": 5.0}),
    ("by_keyword", with_defaults, {}, (), {"x": X, "n": 4}),
    ("variadic", lambda s, *a: sum(a), {}, (X, X + 1, X + 2), {}),
    ("variadic_then_keyword", lambda s, *a, k=1: a[0] * k, {}, (X,), {"k": X}),
    ("rest_empty", rest, {}, (X,), {}),
    ("rest_full", rest, {}, (X,), {"y": X}),
    ("default_object", lambda s, x, d=torch.float64: x.to(d), {}, (X,), {}),
    ("odd_default", lambda s, x, d=print: x * 2, {}, (X,), {}),
    ("dtype_argument", lambda s, x, d: x.to(d), {}, (X, torch.float64), {}),
    ("half_precision", lambda s, x: x * 2, {}, (X.half(),), {}),
    ("no_tensor", lambda s, n: torch.ones(n) * 2, {}, (3,), {}),
]


@pytest.mark.parametrize("case", CALLS, ids=[case[0] for case in CALLS])
def test_arguments(case: tuple[Any, ...]) -> None:
    _, forward, attributes, args, kwargs = case
    model = module(forward, **attributes)
    before = copy.deepcopy((args, kwargs))

    result = traced(model, args, kwargs)

    assert result.kinds == {}
    assert same((args, kwargs), before)
    assert same(run(model, args, kwargs), result.trace.outputs)
    assert same(run(model, args, kwargs), run(result, args, kwargs))


UNSAFE = [
    "sum",
    "list",
    "len",
    "input",
    "type",
    "id",
    "nan",
    "inf",
    "torch",
    "device",
    "math",
    "pytree",
    "fx_pytree",
    "NoneType",
    "builtins",
    "float",
    "int",
    "range",
    "slice",
    "getattr",
    "operator",
    "self_",
    "InputX",
    "x_1",
    "wrap",
    "größe",
    "print",
]


@pytest.mark.parametrize("name", UNSAFE)
def test_inputs_with_unsafe_names(name: str) -> None:
    space: dict[str, Any] = {"torch_": torch}
    body = f"{name}.clamp(max=torch_.inf).mul(2) + torch_.full_like({name}, torch_.nan)[:0].sum()"
    exec(f"def forward(this, {name}):\n    return {body}", space)
    model = module(space["forward"])
    for args in (None, (X,)):
        result = traced(model, args)
        assert same(model(X), result(X))
        assert same(model(**{name: X}), result(**{name: X}))


def test_an_input_named_self() -> None:
    space: dict[str, Any] = {}
    exec("def forward(this, self, inputX, input_x):\n    return self + inputX - input_x", space)
    model = module(space["forward"])
    result = traced(model, (X, X * 2, X * 3))
    assert same(model(X, X * 2, X * 3), result(X, X * 2, X * 3))
    assert set(result.trace.renamed) >= {"self"}


HOSTILE = [
    'a"b',
    "a\nb",
    "a'b",
    "a\\",
    'x"); raise SystemExit("',
    "for",
    "ünïcode",
    "ﬁ",
    "layer-1",
    "0",
    "a b",
    "self",
    "torch",
]


class HostileNames(nn.Module):
    def __init__(self, name: str) -> None:
        super().__init__()
        self.box = nn.ModuleDict({name: nn.Sequential(nn.Linear(6, 6), nn.ReLU())})
        self.weights = nn.ParameterDict({name: nn.Parameter(torch.full((6,), 2.0))})
        self.name = name

    def forward(self, x: Tensor) -> Tensor:
        return self.box[self.name](x) * self.weights[self.name]


@pytest.mark.parametrize("name", HOSTILE)
def test_modules_and_parameters_with_hostile_names(name: str) -> None:
    model = HostileNames(name).eval()
    for args in (None, (X,)):
        result = traced(model, args)
        assert result.kinds == {}
        assert same(model(X), result(X))


def test_attributes_of_the_root_with_hostile_names() -> None:
    class Hostile(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer('a"b', torch.ones(6))
            self.register_buffer("self", torch.ones(6))

        def forward(self, x: Tensor) -> Tensor:
            return x + getattr(self, 'a"b') + self.self

    result = traced(Hostile(), (X,))
    assert result.kinds == {"": OpaqueKind.UNTRACEABLE_VALUE}
    assert same(Hostile()(X), result(X))


def test_keywords_that_are_no_identifiers() -> None:
    class Takes(nn.Module):
        def forward(self, x: Tensor, **kwargs: Tensor) -> Tensor:
            return x if x.sum() > 1e9 else x + kwargs["a b"]

    class Gives(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.takes = Takes()

        def forward(self, x: Tensor) -> Tensor:
            return self.takes(x, **{"a b": x * 2})

    model = nn.Sequential(Gives())
    result = traced(model, (X,))
    assert result.kinds == {"0": OpaqueKind.UNTRACEABLE_VALUE}
    assert same(model(X), result(X))


def test_tensors_of_their_own_kind_are_refused() -> None:
    class Labelled(Tensor):
        pass

    own = torch.ones(3).as_subclass(Labelled)
    assert traced(module(lambda s, x: x * 2), (own,)).kinds == {"": OpaqueKind.UNTRACEABLE_VALUE}


def test_a_changed_input_container_makes_the_root_opaque() -> None:
    def forward(self: Any, found: list[Tensor]) -> Tensor:
        found.append(found[0] * 2)
        return found[-1]

    given = [X]
    result = traced(module(forward), (given,))
    assert result.kinds == {"": OpaqueKind.CHANGES_ARGUMENT}
    assert len(given) == 1

"""Each ingredient of a pattern is provoked alone, and said in words."""

import collections
import copy
import dataclasses
import enum
import pickle
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, nn

import fxpasses
from fxpasses.capture import calls_of, capture
from fxpasses.capture.result.pattern import Pattern

X = torch.ones(2, 3)


class Pair(NamedTuple):
    a: Tensor
    b: Tensor | None


@dataclasses.dataclass
class Box:
    a: Tensor
    b: int


class Color(enum.Enum):
    RED = 1
    BLUE = 2


class Strange(Tensor):
    pass


class Thing:
    pass


DIFFERENT: list[tuple[str, Any, Any]] = [
    ("rank", X, X[0]),
    ("dtype", X, X.double()),
    ("layout", X, X.to_sparse()),
    ("a tensor of class Strange", X, X.as_subclass(Strange)),
    ("device", X, X.to("meta")),
    ("None", X, None),
    ("is 1.0", X, 1.0),
    ("instead of 1", 1, 2),
    ("instead of 1", 1, 1.0),
    ("instead of True", True, 1),
    ("instead of 0.0", 0.0, -0.0),
    ("instead of 1j", 1j, 2j),
    ("instead of 'a'", "a", "b"),
    ("instead of torch.float32", torch.float32, torch.float16),
    ("instead of <Color.RED: 1>", Color.RED, Color.BLUE),
    ("instead of device(type='cpu')", torch.device("cpu"), torch.device("meta")),
    ("items", [X, X.clone()], [X]),
    ("a list", (X,), [X]),
    ("'b' where 'a' was", {"a": X}, {"b": X}),
    ("OrderedDict", {"a": X}, collections.OrderedDict(a=X)),
    ("['b']", Pair(X, None), Pair(X, X.clone())),
    ("['b']", Box(X, 1), Box(X, 2)),
    ("['stop']", slice(0, 1), slice(0, 2)),
    ("cannot be compared", Thing(), Thing()),
    ("a type", int, float),
    ("function", len, max),
]


@pytest.mark.parametrize(("said", "mine", "other"), DIFFERENT)
def test_another_argument_does_not_fit(said: str, mine: Any, other: Any) -> None:
    pattern = Pattern((mine,), {})
    assert pattern.admits((mine,), {}) is not isinstance(mine, Thing)
    assert not pattern.admits((other,), {})
    assert said in pattern.describe_difference((other,), {})
    assert not Pattern((), {"key": mine}).admits((), {"key": other})
    assert not Pattern((X, mine), {}).admits((X, other), {})


@pytest.mark.parametrize(
    "value",
    [X, None, 1.5, float("nan"), "a", [X, None], {"a": (X, 1)}, Pair(X, X.clone()), Box(X, 3),
     slice(0, None), torch.Size([1]), Color.RED, nn.Parameter(X), torch.empty(0, 3)],
)  # fmt: skip
def test_an_equal_call_fits_and_differs_in_nothing(value: Any) -> None:
    for pattern in (Pattern((value,), {"k": value}), Pattern((value,), {})):
        args = (copy.deepcopy(value),)
        kwargs = {"k": args[0]} if pattern.admits((value,), {"k": value}) else {}
        assert pattern.admits(args, kwargs)
        assert pattern.describe_difference(args, kwargs) == ""


def test_sizes_and_values_do_not_matter() -> None:
    assert Pattern((X,), {}).admits((torch.zeros(7, 9),), {})
    assert Pattern((X,), {}).admits((nn.Parameter(X),), {})


def test_one_tensor_in_two_places_is_another_call() -> None:
    apart, same = Pattern((X, X.clone()), {}), Pattern((X, X), {})
    overlapping = Pattern((X, X[1:]), {})
    y = X.clone()

    assert not apart.admits((X, X), {})
    assert "one tensor" in apart.describe_difference((X, X), {})
    assert not same.admits((X, y), {})
    assert same.admits((y, y), {})
    assert overlapping.admits((y, y[:1]), {})
    assert not overlapping.admits((X, y), {})
    assert not Pattern(([X, y],), {}).admits(([X, X],), {})


def test_the_number_and_the_names_of_arguments_matter() -> None:
    pattern = Pattern((X,), {"b": X.clone()})
    assert not pattern.admits((X,), {})
    assert not pattern.admits((X, X), {})
    assert not pattern.admits((X,), {"c": X})
    assert "keyword" in pattern.describe_difference((X,), {"c": X})
    assert "positional" in pattern.describe_difference((X, X), {})


class TestAmbientState:
    def test_autocast(self) -> None:
        off = Pattern((X,), {})
        with torch.autocast("cpu", dtype=torch.bfloat16):
            assert not off.admits((X,), {})
            assert "autocast" in off.describe_difference((X,), {})
            on = Pattern((X,), {})
            assert on.admits((X,), {})
            with torch.autocast("cpu", dtype=torch.float16):
                assert "dtype" in on.describe_difference((X,), {})
        assert not on.admits((X,), {})

    def test_grad_mode_only_where_it_was_read(self) -> None:
        reads = Pattern((X,), {}, grad_matters=True)
        with torch.no_grad():
            assert Pattern((X,), {}).admits((X,), {})
            assert not reads.admits((X,), {})
            assert "gradients" in reads.describe_difference((X,), {})

    def test_inference_mode(self) -> None:
        outside = Pattern((X,), {})
        with torch.inference_mode():
            assert outside.admits((X,), {})
            inside = Pattern((X,), {})
        assert not inside.admits((X,), {})
        assert "inference" in inside.describe_difference((X,), {})

    def test_requires_grad_only_where_asked_for(self) -> None:
        needing = X.clone().requires_grad_()
        assert Pattern((X,), {}).admits((needing,), {})
        strict = Pattern((X,), {}, gradients=True)
        assert not strict.admits((needing,), {})
        assert "requires_grad" in strict.describe_difference((needing,), {})


class Forwards:
    def plain(self, x, scale=1.0, mask=None, table={}):  # noqa: B006  not plain data
        pass

    def free(self, *args, **kwargs):
        pass


class TestOtherSpellings:
    def test_names_positions_and_spelled_out_defaults(self) -> None:
        pattern = Pattern((X,), {}, forward=Forwards.plain)
        for args, kwargs in [
            ((), {"x": X}),
            ((X, 1.0), {}),
            ((X,), {"mask": None, "scale": 1.0}),
        ]:
            assert not pattern.admits(args, kwargs)
            assert pattern.normalized(args, kwargs) is not None
            assert pattern.describe_difference(args, kwargs) == ""

    def test_another_value_is_another_call(self) -> None:
        pattern = Pattern((X,), {}, forward=Forwards.plain)
        for args, kwargs in [
            ((X, 2.0), {}),
            ((X,), {"mask": X.clone()}),
            ((X,), {"table": {}}),
            ((), {}),
            ((X,), {"more": 1}),
        ]:
            assert pattern.normalized(args, kwargs) is None
            assert pattern.describe_difference(args, kwargs)

    def test_what_can_see_how_it_is_called_is_not_respelled(self) -> None:
        assert Pattern((X,), {}, forward=Forwards.free).normalized((), {"x": X}) is None
        wrapped = torch.no_grad()(Forwards.plain)
        assert Pattern((X,), {}, forward=wrapped).normalized((), {"x": X}) is None

    def test_aliases_count_in_every_spelling(self) -> None:
        pattern = Pattern((X,), {"mask": X.clone()}, forward=Forwards.plain)
        assert pattern.normalized((X, 1.0, X.clone()), {}) is not None
        assert pattern.normalized((X, 1.0, X), {}) is None

    def test_without_an_example_what_must_be_given_is_a_tensor(self) -> None:
        pattern = Pattern.by_names(Forwards.plain)
        assert pattern is not None
        assert pattern.admits((X,), {})
        assert pattern.admits((X[0].long(),), {})
        assert not pattern.admits((None,), {})
        assert pattern.normalized((), {"x": X}) is not None
        assert pattern.normalized((X, 2.0), {}) is None


def test_copies_and_pickles() -> None:
    pattern = Pattern((X, [None, 2]), {"k": Pair(X.clone(), None)}, forward=Forwards.plain)
    assert copy.deepcopy(pattern) is pattern
    again = pickle.loads(pickle.dumps(pattern))
    call = ((X, [None, 2]), {"k": Pair(X.clone(), None)})
    assert again.admits(*call)
    assert not again.admits((X, [None, 3]), call[1])


def test_weights_that_move_take_the_pattern_along() -> None:
    moved = Pattern((X, [X.clone()]), {}).on_device("cpu", "meta")
    there = X.to("meta")
    assert moved.admits((there, [there.clone()]), {})
    assert not moved.admits((X, [X.clone()]), {})


class TestSettings:
    """What of torch's settings a model asks for, or makes tensors by."""

    @pytest.mark.parametrize("examples", [True, False])
    @pytest.mark.parametrize(
        ("name", "put", "values"),
        [
            (
                "are_deterministic_algorithms_enabled",
                torch.use_deterministic_algorithms,
                (False, True),
            ),
            ("get_deterministic_debug_mode", torch.set_deterministic_debug_mode, (0, 2)),
            ("get_num_threads", torch.set_num_threads, (1, 2)),
            (
                "get_float32_matmul_precision",
                torch.set_float32_matmul_precision,
                ("highest", "high"),
            ),
            ("is_anomaly_enabled", torch.set_anomaly_enabled, (False, True)),
            ("initial_seed", torch.manual_seed, (3, 4)),
        ],
    )
    def test_one_is_part_of_the_pattern_where_it_is_read(
        self, name: str, put: Callable[[Any], object], values: tuple[Any, Any], examples: bool
    ) -> None:
        class Asks(nn.Module):
            def forward(self, x: Tensor) -> Tensor:
                return x + 1 if getattr(torch, name)() == values[0] else x + 2

        model, x = Asks(), torch.ones(2)
        state, before = torch.get_rng_state(), getattr(torch, name)()
        put(values[0])
        try:
            root = capture(model, (x,) if examples else None).program.root
            assert torch.equal(root(x), x + 1)
            assert calls_of(root)["graph"] == 1
            put(values[1])
            assert torch.equal(root(x), x + 2)
            assert calls_of(root)["fallback"] == 1
            assert next(iter(calls_of(root)["reasons"])).startswith(f"torch.{name}() is ")
        finally:
            put(values[0] if name == "initial_seed" else before)
            torch.set_rng_state(state)

    def test_what_is_not_read_is_no_part_of_it(self) -> None:
        root = capture(nn.Linear(3, 2), (X,)).program.root
        torch.use_deterministic_algorithms(True)
        try:
            root(X)
        finally:
            torch.use_deterministic_algorithms(False)
        assert calls_of(root)["graph"] == 1

    @pytest.mark.parametrize("passes", [[], ["constant_fold", "dce"]])
    def test_the_default_dtype_is_part_of_every_pattern(self, passes: list[str]) -> None:
        class Makes(nn.Module):
            def forward(self, x: Tensor) -> Tensor:
                made = x + torch.arange(3.0)
                return made if torch.get_default_dtype() is torch.float32 else made + 1

        model, x = Makes(), torch.ones(3)
        result = fxpasses.run(model, passes, (x,))
        assert result(x).dtype is torch.float32
        torch.set_default_dtype(torch.float64)
        try:
            assert torch.equal(result(x), model(x))
            assert result(x).dtype is torch.float64
        finally:
            torch.set_default_dtype(torch.float32)
        assert list(calls_of(result)["reasons"]) == [
            "the default dtype is torch.float64 instead of torch.float32"
        ]

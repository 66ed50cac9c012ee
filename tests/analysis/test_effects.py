"""What a call does besides computing, for what the vocabulary has no example of."""

import math
import operator
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.fx import Graph, GraphModule, Node, symbolic_trace

from fxpasses.analysis.effects import effects_of
from fxpasses.core import Effects
from fxpasses.ops import raising

aten = torch.ops.aten
NONE = Effects()
UNKNOWN = Effects(unknown=True)
RANDOM = Effects(random=True)
STATE = Effects(writes_state=True)


def effects_of_call(
    target: Any, *args: Any, declared: Any = None, operands: int = 2, **kwargs: Any
) -> Effects:
    """Effects of one call; integers in `args` below `operands` stand for inputs x0, x1, ..."""
    graph = Graph()
    inputs = [graph.placeholder(f"x{i}") for i in range(operands)]
    placed = {f"x{i}": node for i, node in enumerate(inputs)}

    def node_of(value: Any) -> Any:
        return placed.get(value, value) if isinstance(value, str) else value

    kind = "call_method" if isinstance(target, str) else "call_function"
    args = torch.fx.node.map_aggregate(args, node_of)
    node = graph.create_node(kind, target, args, {k: node_of(v) for k, v in kwargs.items()})
    return effects_of(node, {} if declared is None else declared)


def effects_of_module(module: nn.Module, declared: Any = None) -> Effects:
    graph = Graph()
    x = graph.placeholder("x")
    graph.output(graph.call_module("called", (x,)))
    root = nn.Module()
    root.add_module("called", module)
    graph_module = GraphModule(root, graph)
    (node,) = [n for n in graph_module.graph.nodes if n.op == "call_module"]
    return effects_of(node, {} if declared is None else declared)


def writes(effects: Effects) -> list[str]:
    assert not effects.unknown
    return [node.name for node in effects.writes]


# -- without a rule: schemas of all overloads, and functions known to be pure


@pytest.mark.parametrize(
    ("target", "args"),
    [
        (torch.fft.fft, ("x0",)),
        (torch.linalg.norm, ("x0",)),
        (torch.cdist, ("x0", "x1")),
        (F.cross_entropy, ("x0", "x1")),
        (F.mse_loss, ("x0", "x1")),
        (torch.tensordot, ("x0", "x1")),
        (aten.index_put.default, ("x0", ["x1"], 1.0)),
        (torch.ops.prims.add.default, ("x0", "x1")),
        (operator.contains, ("x0", "x1")),
        (math.sqrt, ("x0",)),
        (len, ("x0",)),
        (isinstance, ("x0", int)),
        ("index_put", ("x0", ("x1",), 1.0)),
        ("is_floating_point", ("x0",)),
        ("tolist", ("x0",)),
        ("bernoulli", ("x0",)),
    ],
)
def test_calls_that_only_compute(target: Any, args: tuple[Any, ...]) -> None:
    effects = effects_of_call(target, *args)
    assert effects == (RANDOM if target == "bernoulli" else NONE)


@pytest.mark.parametrize(
    ("target", "args", "kwargs", "written"),
    [
        (operator.iadd, ("x0", "x1"), {}, ["x0"]),
        (operator.setitem, ("x0", 0, "x1"), {}, ["x0"]),
        ("__setitem__", ("x0", 0, "x1"), {}, ["x0"]),
        ("__ior__", ("x0", "x1"), {}, ["x0"]),
        (torch.Tensor.__ipow__, ("x0", 2), {}, ["x0"]),
        (operator.imatmul, ("x0", "x1"), {}, []),
        ("index_put_", ("x0", ("x1",), 1.0), {}, ["x0"]),
        ("masked_scatter_", ("x0", "x1", "x1"), {}, ["x0"]),
        ("copy_", ("x0", "x1"), {}, ["x0"]),
        ("resize_", ("x0", 2, 3), {}, ["x0"]),
        ("requires_grad_", ("x0",), {}, ["x0"]),
        (aten.index_put_.default, ("x0", ["x1"], 1.0), {}, ["x0"]),
        (torch.add, ("x0", 1), {"out": "x1"}, ["x1"]),
        (torch.linalg.norm, ("x0",), {"out": "x1"}, ["x1"]),
        (aten.add.out, ("x0", 1), {"out": "x1"}, ["x1"]),
        (aten.add_, ("x0", "x1"), {}, ["x0"]),
        (torch._foreach_add_, (["x0", "x1"], 1), {}, ["x0", "x1"]),
        (F.relu, ("x0",), {"inplace": True}, ["x0"]),
        (F.relu, ("x0", True), {}, ["x0"]),
        (F.relu, ("x0",), {}, []),
        (F.embedding, ("x0", "x1"), {"max_norm": 1.0}, ["x1"]),
    ],
)
def test_calls_that_write_an_operand(
    target: Any, args: tuple[Any, ...], kwargs: dict[str, Any], written: list[str]
) -> None:
    assert writes(effects_of_call(target, *args, **kwargs)) == written


@pytest.mark.parametrize(
    ("target", "args"),
    [
        (F.gumbel_softmax, ("x0",)),
        (torch.poisson, ("x0",)),
        ("exponential_", ("x0",)),
        ("random_", ("x0",)),
        (aten.native_dropout.default, ("x0", 0.5, True)),
    ],
)
def test_calls_that_draw(target: Any, args: tuple[Any, ...]) -> None:
    effects = effects_of_call(target, *args)
    assert effects.random
    assert not effects.unknown


def test_drawing_stops_where_the_share_is_known_to_be_zero() -> None:
    assert effects_of_call(F.dropout, "x0", 0.0) == NONE
    assert effects_of_call(F.dropout, "x0", 0.5, training=False) == NONE
    assert effects_of_call(F.dropout, "x0", "x1").random
    assert effects_of_call(F.dropout, "x0", 0.5, training="x1").random


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("name", ["native_batch_norm", "_batch_norm_impl_index"])
def test_operators_whose_schema_hides_a_write(name: str, training: bool) -> None:
    target = getattr(aten, name).default
    more = (True,) if "impl" in name else ()
    args = ("x0", None, None, "x1", "x2", training, 0.1, 1e-5, *more)

    effects = effects_of_call(target, *args, operands=3)

    assert writes(effects) == (["x1", "x2"] if training else [])


# -- what nothing is known of


def unknown_function(x: Tensor) -> Tensor:
    return x


@pytest.mark.parametrize(
    ("target", "args"),
    [
        (unknown_function, ("x0",)),
        (print, ("x0",)),
        (setattr, ("x0", "name", 1)),
        (torch.manual_seed, (0,)),
        (torch._C._set_grad_enabled, (False,)),
        ("append", ("x0", 1)),
        ("no_such_method", ("x0",)),
        ("register_hook", ("x0", unknown_function)),
        ("backward", ("x0",)),
        ("share_memory_", ("x0",)),
        (torch.add, ("x0", "x1", 1, 2, 3)),
    ],
)
def test_calls_of_which_nothing_is_known(target: Any, args: tuple[Any, ...]) -> None:
    assert effects_of_call(target, *args).unknown


def test_places_and_results_have_no_effects() -> None:
    module = symbolic_trace(nn.Identity())
    assert all(effects_of(n) == NONE for n in module.graph.nodes if "call" not in n.op)


# -- what only checks


def test_checks_raise_and_do_nothing_else() -> None:
    @raising
    def guard(value: Any) -> None: ...

    assert effects_of_call(guard, "x0") == Effects(raises=True)
    assert effects_of_call(torch._assert, "x0", "message") == Effects(raises=True)
    assert effects_of_call(torch._check, "x0") == Effects(raises=True)
    assert effects_of_call(aten._assert_async.msg, "x0", "message") == Effects(raises=True)
    assert effects_of_call(aten._assert_scalar, "x0", "message") == Effects(raises=True)
    constrain = aten.sym_constrain_range_for_size.default
    assert effects_of_call(constrain, "x0") == Effects(raises=True)


# -- custom operators


@pytest.fixture(scope="module")
def custom() -> Iterator[Any]:
    with torch.library._scoped_library("fxpasses_test", "DEF") as library:
        library.define("twice(Tensor x) -> Tensor")
        library.define("store(Tensor x, Tensor(a!) into) -> ()")
        library.define("noise(Tensor x) -> Tensor", tags=[torch.Tag.nondeterministic_seeded])
        yield torch.ops.fxpasses_test


def test_custom_operators_are_unknown_until_declared(custom: Any) -> None:
    twice = custom.twice.default

    assert effects_of_call(twice, "x0").unknown
    assert effects_of_call(custom.twice, "x0").unknown
    assert effects_of_call(twice, "x0", declared={"fxpasses_test::twice": "pure"}) == NONE
    assert effects_of_call(twice, "x0", declared={"fxpasses_test::twice": "random"}) == RANDOM
    assert effects_of_call(twice, "x0", declared={"other::twice": "pure"}).unknown
    declared = {"fxpasses_test::twice": ("x",)}
    assert writes(effects_of_call(twice, "x0", declared=declared)) == ["x0"]


def test_schemas_of_custom_operators_tell_writes_and_draws(custom: Any) -> None:
    stored = effects_of_call(custom.store.default, "x0", "x1")
    assert [n.name for n in stored.writes] == ["x1"]
    assert stored.unknown
    declared = {"fxpasses_test::store": "pure"}
    assert writes(effects_of_call(custom.store.default, "x0", "x1", declared=declared)) == ["x1"]
    assert effects_of_call(custom.noise.default, "x0").random


def test_custom_operators_of_python() -> None:
    @torch.library.custom_op("fxpasses_test_python::half", mutates_args=())
    def half(x: Tensor) -> Tensor:
        return x / 2

    called = half._opoverload
    assert effects_of_call(called, "x0").unknown
    assert effects_of_call(called, "x0", declared={"fxpasses_test_python::half": "pure"}) == NONE


def test_declared_functions_are_known_by_their_place() -> None:
    name = f"{__name__}.unknown_function"

    assert effects_of_call(unknown_function, "x0", declared={name: "pure"}) == NONE
    assert effects_of_call(unknown_function, "x0", declared={name: "random"}) == RANDOM


# -- modules


@pytest.mark.parametrize(
    ("module", "effects"),
    [
        (nn.LSTM(4, 4, dropout=0.5, num_layers=2), RANDOM),
        (nn.LSTM(4, 4, dropout=0.5, num_layers=2).eval(), NONE),
        (nn.GRU(4, 4), NONE),
        (nn.MultiheadAttention(4, 2, dropout=0.1), RANDOM),
        (nn.MultiheadAttention(4, 2), NONE),
        (nn.TransformerEncoderLayer(4, 2), RANDOM),
        (nn.TransformerEncoderLayer(4, 2).eval(), NONE),
        (nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4)), STATE),
        (nn.Sequential(nn.Linear(4, 4), nn.Dropout()), RANDOM),
        (nn.CrossEntropyLoss(), NONE),
        (nn.BatchNorm2d(4), STATE),
        (nn.BatchNorm2d(4).eval(), NONE),
        (nn.BatchNorm2d(4, track_running_stats=False), NONE),
        (nn.InstanceNorm2d(4, track_running_stats=True), STATE),
        (nn.InstanceNorm2d(4), NONE),
        (nn.Embedding(4, 4, max_norm=1.0), STATE),
        (nn.AlphaDropout(inplace=True).eval(), NONE),
    ],
)
def test_layers_of_torch(module: nn.Module, effects: Effects) -> None:
    assert effects_of_module(module) == effects


def test_layers_that_work_in_place() -> None:
    assert writes(effects_of_module(nn.ReLU(inplace=True))) == ["x"]
    assert writes(effects_of_module(nn.Sequential(nn.Hardswish(inplace=True)))) == ["x"]
    assert writes(effects_of_module(nn.Dropout(inplace=True))) == ["x"]
    assert writes(effects_of_module(nn.Dropout(inplace=True).eval())) == []


class Plain(nn.Linear):
    """Computes as its base does."""


class Counting(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        self.calls = getattr(self, "calls", 0) + 1
        return super().forward(x)


class Mine(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x


def hooked() -> nn.Module:
    module = nn.Linear(4, 4)
    module.register_forward_pre_hook(lambda *_: None)
    return module


def with_hooked_child() -> nn.Module:
    return nn.Sequential(hooked())


def with_unknown_activation() -> nn.Module:
    return nn.TransformerEncoderLayer(4, 2, activation=unknown_function)


def compiled() -> nn.Module:
    module = nn.Linear(4, 4)
    module.compile(backend="eager")
    return module


@pytest.mark.parametrize(
    "make",
    [
        lambda: Counting(4, 4),
        Mine,
        hooked,
        with_hooked_child,
        with_unknown_activation,
        compiled,
        lambda: nn.Sequential(Mine()),
    ],
)
def test_modules_of_which_nothing_is_known(make: Callable[[], nn.Module]) -> None:
    assert effects_of_module(make()) == UNKNOWN


def test_subclasses_that_override_nothing_do_what_their_base_does() -> None:
    assert effects_of_module(Plain(4, 4)) == NONE


def test_declared_modules() -> None:
    name = f"{__name__}.Mine"

    assert effects_of_module(Mine(), {name: "pure"}) == NONE
    assert effects_of_module(Mine(), {name: "random"}) == RANDOM
    assert writes(effects_of_module(Mine(), {name: ("x",)})) == ["x"]
    assert effects_of_module(Counting(4, 4), {name: "pure"}) == UNKNOWN


def test_hooks_are_not_declared_with_their_module() -> None:
    module = Mine()
    module.register_forward_hook(lambda *_: None)

    assert effects_of_module(module, {f"{__name__}.Mine": "pure"}) == UNKNOWN


def test_a_size_is_added_to_without_writing() -> None:
    graph = Graph()
    x = graph.placeholder("x")
    size = graph.call_method("size", (x, 0))
    more = graph.call_function(operator.iadd, (size, 1))
    again: Node = graph.call_function(operator.iadd, (more, size))

    assert effects_of(more) == effects_of(again) == NONE


@pytest.mark.parametrize(("p", "training"), [(0.1, True), (0.0, True), (0.1, False)])
def test_wrapped_functions_of_torchvision(p: float, training: bool) -> None:
    swin = pytest.importorskip("torchvision.models.swin_transformer")
    windows = ("x0", "x1", "x1", "x1", [7, 7], 3, [0, 0])

    padded = effects_of_call(swin._patch_merging_pad, "x0")
    attended = effects_of_call(
        swin.shifted_window_attention, *windows, dropout=p, training=training
    )

    assert padded == NONE
    assert attended == (RANDOM if p and training else NONE)


def test_methods_of_lists_may_write_them() -> None:
    graph = Graph()
    values = graph.placeholder("values")
    values.meta["value"] = [None, None]

    assert effects_of(graph.call_method("sort", (values,))) == UNKNOWN

"""Regions, state and randomness: whatever a graph would lose makes a module opaque."""

import collections
import contextlib
import copy
import functools
import gc
import logging
import random
import warnings
import weakref
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, manual_seed, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.checkpoint import checkpoint

from fxpasses.capture.tracing.request import NoteKind
from fxpasses.capture.tracing.tracer import OpaqueKind
from tests.capture.tracing import Outer, Result, run, same, traced

X = torch.linspace(-1, 1, 12).reshape(3, 4)
REGION = OpaqueKind.REGION
STATE = OpaqueKind.PYTHON_STATE
RANDOM = OpaqueKind.RANDOM_STATE

COUNTS = {"n": 0}
NUMBER = 0
CACHE: dict[str, Tensor] = {}


class Holder:
    n = 0


class Subject(nn.Module):
    calls = 0

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.dropout = nn.Linear(4, 4), nn.Dropout(0.5)
        self.n, self.log, self.cache, self.holder = 0, [], {}, Holder()
        self.nested: dict[str, Any] = {"deep": {"n": 0}}
        self.queue: collections.deque[Tensor] = collections.deque(maxlen=3)
        self.late: Tensor | None = None
        self.register_buffer("b", torch.zeros(4))
        self.plain = torch.zeros(4)


def subject(forward: Any) -> nn.Module:
    class Own(Subject):
        pass

    Own.forward = forward
    return Outer(Own()).eval()


class Square(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        return 3 * x * gradient


def make_counter() -> Any:
    n = 0

    def tick() -> int:
        nonlocal n
        n += 1
        return n

    return tick


tick = make_counter()


def no_grad(s: Any, x: Tensor) -> Tensor:
    with torch.no_grad():
        hidden = s.linear(x)
    return hidden + x


@torch.no_grad()
def without_gradients(s: Any, x: Tensor) -> Tensor:
    return s.linear(x)


def grad_mode_set(s: Any, x: Tensor) -> Tensor:
    torch.set_grad_enabled(False)
    hidden = s.linear(x)
    torch.set_grad_enabled(True)
    return hidden + x


def inference_mode(s: Any, x: Tensor) -> Tensor:
    with torch.inference_mode():
        hidden = s.linear(x)
    return hidden.clone()


def autocast(s: Any, x: Tensor) -> Tensor:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        return s.linear(x).float()


def no_autocast(s: Any, x: Tensor) -> Tensor:
    with torch.amp.autocast("cpu", enabled=False):
        return s.linear(x)


def saved_hooks(s: Any, x: Tensor) -> Tensor:
    with torch.autograd.graph.saved_tensors_hooks(lambda t: t, lambda t: t):
        return s.linear(x)


def backend_flags(s: Any, x: Tensor) -> Tensor:
    with torch.backends.mkldnn.flags(enabled=False):
        return s.linear(x)


def one_kernel(s: Any, x: Tensor) -> Tensor:
    with sdpa_kernel(SDPBackend.MATH):
        return F.scaled_dot_product_attention(x[None], x[None], x[None])[0]


def default_dtype(s: Any, x: Tensor) -> Tensor:
    torch.set_default_dtype(torch.float64)
    try:
        return s.linear(x) + torch.zeros(4).float()
    finally:
        torch.set_default_dtype(torch.float32)


def forked(s: Any, x: Tensor) -> Tensor:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        return F.dropout(x, 0.5, True)


def seeded(s: Any, x: Tensor) -> Tensor:
    torch.manual_seed(3)
    return F.dropout(x, 0.5, True)


def seeded_by_import(s: Any, x: Tensor) -> Tensor:
    manual_seed(3)
    return F.dropout(x, 0.5, True)


def own_generator(s: Any, x: Tensor) -> Tensor:
    generator = torch.Generator().manual_seed(3)
    return x + torch.rand(4, generator=generator)


def python_random(s: Any, x: Tensor) -> Tensor:
    return s.linear(x) * random.random()


def numpy_random(s: Any, x: Tensor) -> Tensor:
    return s.linear(x) * float(np.random.rand())


def counter(s: Any, x: Tensor) -> Tensor:
    s.n += 1
    return s.linear(x) * s.n


def log(s: Any, x: Tensor) -> Tensor:
    s.log.append(1)
    return s.linear(x) * len(s.log)


def nested(s: Any, x: Tensor) -> Tensor:
    s.nested["deep"]["n"] += 1
    return s.linear(x) * s.nested["deep"]["n"]


def cache(s: Any, x: Tensor) -> Tensor:
    if "a" not in s.cache:
        s.cache["a"] = torch.arange(4.0)
    return s.linear(x) + s.cache["a"]


def late(s: Any, x: Tensor) -> Tensor:
    if s.late is None:
        s.late = torch.arange(4.0)
    return s.linear(x) + s.late


def plain_reassigned(s: Any, x: Tensor) -> Tensor:
    s.plain = s.plain + 1
    return s.linear(x) + s.plain


def deleted(s: Any, x: Tensor) -> Tensor:
    if hasattr(s, "n"):
        del s.n
    return s.linear(x)


def buffer_reassigned(s: Any, x: Tensor) -> Tensor:
    s.b = s.b + 1
    return s.linear(x) + s.b


def buffer_by_registry(s: Any, x: Tensor) -> Tensor:
    s._buffers["b"] = s.b + 1
    return s.linear(x) + s.b


def held_object(s: Any, x: Tensor) -> Tensor:
    s.holder.n += 1
    return s.linear(x) * s.holder.n


def queue(s: Any, x: Tensor) -> Tensor:
    s.queue.append(x.mean())
    return s.linear(x) * sum(s.queue)


def global_dict(s: Any, x: Tensor) -> Tensor:
    COUNTS["n"] += 1
    return s.linear(x) * COUNTS["n"]


def global_number(s: Any, x: Tensor) -> Tensor:
    global NUMBER  # noqa: PLW0603 - the construct under test
    NUMBER += 1
    return s.linear(x) * NUMBER


def class_attribute(s: Any, x: Tensor) -> Tensor:
    Subject.calls += 1
    return s.linear(x) * Subject.calls


def closure(s: Any, x: Tensor) -> Tensor:
    return s.linear(x) * tick()


def swallowing(s: Any, x: Tensor) -> Tensor:
    with contextlib.suppress(Exception):
        if x.sum() > 100:
            return x
    return s.linear(x) * 2


def writes_parameter(s: Any, x: Tensor) -> Tensor:
    s.linear.weight.data.mul_(0.5)
    return s.linear(x)


# name, forward, kind
# Older versions of torch save the inputs of a checkpoint by an autograd function of their own.
CHECKPOINT = (
    OpaqueKind.CUSTOM_AUTOGRAD if hasattr(torch.utils.checkpoint, "_NoopSaveInputs") else REGION
)

OPAQUE: list[tuple[Any, OpaqueKind]] = [
    (no_grad, REGION),
    (lambda s, x: x + without_gradients(s, x), REGION),
    (torch.no_grad()(lambda s, x: s.linear(x)), REGION),
    (grad_mode_set, REGION),
    (inference_mode, REGION),
    (autocast, REGION),
    (saved_hooks, REGION),
    (lambda s, x: checkpoint(s.linear, x, use_reentrant=False), CHECKPOINT),
    (lambda s, x: checkpoint(lambda y: s.linear(y).relu(), x, use_reentrant=False), CHECKPOINT),
    (backend_flags, REGION),
    (one_kernel, REGION),
    (default_dtype, REGION),
    (lambda s, x: checkpoint(s.linear, x, use_reentrant=True), OpaqueKind.CUSTOM_AUTOGRAD),
    (lambda s, x: Square.apply(x), OpaqueKind.CUSTOM_AUTOGRAD),
    (forked, RANDOM),
    (seeded, RANDOM),
    (seeded_by_import, RANDOM),
    (own_generator, RANDOM),
    (python_random, RANDOM),
    (numpy_random, RANDOM),
    (counter, STATE),
    (log, STATE),
    (nested, STATE),
    (cache, STATE),
    (late, STATE),
    (plain_reassigned, STATE),
    (deleted, STATE),
    (buffer_reassigned, STATE),
    (buffer_by_registry, STATE),
    (held_object, STATE),
    (queue, STATE),
    (global_dict, STATE),
    (global_number, STATE),
    (class_attribute, STATE),
    (closure, STATE),
    (swallowing, OpaqueKind.CAUGHT_REFUSAL),
    (writes_parameter, OpaqueKind.WRITES_PARAMETER),
]

CAPTURED: list[Any] = [
    lambda s, x: (s.b.add_(1), s.linear(x) + s.b)[1],
    lambda s, x: (s.plain.add_(1), s.linear(x) + s.plain)[1],
    lambda s, x: s.dropout(x),
    lambda s, x: s.linear(x).detach() + x,
    no_autocast,
]


def outside_world() -> list[Any]:
    state = np.random.get_state()
    return [
        COUNTS["n"],
        NUMBER,
        Subject.calls,
        tick.__closure__[0].cell_contents,
        random.getstate(),
        state[1].tolist(),
        torch.get_rng_state().tolist(),
        dict(CACHE),
        torch.is_grad_enabled(),
        torch.get_default_dtype(),
    ]


def reset() -> None:
    global NUMBER  # noqa: PLW0603 - what is tested writes it
    COUNTS["n"] = NUMBER = Subject.calls = 0
    tick.__closure__[0].cell_contents = 0
    CACHE.clear()
    random.seed(0)
    np.random.seed(0)


def two_calls(model: Any) -> list[Any]:
    """The results of two calls and a gradient, from the same state of the world outside."""
    reset()
    outs = [run(model, (X * scale,), seed=k) for k, scale in enumerate((1, 2))]
    inputs = X.clone().requires_grad_()
    random.seed(1)
    np.random.seed(1)
    torch.manual_seed(2)
    out = model(inputs)
    if out.requires_grad:
        out.square().sum().backward()
    return [*outs, inputs.grad]


# Torch warns of TF32, and of a checkpoint none of whose inputs has a gradient.
@pytest.mark.filterwarnings("ignore:TF32 acceleration", "ignore:None of the inputs")
@pytest.mark.parametrize("sizes", [None, "guards"], ids=["names", "guards"])
@pytest.mark.parametrize(("forward", "kind"), OPAQUE, ids=lambda v: getattr(v, "__name__", str(v)))
def test_opaque(forward: Any, kind: OpaqueKind, sizes: str | None) -> None:
    reset()
    model = subject(forward)
    before, world = copy.deepcopy(model), outside_world()

    options = {} if sizes is None else {"args": (X,), "sizes": sizes}
    result = traced(model, **options)

    assert outside_world() == world
    assert same_module(before, model)
    assert result.kinds == {"inner": kind}
    assert_same_calls(model, result)


@pytest.mark.parametrize("sizes", [None, "guards"], ids=["names", "guards"])
@pytest.mark.parametrize("forward", CAPTURED)
def test_captured(forward: Any, sizes: str | None) -> None:
    model = subject(forward)

    options = {} if sizes is None else {"args": (X,), "sizes": sizes}
    result = traced(model, **options)

    assert result.kinds == {}
    assert_same_calls(model, result)


def assert_same_calls(model: nn.Module, result: Result) -> None:
    expected = two_calls(copy.deepcopy(model))
    found = two_calls(result)
    assert [same(a, b) for a, b in zip(expected, found, strict=True)] == [True] * 3


def same_module(before: nn.Module, after: nn.Module) -> bool:
    pairs = zip(before.modules(), after.modules(), strict=True)
    keys = all(list(a.__dict__) == list(b.__dict__) for a, b in pairs)
    return keys and same(before.state_dict(), after.state_dict())


def test_print_logging_and_warnings_are_lost_or_kept(
    capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    def noisy(s: Any, x: Tensor) -> Tensor:
        print("hello", x)
        logging.getLogger("noisy").warning("x %s", x)
        return s.linear(x)

    result = traced(subject(noisy), (X,))

    assert result.kinds == {}
    assert capsys.readouterr().out == ""
    assert [note.kind for note in result.trace.notes] == [NoteKind.PRINTS]


def test_a_reader_of_changing_state_is_opaque() -> None:
    class Writer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.n = 0

        def forward(self, x: Tensor) -> Tensor:
            self.n += 1
            return x + self.n

    class Reader(nn.Module):
        def __init__(self, writer: Writer) -> None:
            super().__init__()
            self.held = [writer]

        def forward(self, x: Tensor) -> Tensor:
            return x * self.held[0].n

    writer = Writer()
    model = nn.Sequential(nn.Linear(4, 4), writer, Reader(writer)).eval()
    for args in (None, (X,)):
        result = traced(model, args)
        assert result.kinds == {"1": STATE, "2": OpaqueKind.READS_CHANGING_STATE}
        own = copy.deepcopy(model)
        for _ in range(3):
            assert same(own(X), result(X))


def test_a_reader_of_a_changing_global_is_opaque() -> None:
    class Writer(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            COUNTS["n"] += 1
            return x + COUNTS["n"]

    class Reader(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x * COUNTS["n"]

    model = nn.Sequential(nn.Linear(4, 4), Writer(), Reader()).eval()
    reset()
    result = traced(model, (X,))
    assert result.kinds == {"1": STATE, "2": OpaqueKind.READS_CHANGING_STATE}
    reset()
    expected = [model(X) for _ in range(3)]
    reset()
    assert same(expected, [result(X) for _ in range(3)])


def test_a_module_that_changes_a_list_it_is_given_makes_its_parent_opaque() -> None:
    class Appends(nn.Module):
        def forward(self, x: Tensor, found: list[Tensor]) -> Tensor:
            found.append(x * 2)
            return x + 1 if x.sum() > 0 else x

    class Parent(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.child = Appends()

        def forward(self, x: Tensor) -> Tensor:
            found: list[Tensor] = []
            return self.child(x, found) + found[0]

    model = nn.Sequential(nn.Linear(4, 4), Parent()).eval()
    result = traced(model, (X,))
    assert result.kinds == {"1": OpaqueKind.CHANGES_ARGUMENT}
    assert "1.child" in result.trace.calls
    assert same(model(X), result(X))


def test_a_module_that_is_given_an_object_makes_its_parent_opaque() -> None:
    class Store:
        def __init__(self) -> None:
            self.seen: list[Tensor] = []

    class Child(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(4, 4)

        def forward(self, x: Tensor, store: Store) -> Tensor:
            store.seen.append(x)
            return self.linear(x)

    class Parent(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.child = Child()

        def forward(self, x: Tensor) -> Tensor:
            store = Store()
            return self.child(x, store) + store.seen[0]

    model = nn.Sequential(Parent()).eval()
    result = traced(model, (X,))
    assert set(result.kinds) == {"0"}
    assert same(model(X), result(X))
    refused = traced(Child(), (X, Store()))
    assert refused.kinds == {"": OpaqueKind.STATEFUL_ARGUMENT}


def test_hooked_compiled_and_parametrized_modules_run_their_own_code() -> None:
    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(4, 4)
            self.w = nn.Parameter(torch.ones(4))

        def forward(self, x: Tensor) -> Tensor:
            return self.linear(x) * self.w

    class Double(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x * 2

    hooked, parametrized = Block(), Block()
    hooked.register_forward_hook(lambda _m, _a, out: out + 1)
    nn.utils.parametrize.register_parametrization(parametrized, "w", Double())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        scripted = torch.jit.script(nn.Sequential(nn.Linear(4, 4)))
    compiled = torch.compile(nn.Linear(4, 4), backend="eager")
    model = nn.Sequential(Block(), hooked, scripted, parametrized, compiled).eval()

    def shallow(module: Any) -> nn.Module:
        return nn.Sequential(*module).eval()

    result = traced(model, (X,), twin=shallow)
    assert result.kinds == {
        "1": OpaqueKind.HOOKED,
        "2": OpaqueKind.COMPILED,
        "3": OpaqueKind.PARAMETRIZED,
        "4": OpaqueKind.COMPILED,
    }
    with torch.no_grad():
        assert same(model(X), result(X))


def test_an_error_of_the_model_reaches_the_caller_of_the_trace() -> None:
    class Raises(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            raise ValueError("this model takes no such input")

    result = traced(nn.Sequential(Raises()), (X,))
    assert result.kinds == {"": OpaqueKind.ERROR}
    assert isinstance(result.refused.error, ValueError)


def test_the_grad_mode_is_part_of_the_pattern_where_it_is_read() -> None:
    class Reads(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x * 2 if torch.is_grad_enabled() else x

    class Enters(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            with torch.enable_grad():
                return x * 2

    assert traced(Reads(), (X,)).trace.reads_grad_mode
    assert traced(Enters(), (X,)).trace.reads_grad_mode
    assert not traced(nn.Sequential(nn.Linear(4, 4)), (X,)).trace.reads_grad_mode


def test_the_mode_is_reported_where_it_is_read() -> None:
    class Reads(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return F.dropout(x, 0.5, self.training)

    result = traced(nn.Sequential(nn.ReLU(), Reads()).eval(), (X,))
    assert result.trace.reads_training == ("1",)


def test_without_an_example_a_module_whose_code_writes_attributes_is_taken_to_do_so() -> None:
    class Writer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.n = 0

        def forward(self, x: Tensor) -> Tensor:
            if x.sum() > 0:
                return x
            self.n += 1
            return x + self.n

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.writer = Writer()
            self.reader = Reader(self.writer)

        def forward(self, x: Tensor) -> Tensor:
            return self.reader(self.writer(x))

    class Reader(nn.Module):
        def __init__(self, writer: Writer) -> None:
            super().__init__()
            self.held = [writer]

        def forward(self, x: Tensor) -> Tensor:
            return x * self.held[0].n

    model = nn.Sequential(Model())
    result = traced(model)
    assert set(result.kinds) == {"0.writer", "0.reader"}
    own = copy.deepcopy(model)
    for _ in range(3):
        assert same(own(-X - 3), result(-X - 3))


def test_what_does_not_change_may_be_read_beside_what_does() -> None:
    class Counts(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale, self.n = 3, 0

        def forward(self, x: Tensor) -> Tensor:
            self.n += 1
            return x + self.n

    class Parent(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.counts = Counts()

        def forward(self, x: Tensor) -> Tensor:
            return self.counts(x) * self.counts.scale

    model = nn.Sequential(Parent())
    result = traced(model, (X,))
    assert result.kinds == {"0.counts": STATE}
    assert result.trace.changing == {"0.counts.n"}
    own = copy.deepcopy(model)
    assert same([own(X) for _ in range(3)], [result(X) for _ in range(3)])


class MakesLayers(collections.OrderedDict[str, type]):
    """Makes a layer at each read, as the table of activations of a well-known library does."""

    def __getitem__(self, key: str) -> Any:
        return super().__getitem__(key)(4)


LAYERS = MakesLayers(prelu=nn.PReLU)


def test_looking_at_containers_runs_no_code_of_theirs() -> None:
    model = subject(lambda s, x: s.linear(x) + len(LAYERS))
    model.inner.layers = MakesLayers(prelu=nn.PReLU)
    result = traced(model, (X,))
    assert result.kinds == {}
    assert_same_calls(model, result)


@functools.lru_cache
def doubled(size: int) -> int:
    return size * 2


class Remembering(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.repeat_interleave(2, 0)[: doubled(x.shape[0])]


def test_a_cache_by_size_is_left_as_it_was_found() -> None:
    doubled.cache_clear()
    model = nn.Sequential(nn.Linear(4, 4), Remembering()).eval()
    for _ in range(2):  # the second trace meets what the first has left in the cache
        result = traced(model, (X,))
        assert result.kinds == {}
        for rows in (3, 2):
            x = X[:rows]
            assert torch.equal(result(x), model(x))
    assert doubled(3) == 6
    assert type(doubled(3)) is int


def test_a_cache_by_size_keeps_nothing_of_a_trace_alive() -> None:
    doubled.cache_clear()
    model = nn.Sequential(nn.Linear(4, 4), Remembering()).eval()
    weight = weakref.ref(traced(copy.deepcopy(model), (X,)).model[0].weight)
    gc.collect()
    assert weight() is None


class Recalling(nn.Module):
    @staticmethod
    @functools.cache
    def tripled(size: int) -> int:
        return size * 3

    def forward(self, x: Tensor) -> Tensor:
        return x.repeat_interleave(3, 0)[: self.tripled(x.shape[0])]


def test_a_cache_that_no_name_of_a_file_reaches_is_never_asked_for_a_trace_that_has_ended() -> None:
    model = nn.Sequential(nn.Linear(4, 4), Recalling()).eval()
    for _ in range(2):
        result = traced(model, (X,))
        for rows in (3, 2):
            x = X[:rows]
            assert torch.equal(result(x), model(x))
    assert type(Recalling.tripled(3)) is int


class Fills(nn.Module):
    """As the modules of HRNet and the extra blocks of feature pyramids."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, found: list[Tensor], names: dict[str, int]) -> list[Tensor]:
        for i, x in enumerate(found):
            found[i] = self.layer(x)
        found.append(found[0] * 2)
        names["last"] = len(found)
        return found


class Makes(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fills = Fills()

    def forward(self, x: Tensor) -> Tensor:
        found, names = [x, x + 1], {}
        self.fills(found, names)
        return sum(found) * names["last"]


def test_a_list_that_the_model_makes_may_be_changed_by_whom_it_is_given_to() -> None:
    model = nn.Sequential(Makes(), Makes()).eval()
    result = traced(model, (X,))
    assert result.kinds == {}
    for x in (X, X[:2]):
        assert same(result(x), model(x))


def test_a_list_that_another_module_holds_may_not() -> None:
    class Holds(Makes):
        def __init__(self) -> None:
            super().__init__()
            self.holder = nn.Identity()
            self.holder.lists = {"found": [torch.ones(2, 4)]}

        def forward(self, x: Tensor) -> Tensor:
            found = self.holder.lists["found"]
            if len(found) > 4:
                return x
            return x + self.fills(found, {})[-1].sum()

    model = nn.Sequential(Holds()).eval()
    result = traced(copy.deepcopy(model), (X,))
    assert set(result.kinds.values()) <= {STATE, OpaqueKind.CHANGES_ARGUMENT}
    assert "0" in result.kinds
    assert same([result(X) for _ in range(3)], [model(X) for _ in range(3)])


def test_a_list_that_is_changed_before_the_module_fails_is_as_it_was() -> None:
    class Fails(Fills):
        def forward(self, found: list[Tensor], names: dict[str, int]) -> list[Tensor]:
            super().forward(found, names)
            return found if found[0].sum() > 1e9 else [*found]

    model = Makes().eval()
    model.fills = Fails()
    result = traced(model, (X,))
    assert result.kinds == {"": OpaqueKind.CHANGES_ARGUMENT}
    assert same(result(X), model(X))

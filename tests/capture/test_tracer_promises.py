"""What a trace promises around the graph: nothing is written, everything is put back."""

import builtins
import copy
import math
import random
import sys
import threading
from typing import TYPE_CHECKING, Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fxpasses.capture.result.guards import (
    GuardMiss,
    check_len,
    guard,
    require_structure,
    structure_of,
)
from fxpasses.capture.tracing.tracer import CAPTURE_LOCK, OpaqueKind, Request, trace
from fxpasses.core.values import MODULE_STACK, SOURCE, STANDS_FOR, VALUE, TensorInfo
from fxpasses.errors import GuardError
from tests.capture.tracing import module, run, same, traced

if TYPE_CHECKING:
    from torch.fx import Node

X = torch.linspace(-1, 1, 24).reshape(4, 6)


def shared_twin(model: nn.Module) -> nn.Module:
    """A copy of the tree that shares every tensor, as the tracer is given."""
    memo: dict[int, Any] = {}
    for tensor in [*model.parameters(), *model.buffers()]:
        memo[id(tensor)] = tensor
    for below in model.modules():
        for value in below.__dict__.values():
            if isinstance(value, Tensor):
                memo[id(value)] = value
    return copy.deepcopy(model, memo)


class Writes(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(6)
        self.plain = torch.zeros(6)
        self.register_buffer("count", torch.zeros(()))
        self.register_buffer("view_of_count", self.count.view(1))

    def forward(self, x: Tensor) -> Tensor:
        self.count.add_(1)
        self.plain.add_(1)
        x += 1
        return self.norm(x) + self.plain + self.view_of_count


def test_nothing_of_the_callers_is_written() -> None:
    model, x = Writes(), X.clone()
    before, state = copy.deepcopy(model), torch.get_rng_state()

    found = trace(Request(shared_twin(model), (x,)))

    assert same(before.state_dict(), model.state_dict())
    assert same(before.plain, model.plain)
    assert torch.equal(x, X)
    assert torch.equal(state, torch.get_rng_state())
    assert same(found.outputs, before(X.clone()).detach())


class FailsLate(nn.Module):
    """Updates statistics, writes its input and draws numbers, and then branches on data."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(6)

    def forward(self, x: Tensor) -> Tensor:
        x.add_(1)
        y = F.dropout(self.norm(x), 0.5, True)
        return y * 2 if y.sum() > 1e9 else y


def test_what_a_failing_module_did_is_undone_before_it_runs_its_own_code() -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.late = FailsLate()
            self.after = nn.BatchNorm1d(6)

        def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
            y = x * 1
            z = self.late(y)
            return y, self.after(z), self.late.norm.running_mean * 1

    model = Model()
    expected = run(copy.deepcopy(model), (X,), seed=7)
    torch.manual_seed(7)
    found = trace(Request(shared_twin(model), (X,)))
    assert [opaque.path for opaque in found.opaque] == ["late"]
    assert same(found.outputs, tuple(value.detach() for value in expected))


def test_a_guard_may_not_follow_what_cannot_be_taken_back() -> None:
    class Model(nn.Module):
        def __init__(self, *, writes: bool) -> None:
            super().__init__()
            self.drop, self.writes = nn.Dropout(0.5), writes

        def forward(self, x: Tensor) -> Tensor:
            if self.writes:
                x += 1
            y = self.drop(x)
            return y * 2 if y.shape[0] > 3 else y

    class Outer(nn.Module):
        def __init__(self, *, writes: bool) -> None:
            super().__init__()
            self.inner = Model(writes=writes)

        def forward(self, x: Tensor) -> Tensor:
            return self.inner(x)

    writing = traced(Outer(writes=True), (X,))
    assert writing.kinds == {"inner": OpaqueKind.GUARD_AFTER_EFFECT}
    drawing = traced(Outer(writes=False), (X,))
    assert (drawing.kinds, drawing.trace.late_guards) == ({}, 1)
    quiet = traced(Outer(writes=False).eval(), (X,))
    assert (quiet.kinds, quiet.trace.late_guards) == ({}, 0)


def test_guards_hold_or_miss() -> None:
    model = module(lambda s, x: x * 2 if x.shape[0] > 3 else x - 1)
    result = traced(model, (X,))
    assert result.trace.guards == 1
    assert same(model(X[:, :2]), result(X[:, :2]))
    assert result.misses == 0
    assert same(model(X[:2]), result(X[:2]))
    assert result.misses == 1


def test_the_nodes_that_check() -> None:
    guard(3, 3)
    with pytest.raises(GuardMiss):
        guard(3, 4)
    with pytest.raises(GuardMiss):
        check_len([1], 2)
    with pytest.raises(GuardError, match="cannot run again"):
        require_structure(None, structure_of(X))


def test_the_structure_of_an_opaque_result_is_checked() -> None:
    class Sometimes(nn.Module):
        def forward(self, x: Tensor) -> Any:
            return {"a": x} if x.sum() > 0 else {"a": x, "b": x}

    class Parent(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.child = Sometimes()

        def forward(self, x: Tensor) -> Tensor:
            return sum(self.child(x).values())

    model = nn.Sequential(Parent())
    result = traced(model, (X.abs(),))
    assert result.kinds == {"0.child": OpaqueKind.CONTROL_FLOW}
    assert same(model(-X.abs()), result(-X.abs()))
    assert result.misses == 1


def test_what_is_patched_is_put_back_after_success_refusal_and_interrupt() -> None:
    names = [(builtins, "isinstance"), (builtins, "print"), (torch, "zeros"), (math, "sqrt")]
    names += [(nn.Module, "__call__"), (nn.Module, "__getattr__"), (nn.Module, "__setattr__")]
    before = [vars(holder)[name] for holder, name in names]
    own_apply = "apply" in vars(torch.autograd.Function)

    def interrupted(self: Any, x: Tensor) -> Tensor:
        raise KeyboardInterrupt

    traced(module(lambda s, x: x * 2 if type(x) is Tensor else Tensor.relu(x)), (X,))
    traced(module(lambda s, x: Tensor.relu(x)), (X,))
    traced(module(lambda s, x: x * 2 if x.sum() > 0 else x), (X,))
    with pytest.raises(KeyboardInterrupt):
        traced(module(interrupted), (X,))

    assert all(vars(h)[n] is old for (h, n), old in zip(names, before, strict=True))
    assert "relu" not in vars(Tensor)
    assert "type" not in globals()
    assert ("apply" in vars(torch.autograd.Function)) == own_apply
    assert CAPTURE_LOCK.acquire(blocking=False)
    CAPTURE_LOCK.release()


def test_other_threads_run_their_models_meanwhile() -> None:
    other = nn.Sequential(nn.Linear(6, 6), nn.Dropout(0.5), nn.ReLU())
    wrong: list[Any] = []
    done = threading.Event()

    def work() -> None:
        while not done.is_set():
            try:
                out = other(torch.zeros(2, 6) + torch.rand(2, 6))
                other.flag = isinstance(out, Tensor)
                if not (other.flag and type(out) is Tensor):
                    wrong.append(type(out))
            except Exception as error:  # any is a failure of this test
                wrong.append(error)

    deep = nn.Sequential(*[nn.Linear(6, 6) for _ in range(150)])
    thread = threading.Thread(target=work)
    thread.start()
    try:
        counts = {len(traced(deep, args).trace.graph.nodes) for args in (None, (X,), None, (X,))}
    finally:
        done.set()
        thread.join()
    assert (wrong, counts) == ([], {152})


class Nested(nn.Module):
    def __init__(self, depth: int) -> None:
        super().__init__()
        self.inner: nn.Module = nn.ReLU()
        for _ in range(depth - 1):
            level = Nested.__new__(Nested)
            nn.Module.__init__(level)
            level.inner = self.inner
            self.inner = level

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x) + 0


@pytest.mark.parametrize("depth", [40, 150, 290, 1500])
def test_nesting_as_deep_as_eager_runs_and_deeper(depth: int) -> None:
    limit, grad = sys.getrecursionlimit(), torch.is_grad_enabled()
    for args in (None, (X,)):
        with torch.no_grad():
            found = trace(Request(Nested(depth), args))
        assert len(found.graph.nodes) == depth + 3
        assert not found.opaque
    assert (sys.getrecursionlimit(), torch.is_grad_enabled()) == (limit, grad)


def test_the_state_of_the_callers_thread_is_carried_into_a_deep_trace() -> None:
    model = Nested(400)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = trace(Request(nn.Sequential(nn.Linear(6, 6), model), (X,)))
    assert found.outputs.dtype is torch.bfloat16


def test_an_interrupt_in_a_deep_trace_reaches_the_caller() -> None:
    model = Nested(400)

    class Interrupts(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        trace(Request(nn.Sequential(model, Interrupts()), (X,)))


def test_many_layers_in_a_row() -> None:
    layers = [nn.ReLU() if i % 2 else nn.Identity() for i in range(5000)]
    for args in (None, (X,)):
        assert len(trace(Request(nn.Sequential(*layers), args)).graph.nodes) == 5002


def test_nodes_know_value_source_and_place() -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.blocks = nn.Sequential(nn.Linear(6, 3), nn.ReLU())

        def forward(self, x: Tensor) -> Tensor:
            y = self.blocks(x)
            return (y + y.shape[0])[:, :1].squeeze(1)

    found = trace(Request(Model(), (X,)))
    nodes: dict[str, Node] = {node.name: node for node in found.graph.nodes}
    linear = nodes["blocks_0"]
    first = Model.forward.__code__.co_firstlineno
    assert linear.meta[VALUE] == TensorInfo(torch.float32, X.device, 2, (4, 3), (3, 1))
    assert (linear.meta[SOURCE].file, linear.meta[SOURCE].line) == (__file__, first + 1)
    assert nodes["add"].meta[SOURCE].line == first + 2
    assert [path for path, _ in linear.meta[MODULE_STACK].values()] == ["blocks", "blocks.0"]
    assert all(node.meta[STANDS_FOR] == node.name for node in found.graph.nodes)
    assert nodes["squeeze"].meta[VALUE].rank is None
    assert nodes["size"].meta.get(VALUE) is None


def test_names_of_nodes_that_were_taken_back_are_free_again() -> None:
    class Branches(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(6, 6)

        def forward(self, x: Tensor) -> Tensor:
            y = self.linear(x) + 1
            return y * 2 if y.sum() > 0 else y

    model = nn.Sequential(Branches(), nn.ReLU())
    result = traced(model, (X,))
    names = [node.name for node in result.trace.graph.nodes]
    assert names == ["input_1", "_0", "check_structure", "_1", "output"]
    assert list(result.trace.calls) == []


def test_leaf_functions_stay_one_node() -> None:
    model = module(lambda s, x: _outside(x))
    assert traced(model, (X,)).kinds == {"": OpaqueKind.CONTROL_FLOW}
    for given in (_outside, f"{__name__}._outside"):
        result = traced(model, (X,), leaf_functions=(given,))
        assert result.kinds == {}
        assert _outside in result.targets
        assert same(model(-X), result(-X))


def _outside(x: Tensor) -> Tensor:
    return x * 2 if x.sum() > 0 else x - 1


def test_calls_below_an_opaque_module_are_noted_once() -> None:
    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(6, 6)

        def forward(self, x: Tensor, *, scale: int = 1) -> Tensor:
            return self.linear(x) * scale

    class Branches(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.block = Block()

        def forward(self, x: Tensor) -> Tensor:
            y = self.block(x, scale=3) if x.sum() > -1e9 else x
            return self.block(y)

    found = trace(Request(nn.Sequential(Branches()).eval(), (X,)))
    assert list(found.calls) == ["0.block"]
    args, kwargs = found.calls["0.block"]
    assert torch.equal(args[0], X)
    assert kwargs == {"scale": 3}


def test_a_refused_root_is_run_for_the_sake_of_its_children() -> None:
    class Branches(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Sequential(nn.Linear(6, 6))

        def forward(self, x: Tensor) -> Tensor:
            return self.inner(x) if x.sum() > -1e9 else x

    model = Branches()
    refused = traced(model, (X,)).refused
    assert list(refused.calls) == ["inner"]
    assert same(refused.outputs, model(X).detach())
    assert traced(model, (X,), run_refused=False).refused.outputs is None


def test_python_and_torch_generators_stay_where_they_were() -> None:
    model = nn.Sequential(nn.Dropout(0.5), module(lambda s, x: x * random.random()))
    random.seed(0)
    torch.manual_seed(0)
    before = random.getstate(), torch.get_rng_state()
    traced(model.train(), (X,))
    assert random.getstate() == before[0]
    assert torch.equal(torch.get_rng_state(), before[1])


def test_a_written_parameter_is_written_in_a_copy() -> None:
    class Clips(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(6, 6)

        def forward(self, x: Tensor) -> Tensor:
            self.linear.weight.data.clamp_(-0.01, 0.01)
            return self.linear(x)

    model = nn.Sequential(Clips(), nn.ReLU())
    weight = model[0].linear.weight.detach().clone()
    found = trace(Request(shared_twin(model), (X,)))
    assert [opaque.kind for opaque in found.opaque] == [OpaqueKind.WRITES_PARAMETER]
    assert torch.equal(model[0].linear.weight, weight)
    assert same(found.outputs, copy.deepcopy(model)(X).detach())

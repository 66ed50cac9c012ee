"""While one thread captures and optimises, another calls models: none disturbs the other."""

import queue
import threading
from collections.abc import Callable
from typing import Any, TypeVar

import pytest
import torch
from torch import Tensor, nn
from torch.fx import GraphModule

import fxpasses

T = TypeVar("T")

CALLS = 10_000
IMAGE = torch.randn(2, 3, 6, 6, generator=torch.Generator().manual_seed(0))


def test_models_of_other_threads_run_on_undisturbed() -> None:
    optimised = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU()).eval()
    called = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Flatten(), nn.Linear(64, 4)).eval()
    with torch.no_grad():
        expected = called(IMAGE)
    stop = threading.Event()
    errors: list[BaseException] = []
    runs = 0

    def optimise() -> None:
        nonlocal runs
        try:
            while not stop.is_set():
                fast = fxpasses.run(optimised, "fuse_conv_bn,dce", IMAGE)
                torch.testing.assert_close(fast(IMAGE), optimised(IMAGE))
                runs += 1
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=optimise)
    thread.start()
    try:
        with torch.no_grad():
            wrong = sum(not torch.equal(called(IMAGE), expected) for _ in range(CALLS))
    finally:
        stop.set()
        thread.join()
    assert errors == []
    assert wrong == 0
    assert runs > 0


def _switches() -> tuple[Any, ...]:
    """What decides for all threads how operations are computed."""
    return (
        torch.backends.mkldnn.enabled,
        torch.backends.cudnn.enabled,
        torch.backends.mha.get_fastpath_enabled(),
        torch.get_default_dtype(),
        torch.get_num_threads(),
        torch.get_float32_matmul_precision(),
        torch.are_deterministic_algorithms_enabled(),
    )


# No place where a model keeps its state: what is put there stays.
_SEEN: queue.SimpleQueue[tuple[Any, ...]] = queue.SimpleQueue()


class _Looks(nn.Module):
    """Decides on data, so that its own code runs in every forward, and looks around then."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3)

    def forward(self, x: Tensor) -> Tensor:
        _SEEN.put(_switches())
        return self.conv(x) if x.sum() < 1e9 else x


def test_no_forward_of_a_run_sees_other_switches() -> None:
    fast = fxpasses.run(nn.Sequential(_Looks(), nn.ReLU()).eval(), "dce", IMAGE, verify="full")
    forwards = fxpasses.report(fast).record.verification.forwards
    seen = [_SEEN.get() for _ in range(_SEEN.qsize())]
    assert len(seen) >= forwards > 3
    assert set(seen) == {_switches()}


# -- random numbers


def _elsewhere(function: Callable[[], T]) -> T:
    """What `function` gives in another thread."""
    found: list[T] = []
    thread = threading.Thread(target=lambda: found.append(function()))
    thread.start()
    thread.join()
    return found[0]


# What another thread draws while a run is at work.
_DRAWN: queue.SimpleQueue[Tensor] = queue.SimpleQueue()


def _draw_elsewhere() -> None:
    _DRAWN.put(_elsewhere(lambda: torch.rand(4)))


class _Neighbor(nn.Module):
    """In every forward another thread draws, before and after this model does."""

    def __init__(self, *, decides: bool) -> None:
        super().__init__()
        self.linear, self.dropout = nn.Linear(4, 4), nn.Dropout(0.5)
        self.decides = decides

    def forward(self, x: Tensor) -> Tensor:
        _draw_elsewhere()
        y = self.dropout(self.linear(x))
        _draw_elsewhere()
        if self.decides and y.isnan().any():
            return x
        return y + torch.rand_like(y)


def _pass_that_draws(module: GraphModule) -> GraphModule:
    _draw_elsewhere()
    nn.Linear(4, 4)
    return module


@pytest.mark.parametrize("decides", [True, False])
def test_another_thread_draws_what_it_would_draw_alone(decides: bool) -> None:
    model, x = _Neighbor(decides=decides), torch.ones(3, 4)
    with torch.random.fork_rng():
        torch.manual_seed(3)
        result = fxpasses.run(
            nn.Sequential(model), [_pass_that_draws, "dce"], x, training=True, verify="full"
        )
        after = torch.get_rng_state()
        drawn = [_DRAWN.get() for _ in range(_DRAWN.qsize())]
        torch.manual_seed(3)
        alone = [torch.rand(4) for _ in drawn]
        assert torch.equal(torch.get_rng_state(), after)
    assert fxpasses.report(result).record.verification.ok
    assert len(drawn) > (10 if decides else 1)
    assert all(map(torch.equal, drawn, alone))


class _Seeds(nn.Module):
    """Sets the state of the generator in several ways and draws."""

    def forward(self, x: Tensor) -> Tensor:
        before = torch.get_rng_state()
        mask = torch.rand(x.shape)
        torch.set_rng_state(before)
        again = torch.rand(x.shape)
        with torch.random.fork_rng():
            torch.manual_seed(1)
            x = x + torch.rand(x.shape)
        return x * (mask == again) + torch.rand(x.shape)


def test_seeding_in_a_forward_reaches_neither_the_process_nor_other_threads() -> None:
    model, x = _Seeds(), torch.ones(3, 4)
    with torch.random.fork_rng():
        torch.manual_seed(3)
        expected = model(x)
        torch.manual_seed(3)
        before = torch.get_rng_state()
        result = fxpasses.run(nn.Sequential(model, nn.Identity()).eval(), "dce", x, verify="full")
        assert torch.equal(torch.get_rng_state(), before)
        assert torch.equal(result(x), expected)
    assert fxpasses.report(result).record.verification.ok
    assert torch.random.default_generator is torch.default_generator


def test_a_run_that_raises_leaves_the_random_state() -> None:
    def fails(module: GraphModule) -> GraphModule:
        raise ValueError(str(torch.rand(2)))

    before = torch.get_rng_state()
    with pytest.raises(fxpasses.errors.PassError):
        fxpasses.run(nn.Dropout(), [fails], torch.ones(3))
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.random.default_generator is torch.default_generator

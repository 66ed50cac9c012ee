"""While one thread captures and optimises, another calls models: none disturbs the other."""

import queue
import threading
from typing import Any

import torch
from torch import Tensor, nn

import fxpasses

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

"""While one thread captures and optimises, another calls models: none disturbs the other."""

import threading

import torch
from torch import nn

import fxpasses

CALLS = 10_000


def test_models_of_other_threads_run_on_undisturbed() -> None:
    image = torch.randn(1, 3, 6, 6)
    optimised = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU()).eval()
    called = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4)).eval()
    x = torch.randn(2, 4)
    with torch.no_grad():
        expected = called(x)
    stop = threading.Event()
    errors: list[BaseException] = []
    runs = 0

    def optimise() -> None:
        nonlocal runs
        try:
            while not stop.is_set():
                fast = fxpasses.run(optimised, "fuse_conv_bn,dce", image)
                torch.testing.assert_close(fast(image), optimised(image))
                runs += 1
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=optimise)
    thread.start()
    try:
        with torch.no_grad():
            wrong = sum(not torch.equal(called(x), expected) for _ in range(CALLS))
    finally:
        stop.set()
        thread.join()
    assert errors == []
    assert wrong == 0
    assert runs > 0

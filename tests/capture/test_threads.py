"""Models that other threads call while one thread captures stay as they are."""

import code
import sys
import threading

import torch
from torch import Tensor, nn

from fxpasses.capture import OpaqueKind, capture

CALLS = 2_000


class Deep(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(4, 4) for _ in range(20)])

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x).relu() + torch.zeros(4)
        return x if isinstance(x, Tensor) else torch.ones(4)


def test_other_threads_call_models_meanwhile() -> None:
    mine, theirs, x = Deep().eval(), Deep().eval(), torch.ones(2, 4)
    expected = theirs(x)
    wrong: list[str] = []
    stop, captures = threading.Event(), 0

    def call() -> None:
        torch.set_num_threads(1)
        for _ in range(CALLS):
            try:
                same = torch.equal(theirs(x), expected)
            except Exception as error:
                wrong.append(repr(error))
            else:
                if not same:
                    wrong.append("another result")
        stop.set()

    thread = threading.Thread(target=call)
    thread.start()
    while not stop.is_set():
        assert len(capture(mine, (x,)).program.graphs) == 1
        captures += 1
    thread.join()
    assert captures > 0
    assert wrong == []


waiting, written = threading.Event(), threading.Event()
of_another_thread, of_the_model = "before", "before"


class WritesGlobal(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        global of_the_model  # noqa: PLW0603
        of_the_model = "written"
        waiting.set()
        written.wait(10)
        return x + 1


def test_globals_that_other_threads_write_meanwhile_are_left_alone() -> None:
    # As the body of a script does, which is no function of the model's file.
    script = "waiting.wait(10); of_another_thread = 'after'; written.set()"

    def write() -> None:
        code.InteractiveInterpreter(sys.modules[__name__].__dict__).runsource(script)

    thread = threading.Thread(target=write)
    thread.start()
    captured = capture(WritesGlobal().eval(), (torch.ones(2),))
    thread.join()

    assert [leaf.kind for leaf in captured.opaque] == [OpaqueKind.PYTHON_STATE]
    assert of_the_model == "before"
    assert of_another_thread == "after"


def test_two_threads_capture_at_once() -> None:
    models = [Deep().eval() for _ in range(2)]
    x = torch.ones(2, 4)
    found: list[bool] = []

    def work(model: nn.Module) -> None:
        for _ in range(3):
            root = capture(model, (x,)).program.root
            found.append(torch.equal(root(x), model(x)))

    threads = [threading.Thread(target=work, args=(model,)) for model in models]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [True] * 6

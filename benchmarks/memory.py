"""What a verification holds while it runs, by the allocator's own events, and what it may hold."""

import copy
from collections.abc import Callable

import torch
from torch import Tensor, nn

from fxpasses.capture import capture, fork
from fxpasses.core import Group
from fxpasses.core.record import VerificationRecord
from fxpasses.manager import PassManager
from fxpasses.passes.fuse_conv_bn import FuseConvBn
from fxpasses.verify import check


def peak_bytes(work: Callable[[], object]) -> int:
    """The most bytes that the CPU allocator held above the start, while `work` ran."""
    activities = [torch.profiler.ProfilerActivity.CPU]
    with torch.profiler.profile(activities=activities, profile_memory=True) as profile:
        work()
    events = [
        event
        for event in profile.profiler.kineto_results.events()  # the events in time carry the bytes
        if event.name() == "[memory]"
    ]
    held = highest = 0
    for event in sorted(events, key=lambda event: event.start_ns()):
        held += event.nbytes()
        highest = max(highest, held)
    return highest


def verification_of(model: nn.Module, example: Tensor) -> Callable[[], VerificationRecord]:
    """Verifies `model` with its norms folded, each time it is called.

    Raises:
        AssertionError: when called, if the result is not equal to the model.
    """
    captured = capture(model, (example,))
    program = fork(captured.program)
    runs = PassManager(Group((FuseConvBn(),)), keep_regions=True).run(program)

    def verify() -> VerificationRecord:
        verdict = check(captured.program, program, runs, captured.arguments, captured.reference)
        assert verdict.record.ok, verdict
        return verdict.record

    return verify


def bytes_of_float64_forward(model: nn.Module, example: Tensor) -> int:
    """What one forward of a float64 copy holds at most, beside the copy."""
    wide, given = copy.deepcopy(model).double(), example.double()
    with torch.no_grad():
        return peak_bytes(lambda: wide(given))


def bytes_of_largest_region(model: nn.Module, example: Tensor) -> int:
    """The largest sum of what one convolution reads and computes, in float64."""
    largest = 0

    def measure(conv: nn.Conv2d, inputs: tuple[Tensor], output: Tensor) -> None:
        nonlocal largest
        elements = inputs[0].numel() + conv.weight.numel() + output.numel()
        largest = max(largest, 8 * elements)

    hooks = [m.register_forward_hook(measure) for m in model.modules() if type(m) is nn.Conv2d]
    with torch.no_grad():
        model(example)
    for hook in hooks:
        hook.remove()
    return largest

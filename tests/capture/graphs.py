"""Captured modules made without the tracer: what is tested here is what comes after it."""

from typing import Any

from torch import nn
from torch.fx import symbolic_trace

from fxpasses.capture.result.entry import Entry
from fxpasses.capture.result.module import CapturedModule
from fxpasses.capture.result.pattern import Pattern
from fxpasses.capture.twins.own_tensors import OwnTensors
from fxpasses.capture.twins.twin import twin
from fxpasses.core import Program


def captured(model: nn.Module, *args: Any, mode_matters: bool = False, **pattern: Any) -> Program:
    """`model` as one graph by torch's own tracing, for calls like that with `args`."""
    clean, _ = twin(model, tensors=OwnTensors(model))
    scratch, _ = twin(clean)
    made = Pattern(args, {}, forward=type(model).forward, **pattern)
    flags = [(clean, clean.training)] if mode_matters else []
    root = CapturedModule.over(
        clean, symbolic_trace(scratch).graph, Entry(made, clean, flags=flags)
    )
    return Program(root, {"": root})

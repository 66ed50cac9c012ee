"""Models as graphs, made without touching them, and modules that run those graphs."""

from fxpasses.capture.arguments import Arguments
from fxpasses.capture.capture import Capture, Reference, capture
from fxpasses.capture.coverage import Coverage
from fxpasses.capture.example import infer_arguments
from fxpasses.capture.fork import finish, fork, kept, milestone
from fxpasses.capture.result.barriers import FoldedWeight
from fxpasses.capture.result.module import (
    CapturedModule,
    calls_of,
    entry_of,
    fallback_of,
    graphs_of,
    guard_weights,
    pickle_fallback,
    release,
)
from fxpasses.capture.tracing.request import Note, NoteKind, Opaque, OpaqueKind
from fxpasses.capture.twins.own_tensors import OwnTensors
from fxpasses.capture.twins.twin import Twin, twin

__all__ = [
    "Arguments",
    "Capture",
    "CapturedModule",
    "Coverage",
    "FoldedWeight",
    "Note",
    "NoteKind",
    "Opaque",
    "OpaqueKind",
    "OwnTensors",
    "Reference",
    "Twin",
    "calls_of",
    "capture",
    "entry_of",
    "fallback_of",
    "finish",
    "fork",
    "graphs_of",
    "guard_weights",
    "infer_arguments",
    "kept",
    "milestone",
    "pickle_fallback",
    "release",
    "twin",
]

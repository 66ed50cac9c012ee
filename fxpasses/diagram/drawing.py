"""`draw` and `diff`: from a model, a result or a graph to its diagram."""

from collections.abc import Mapping
from typing import Any

from torch import nn
from torch.fx import GraphModule

from fxpasses.capture import Capture, CapturedModule, capture, entry_of, graphs_of
from fxpasses.core import Stage
from fxpasses.core.given import as_call, count_of, shown
from fxpasses.diagram.building import comparison_of, scene_of
from fxpasses.diagram.diagram import Diagram
from fxpasses.diagram.folding import folded
from fxpasses.errors import ArgumentError

MOST_BOXES = 150
"""About as many as can be looked at."""


def draw(
    model: nn.Module | Capture | Stage,
    example_inputs: Any = None,
    example_kwargs: Mapping[str, Any] | None = None,
    *,
    most_boxes: int | None = MOST_BOXES,
) -> Diagram:
    """The graph of a result, a GraphModule, a capture or a stage; others are captured for it.

    Args:
        model: What to draw. Nothing of it is changed.
        example_inputs: For a model that is to be captured, the arguments of one call.
        example_kwargs: The keyword arguments of that call.
        most_boxes: Beyond so many, whole modules are told in one box. None draws every node.

    Raises:
        ArgumentError: `model` is none of these, or an argument is of another kind.
        CaptureError: the model cannot be captured.
    """
    most_boxes = count_of(most_boxes, "most_boxes", "boxes")
    title, graphs = _graphs(model, (example_inputs, example_kwargs), "model")
    return Diagram(folded(scene_of(title, graphs), most_boxes))


def diff(
    before: nn.Module | Capture | Stage,
    after: nn.Module | Capture | Stage,
    example_inputs: Any = None,
    example_kwargs: Mapping[str, Any] | None = None,
    *,
    most_boxes: int | None = MOST_BOXES,
) -> Diagram:
    """Both graphs as one: what is there after and not before (`+`), the reverse (`-`), and `~`.

    `diff(model, fxpasses.run(model, ...), example_inputs)` shows what the passes did. Arguments
    are those of `draw`.
    """
    most_boxes = count_of(most_boxes, "most_boxes", "boxes")
    example = (example_inputs, example_kwargs)
    _, old = _graphs(before, example, "before")
    title, new = _graphs(after, example, "after")
    return Diagram(folded(comparison_of(title, old, new), most_boxes))


def _graphs(
    model: object, example: tuple[Any, Any], argument: str
) -> tuple[str, Mapping[str, GraphModule]]:
    """The name of a model, and its graphs by path."""
    if isinstance(model, Capture | Stage):
        return _captured(model.program.root)
    if not isinstance(model, nn.Module):
        raise ArgumentError(f"{argument} is {shown(model)}: pass a torch.nn.Module or a capture")
    if isinstance(model, GraphModule):
        return _captured(model)
    call = as_call(*example)
    args, kwargs = (None, None) if call is None else call
    return _captured(capture(model, args, kwargs).program.root)


def _captured(root: Any) -> tuple[str, Mapping[str, GraphModule]]:
    """Where there are others, the graph that only calls an opaque model's own code is left out."""
    name = type(root).__name__
    if not isinstance(root, CapturedModule):
        return name, {"": root}
    found = graphs_of(root)
    if entry_of(root).pattern is None and len(found) > 1:
        del found[""]
    return name, found

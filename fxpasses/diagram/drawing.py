"""`draw` and `diff`: from a model, a result or a graph to its diagram."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Self

from torch import nn
from torch.fx import GraphModule

from fxpasses.capture import Capture, CapturedModule, capture, entry_of, graphs_of
from fxpasses.core import Stage
from fxpasses.core.given import as_call, count_of, one_of, shown
from fxpasses.core.nearest import did_you_mean
from fxpasses.diagram.building import comparison_of, scene_of
from fxpasses.diagram.diagram import Diagram
from fxpasses.diagram.findings import Findings, findings_of
from fxpasses.diagram.focus import focused
from fxpasses.diagram.folding import folded
from fxpasses.diagram.measures import bytes_of_results, bytes_saved
from fxpasses.diagram.rendering import RENDERERS, TEXT
from fxpasses.diagram.scale import Scale, fitted
from fxpasses.diagram.scene import Scene
from fxpasses.errors import ArgumentError

MOST_BOXES = 150
"""About as many as can be looked at."""
MODES = ("change", "error", "time", "memory", "saved")
"""What the colours can show. Any other name goes, too, with `values`."""
_HOPS = 2


def draw(  # noqa: PLR0913  the one entry point; all but one have defaults
    model: nn.Module | Capture | Stage,
    example_inputs: Any = None,
    example_kwargs: Mapping[str, Any] | None = None,
    *,
    color: str = "change",
    values: Mapping[str, float] | None = None,
    limit: float | None = None,
    focus: str | None = None,
    hops: int = _HOPS,
    most_boxes: int | None = MOST_BOXES,
    renderer: str | None = None,
) -> Diagram:
    """The graph of a result, a GraphModule, a capture or a stage; others are captured for it.

    Args:
        model: What to draw. Nothing of it is changed.
        example_inputs: For a model that is to be captured, the arguments of one call.
        example_kwargs: The keyword arguments of that call.
        color: What colours show. `"change"`: what became of a node, or, of one graph, of what kind
            it is; `"error"`, `"time"`, `"memory"`, `"saved"` (bytes that autograd keeps for a
            backward), or any name for `values`.
        values: The numbers to show, by the names of nodes, `path/name` in the graph of an inner
            module: errors, seconds, bytes, or any. What has none is hatched. Without `values`,
            memory and saved bytes are those of the shapes of the example, and errors are those
            that the verifier found at the rewrites of a result.
        limit: Values above it are marked as too much.
        focus: The name of a node or a module: only what is near to it is shown.
        hops: How near.
        most_boxes: Beyond so many, whole modules are told in one box. None draws every node.
        renderer: `"dot"`, `"graphviz-pure"` or `"text"`; None takes the first that there is.

    Raises:
        ArgumentError: `model` is none of these, or an argument is of another kind.
        CaptureError: the model cannot be captured.
    """
    view = _View.of(focus, hops, most_boxes, renderer)
    title, graphs = _graphs(model, (example_inputs, example_kwargs), "model")
    scale = _scale(color, values, limit, graphs, _findings(model))
    return view.diagram(scene_of(title, graphs, scale))


def diff(  # noqa: PLR0913  as `draw`
    before: nn.Module | Capture | Stage,
    after: nn.Module | Capture | Stage,
    example_inputs: Any = None,
    example_kwargs: Mapping[str, Any] | None = None,
    *,
    color: str = "change",
    values: Mapping[str, float] | None = None,
    limit: float | None = None,
    focus: str | None = None,
    hops: int = _HOPS,
    most_boxes: int | None = MOST_BOXES,
    renderer: str | None = None,
) -> Diagram:
    """Both graphs as one: what is there after and not before (`+`), the reverse (`-`), and `~`.

    `diff(model, fxpasses.run(model, ...), example_inputs)` shows what the passes did, and what they
    refused (`!`) and why. Arguments are those of `draw`; `values` are of nodes after.
    """
    view = _View.of(focus, hops, most_boxes, renderer)
    example = (example_inputs, example_kwargs)
    _, old = _graphs(before, example, "before")
    title, new = _graphs(after, example, "after")
    findings = _findings(after)
    scale = _scale(color, values, limit, new, findings)
    return view.diagram(comparison_of(title, old, new, findings, scale))


@dataclass(frozen=True, slots=True)
class _View:
    """How much of a scene is shown, and by what."""

    focus: str | None
    hops: int
    most_boxes: int | None
    renderer: str | None

    @classmethod
    def of(cls, focus: object, hops: object, most_boxes: object, renderer: object) -> Self:
        if focus is not None and not isinstance(focus, str):
            raise ArgumentError(f"focus is {shown(focus)}: pass the name of a node or a module")
        near = count_of(hops, "hops", "edges")
        if renderer is not None:
            renderer = one_of(renderer, "renderer", (*RENDERERS, TEXT))
        most = count_of(most_boxes, "most_boxes", "boxes")
        return cls(focus, _HOPS if near is None else near, most, renderer)

    def diagram(self, scene: Scene) -> Diagram:
        if self.focus is not None:
            scene = focused(scene, self.focus, self.hops)
        scene = folded(scene, self.most_boxes)
        if scene.scale is not None:
            scene = replace(scene, scale=fitted(scene.scale, _measured(scene)))
        return Diagram(scene, self.renderer)


def _measured(scene: Scene) -> list[float]:
    """Of single nodes: sums over many would leave no colour for those."""
    boxes = [box for box in scene.boxes.values() if box.measured is not None]
    single = [box for box in boxes if not box.is_folded] or boxes
    return [box.measured for box in single if box.measured is not None]


def _findings(model: object) -> Findings:
    return findings_of(model.meta) if isinstance(model, GraphModule) else Findings()


def _scale(
    color: object,
    values: Mapping[str, float] | None,
    limit: float | None,
    graphs: Mapping[str, GraphModule],
    findings: Findings,
) -> Scale | None:
    """The numbers that colours show; None where they show what was changed."""
    if not isinstance(color, str):
        raise ArgumentError(f"color is {shown(color)}: pass one of {', '.join(MODES)}, or a name")
    if values is not None:
        if color == "change":
            raise ArgumentError("values: say what they are by color=, such as color='time'")
        return Scale(color, values, limit)
    match color:
        case "change":
            return None
        case "memory":
            return Scale(color, bytes_of_results(graphs), limit)
        case "saved":
            return Scale(color, bytes_saved(graphs), limit)
        case "error":
            return Scale(color, findings.errors, findings.bound if limit is None else limit)
        case "time":
            raise ArgumentError("color='time' shows what was measured: pass values={node: seconds}")
        case _:
            raise ArgumentError(
                f"color={color!r}: pass one of {', '.join(MODES)}{did_you_mean(color, MODES)}, or "
                "pass the numbers by values="
            )


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

"""Where channels-last is lost between convolutions."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, cast

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx import Node
from torch.fx.node import map_aggregate, map_arg

from fxpasses.advise.advice import Finding, Kind
from fxpasses.advise.subject import Captured, Subject
from fxpasses.core import VALUE, Known, TensorInfo, attribute
from fxpasses.ops import VIEWS, Op, op_of
from fxpasses.views import Conv, ConvOfUnit, view_at

_SPLIT: Final = "leave channels, rows and columns in their axes between convolutions"
_REMEDIES: Final[Mapping[Op | None, str]] = {
    Op.CONTIGUOUS: "leave contiguous() out, or pass memory_format=torch.channels_last",
    Op.PERMUTE: "permute back before the next convolution, so that no copy is needed",
    Op.TRANSPOSE: "permute back before the next convolution, so that no copy is needed",
    **dict.fromkeys((Op.VIEW, Op.RESHAPE, Op.FLATTEN, Op.UNFLATTEN), _SPLIT),
}
_OTHERWISE: Final = "convert once behind it: .to(memory_format=torch.channels_last)"


class _Unknown:
    """A value of which nothing is known."""


_UNKNOWN: Final = _Unknown()


def lost_layouts(subject: Subject) -> Iterator[Finding]:
    for graph in subject.graphs():
        convolutions = [conv for node in graph.nodes if (conv := view_at(node, Conv, ConvOfUnit))]
        if len(convolutions) > 1:
            yield from _losses(graph, convolutions)


def _losses(graph: Captured, convolutions: list[Conv]) -> Iterator[Finding]:
    values = _Layouts(graph).values
    behind = _behind(conv.node for conv in convolutions)
    told: set[Node] = set()
    for conv in convolutions:
        read = conv.input
        if not isinstance(read, Node) or read not in behind or not _is_lost(values[read]):
            continue
        for culprit in _culprits(read, values):
            if culprit not in told:
                told.add(culprit)
                op = op_of(culprit)
                message = f"{op or culprit.name} turns the image over, and {conv.node.name} copies"
                remedy = _REMEDIES.get(op, _OTHERWISE)
                yield graph.finding(Kind.LAYOUT, culprit, message, remedy)


def _behind(nodes: Iterator[Node]) -> set[Node]:
    """The nodes and all that is computed from them."""
    found: set[Node] = set()
    stack = list(nodes)
    while stack:
        node = stack.pop()
        if node not in found:
            found.add(node)
            stack.extend(node.users)
    return found


def _culprits(node: Node, values: Mapping[Node, Any]) -> Iterator[Node]:
    """The nodes nearest above that read channels-last, and hand on something else."""
    stack, seen = [node], set[Node]()
    while stack:
        one = stack.pop()
        if one in seen:
            continue
        seen.add(one)
        operands = [n for n in one.all_input_nodes if _tensors(values[n])]
        if any(_is_kept(tensor) for operand in operands for tensor in _tensors(values[operand])):
            yield one
        else:
            stack.extend(operands)


def _tensors(value: Any) -> list[Tensor]:
    """The tensor, or those of a list of them; sizes say nothing of a layout."""
    parts = value if isinstance(value, tuple | list) else (value,)
    return [part for part in parts if isinstance(part, Tensor)]


def _is_kept(value: Any) -> bool:
    """Whether the channels of one place lie side by side; of a part of the channels, too."""
    return _is_image(value) and value.stride(1) == 1


def _is_lost(value: Any) -> bool:
    return _is_image(value) and value.stride(1) != 1


def _is_image(value: Any) -> bool:
    """Not where both layouts are one: a single channel, or a single place."""
    if not isinstance(value, Tensor) or value.dim() != 4:
        return False
    return value.shape[1] > 1 and value.shape[2] * value.shape[3] > 1


class _Layouts:
    """The values of a graph on fake tensors, were its images channels-last from the start.

    What convolutions make is channels-last, as it is where their weights are.
    """

    def __init__(self, graph: Captured) -> None:
        self._graph = graph
        self.values: dict[Node, Any] = {}
        with FakeTensorMode(allow_non_fake_inputs=True), torch.no_grad():
            for node in graph.nodes:
                value = self._value(node)
                self.values[node] = (
                    _channels_last(value) if view_at(node, Conv, ConvOfUnit) else value
                )

    def _value(self, node: Node) -> Any:
        if node.op == "placeholder":
            return map_aggregate(_made(node.meta.get(VALUE)), _channels_last)
        if node.op == "get_attr":
            return attribute(self._graph.module, str(node.target))
        if node.op == "output" or (node.op == "call_module" and op_of(node) is None):
            return map_aggregate(_made(node.meta.get(VALUE)), _channels_last)
        operands = _alike({n: self.values[n] for n in node.all_input_nodes})
        if any(value is _UNKNOWN for value in operands.values()):
            return _made(node.meta.get(VALUE))
        try:
            return self._run(node, operands)
        except Exception:  # whatever a call raises on fake tensors
            return self._in_order(node, operands)

    def _in_order(self, node: Node, operands: Mapping[Node, Any]) -> Any:
        """Where a view cannot be taken of channels-last: what it makes of a copy."""
        if op_of(node) not in VIEWS:
            return _made(node.meta.get(VALUE))
        copies = {n: v.contiguous() if isinstance(v, Tensor) else v for n, v in operands.items()}
        try:
            return self._run(node, copies)
        except Exception:  # as above
            return _made(node.meta.get(VALUE))

    def _run(self, node: Node, operands: Mapping[Node, Any]) -> Any:
        args = cast("tuple[Any, ...]", map_arg(node.args, operands.__getitem__))
        kwargs = cast("dict[str, Any]", map_arg(node.kwargs, operands.__getitem__))
        if node.op == "call_method":
            return getattr(args[0], str(node.target))(*args[1:], **kwargs)
        if node.op == "call_module":
            return attribute(self._graph.module, str(node.target))(*args, **kwargs)
        return cast("Callable[..., Any]", node.target)(*args, **kwargs)


def _alike(operands: dict[Node, Any]) -> dict[Node, Any]:
    """Where images of both layouts meet, all channels-last: each loss is looked at by itself."""
    if not any(map(_is_kept, operands.values())):
        return operands
    return {node: _channels_last(value) for node, value in operands.items()}


def _made(known: Known) -> Any:
    """A fake value like the one that the capture saw."""
    if isinstance(known, TensorInfo):
        shape, stride = known.example_shape, known.example_stride
        made = torch.empty(shape, dtype=known.dtype, device=known.device)
        return made.as_strided(shape, stride) if len(stride) == len(shape) else made
    if isinstance(known, tuple | list):
        return type(known)(_made(part) for part in known)
    if isinstance(known, dict):
        return {key: _made(part) for key, part in known.items()}
    return _UNKNOWN


def _channels_last(value: Any) -> Any:
    """The value as it would lie; what is no image is left alone."""
    return value.contiguous(memory_format=torch.channels_last) if _is_image(value) else value

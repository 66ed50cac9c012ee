"""Calls that make the host wait: those in graphs, and those that opaque code is written with."""

from collections.abc import Iterator, Mapping
from typing import Final

import torch
from torch import nn
from torch.fx import Node

from fxpasses.advise.advice import Finding, Kind
from fxpasses.advise.reading import calls_written
from fxpasses.advise.subject import Subject, tensor_at
from fxpasses.ops import Op, Sync, op_of, sync_named, sync_of

REMEDIES: Final[Mapping[Sync, str]] = {
    Sync.VALUE: "keep the number in a tensor: torch.where, clamp and index_select take tensors",
    Sync.ARRAY: "stay in torch, or go to NumPy outside of the model",
    Sync.TO_HOST: "leave the tensor on its device, and copy once, outside of the model",
    Sync.TO_DEVICE: "make it once, in __init__, as a buffer that moves with the model",
    Sync.DATA_SIZED: "keep the size fixed: torch.where, masked_fill or a product with the mask, "
    "topk in place of nonzero",
    Sync.WAIT: "take it out of forward: whoever measures waits outside",
}
_MASKS: Final = (torch.bool, torch.uint8)


def synchronising_calls(subject: Subject) -> Iterator[Finding]:
    for graph in subject.graphs():
        for node in graph.nodes:
            if sync := sync_of(node) or _by_mask(node):
                yield graph.finding(_kind(sync), node, _name(node), REMEDIES[sync])
    for leaf in subject.captured.opaque:
        if module := _module_at(subject.model, leaf.path):
            yield from _written(leaf.path, module)


def _written(path: str, module: nn.Module) -> Iterator[Finding]:
    """What is written in code that is in no graph, run or not."""
    for call in calls_written(module):
        if sync := sync_named(call.name, call.owner):
            message = f"calls {call.name}, in code that is in no graph"
            yield Finding(_kind(sync), path, "", message, call.source, REMEDIES[sync])


def _kind(sync: Sync) -> Kind:
    return Kind.COPY if sync is Sync.TO_DEVICE else Kind.SYNC


def _name(node: Node) -> str:
    op = op_of(node)
    if op in (Op.GETITEM, Op.SETITEM):
        return "indexes with a mask"
    called = node.target if isinstance(node.target, str) else getattr(node.target, "__name__", op)
    return f"calls {called}"


def _by_mask(node: Node) -> Sync | None:
    """Indexing by a mask has a result of as many elements as the mask has ones."""
    op = op_of(node)
    if op not in (Op.GETITEM, Op.SETITEM) or len(node.args) < 2 or tensor_at(node.args[0]) is None:
        return None
    # A number that is written where a mask holds needs no sizes.
    if op is Op.SETITEM and not isinstance(node.args[2], Node):
        return None
    index = node.args[1]
    parts = index if isinstance(index, tuple | list) else (index,)
    known = (tensor_at(part) for part in parts)
    return Sync.DATA_SIZED if any(k is not None and k.dtype in _MASKS for k in known) else None


def _module_at(model: nn.Module, path: str) -> nn.Module | None:
    try:
        return model.get_submodule(path)
    except AttributeError:  # held in a container of the model's own, or made in forward
        return None

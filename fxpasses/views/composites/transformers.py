"""Transformers and their layers, written out in calls of their parts."""

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.fx import Node

from fxpasses.core import Editor, Facts
from fxpasses.ops import Composite
from fxpasses.views.composites.call import CompositeCall, additive_mask, taken


def written_transformer(edit: Editor, call: CompositeCall, facts: Facts) -> Node:
    """The result of a transformer or of one of its layers; its attention is called as it is."""
    return _WRITERS[call.kind](edit, call, facts)


def _encoder_layer(edit: Editor, call: CompositeCall, facts: Facts) -> Node:
    given, x = call.arguments, call.arguments["src"]
    masks = {
        "attn_mask": additive_mask(edit, given["src_mask"], facts, x),
        "key_padding_mask": additive_mask(edit, given["src_key_padding_mask"], facts, x),
    }

    def attend(x: Node) -> Node:
        causal = given["is_causal"]
        return _attended(edit, call, "self_attn", "dropout1", x, x, is_causal=causal, **masks)

    def feed(x: Node) -> Node:
        return _fed_forward(edit, call, "dropout2", x)

    return _residual(edit, call, x, (attend, feed))


def _decoder_layer(edit: Editor, call: CompositeCall, _: Facts) -> Node:
    given = call.arguments

    def look(x: Node) -> Node:
        masks = _masks_of(call, "tgt")
        return _attended(edit, call, "self_attn", "dropout1", x, x, **masks)

    def look_up(x: Node) -> Node:
        masks = _masks_of(call, "memory")
        return _attended(edit, call, "multihead_attn", "dropout2", x, given["memory"], **masks)

    def feed(x: Node) -> Node:
        return _fed_forward(edit, call, "dropout3", x)

    return _residual(edit, call, given["tgt"], (look, look_up, feed))


def _masks_of(call: CompositeCall, name: str) -> dict[str, Any]:
    return {
        "attn_mask": call.arguments[f"{name}_mask"],
        "key_padding_mask": call.arguments[f"{name}_key_padding_mask"],
        "is_causal": call.arguments[f"{name}_is_causal"],
    }


def _residual(
    edit: Editor, call: CompositeCall, x: Node, blocks: tuple[Callable[[Node], Node], ...]
) -> Node:
    """Each block added to what it reads, with the norms before or after."""
    for number, block in enumerate(blocks, 1):
        norm = f"norm{number}"
        if call.module.norm_first:
            x = _sum(edit, x, block(call.part(edit, norm, x)))
        else:
            x = call.part(edit, norm, _sum(edit, x, block(x)))
    return x


def _sum(edit: Editor, x: Node, y: Node) -> Node:
    return edit.call_function(torch.add, x, y)


def _attended(
    edit: Editor,
    call: CompositeCall,
    attention: str,
    dropout: str,
    query: Node,
    memory: Node,
    **masks: Any,
) -> Node:
    both = call.part(edit, attention, query, memory, memory, need_weights=False, **masks)
    return call.part(edit, dropout, taken(edit, both, 0))


def _fed_forward(edit: Editor, call: CompositeCall, dropout: str, x: Node) -> Node:
    x = call.part(edit, "linear1", x)
    activation = call.module.activation
    if isinstance(activation, nn.Module):
        x = call.part(edit, "activation", x)
    else:
        x = edit.call_function(activation, x)
    x = call.part(edit, "linear2", call.part(edit, "dropout", x))
    return call.part(edit, dropout, x)


def _encoder(edit: Editor, call: CompositeCall, facts: Facts) -> Node:
    given, x = call.arguments, call.arguments["src"]
    mask = additive_mask(edit, given["mask"], facts, x)
    padding = additive_mask(edit, given["src_key_padding_mask"], facts, x)
    options = {"src_mask": mask, "is_causal": bool(given["is_causal"])}
    for number in range(len(call.module.layers)):
        x = call.part(edit, f"layers.{number}", x, src_key_padding_mask=padding, **options)
    return x if call.module.norm is None else call.part(edit, "norm", x)


def _decoder(edit: Editor, call: CompositeCall, _: Facts) -> Node:
    given = dict(call.arguments)
    x, memory = given.pop("tgt"), given.pop("memory")
    given["tgt_is_causal"] = bool(given["tgt_is_causal"])
    for number in range(len(call.module.layers)):
        x = call.part(edit, f"layers.{number}", x, memory, **given)
    return x if call.module.norm is None else call.part(edit, "norm", x)


def _both(edit: Editor, call: CompositeCall, _: Facts) -> Node:
    given = call.arguments
    memory = call.part(
        edit,
        "encoder",
        given["src"],
        mask=given["src_mask"],
        src_key_padding_mask=given["src_key_padding_mask"],
        is_causal=given["src_is_causal"],
    )
    options = {name: value for name, value in given.items() if name.startswith(("tgt_", "memory_"))}
    return call.part(edit, "decoder", given["tgt"], memory, **options)


_WRITERS: dict[Composite, Callable[[Editor, CompositeCall, Facts], Node]] = {
    Composite.TRANSFORMER_ENCODER_LAYER: _encoder_layer,
    Composite.TRANSFORMER_DECODER_LAYER: _decoder_layer,
    Composite.TRANSFORMER_ENCODER: _encoder,
    Composite.TRANSFORMER_DECODER: _decoder,
    Composite.TRANSFORMER: _both,
}

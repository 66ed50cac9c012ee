"""Attention of many heads, written out."""

import math
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch.fx import Node

from fxpasses.core import Editor, Facts
from fxpasses.views.composites.call import CompositeCall, Results, additive_mask, parts_of_tensor

Three = tuple[Node, Node, Node]

_HEADS_IN_FRONT = (1, 2, 0, 3)  # from length, batch, heads, size to batch, heads, length, size
_LENGTH_IN_FRONT = (2, 0, 1, 3)  # and back


@dataclass(frozen=True, slots=True)
class _Writer:
    """Writes one attention, step by step. Inside, sequences have a batch."""

    edit: Editor
    call: CompositeCall
    facts: Facts
    batched: bool

    @property
    def batch_first(self) -> bool:
        return self.call.batch_first or not self.batched

    def results(self, *, dense: bool) -> Results:
        arguments = self.call.arguments
        query, key, value = self.with_bias(self.projected())
        if self.call.module.add_zero_attn:
            key, value = (self.edit.call_function(F.pad, x, (0, 0, 0, 1)) for x in (key, value))
        if not arguments["need_weights"]:
            return self.joined(self.attended(query, key, value), dense=dense), None
        weights = self.weights(query, key)
        context = self.edit.call_function(torch.matmul, weights, value)
        return self.joined(context, dense=dense), self.handed_out(weights)

    # -- projections

    def projected(self) -> Three:
        """Queries, keys and values, with a batch, before they are split into heads."""
        given = tuple(self.call.arguments[name] for name in ("query", "key", "value"))
        alike = len(set(given)) == 1
        if not self.batched:
            rows = {x: self.edit.call_method("unsqueeze", x, 0) for x in dict.fromkeys(given)}
            given = tuple(rows[x] for x in given)
        bias = self.call.tensor(self.edit, "in_proj_bias")
        if alike and self.call.has("in_proj_weight"):
            weight = self.call.tensor(self.edit, "in_proj_weight")
            whole = self.edit.call_function(F.linear, given[0], weight, bias)
            query, key, value = parts_of_tensor(self.edit, whole, 3, -1)
            return query, key, value
        biases = [None] * 3 if bias is None else parts_of_tensor(self.edit, bias, 3, 0)
        query, key, value = (
            self.edit.call_function(F.linear, x, weight, one)
            for x, weight, one in zip(given, self.separate_weights(), biases, strict=True)
        )
        return query, key, value

    def separate_weights(self) -> list[Node | None]:
        packed = self.call.tensor(self.edit, "in_proj_weight")
        if packed is not None:
            return [*parts_of_tensor(self.edit, packed, 3, 0)]
        return [self.call.tensor(self.edit, f"{name}_proj_weight") for name in "qkv"]

    def with_bias(self, given: Three) -> Three:
        """In heads, and with one more key and value where the layer has learnt them."""
        query, *others = given
        for number, name in enumerate(("bias_k", "bias_v")):
            bias = self.call.tensor(self.edit, name)
            if bias is not None:
                others[number] = self.appended(others[number], bias)
        return self.in_heads(query), self.in_heads(others[0]), self.in_heads(others[1])

    def appended(self, sequence: Node, row: Node) -> Node:
        batch, length = (0, 1) if self.batch_first else (1, 0)
        sizes: list[Any] = [-1, -1, -1]
        sizes[batch] = self.edit.call_method("size", sequence, batch)
        rows = self.edit.call_method("expand", row, *sizes)
        return self.edit.call_function(torch.cat, [sequence, rows], dim=length)

    def in_heads(self, x: Node) -> Node:
        """From a sequence to batch, heads, length, size."""
        module = self.call.module
        split = self.edit.call_method("unflatten", x, -1, (module.num_heads, module.head_dim))
        if self.batch_first:
            return self.edit.call_method("transpose", split, 1, 2)
        return self.edit.call_method("permute", split, *_HEADS_IN_FRONT)

    # -- scores

    def mask(self) -> Node | None:
        """What is added to the scores, broadcast to batch, heads, length, keys."""
        found = [mask for mask in (self.attention_mask(), self.padding_mask()) if mask is not None]
        if len(found) > 1:
            return self.edit.call_function(torch.add, *found)
        return found[0] if found else None

    def attention_mask(self) -> Node | None:
        given = self.call.arguments["attn_mask"]
        mask = self.widened(given)
        if mask is None or self.facts.rank(given) == 2:
            return mask
        return self.edit.call_method("unflatten", mask, 0, (-1, self.call.module.num_heads))

    def padding_mask(self) -> Node | None:
        mask = self.widened(self.call.arguments["key_padding_mask"])
        if mask is None or not self.batched:
            return mask and self.edit.call_method("unsqueeze", mask, 0)
        mask = self.edit.call_method("unsqueeze", mask, 1)
        return self.edit.call_method("unsqueeze", mask, 1)

    def widened(self, given: Node | None) -> Node | None:
        """As numbers, with zeros for the keys that the layer adds."""
        mask = additive_mask(self.edit, given, self.facts, self.call.arguments["query"])
        more = int(self.call.has("bias_k")) + int(self.call.module.add_zero_attn)
        if mask is None or not more:
            return mask
        return self.edit.call_function(F.pad, mask, (0, more))

    @property
    def share_dropped(self) -> float:
        return self.call.module.dropout if self.call.module.training else 0.0

    def attended(self, query: Node, key: Node, value: Node) -> Node:
        arguments = self.call.arguments
        # A hint makes up the mask by itself, except where padding has to be added to it.
        is_causal = arguments["is_causal"] and arguments["key_padding_mask"] is None
        options: dict[str, Any] = {"is_causal": True} if is_causal else {}
        mask = None if is_causal else self.mask()
        if mask is not None:
            options["attn_mask"] = mask
        if self.share_dropped:
            options["dropout_p"] = self.share_dropped
        attend = F.scaled_dot_product_attention
        return self.edit.call_function(attend, query, key, value, **options)

    def weights(self, query: Node, key: Node) -> Node:
        edit = self.edit
        scaled = edit.call_function(torch.mul, query, math.sqrt(1.0 / self.call.module.head_dim))
        turned = edit.call_method("transpose", key, -2, -1)
        scores = edit.call_function(torch.matmul, scaled, turned)
        mask = self.mask()
        if mask is not None:
            scores = edit.call_function(torch.add, scores, mask)
        weights = edit.call_function(torch.softmax, scores, -1)
        if not self.share_dropped:
            return weights
        return edit.call_function(F.dropout, weights, p=self.share_dropped)

    # -- results

    def joined(self, context: Node, *, dense: bool) -> Node:
        """The heads put together and projected, laid out in memory as the layer does."""
        edit, call = self.edit, self.call
        turns = self.batch_first and not dense
        if self.batch_first and dense:
            rows = edit.call_method("transpose", context, 1, 2)
        else:
            rows = edit.call_method("permute", context, *_LENGTH_IN_FRONT)
        rows = edit.call_method("flatten", rows, 2)
        weight, bias = (call.tensor(edit, f"out_proj.{name}") for name in ("weight", "bias"))
        out = edit.call_function(F.linear, rows, weight, bias)
        if not self.batched:
            return edit.call_method("squeeze", out, 0)
        return edit.call_method("transpose", out, 0, 1) if turns else out

    def handed_out(self, weights: Node) -> Node | None:
        if not self.call.reads(1):
            return None
        if self.call.arguments["average_attn_weights"]:
            weights = self.edit.call_method("mean", weights, dim=1)
        return weights if self.batched else self.edit.call_method("squeeze", weights, 0)


def written_attention(edit: Editor, call: CompositeCall, facts: Facts, *, dense: bool) -> Results:
    """The output of an attention, and its weights where they are asked for and read.

    Args:
        edit: where the nodes are made.
        call: of an attention, whose masks and rank are known.
        facts: of the graph.
        dense: whether a result that has the batch in front is contiguous, as torch's fused
            attention makes it; else it is the transpose of a contiguous one.
    """
    batched = facts.rank(call.arguments["query"]) == 3
    return _Writer(edit, call, facts, batched).results(dense=dense or not batched)

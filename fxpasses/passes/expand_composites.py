"""Write out attention, transformers and recurrent cells in ops, so that other passes see inside.

    multihead_attention(x, x, x)  ->  linear(attend(split(linear(x))))

The layers stay where they are, and so do their parameters. Sums are taken in another order than
in torch's fused kernels, so that results move by rounding.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, ClassVar, Final

import torch
from torch import nn
from torch.fx import GraphModule, Node

from fxpasses.core import (
    Condition,
    Editor,
    Facts,
    GraphPass,
    Numerics,
    Refusal,
    Step,
    is_replaced,
)
from fxpasses.ops import (
    NORMS,
    Composite,
    Op,
    composite_of_module,
    op_of_function,
    op_of_module,
)
from fxpasses.views import constant
from fxpasses.views.composites import (
    CompositeCall,
    Results,
    written_attention,
    written_cell,
    written_transformer,
)

_CELLS: Final = frozenset({Composite.LSTM_CELL, Composite.GRU_CELL, Composite.RNN_CELL})
_OF_LAYERS: Final = frozenset(
    {Composite.TRANSFORMER_ENCODER_LAYER, Composite.TRANSFORMER_DECODER_LAYER}
)
_ENCODERS: Final = frozenset({Composite.TRANSFORMER_ENCODER, Composite.TRANSFORMER_ENCODER_LAYER})
_BATCHED: Final = 3  # axes of sequences with a batch


# -- what is known of the call


def number_of_steps_is_fixed(call: CompositeCall, _: Facts) -> str | None:
    if call.kind is not Composite.RECURRENT:
        return None
    return "it takes as many steps as its input is long"


def settings_are_known(call: CompositeCall, _: Facts) -> str | None:
    for name, value in call.arguments.items():
        is_flag = name.endswith(("is_causal", "weights"))
        if is_flag and isinstance(value, Node):
            return f"{name} is computed at run time"
    masked = any(name in _masks(call) for name in ("attn_mask", "src_mask", "mask"))
    if call.arguments.get("is_causal") and not masked:
        return "is_causal is set without a mask, which torch does not always take"
    activation = getattr(call.module, "activation", None) if call.kind in _OF_LAYERS else None
    if activation is None or isinstance(activation, nn.Module):
        return None
    known = op_of_function(activation) is not None
    return None if known else "its activation is a function that no op is known to be"


def forms_are_known(call: CompositeCall, facts: Facts) -> str | None:
    for name in _FORMS_ASKED.get(call.kind, ()):
        value = call.arguments[name]
        known = isinstance(value, Node) and facts.rank(value) is not None
        if not known:
            return f"the rank of {name} is not known"
    for name, mask in _masks(call).items():
        dtype = facts.dtype(mask)
        if dtype is None or facts.rank(mask) is None:
            return f"rank and dtype of {name} are not known"
        if dtype is not torch.bool and not dtype.is_floating_point:
            return f"{name} holds {dtype}, which torch refuses"
    return None


_FORMS_ASKED: Final[Mapping[Composite, tuple[str, ...]]] = {
    Composite.MULTIHEAD_ATTENTION: ("query", "key", "value"),
    **dict.fromkeys(_ENCODERS, ("src",)),
    **dict.fromkeys(_CELLS, ("input",)),
}


def _masks(call: CompositeCall) -> dict[str, Any]:
    return {
        name: value
        for name, value in call.arguments.items()
        if name.endswith("mask") and value is not None
    }


def results_are_taken_apart(call: CompositeCall, _: Facts) -> str | None:
    """What needs the tuple itself keeps the layer, which is then computed twice."""
    if not call.returns_several:
        return None
    if call.items() is None:
        return "its results are used as one tuple"
    if call.arguments.get("need_weights", True) or not call.reads(1):
        return None
    return "its weights are read, which are None"


_LOOKED_AT: Final[Mapping[Composite, tuple[str, str, str]]] = {
    Composite.TRANSFORMER_ENCODER: ("mask", "is_causal", "src_key_padding_mask"),
    Composite.TRANSFORMER_DECODER: ("tgt_mask", "tgt_is_causal", "tgt_key_padding_mask"),
}
"""A mask; the hint in the place of which torch looks at its values; what it is added to anyway."""


def mask_gets_its_gradient(call: CompositeCall, facts: Facts) -> str | None:
    """A mask that is found to be the causal one is left out of what is computed."""
    if not facts.training or call.kind not in _LOOKED_AT:
        return None
    name, *others = _LOOKED_AT[call.kind]
    mask = _masks(call).get(name)
    if mask is None or any(call.arguments[other] is not None for other in others):
        return None
    if facts.dtype(mask) is torch.bool or not _may_need_a_gradient(mask):
        return None
    return f"{name} gets a gradient only where torch does not find it to be the causal one"


def _may_need_a_gradient(value: Node) -> bool:
    stack, seen = [value], {value}
    while stack:
        node = stack.pop()
        if node.op == "placeholder":
            return True
        if node.op == "get_attr" and getattr(constant(node), "requires_grad", True):
            return True
        new = [operand for operand in node.all_input_nodes if operand not in seen]
        seen.update(new)
        stack.extend(new)
    return False


# -- where torch has a fused kernel of its own


def fused_kernel_agrees(call: CompositeCall, facts: Facts) -> str | None:
    """Torch uses it in evaluation where nothing needs a gradient, which hangs on the call."""
    if call.kind is Composite.TRANSFORMER_ENCODER:
        return _nests(call)
    if not may_be_fused(call, facts):
        return None
    if call.kind is Composite.TRANSFORMER_ENCODER_LAYER and (reason := _passed_over(call)):
        return reason
    if not _masks(call) or call.arguments.get("need_weights"):
        return None
    return "where all is masked, torch gives NaN without gradients, and other numbers with them"


def _nests(call: CompositeCall) -> str | None:
    given, module = call.arguments, call.module
    evaluates = module.use_nested_tensor and not module.layers[0].training
    if not evaluates or given["src_key_padding_mask"] is None or given["mask"] is not None:
        return None
    return "torch gives zeros for padding without gradients, and other numbers with them"


def may_be_fused(call: CompositeCall, facts: Facts) -> bool:
    """Whether torch may compute a call by a kernel that is written for the whole of it."""
    if call.kind is Composite.MULTIHEAD_ATTENTION:
        return _attends_to_itself(call, facts) and _has_usual_attention(call.module)
    if call.kind is not Composite.TRANSFORMER_ENCODER_LAYER or call.module.training:
        return False
    module = call.module
    is_usual = module.activation_relu_or_gelu and module.norm1.eps == module.norm2.eps
    return bool(
        is_usual
        and facts.rank(call.arguments["src"]) == _BATCHED
        and _has_usual_attention(module.self_attn, ignoring_mode=True)
    )


def _has_usual_attention(module: Any, *, ignoring_mode: bool = False) -> bool:
    packed = module.in_proj_weight is not None and module.in_proj_bias is not None
    alone = ignoring_mode or (module.bias_k is None and not module.add_zero_attn)
    evaluates = ignoring_mode or not module.training
    return packed and alone and evaluates and module.batch_first and module.num_heads % 2 == 0


def _attends_to_itself(call: CompositeCall, facts: Facts) -> bool:
    query, key, value = (call.arguments[name] for name in ("query", "key", "value"))
    is_one = facts.may_alias(query, key) and facts.may_alias(key, value)
    dtypes = (facts.dtype(mask) for mask in _masks(call).values())
    added = any(dtype is not None and dtype.is_floating_point for dtype in dtypes)
    return is_one and not added and facts.rank(query) == _BATCHED


_PARTS: Final = {
    **dict.fromkeys(("linear1", "linear2"), frozenset({Op.LINEAR})),
    **dict.fromkeys(("norm1", "norm2"), NORMS & {Op.LAYER_NORM}),
    **dict.fromkeys(("dropout", "dropout1", "dropout2"), frozenset({Op.DROPOUT})),
}


def _passed_over(call: CompositeCall) -> str | None:
    """A part whose own code the kernel of a whole layer does not run, and that does more."""
    module = call.module
    attention = composite_of_module(module.self_attn) is Composite.MULTIHEAD_ATTENTION
    others = [
        name for name, ops in _PARTS.items() if op_of_module(getattr(module, name)) not in ops
    ]
    replaced = others if attention else ["self_attn", *others]
    if replaced:
        return f"its {replaced[0]} is not torch's, which does not call it without gradients"
    active = [name for name, part in module.named_children() if part.training]
    if active:
        return f"its {active[0]} trains, which torch does not call without gradients"
    approximate = getattr(module.activation, "approximate", "none") != "none"
    return "its activation is an approximation only with gradients" if approximate else None


class ExpandComposites(GraphPass):
    """Write attention, transformers and recurrent cells out in ops, for other passes to see.

    `nn.MultiheadAttention`, `nn.Transformer` and its encoder, decoder and layers, `nn.LSTMCell`,
    `nn.GRUCell` and `nn.RNNCell`. Weights keep their names and are trained as before, random
    numbers are drawn as before. LSTMs, GRUs and RNNs stay: how many steps they take hangs on the
    input.
    """

    name = "expand_composites"
    numerics = Numerics.ROUNDING
    trains = True
    legal_if: ClassVar[tuple[Condition[Any], ...]] = (
        number_of_steps_is_fixed,
        settings_are_known,
        forms_are_known,
        mask_gets_its_gradient,
        fused_kernel_agrees,
    )
    worthwhile_if: ClassVar[tuple[Condition[Any], ...]] = (results_are_taken_apart,)
    remedies: ClassVar[Mapping[Condition[Any], str]] = {
        number_of_steps_is_fixed: "call a cell, such as nn.LSTMCell, for each step",
        settings_are_known: "pass True or False, a mask with is_causal, a module to activate",
        forms_are_known: "pass example_inputs, and masks of booleans or floats",
        mask_gets_its_gradient: "pass is_causal=False, or True where the mask is the causal one",
        fused_kernel_agrees: "pass no mask, or make the layer with batch_first=False",
        results_are_taken_apart: "unpack the results: out, weights = attention(...)",
    }

    def steps(self, module: GraphModule, facts: Facts) -> Iterator[Step | Refusal]:
        yield from self._written_out(list(module.graph.nodes), facts)

    def _written_out(self, nodes: Iterable[Node], facts: Facts) -> Iterator[Step | Refusal]:
        for node in nodes:
            call = None if is_replaced(node) or not node.users else CompositeCall.at(node)
            if call is None:
                continue
            if refusal := self.refusal(node, call, facts):
                yield refusal
                continue
            before = node.prev
            yield _writing(call, facts)
            # Those that it is made of.
            yield from self._written_out(_between(before, node), facts)


def _between(first: Node, last: Node) -> list[Node]:
    found, node = list[Node](), first.next
    while node is not last:
        found.append(node)
        node = node.next
    return found


def _writing(call: CompositeCall, facts: Facts) -> Step:
    def do(edit: Editor) -> None:
        results = _results(call, edit, facts)
        if not call.returns_several:
            (result,) = results
            assert result is not None, "a layer has a result"
            edit.replace(call.node, result)
            return
        for item, index in (call.items() or {}).items():
            result = results[index]
            if result is None:
                edit.erase(item)
            else:
                edit.replace(item, result, absorbing=[call.node])

    return Step(call.node, f"the {call.kind.replace('_', ' ')} is made of ops", do)


def _results(call: CompositeCall, edit: Editor, facts: Facts) -> Results:
    if call.kind is Composite.MULTIHEAD_ATTENTION:
        return written_attention(edit, call, facts, dense=may_be_fused(call, facts))
    if call.kind in _CELLS:
        return written_cell(edit, call, facts)
    return (written_transformer(edit, call, facts),)

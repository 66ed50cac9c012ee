"""Which layers of torch are made of several ops: attention, transformers, recurrent cells.

They are no ops of the vocabulary. A pass may write them out.
"""

from collections.abc import Mapping
from enum import StrEnum, auto
from typing import Final

from torch import nn
from torch.fx import Node

from fxpasses.ops.modules import computes_as, is_plain, kept, module_of


class Composite(StrEnum):
    """A layer of torch that is made of several ops."""

    MULTIHEAD_ATTENTION = auto()
    TRANSFORMER_ENCODER_LAYER = auto()
    TRANSFORMER_DECODER_LAYER = auto()
    TRANSFORMER_ENCODER = auto()
    TRANSFORMER_DECODER = auto()
    TRANSFORMER = auto()
    LSTM_CELL = auto()
    GRU_CELL = auto()
    RNN_CELL = auto()
    RECURRENT = auto()
    """An LSTM, a GRU or an RNN: cells over steps, as many as the input is long."""


_BY_CLASS: Final[Mapping[type[nn.Module], Composite]] = {
    nn.MultiheadAttention: Composite.MULTIHEAD_ATTENTION,
    nn.TransformerEncoderLayer: Composite.TRANSFORMER_ENCODER_LAYER,
    nn.TransformerDecoderLayer: Composite.TRANSFORMER_DECODER_LAYER,
    nn.TransformerEncoder: Composite.TRANSFORMER_ENCODER,
    nn.TransformerDecoder: Composite.TRANSFORMER_DECODER,
    nn.Transformer: Composite.TRANSFORMER,
    nn.LSTMCell: Composite.LSTM_CELL,
    nn.GRUCell: Composite.GRU_CELL,
    nn.RNNCell: Composite.RNN_CELL,
    nn.LSTM: Composite.RECURRENT,
    nn.GRU: Composite.RECURRENT,
    nn.RNN: Composite.RECURRENT,
}


def composite_of(node: Node) -> Composite | None:
    """The composite that `node` calls, or None. None too where it has hooks or is parametrised."""
    return composite_of_module(module_of(node)) if node.op == "call_module" else None


def composite_of_module(module: nn.Module) -> Composite | None:
    """The composite that a call of `module` computes, or None."""
    found = _composite_of_class(type(module))
    return found if found is not None and is_plain(module) else None


@kept
def _composite_of_class(cls: type[nn.Module]) -> Composite | None:
    base = computes_as(cls, _BY_CLASS)
    return None if base is None else _BY_CLASS[base]

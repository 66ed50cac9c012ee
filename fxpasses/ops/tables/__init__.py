"""The spellings of every op, by family."""

from collections.abc import Mapping
from types import MappingProxyType

from fxpasses.ops.op import Op
from fxpasses.ops.spelling import Spellings
from fxpasses.ops.tables.activations import ACTIVATION_TABLE
from fxpasses.ops.tables.arithmetic import ARITHMETIC_TABLE
from fxpasses.ops.tables.factories import FACTORY_TABLE
from fxpasses.ops.tables.layers import LAYER_TABLE
from fxpasses.ops.tables.pooling import POOLING_TABLE
from fxpasses.ops.tables.reductions import REDUCTION_TABLE
from fxpasses.ops.tables.shapes import SHAPE_TABLE

VOCABULARY: Mapping[Op, Spellings] = MappingProxyType(
    LAYER_TABLE
    | ACTIVATION_TABLE
    | POOLING_TABLE
    | ARITHMETIC_TABLE
    | REDUCTION_TABLE
    | SHAPE_TABLE
    | FACTORY_TABLE
)

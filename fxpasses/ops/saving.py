"""What autograd keeps of a call for the backward: whoever writes it later breaks that.

Tried out on every spelling by a test.
"""

from typing import Final

from fxpasses.ops.op import Op
from fxpasses.ops.sets import ACTIVATIONS

RESULT_SAVED: Final = frozenset(
    {
        *(Op.RELU, Op.SIGMOID, Op.TANH, Op.SOFTMAX, Op.LOG_SOFTMAX, Op.SOFTMIN, Op.SDPA),
        *(Op.GUMBEL_SOFTMAX, Op.MAX_POOL_WITH_INDICES, Op.ADAPTIVE_MAX_POOL_WITH_INDICES),
        *(Op.FRACTIONAL_MAX_POOL_WITH_INDICES, Op.POW, Op.HYPOT, Op.COPYSIGN, Op.SQRT, Op.RSQRT),
        *(Op.RECIPROCAL, Op.EXP, Op.EXP2, Op.EXPM1, Op.TAN, Op.PROD, Op.AMAX, Op.AMIN),
        *(Op.AMINMAX, Op.MAX, Op.MIN, Op.STD, Op.STD_MEAN, Op.NORM, Op.VECTOR_NORM),
        *(Op.CONV_UNIT, Op.LINEAR_UNIT),  # of their activation
        *(Op.LOGSUMEXP, Op.MEDIAN, Op.CUMPROD, Op.TOPK, Op.SORT, Op.ARGSORT, Op.EMBEDDING_BAG),
    }
)
"""The backward may be computed from the result."""

RESULT_SAVED_IN_PLACE: Final = RESULT_SAVED | ACTIVATIONS
"""The same of calls that write their operand: many activations then compute it so."""

OPERANDS_NOT_SAVED: Final = frozenset(
    {
        *(Op.ADD, Op.SUB, Op.NEG, Op.CAT, Op.STACK, Op.MEAN, Op.SUM, Op.RELU, Op.SIGMOID),
        *(Op.TANH, Op.SOFTMAX, Op.LOG_SOFTMAX, Op.EXP, Op.CLONE, Op.INTERPOLATE, Op.COPY),
        *(Op.EQ, Op.NE, Op.LT, Op.LE, Op.GT, Op.GE, Op.SIGN, Op.FLOOR, Op.CEIL, Op.ROUND),
    }
)
"""Ops that read tensors and keep none of them for the backward."""

"""What groups of ops have in common."""

from typing import Final

from fxpasses.ops.op import Op
from fxpasses.ops.tables.activations import ACTIVATION_TABLE

SOFTMAXES: Final = frozenset({Op.SOFTMAX, Op.LOG_SOFTMAX, Op.SOFTMIN, Op.GUMBEL_SOFTMAX})

ACTIVATIONS: Final = frozenset(ACTIVATION_TABLE) - SOFTMAXES
"""Non-linear functions between layers. All but `GLU` work element by element."""

UNITS: Final = frozenset({Op.CONV_UNIT, Op.LINEAR_UNIT})
"""A layer with what follows it. A unit in which nothing follows is the layer."""

NORMS: Final = frozenset(
    {
        *(Op.BATCH_NORM, Op.INSTANCE_NORM, Op.LAYER_NORM, Op.GROUP_NORM, Op.RMS_NORM),
        Op.LOCAL_RESPONSE_NORM,
    }
)

DROPOUTS: Final = frozenset(
    {
        *(Op.DROPOUT, Op.FEATURE_DROPOUT, Op.ALPHA_DROPOUT, Op.FEATURE_ALPHA_DROPOUT),
        Op.STOCHASTIC_DEPTH,
    }
)
"""The identity in evaluation."""

POOLS: Final = frozenset(
    {
        *(Op.MAX_POOL, Op.MAX_POOL_WITH_INDICES, Op.AVG_POOL, Op.LP_POOL),
        *(Op.ADAPTIVE_AVG_POOL, Op.ADAPTIVE_MAX_POOL, Op.ADAPTIVE_MAX_POOL_WITH_INDICES),
        *(Op.FRACTIONAL_MAX_POOL, Op.FRACTIONAL_MAX_POOL_WITH_INDICES),
    }
)

MATMULS: Final = frozenset(
    {
        *(Op.MATMUL, Op.MM, Op.BMM, Op.MV, Op.DOT, Op.OUTER, Op.ADDMM, Op.BADDBMM, Op.ADDMV),
        *(Op.ADDBMM, Op.EINSUM, Op.SDPA),
    }
)

COMPARISONS: Final = frozenset({Op.EQ, Op.NE, Op.LT, Op.LE, Op.GT, Op.GE, Op.ISCLOSE})

BINARY: Final = COMPARISONS | {
    *(Op.ADD, Op.SUB, Op.MUL, Op.DIV, Op.FLOOR_DIVIDE, Op.REMAINDER, Op.FMOD, Op.POW),
    *(Op.MAXIMUM, Op.MINIMUM, Op.FMAX, Op.FMIN, Op.ATAN2, Op.HYPOT, Op.COPYSIGN, Op.LOGADDEXP),
    *(Op.XLOGY, Op.BITWISE_AND, Op.BITWISE_OR, Op.BITWISE_XOR, Op.BITWISE_LEFT_SHIFT),
    *(Op.BITWISE_RIGHT_SHIFT, Op.LOGICAL_AND, Op.LOGICAL_OR, Op.LOGICAL_XOR),
}
"""Two operands, element by element, with broadcasting."""

COMMUTATIVE: Final = frozenset(
    {
        *(Op.ADD, Op.MUL, Op.MAXIMUM, Op.MINIMUM, Op.FMAX, Op.FMIN, Op.HYPOT, Op.LOGADDEXP),
        *(Op.BITWISE_AND, Op.BITWISE_OR, Op.BITWISE_XOR),
        *(Op.LOGICAL_AND, Op.LOGICAL_OR, Op.LOGICAL_XOR, Op.EQ, Op.NE),
    }
)
"""`input` and `other` may change places, where an `alpha` is 1 and nothing is written."""

UNARY: Final = frozenset(
    {
        *(Op.NEG, Op.POSITIVE, Op.ABS, Op.SIGN, Op.SQUARE, Op.SQRT, Op.RSQRT, Op.RECIPROCAL),
        *(Op.EXP, Op.EXP2, Op.EXPM1, Op.LOG, Op.LOG2, Op.LOG10, Op.LOG1P, Op.LOGIT),
        *(Op.SIN, Op.COS, Op.TAN, Op.ASIN, Op.ACOS, Op.ATAN, Op.SINH, Op.COSH, Op.ASINH),
        *(Op.ACOSH, Op.ATANH, Op.ERF, Op.ERFC, Op.ERFINV, Op.LGAMMA),
        *(Op.FLOOR, Op.CEIL, Op.ROUND, Op.TRUNC, Op.FRAC, Op.CLAMP, Op.CLAMP_MIN, Op.CLAMP_MAX),
        *(Op.NAN_TO_NUM, Op.ISNAN, Op.ISINF, Op.ISFINITE, Op.LOGICAL_NOT, Op.BITWISE_NOT),
    }
)

ELEMENTWISE: Final = (
    (ACTIVATIONS - {Op.GLU, Op.PRELU, Op.RRELU})
    | BINARY
    | UNARY
    | {Op.LERP, Op.ADDCMUL, Op.ADDCDIV, Op.WHERE, Op.MASKED_FILL, Op.CAST, Op.IDENTITY, Op.CLONE}
)
"""Each element of the result depends on the elements at its place alone, after broadcasting."""

REDUCTIONS: Final = frozenset(
    {
        *(Op.SUM, Op.NANSUM, Op.MEAN, Op.PROD, Op.AMAX, Op.AMIN, Op.AMINMAX, Op.MAX, Op.MIN),
        *(Op.VAR, Op.STD, Op.VAR_MEAN, Op.STD_MEAN, Op.NORM, Op.VECTOR_NORM, Op.LOGSUMEXP),
        *(Op.ARGMAX, Op.ARGMIN, Op.ALL, Op.ANY, Op.COUNT_NONZERO, Op.MEDIAN),
    }
)

VIEWS: Final = frozenset(
    {
        *(Op.VIEW, Op.VIEW_AS, Op.RESHAPE, Op.RESHAPE_AS, Op.FLATTEN, Op.UNFLATTEN),
        *(Op.PERMUTE, Op.TRANSPOSE, Op.T, Op.MOVEDIM, Op.SQUEEZE, Op.UNSQUEEZE),
        *(Op.EXPAND, Op.EXPAND_AS, Op.BROADCAST_TO, Op.SELECT, Op.NARROW, Op.SLICE),
        *(Op.DIAGONAL, Op.UNFOLD, Op.AS_STRIDED, Op.ALIAS, Op.DETACH, Op.CONTIGUOUS),
        *(Op.IDENTITY, Op.CAST, Op.SPLIT, Op.CHUNK, Op.TENSOR_SPLIT, Op.UNBIND, Op.GETITEM),
    }
)
"""The result is, or may be, in the memory of the first operand."""

FACTORIES: Final = frozenset(
    {
        *(Op.ZEROS, Op.ONES, Op.FULL, Op.EMPTY, Op.ARANGE, Op.LINSPACE, Op.EYE, Op.TENSOR),
        *(Op.ZEROS_LIKE, Op.ONES_LIKE, Op.FULL_LIKE, Op.EMPTY_LIKE),
        *(Op.NEW_ZEROS, Op.NEW_ONES, Op.NEW_FULL, Op.NEW_EMPTY, Op.NEW_TENSOR),
    }
)
"""New tensors whose values depend on no tensor's values."""

RANDOM: Final = DROPOUTS | {
    *(Op.RAND, Op.RANDN, Op.RANDINT, Op.RANDPERM, Op.RAND_LIKE, Op.RANDN_LIKE),
    *(Op.RANDINT_LIKE, Op.NORMAL, Op.BERNOULLI, Op.MULTINOMIAL, Op.UNIFORM),
    *(Op.RRELU, Op.GUMBEL_SOFTMAX, Op.SDPA),
    *(Op.FRACTIONAL_MAX_POOL, Op.FRACTIONAL_MAX_POOL_WITH_INDICES),
}
"""May draw random numbers; whether a call does is asked of `effects`."""

QUESTIONS: Final = frozenset({Op.SIZE, Op.RANK, Op.NUMEL, Op.STRIDE})
"""About a tensor's size or layout, not its values."""

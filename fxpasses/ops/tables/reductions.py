"""Reductions, scans and orders."""

import torch

from fxpasses.ops.op import Op
from fxpasses.ops.spelling import Spellings, spell

REDUCTION_TABLE: dict[Op, Spellings] = {
    Op.SUM: spell("sum"),
    Op.NANSUM: spell("nansum"),
    Op.MEAN: spell("mean"),
    Op.PROD: spell("prod"),
    Op.AMAX: spell("amax"),
    Op.AMIN: spell("amin"),
    Op.AMINMAX: spell("aminmax"),
    # Given a second tensor these are MAXIMUM and MINIMUM, which `op_of` sees.
    Op.MAX: spell("max"),
    Op.MIN: spell("min"),
    Op.VAR: spell("var"),
    Op.STD: spell("std"),
    Op.VAR_MEAN: spell("var_mean"),
    Op.STD_MEAN: spell("std_mean"),
    Op.NORM: spell("norm"),
    Op.VECTOR_NORM: spell(functions=(torch.linalg.vector_norm,), aten=("linalg_vector_norm",)),
    Op.LOGSUMEXP: spell("logsumexp"),
    Op.ARGMAX: spell("argmax"),
    Op.ARGMIN: spell("argmin"),
    Op.ALL: spell("all"),
    Op.ANY: spell("any"),
    Op.COUNT_NONZERO: spell("count_nonzero"),
    Op.MEDIAN: spell("median"),
    Op.CUMSUM: spell("cumsum"),
    Op.CUMPROD: spell("cumprod"),
    Op.TOPK: spell("topk"),
    Op.SORT: spell("sort"),
    Op.ARGSORT: spell("argsort"),
}

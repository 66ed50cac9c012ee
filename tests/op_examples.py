"""For every op of the vocabulary, operands that each of its spellings is tried on."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fxpasses.nn import ConvUnit, LinearUnit
from fxpasses.ops import ACTIVATIONS, BINARY, UNARY, Op


@dataclass(frozen=True)
class Example:
    """Operands by name. A spelling takes part where it has a place for each of them."""

    operands: Mapping[str, Any]
    settings: Mapping[str, Any] = field(default_factory=dict)
    """What the constructor of a module takes besides."""
    rank: int | None = None
    """Only spellings of this many spatial dimensions, where their name says one."""
    modules: Mapping[type[nn.Module], Mapping[str, Any]] | None = None
    """Only these classes, each with its own settings."""
    values: bool = True
    """Whether values can be compared, or only shapes and dtypes."""
    only: tuple[str, ...] = ()
    """Names of the spellings that this is for; empty: all."""
    expected: Any = None
    """The result, where the spellings of an op differ in what they are made for."""
    seen_as: Op | str | None = "itself"
    """The op that a call with these operands is, where it is another one."""
    raises: bool = False
    """Whether the call has to raise."""


def tensor(*shape: int) -> Tensor:
    """Between 0.1 and 0.9: where every function of one operand is defined."""
    generator = torch.Generator().manual_seed(sum(shape) + len(shape))
    return torch.rand(shape, generator=generator) * 0.8 + 0.1


def spread(*shape: int) -> Tensor:
    """Between -4 and 4: on both sides of every kink."""
    return tensor(*shape) * 10 - 5


def integers(*shape: int) -> Tensor:
    return torch.arange(1, 1 + torch.Size(shape).numel()).reshape(shape) % 7


def example(**operands: Any) -> Example:
    return Example(operands)


def in_rank(rank: int, **operands: Any) -> Example:
    return Example(operands, rank=rank)


MASK = torch.tensor([[True, False, True], [False, False, True]])
SIZES = {1: (6,), 2: (6, 5), 3: (6, 5, 4)}


def _convolutions(*, transposed: bool) -> list[Example]:
    found = []
    for rank, size in SIZES.items():
        shape = (4, 3) if transposed else (6, 2)
        weight, bias = tensor(*shape, *[3] * rank), tensor(6)
        settings = {"in_channels": 4, "out_channels": 6, "kernel_size": 3}
        operands: dict[str, Any] = {
            "input": tensor(2, 4, *size),
            "weight": weight,
            "bias": bias,
            "stride": [2] * rank,
            "padding": [1] * rank,
            "dilation": [1] * rank,
            "groups": 2,
        }
        if transposed:
            operands["output_padding"] = [1] * rank
        found.append(Example(operands, settings, rank))
        full = {"output_padding": [0] * rank, **operands, "transposed": transposed}
        found.append(Example(full, settings, rank))
        if not transposed:
            same = {**operands, "stride": [1] * rank, "padding": "same"}
            found.append(Example(same, settings, rank))
    return found


def _batch_norms() -> list[Example]:
    found = []
    for training in (False, True):
        for shape in ((4, 3), (4, 3, 5), (4, 3, 5, 2), (4, 3, 2, 2, 2)):
            operands = {
                "input": tensor(*shape),
                "running_mean": tensor(3),
                "running_var": tensor(3) + 1,
                "weight": tensor(3),
                "bias": tensor(3) - 2,
                "training": training,
                "momentum": 0.1,
                "eps": 1e-3,
            }
            rank = max(1, len(shape) - 2)
            found.append(Example(operands, {"num_features": 3}, rank))
            found.append(Example({**operands, "cudnn_enabled": False}, rank=rank))
    frozen = {k: v for k, v in found[4].operands.items() if k not in ("training", "momentum")}
    del frozen["eps"]  # some have it built in
    found.append(Example({**frozen, "training": False}, {"num_features": 3, "n": 3}, 2))
    return found


def _instance_norms() -> list[Example]:
    found = []
    for rank, size in SIZES.items():
        for measured in (True, False):
            operands = {
                "input": tensor(2, 3, *size),
                "running_mean": tensor(3),
                "running_var": tensor(3) + 1,
                "weight": tensor(3),
                "bias": tensor(3),
                "use_input_stats": measured,
                "momentum": 0.1,
                "eps": 1e-3,
            }
            settings = {"num_features": 3, "affine": True, "track_running_stats": True}
            found.append(Example(operands, settings, rank))
            found.append(Example({**operands, "cudnn_enabled": False}, rank=rank))
    return found


def _dropouts(*shapes: tuple[int, ...]) -> list[Example]:
    found = []
    for shape in shapes:
        for training, p in ((True, 0.5), (False, 0.5), (True, 0.0)):
            operands = {"input": tensor(*shape), "p": p, "training": training}
            rank = len(shape) - 2 if len(shape) > 2 else None
            found.append(Example(operands, rank=rank))
            found.append(Example({**operands, "inplace": True}, rank=rank))
    return found


def _pools(**operands: Any) -> list[Example]:
    return [
        in_rank(rank, input=tensor(2, 3, *size), **{k: _each(v, rank) for k, v in operands.items()})
        for rank, size in SIZES.items()
    ]


def _each(value: Any, rank: int) -> Any:
    return [value] * rank if isinstance(value, int) and not isinstance(value, bool) else value


def _with_indices(examples: list[Example]) -> list[Example]:
    asked = [
        Example({**e.operands, "return_indices": True}, {"return_indices": True}, e.rank)
        for e in examples
    ]
    return [*examples, *asked]


def _fractional() -> list[Example]:
    found = []
    for rank in (2, 3):
        x = tensor(2, 3, *[8] * rank)
        window = {"kernel_size": [2] * rank, "output_size": [3] * rank}
        found += [
            in_rank(rank, input=x, **window),
            in_rank(rank, input=x, **window, _random_samples=tensor(2, 3, rank)),
            in_rank(rank, self=x, **window, random_samples=tensor(2, 3, rank)),
        ]
    return found


def _unpools() -> list[Example]:
    found = []
    for rank in SIZES:
        places = torch.arange(2**rank).reshape(1, 1, *[2] * rank) * 2
        operands = {"input": tensor(1, 2, *[2] * rank), "indices": places.expand(1, 2, *[2] * rank)}
        window = {"kernel_size": [2] * rank, "stride": [2] * rank, "padding": [0] * rank}
        found.append(Example({**operands, **window}, rank=rank))
        size = {"output_size": [4] * rank}
        found.append(Example({**operands, **size, **(window if rank == 3 else {})}, rank=rank))
        found.append(
            Example({**operands, **size, "stride": [2] * rank, "padding": [0] * rank}, rank=rank)
        )
    return found


def _pads() -> list[Example]:
    found = []
    for rank, size in SIZES.items():
        x, pad = tensor(2, 3, *size), [1, 2] * rank
        constant = getattr(nn, f"ConstantPad{rank}d"), getattr(nn, f"ZeroPad{rank}d")
        found += [
            Example(
                {"input": x, "pad": pad, "mode": "constant", "value": 0.5},
                modules={constant[0]: {"padding": tuple(pad), "value": 0.5}},
            ),
            Example({"input": x, "pad": pad}, modules={constant[1]: {"padding": tuple(pad)}}),
        ]
        for mode in ("reflect", "replicate", "circular"):
            name = {"reflect": "Reflection", "replicate": "Replication", "circular": "Circular"}
            cls = getattr(nn, f"{name[mode]}Pad{rank}d")
            operands = {"input": x, "pad": pad, "mode": mode}
            found.append(Example(operands, modules={cls: {"padding": tuple(pad)}}))
    return found


def _unary(op: Op) -> list[Example]:
    if op is Op.BITWISE_NOT:
        return [example(input=integers(2, 3))]
    extra = {Op.ROUND: [example(input=spread(2, 3), decimals=1)]}
    return [example(input=tensor(2, 3)), *extra.get(op, [])]


_INTEGER = frozenset(
    (Op.BITWISE_AND, Op.BITWISE_OR, Op.BITWISE_XOR, Op.BITWISE_LEFT_SHIFT, Op.BITWISE_RIGHT_SHIFT)
)


def _binary(op: Op) -> list[Example]:
    second = "exponent" if op is Op.POW else "other"
    make = integers if op in _INTEGER else tensor
    number = 2 if op in _INTEGER else 1.5
    first, another = make(2, 3), make(2, 3) + 1
    found = [
        Example({"input": first, second: another}),
        Example({"input": first, second: number}),
        Example({"input": number, second: another}),
    ]
    if op in (Op.ADD, Op.SUB):
        found.append(Example({"input": first, "other": another, "alpha": 2}))
        found.append(Example({"input": first, "other": 1.5, "alpha": 2}))
    if op is Op.DIV:
        for rounding in ("floor", "trunc", None):
            found.append(Example({"input": first, "other": another, "rounding_mode": rounding}))
            found.append(Example({"input": first, "other": 1.5, "rounding_mode": rounding}))
    return found


_ACTIVATION_SETTINGS: dict[Op, list[dict[str, Any]]] = {
    Op.LEAKY_RELU: [{"negative_slope": 0.2}],
    Op.PRELU: [{"weight": torch.tensor([0.3])}],
    Op.RRELU: [
        {"lower": 0.1, "upper": 0.4, "training": True},
        {"lower": 0.1, "upper": 0.4, "training": False},
    ],
    Op.ELU: [{"alpha": 0.7}, {"alpha": 0.7, "scale": 1.0, "input_scale": 1.0}],
    Op.CELU: [{"alpha": 0.7}],
    Op.GELU: [{"approximate": "tanh"}, {}],
    Op.GLU: [{"dim": 1}],
    Op.SOFTPLUS: [{"beta": 2.0, "threshold": 5.0}],
    Op.SOFTSHRINK: [{"lambd": 0.7}],
    Op.HARDSHRINK: [{"lambd": 0.7}],
    Op.HARDTANH: [{"min_val": -0.5, "max_val": 2.0}],
    Op.THRESHOLD: [{"threshold": 0.5, "value": 3.0}],
}


def _activation(op: Op) -> list[Example]:
    found = []
    for settings in _ACTIVATION_SETTINGS.get(op, [{}]):
        found.append(example(input=spread(2, 4), **settings))
        found.append(example(input=spread(2, 4), **settings, inplace=True))
    return found


def _reduction(**more: Any) -> list[Example]:
    x = tensor(2, 3, 4)
    found = [example(input=x, **more)]
    for dim in (1, [0, 2]):
        found.append(example(input=x, dim=dim, **more))
        found.append(example(input=x, dim=dim, keepdim=True, **more))
    return found


def _spread_measures() -> list[Example]:
    x = tensor(2, 3, 4)
    return [
        example(input=x),
        example(input=x, unbiased=False),
        example(input=x, dim=1, unbiased=False, keepdim=True),
        example(input=x, dim=[0, 1], unbiased=True),
        example(input=x, dim=1, correction=0),
    ]


def _attention() -> list[Example]:
    q, k, v = tensor(2, 2, 3, 4), tensor(2, 2, 5, 4), tensor(2, 2, 5, 4)
    return [
        example(query=q, key=k, value=v),
        example(query=q, key=k, value=v, dropout_p=0.5),
        example(query=q, key=k, value=v, attn_mask=torch.ones(3, 5).bool(), scale=0.3),
        example(query=q, key=q, value=q, is_causal=True),
    ]


def _embeddings() -> list[Example]:
    ids, weight = integers(2, 3), tensor(7, 4)
    size = {"num_embeddings": 7, "embedding_dim": 4}
    return [
        Example({"input": ids, "weight": weight}, size),
        Example({"input": ids, "weight": weight, "max_norm": 0.5}, size),
        Example(
            {"input": ids, "weight": weight, "padding_idx": 1, "scale_grad_by_freq": True}, size
        ),
    ]


def _bags() -> list[Example]:
    ids, weight = integers(2, 3), tensor(7, 4)
    size = {"num_embeddings": 7, "embedding_dim": 4}
    return [
        Example({"input": ids, "weight": weight, "mode": "sum"}, size),
        Example({"input": ids, "weight": weight, "max_norm": 0.5}, size),
    ]


_FACTORY = ({}, {"dtype": torch.float64, "device": "cpu"})


def _factory(**operands: Any) -> list[Example]:
    return [example(**operands, **more) for more in _FACTORY]


def _random(**operands: Any) -> list[Example]:
    return _factory(**operands)


def _like(**operands: Any) -> list[Example]:
    return _factory(input=tensor(2, 3), **operands)


def _undefined(examples: list[Example]) -> list[Example]:
    return [Example(e.operands, values=False) for e in examples]


def _elementwise() -> dict[Op, list[Example]]:
    return {
        **{op: _activation(op) for op in ACTIVATIONS},
        **{op: _binary(op) for op in BINARY},
        **{op: _unary(op) for op in UNARY},
    }


_CASTS = {
    "float": torch.float32,
    "double": torch.float64,
    "half": torch.float16,
    "bfloat16": torch.bfloat16,
    "int": torch.int32,
    "long": torch.int64,
    "short": torch.int16,
    "char": torch.int8,
    "byte": torch.uint8,
    "bool": torch.bool,
    "cfloat": torch.complex64,
    "cdouble": torch.complex128,
}


def _casts() -> list[Example]:
    x = tensor(2, 3) * 99
    found = []
    for name, dtype in _CASTS.items():
        found.append(Example({"input": x}, only=(name,), expected=x.to(dtype)))
    return [
        *found,
        example(input=x, dtype=torch.float64),
        example(input=x, device="cpu", dtype=torch.float64),
        Example({"input": x}, only=("cpu", "_to_copy"), expected=x),
        example(input=x, other=x.double()),
    ]


def _asserts() -> list[Example]:
    """Each of them once where it holds, and once where it does not."""
    found = []
    for holds in (True, False):
        checked = torch.tensor(holds)
        for operands, name in (
            ({"condition": checked, "message": "no"}, "_assert"),
            ({"input": checked}, "_assert_async"),
            ({"input": checked, "assert_msg": "no"}, "_assert_async"),
            ({"input": holds, "assert_msg": "no"}, "_assert_scalar"),
            ({"a": X, "size": [2, 3, 4] if holds else [9, 9, 9]}, "_assert_tensor_metadata"),
        ):
            found.append(Example(operands, only=(name,), raises=not holds))
    return found


X = tensor(2, 3, 4)
V = tensor(4)


def _units() -> list[Example]:
    """A unit that adds and activates, and two in which nothing follows the layer."""
    weight, x, y = nn.Parameter(tensor(4, 4, 3)), spread(2, 4, 6), spread(2, 4, 6)
    bare = {"weight": weight, "stride": (1,), "padding": (1,), "dilation": (1,)}
    convolved, transposed = (f(x, weight, padding=1) for f in (F.conv1d, F.conv_transpose1d))
    return [
        Example(
            {"input": x, "residual": y},
            modules={ConvUnit: {**bare, "adds": True, "activation": "relu"}},
            expected=F.relu(convolved + y),
        ),
        Example({"input": x}, modules={ConvUnit: bare}, expected=convolved, seen_as=Op.CONV),
        Example(
            {"input": x},
            modules={ConvUnit: {**bare, "transposed": True}},
            expected=transposed,
            seen_as=Op.CONV_TRANSPOSE,
        ),
    ]


EXAMPLES: dict[Op, list[Example]] = {
    **_elementwise(),
    Op.CONV: _convolutions(transposed=False),
    Op.CONV_TRANSPOSE: _convolutions(transposed=True),
    Op.LINEAR: [
        Example(
            {"input": tensor(2, 3), "weight": tensor(4, 3), "bias": tensor(4)},
            {"in_features": 3, "out_features": 4},
        )
    ],
    Op.CONV_UNIT: _units(),
    Op.LINEAR_UNIT: [
        Example(
            {"input": tensor(2, 3), "residual": tensor(2, 4)},
            modules={
                LinearUnit: {
                    "weight": nn.Parameter(tensor(4, 3)),
                    "adds": True,
                    "activation": "leaky_relu",
                    "options": {"negative_slope": 0.1},
                }
            },
            expected=F.leaky_relu(F.linear(tensor(2, 3), tensor(4, 3)) + tensor(2, 4), 0.1),
        )
    ],
    Op.BILINEAR: [
        Example(
            {
                "input1": tensor(2, 3),
                "input2": tensor(2, 4),
                "weight": tensor(5, 3, 4),
                "bias": tensor(5),
            },
            {"in1_features": 3, "in2_features": 4, "out_features": 5},
        )
    ],
    Op.EMBEDDING: _embeddings(),
    Op.EMBEDDING_BAG: _bags(),
    # Norms
    Op.BATCH_NORM: _batch_norms(),
    Op.INSTANCE_NORM: _instance_norms(),
    Op.LAYER_NORM: [
        example(input=X, normalized_shape=[4], weight=tensor(4), bias=tensor(4), eps=1e-3)
    ],
    Op.GROUP_NORM: [
        Example(
            {"input": tensor(2, 4, 3), "num_groups": 2, "weight": V, "bias": V, "eps": 1e-3},
            {"num_channels": 4},
        )
    ],
    Op.RMS_NORM: [example(input=X, normalized_shape=[4], weight=V, eps=1e-3)],
    Op.LOCAL_RESPONSE_NORM: [example(input=tensor(2, 5, 3), size=3, alpha=0.1, beta=0.5, k=2.0)],
    Op.NORMALIZE: [example(input=X, p=1.5, dim=2, eps=1e-6)],
    # Softmax
    Op.SOFTMAX: [
        example(input=X, dim=1),
        example(input=X, dim=1, dtype=torch.float64),
        example(input=X, dim=1, half_to_float=False),
        Example({"input": X, "dim": 0}, modules={nn.Softmax2d: {}}),
    ],
    Op.LOG_SOFTMAX: [
        example(input=X, dim=1),
        example(input=X, dim=1, dtype=torch.float64),
        example(input=X, dim=1, half_to_float=False),
    ],
    Op.SOFTMIN: [example(input=X, dim=1)],
    Op.GUMBEL_SOFTMAX: [example(logits=X, tau=0.5, hard=True, dim=1)],
    # Dropout
    Op.DROPOUT: _dropouts((2, 3), (2, 3, 4)),
    Op.FEATURE_DROPOUT: _dropouts((4, 5, 3), (4, 5, 3, 2), (4, 5, 3, 2, 2)),
    Op.ALPHA_DROPOUT: _dropouts((2, 3)),
    Op.FEATURE_ALPHA_DROPOUT: _dropouts((4, 5, 3)),
    Op.STOCHASTIC_DEPTH: [
        example(input=tensor(4, 3), p=0.5, mode="row", training=training)
        for training in (True, False)
    ],
    # Pooling, padding, resampling
    Op.MAX_POOL: _pools(kernel_size=3, stride=2, padding=1, dilation=1, ceil_mode=True),
    Op.MAX_POOL_WITH_INDICES: _with_indices(
        _pools(kernel_size=3, stride=2, padding=1, dilation=1, ceil_mode=True)
    ),
    Op.AVG_POOL: [
        *_pools(kernel_size=3, stride=2, padding=1, ceil_mode=True, count_include_pad=False)
    ],
    Op.LP_POOL: [
        in_rank(rank, input=tensor(2, 3, *size), norm_type=2.0, kernel_size=2, stride=1)
        for rank, size in SIZES.items()
    ],
    Op.ADAPTIVE_AVG_POOL: _pools(output_size=2),
    Op.ADAPTIVE_MAX_POOL: _pools(output_size=2),
    Op.ADAPTIVE_MAX_POOL_WITH_INDICES: _with_indices(_pools(output_size=2)),
    Op.FRACTIONAL_MAX_POOL: _fractional(),
    Op.FRACTIONAL_MAX_POOL_WITH_INDICES: _fractional(),
    Op.MAX_UNPOOL: _unpools(),
    Op.PAD: _pads(),
    Op.INTERPOLATE: [
        Example(
            {"input": tensor(2, 3, 4, 4), "scale_factor": 2.0, "mode": "nearest"},
            modules={
                nn.Upsample: {"scale_factor": 2.0},
                nn.UpsamplingNearest2d: {"scale_factor": 2},
            },
        ),
        Example(
            {
                "input": tensor(2, 3, 4, 4),
                "scale_factor": 2.0,
                "mode": "bilinear",
                "align_corners": True,
            },
            modules={nn.UpsamplingBilinear2d: {"scale_factor": 2}},
        ),
    ],
    Op.GRID_SAMPLE: [
        example(
            input=tensor(2, 3, 4, 4),
            grid=tensor(2, 5, 5, 2),
            mode="bilinear",
            padding_mode="zeros",
            align_corners=False,
        )
    ],
    Op.PIXEL_SHUFFLE: [example(input=tensor(2, 8, 3, 3), upscale_factor=2)],
    Op.PIXEL_UNSHUFFLE: [example(input=tensor(2, 2, 4, 4), downscale_factor=2)],
    Op.CHANNEL_SHUFFLE: [example(input=tensor(2, 4, 3, 3), groups=2)],
    # Products
    Op.MATMUL: [example(input=tensor(2, 2), other=tensor(2, 2) + 1)],
    Op.MM: [example(input=tensor(2, 2), other=tensor(2, 2) + 1)],
    Op.BMM: [example(input=tensor(2, 3, 3), other=tensor(2, 3, 3) + 1)],
    Op.MV: [example(input=tensor(2, 3), other=tensor(3))],
    Op.DOT: [example(input=tensor(3), other=tensor(3) + 1)],
    Op.OUTER: [example(input=tensor(3), other=tensor(2))],
    Op.ADDMM: [example(input=tensor(2, 4), mat1=tensor(2, 3), mat2=tensor(3, 4), beta=2, alpha=3)],
    Op.BADDBMM: [
        example(input=tensor(2, 3, 4), batch1=tensor(2, 3, 5), batch2=tensor(2, 5, 4), beta=2)
    ],
    Op.ADDMV: [example(input=tensor(2), mat=tensor(2, 3), vec=tensor(3), beta=2, alpha=3)],
    Op.ADDBMM: [
        example(input=tensor(3, 4), batch1=tensor(2, 3, 5), batch2=tensor(2, 5, 4), beta=2)
    ],
    Op.EINSUM: [example(equation="ij,jk->ik", tensors=(tensor(2, 3), tensor(3, 2)))],
    Op.SDPA: _attention(),
    # Arithmetic of three operands
    Op.LERP: [
        example(input=X, end=X + 1, weight=0.3),
        example(input=X, end=X + 1, weight=X),
    ],
    Op.ADDCMUL: [example(input=X, tensor1=X + 1, tensor2=X + 2, value=2)],
    Op.ADDCDIV: [example(input=X, tensor1=X + 1, tensor2=X + 2, value=2)],
    Op.CLAMP: [
        example(input=spread(2, 3), min=-1.0, max=2.0),
        example(input=spread(2, 3), min=tensor(2, 3), max=tensor(2, 3) + 1),
        example(input=spread(2, 3), max=2.0),
    ],
    Op.CLAMP_MIN: [
        example(input=spread(2, 3), min=1.0),
        example(input=spread(2, 3), min=tensor(3)),
    ],
    Op.CLAMP_MAX: [
        example(input=spread(2, 3), max=1.0),
        example(input=spread(2, 3), max=tensor(3)),
    ],
    Op.NAN_TO_NUM: [example(input=torch.tensor([float("nan"), 1.0, float("inf")]), nan=2.0)],
    # Reductions
    Op.SUM: _reduction(),
    Op.NANSUM: _reduction(),
    Op.MEAN: _reduction(),
    Op.PROD: [example(input=X), example(input=X, dim=1, keepdim=True)],
    Op.AMAX: _reduction(),
    Op.AMIN: _reduction(),
    Op.AMINMAX: [example(input=X), example(input=X, dim=1, keepdim=True)],
    Op.MAX: [
        example(input=X),
        example(input=X, dim=1, keepdim=True),
        Example({"input": X, "other": X.mul(2)}, seen_as=Op.MAXIMUM, expected=X * 2),
    ],
    Op.MIN: [
        example(input=X),
        example(input=X, dim=1, keepdim=True),
        Example({"input": X, "other": X.mul(2)}, seen_as=Op.MINIMUM, expected=X),
    ],
    Op.VAR: _spread_measures(),
    Op.STD: _spread_measures(),
    Op.VAR_MEAN: _spread_measures(),
    Op.STD_MEAN: _spread_measures(),
    Op.NORM: [
        example(input=X, p=2),
        example(input=X, p=1, dim=[1], keepdim=True),
        example(input=X, p=2, dtype=torch.float64),
        example(input=X, p=1, dim=[1], keepdim=True, dtype=torch.float64),
        example(input=X),
    ],
    Op.VECTOR_NORM: [example(x=X, ord=1, dim=[1], keepdim=True), example(input=X, ord=1, dim=[1])],
    Op.LOGSUMEXP: [example(input=X, dim=[1], keepdim=True)],
    Op.ARGMAX: [example(input=X), example(input=X, dim=1, keepdim=True)],
    Op.ARGMIN: [example(input=X), example(input=X, dim=1, keepdim=True)],
    Op.ALL: [
        example(input=MASK),
        example(input=MASK, dim=1, keepdim=True),
        example(input=MASK, dim=[0, 1]),
    ],
    Op.ANY: [
        example(input=MASK),
        example(input=MASK, dim=1, keepdim=True),
        example(input=MASK, dim=[0, 1]),
    ],
    Op.COUNT_NONZERO: [example(input=X), example(input=X, dim=1), example(input=X, dim=[0, 1])],
    Op.MEDIAN: [example(input=X), example(input=X, dim=1, keepdim=True)],
    Op.CUMSUM: [example(input=X, dim=1)],
    Op.CUMPROD: [example(input=X, dim=1)],
    Op.TOPK: [example(input=X, k=2, dim=1)],
    Op.SORT: [example(input=X, dim=1, descending=True), example(input=X, dim=1, stable=True)],
    Op.ARGSORT: [
        example(input=X, dim=1, descending=True),
        example(input=X, dim=1, stable=True),
    ],
    # Views and copies
    Op.IDENTITY: [example(input=X)],
    Op.VIEW: [example(input=X, size=[6, 4]), example(input=X, dtype=torch.int32)],
    Op.VIEW_AS: [example(input=X, other=tensor(6, 4))],
    Op.RESHAPE: [example(input=X, size=[6, 4])],
    Op.RESHAPE_AS: [example(input=X, other=tensor(6, 4))],
    Op.FLATTEN: [example(input=X, start_dim=1), example(input=X, start_dim=0, end_dim=1)],
    Op.UNFLATTEN: [
        Example(
            {"input": X, "dim": 2, "sizes": (2, 2)},
            modules={nn.Unflatten: {"dim": 2, "unflattened_size": (2, 2)}},
        )
    ],
    Op.PERMUTE: [example(input=X, dims=[2, 0, 1])],
    Op.TRANSPOSE: [example(input=X, dim0=0, dim1=2)],
    Op.T: [example(input=tensor(2, 3))],
    Op.MOVEDIM: [
        example(input=X, source=0, destination=2),
        example(input=X, source=[0], destination=[2]),
    ],
    Op.SQUEEZE: [
        example(input=tensor(1, 3, 1)),
        example(input=tensor(1, 3, 1), dim=0),
        example(input=tensor(1, 3, 1), dim=[0, 2]),
    ],
    Op.UNSQUEEZE: [example(input=X, dim=1)],
    Op.EXPAND: [example(input=tensor(1, 3), size=[2, 3])],
    Op.EXPAND_AS: [example(input=tensor(1, 3), other=tensor(2, 3))],
    Op.BROADCAST_TO: [example(input=tensor(1, 3), size=[2, 3])],
    Op.SELECT: [example(input=X, dim=1, index=0)],
    Op.NARROW: [
        example(input=X, dim=1, start=1, length=2),
        example(input=X, dim=1, start=torch.tensor(1), length=2),
    ],
    Op.SLICE: [example(input=X, dim=1, start=0, end=2, step=1)],
    Op.DIAGONAL: [example(input=X, offset=1, dim1=0, dim2=2)],
    Op.UNFOLD: [example(input=X, dimension=2, size=2, step=1)],
    Op.AS_STRIDED: [example(input=X, size=[2, 2], stride=[1, 2])],
    Op.ALIAS: [example(input=X)],
    Op.DETACH: [example(input=X)],
    Op.CONTIGUOUS: [example(input=X.mT)],
    Op.CLONE: [example(input=X)],
    Op.REPEAT: [example(input=X, repeats=[2, 1, 1])],
    Op.REPEAT_INTERLEAVE: [
        example(input=X, repeats=2, dim=1),
        example(input=X, repeats=torch.tensor([1, 2]), dim=0),
        example(repeats=torch.tensor([1, 2])),
    ],
    Op.TILE: [example(input=X, dims=[2, 1, 1])],
    Op.FLIP: [example(input=X, dims=[0, 2])],
    Op.ROLL: [example(input=X, shifts=[1], dims=[0])],
    Op.CAT: [example(tensors=[X, X + 1], dim=1)],
    Op.STACK: [example(tensors=[X, X + 1], dim=1)],
    Op.SPLIT: [
        example(input=X, split_size=2, dim=1),
        example(input=X, split_size=[1, 2], dim=1),
    ],
    Op.CHUNK: [example(input=X, chunks=2, dim=1)],
    Op.TENSOR_SPLIT: [
        example(input=X, sections=2, dim=2),
        example(input=X, indices=[1, 3], dim=2),
        example(input=X, indices_or_sections=2, dim=2),
        example(input=X, tensor_indices_or_sections=torch.tensor(2), dim=2),
    ],
    Op.UNBIND: [example(input=X, dim=1)],
    Op.MESHGRID: [
        example(tensors=[tensor(2), tensor(3)], indexing="ij"),
        example(tensors=[tensor(2), tensor(3)]),
    ],
    # Choosing and indexing
    Op.GETITEM: [example(input=X, index=(slice(None), 1)), example(input=X, index=1)],
    Op.SETITEM: [example(input=X, index=(slice(None), 1), value=2.0)],
    Op.WHERE: [
        Example({"condition": MASK}, seen_as=None),
        example(condition=MASK, input=tensor(2, 3), other=tensor(2, 3) + 1),
        example(condition=MASK, input=tensor(2, 3), other=2.0),
        example(condition=MASK, input=2.0, other=tensor(2, 3)),
        example(condition=MASK, input=2.0, other=3.0),
    ],
    Op.NONZERO: [example(input=MASK)],
    Op.MASKED_FILL: [
        example(input=tensor(2, 3), mask=MASK, value=2.0),
        example(input=tensor(2, 3), mask=MASK, value=torch.tensor(2.0)),
    ],
    Op.GATHER: [example(input=X, dim=1, index=torch.zeros(2, 1, 4, dtype=torch.int64))],
    Op.SCATTER: [
        example(input=X, dim=1, index=torch.zeros(2, 1, 4, dtype=torch.int64), src=X + 1),
        example(input=X, dim=1, index=torch.zeros(2, 1, 4, dtype=torch.int64), value=2.0),
        example(input=X, dim=1, index=torch.zeros(2, 1, 4, dtype=torch.int64), src=X, reduce="add"),
        example(
            input=X, dim=1, index=torch.zeros(2, 1, 4, dtype=torch.int64), value=2.0, reduce="add"
        ),
    ],
    Op.SCATTER_ADD: [
        example(input=X, dim=1, index=torch.zeros(2, 1, 4, dtype=torch.int64), src=X + 1)
    ],
    Op.INDEX_SELECT: [example(input=X, dim=1, index=torch.tensor([2, 0]))],
    Op.TRIL: [example(input=tensor(3, 3), diagonal=1)],
    Op.TRIU: [example(input=tensor(3, 3), diagonal=1)],
    Op.ONE_HOT: [example(input=integers(3), num_classes=7)],
    # Writing
    Op.COPY: [example(input=X, src=X + 1)],
    Op.FILL: [example(input=X, value=2.0), example(input=X, value=torch.tensor(2.0))],
    Op.ZERO: [example(input=X)],
    # Factories
    Op.ZEROS: _factory(size=[2, 3]),
    Op.ONES: _factory(size=[2, 3]),
    Op.FULL: _factory(size=[2, 3], fill_value=2.0),
    Op.EMPTY: _undefined(_factory(size=[2, 3])),
    Op.ARANGE: [
        *_factory(end=5),
        *_factory(start=1, end=5),
        *_factory(start=1, end=5, step=2),
    ],
    Op.LINSPACE: [
        *_factory(start=0, end=1, steps=5),
        example(start=torch.tensor(0.0), end=torch.tensor(1.0), steps=5),
        example(start=torch.tensor(0.0), end=1, steps=5),
        example(start=0, end=torch.tensor(1.0), steps=5),
    ],
    Op.EYE: [*_factory(n=3), *_factory(n=3, m=4)],
    Op.TENSOR: _factory(data=2.0),
    Op.AS_TENSOR: [example(data=[1.0, 2.0]), example(data=[1, 2], dtype=torch.float64)],
    Op.ZEROS_LIKE: _like(),
    Op.ONES_LIKE: _like(),
    Op.FULL_LIKE: _like(fill_value=2.0),
    Op.EMPTY_LIKE: _undefined(_like()),
    Op.NEW_ZEROS: _like(size=[2]),
    Op.NEW_ONES: _like(size=[2]),
    Op.NEW_FULL: _like(size=[2], fill_value=2.0),
    Op.NEW_EMPTY: _undefined(_like(size=[2])),
    Op.NEW_TENSOR: _like(data=[1.0, 2.0]),
    # Random numbers
    Op.RAND: _random(size=[2, 3]),
    Op.RANDN: _random(size=[2, 3]),
    Op.RANDINT: [*_random(high=9, size=[2, 3]), *_random(low=2, high=9, size=[2, 3])],
    Op.RANDPERM: [example(n=5), example(n=5, dtype=torch.int32)],
    Op.RAND_LIKE: _like(),
    Op.RANDN_LIKE: _like(),
    Op.RANDINT_LIKE: [*_like(high=9), *_like(low=2, high=9), *_like(high=torch.tensor(9))],
    Op.NORMAL: [
        example(mean=X, std=2.0),
        example(mean=1.0, std=X),
        example(mean=X, std=X),
        example(mean=1.0, std=2.0, size=[2, 3]),
        example(input=X, mean=1.0, std=2.0),
    ],
    Op.BERNOULLI: [example(input=X), example(input=X, p=0.3)],
    Op.MULTINOMIAL: [example(input=V, num_samples=3, replacement=True)],
    Op.UNIFORM: [example(**{"input": X, "from": 0.0, "to": 2.0})],
    # Casts
    Op.CAST: _casts(),
    # Questions about a tensor, and checks
    Op.SIZE: [example(input=X), example(input=X, dim=1)],
    Op.RANK: [example(input=X)],
    Op.NUMEL: [example(input=X)],
    Op.STRIDE: [example(input=X), example(input=X, dim=1)],
    Op.GETATTR: [example(input=X, name="shape")],
    Op.ITEM: [example(input=torch.tensor(2.0))],
    Op.ASSERT: _asserts(),
}

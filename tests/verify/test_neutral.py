"""Neutral runs round otherwise than plain ones, by as much, and change nothing else."""

import copy
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fxpasses.verify.distance import distance_of
from fxpasses.verify.neutral import SHARES, other_sums

DTYPES = (torch.float32, torch.bfloat16, torch.float16)


def randn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


IMAGE, TOKENS = randn(2, 12, 14, 14), randn(2, 10, 48)
CHANNELS_LAST = IMAGE.contiguous(memory_format=torch.channels_last)


class Attention(nn.Module):
    def __init__(self, *, causal: bool = False, written_out: bool = False) -> None:
        super().__init__()
        self.project, self.norm = nn.Linear(48, 144), nn.LayerNorm(48)
        self.causal, self.written_out = causal, written_out

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.project(self.norm(x)).unflatten(-1, (3, 4, 12)).permute(2, 0, 3, 1, 4)
        if self.written_out:
            return (q @ k.mT / 12**0.5).softmax(-1) @ v
        return F.scaled_dot_product_attention(q, k, v, is_causal=self.causal)


class Recurrent(nn.Module):
    def __init__(self, kind: Callable[..., nn.RNNBase]) -> None:
        super().__init__()
        self.layer = kind(48, 16, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x)[0]


class Computes(nn.Module):
    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x)


def _baddbmm(x: Tensor) -> Tensor:
    return torch.baddbmm(x @ x.mT, x, x.mT, beta=0.5, alpha=2)


Net = tuple[Callable[[], nn.Module], Tensor]

NETS: dict[str, Net] = {
    "conv": (lambda: nn.Conv2d(12, 8, 3, stride=2, padding=1), IMAGE),
    "pointwise": (lambda: nn.Conv2d(12, 8, 1), IMAGE),
    "grouped": (lambda: nn.Conv2d(12, 24, 3, groups=3, dilation=2), IMAGE),
    "depthwise": (lambda: nn.Conv2d(12, 12, (2, 5), 2, (1, 3), (2, 1), groups=12), IMAGE),
    "depthwise, 1d": (lambda: nn.Conv1d(10, 20, 7, padding=3, groups=10), TOKENS),
    "3d": (lambda: nn.Conv3d(2, 4, 3, padding="same"), randn(1, 2, 6, 5, 4)),
    "transposed": (lambda: nn.ConvTranspose2d(12, 6, 3, 2, 1, 1, groups=3), IMAGE),
    "conv and norm": (lambda: nn.Sequential(nn.Conv2d(12, 8, 3), nn.BatchNorm2d(8)), IMAGE),
    "channels last": (lambda: nn.Conv2d(12, 8, 3, groups=2), CHANNELS_LAST),
    "linear": (lambda: nn.Linear(48, 32), TOKENS),
    "linear without bias": (lambda: nn.Linear(48, 32, bias=False), TOKENS),
    "linear of one vector": (lambda: nn.Linear(48, 32), TOKENS[0, 0]),
    "matrix and vector": (lambda: Computes(lambda x: x @ x[0]), TOKENS.flatten(0, 1)),
    "addmv": (lambda: Computes(lambda x: torch.addmv(x[:, 0], x, x[0])), TOKENS.flatten(0, 1)),
    "baddbmm": (lambda: Computes(_baddbmm), TOKENS),
    "einsum": (lambda: Computes(lambda x: torch.einsum("bij,bkj->bik", x, x)), TOKENS),
    "attention": (Attention, TOKENS),
    "causal attention": (lambda: Attention(causal=True), TOKENS),
    "attention, written out": (lambda: Attention(written_out=True), TOKENS),
    "transformer": (lambda: nn.TransformerEncoderLayer(48, 4, 96, batch_first=True), TOKENS),
    "norm and linear": (lambda: nn.Sequential(nn.LayerNorm(48), nn.Linear(48, 32)), TOKENS),
    "gru": (lambda: Recurrent(nn.GRU), TOKENS),
}
# These have one way only to round to half what they add up in float32.
FLOAT32_NETS: dict[str, Net] = {
    "norm": (lambda: nn.LayerNorm(48), TOKENS),
    "lstm": (lambda: Recurrent(nn.LSTM), TOKENS),
}


def built(net: Net, dtype: torch.dtype) -> tuple[nn.Module, Tensor]:
    make, x = net
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return make().eval().to(dtype), x.to(dtype)


@torch.no_grad()
def check_another_way(net: Net, dtype: torch.dtype) -> None:
    model, x = built(net, dtype)
    plain = model(x)
    truth = copy.deepcopy(model).double()(x.double())
    own_error = distance_of(plain, truth).error
    for share in SHARES:
        with other_sums(share):
            neutral = model(x)
        assert not torch.equal(neutral, plain)
        assert (neutral.dtype, neutral.stride()) == (plain.dtype, plain.stride())
        assert distance_of(neutral, truth).error < 1.4 * own_error


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", NETS)
def test_a_neutral_run_rounds_otherwise_and_as_well(name: str, dtype: torch.dtype) -> None:
    check_another_way(NETS[name], dtype)


@pytest.mark.parametrize("name", FLOAT32_NETS)
def test_in_float32_norms_and_recurrent_layers_round_otherwise_as_well(name: str) -> None:
    check_another_way(FLOAT32_NETS[name], torch.float32)


@torch.no_grad()
def test_the_two_neutral_runs_differ_from_each_other() -> None:
    model, x = built(NETS["linear"], torch.float32)
    outputs: list[Tensor] = []
    for share in SHARES:
        with other_sums(share):
            outputs.append(model(x))
    assert not torch.equal(*outputs)


@torch.no_grad()
def test_random_numbers_are_the_same() -> None:
    model = nn.Sequential(nn.Conv2d(12, 8, 3), nn.Dropout(0.5)).train()
    masks: list[Tensor] = []
    for run in (nullcontext(), *map(other_sums, SHARES)):
        with torch.random.fork_rng(), run:
            torch.manual_seed(1)
            masks.append(model(IMAGE) == 0)
    assert all(torch.equal(mask, masks[0]) for mask in masks)


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
@pytest.mark.parametrize(
    "compute",
    [
        lambda x: x.to_sparse() @ x.mT,
        lambda x: (x * 4).long() @ x.mT.long(),
        lambda x: torch.complex(x, x) @ x.mT.to(torch.complex64),
        lambda x: x[:, :1] @ x[:1, :],
        lambda x: x[:, :0] @ x[:0],
        lambda x: torch.nested.nested_tensor([x, x[:4]]) @ torch.nested.nested_tensor([x.mT, x.mT]),
        lambda x: F.conv_transpose2d(x[None, None], x[None, None, :3, :3]),
        lambda x: F.conv1d(x[None], x[:, :1, None], groups=len(x)),
    ],
)
@torch.no_grad()
def test_what_has_no_other_way_is_computed_as_it_is(compute: Callable[[Tensor], Any]) -> None:
    x = TOKENS[0]
    plain = compute(x)
    with other_sums(SHARES[0]):
        neutral = compute(x)
    pairs = zip(plain.unbind(), neutral.unbind(), strict=True)
    assert all(torch.equal(_dense(a), _dense(b)) for a, b in pairs)


def _dense(tensor: Tensor) -> Tensor:
    return tensor.to_dense() if tensor.is_sparse else tensor


@torch.no_grad()
def test_infinities_stay_where_they_are() -> None:
    masked = torch.full((2, 10, 10), -torch.inf).triu(1)
    with other_sums(SHARES[0]):
        scores = torch.baddbmm(masked, TOKENS, TOKENS.mT)
    assert torch.equal(scores.isinf(), masked.isinf())


def test_no_switch_of_the_process_moves() -> None:
    with other_sums(SHARES[0]):
        inside = _switches()
    assert inside == _switches()


def _switches() -> tuple[Any, ...]:
    kinds = (torch.backends.mkldnn, torch.backends.cudnn)
    return (
        *(kind.enabled for kind in kinds),
        torch.backends.mha.get_fastpath_enabled(),
        torch.get_num_threads(),
        torch.get_float32_matmul_precision(),
    )

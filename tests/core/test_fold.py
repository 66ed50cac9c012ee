"""Tensors made ahead of time: computed in float64, rounded once, known by their formula."""

import gc

import pytest
import torch
from torch import Tensor, nn

from fxpasses.core import Editor, Folds, Watch
from tests.core.graphs import Chain, captured

THIRD = torch.tensor([1.0, 2.0]) / 3


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_a_fold_is_computed_in_float64_and_rounded_once(dtype: torch.dtype) -> None:
    seen: list[torch.dtype] = []
    source = THIRD.to(dtype)

    def formula(value: Tensor) -> Tensor:
        seen.append(value.dtype)
        return value / 7 + 1

    fold = Folds().fold(formula, [source], dtype)
    assert seen == [torch.float64]
    assert torch.equal(fold.value, (source.double() / 7 + 1).to(dtype))


def test_a_fold_of_folds_is_rounded_once() -> None:
    folds = Folds()
    source = THIRD.clone()
    first = folds.fold(lambda v: v / 7, [source], torch.bfloat16)
    second = folds.fold(lambda a, b: a * 7 + b, [first.value, source], torch.float32)
    assert torch.equal(second.value, (source.double() / 7 * 7 + source.double()).float())
    assert folds.roots(second.value) == (source,)
    assert torch.equal(folds.exact(second.value), source.double() / 7 * 7 + source.double())


def test_a_parameter_or_buffer_over_a_fold_is_still_known_as_folded() -> None:
    with Editor(captured(Chain()), "p") as edit:
        fold = edit.fold(lambda v: v / 7, THIRD)
        made: list[Tensor] = [edit.parameter(fold), edit.buffer(fold)]
    for tensor in made:
        assert edit.folds.roots(tensor) == (THIRD,)
        assert torch.equal(edit.folds.exact(tensor), THIRD.double() / 7)
    assert not made[0].requires_grad


@pytest.mark.parametrize("dtype", [torch.float64, torch.int64, torch.bool, torch.complex128])
def test_a_formula_cannot_write_its_sources(dtype: torch.dtype) -> None:
    source = torch.ones(3).to(dtype)
    fold = Folds().fold(lambda v: v.zero_(), [source], dtype)
    assert source.all()
    assert not fold.value.any()


def test_a_folded_view_has_a_storage_of_its_own() -> None:
    source = torch.randn(1000, dtype=torch.float64)
    for fold in (
        Folds().fold(lambda v: v[:2], [source], torch.float64),
        Folds().fold(lambda v: v, [source], torch.float64),
        Folds().fold(lambda v: v.expand(4, 1000), [source], torch.float32),
    ):
        assert fold.value.untyped_storage().data_ptr() != source.untyped_storage().data_ptr()
        assert fold.value.untyped_storage().nbytes() == fold.value.nbytes


def test_a_fold_has_no_history() -> None:
    fold = Folds().fold(lambda v: v * 2, [nn.Parameter(torch.ones(2))], torch.float32)
    assert not fold.value.requires_grad
    assert fold.value.is_leaf


def test_folds_of_a_pass_that_is_rolled_back_are_forgotten() -> None:
    folds = Folds()
    kept = folds.fold(lambda v: v + 1, [THIRD], torch.float32)
    length = len(folds)
    dropped = folds.fold(lambda v: v + 2, [THIRD], torch.float32)
    folds.alias(dropped, nn.Parameter(dropped.value))
    assert [fold.value.nbytes for fold in folds.since(length)] == [8]
    folds.forget_since(length)
    assert folds.find(kept.value) is not None
    assert folds.find(dropped.value) is None


def test_a_watch_sees_writes_and_does_not_keep_the_tensor() -> None:
    tensor = torch.ones(2)
    watch = Watch.on("weight", tensor)
    assert watch is not None
    assert not watch.stale
    tensor.add_(1)
    assert watch.stale
    del tensor
    gc.collect()
    assert not watch.stale


def test_a_tensor_of_inference_mode_is_not_watched() -> None:
    with torch.inference_mode():
        assert Watch.on("weight", torch.ones(2)) is None


@pytest.mark.parametrize("shape", [(7, 30_000), (40_000, 2), (3, 5, 4_000)])
def test_rows_of_large_sources_are_folded_piece_by_piece(shape: tuple[int, ...]) -> None:
    seen: list[int] = []

    def formula(value: Tensor, factor: Tensor) -> Tensor:
        seen.append(value.numel())
        return value * factor.reshape(-1, *[1] * (value.dim() - 1))

    sources = torch.randn(shape).mT.contiguous().mT, torch.randn(shape[0])
    fold = Folds().fold(formula, sources, torch.float32, by_rows=True)
    assert max(seen) <= max(2**16, sources[0][0].numel())
    assert sum(seen) == sources[0].numel()
    whole = Folds().fold(formula, sources, torch.float32)
    assert torch.equal(fold.value, whole.value)
    assert fold.value.stride() == whole.value.stride()


def test_rows_of_folded_sources_are_rounded_once() -> None:
    folds, source = Folds(), torch.randn(3, 30_000)
    first = folds.fold(lambda v: v / 7, [source], torch.float32)
    second = folds.fold(lambda v: v * 7, [first.value], torch.float32, by_rows=True)
    assert torch.equal(second.value, (source.double() / 7 * 7).float())

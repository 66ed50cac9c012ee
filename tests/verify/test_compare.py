import math

import pytest
import torch
from torch import Tensor

from fxpasses.verify.compare import bit_equal, differences, worst
from fxpasses.verify.distance import distance_of

SCORES = torch.tensor([[1.0, 2.0, -3.0], [4.0, 5.0, 6.0]], dtype=torch.float64)


def relative_error(new: Tensor, old: Tensor, *, rows: bool = False) -> float:
    return distance_of(new, old, rows=rows).error


def test_the_error_is_relative_to_the_size_of_the_value() -> None:
    assert relative_error(SCORES * (1 + 1e-9), SCORES) == pytest.approx(1e-9, rel=1e-6)
    assert relative_error(SCORES, SCORES) == 0
    assert relative_error(torch.zeros(3), torch.zeros(3)) == 0
    assert relative_error(torch.ones(3), torch.zeros(3)) == math.inf


def test_rows_are_compared_one_by_one() -> None:
    tall = torch.stack([SCORES[0] * 1e-1, SCORES[1] * 1e3])
    wrong = tall.clone()
    wrong[0] *= 1.01

    assert relative_error(wrong, tall) < 1e-5
    assert relative_error(wrong, tall, rows=True) == pytest.approx(0.01, rel=1e-6)
    assert relative_error(tall[:, 0] * 2, tall[:, 0], rows=True) == pytest.approx(1)


def test_values_beyond_the_range_of_squares_are_measured() -> None:
    for scale in (1e-200, 1e200):
        assert relative_error(SCORES * scale * 1.5, SCORES * scale) == pytest.approx(0.5)


def test_the_huge_values_of_a_mask_hide_nothing() -> None:
    masked, wrong = SCORES.clone(), SCORES * (1 + 1e-6)
    masked[0, 0] = wrong[0, 0] = -3.4e38

    assert relative_error(wrong, masked) == pytest.approx(1e-6, rel=0.01)
    wrong[0, 0] = -3.3e38
    assert relative_error(wrong, masked) > 0.02


@pytest.mark.parametrize("shape", [(3, 70_000), (70_000, 3), (2, 300, 200, 2), (1, 8, 150, 150)])
@pytest.mark.parametrize("rows", [False, True])
@pytest.mark.parametrize("axes_from_last", [False, True])
def test_large_values_are_compared_in_pieces(
    shape: tuple[int, ...], rows: bool, axes_from_last: bool
) -> None:
    draw = torch.Generator().manual_seed(1)
    old = torch.randn(shape, generator=draw, dtype=torch.float64)
    new = old + 1e-3 * torch.randn(shape, generator=draw, dtype=torch.float64)
    if axes_from_last:
        # The same numbers, laid out in memory the other way round.
        old = old.permute(*range(old.dim())[::-1]).contiguous().permute(*range(old.dim())[::-1])
    matrix = (
        (new - old).reshape(shape[0] if rows else 1, -1),
        old.reshape(len(old) if rows else 1, -1),
    )
    expected = float((matrix[0].norm(dim=1) / matrix[1].norm(dim=1)).max())

    assert relative_error(new, old, rows=rows) == pytest.approx(expected, rel=1e-12)


def test_what_is_wrong_in_one_piece_of_many_is_seen() -> None:
    old = torch.ones(3, 100_000)
    for change in (math.nan, math.inf):
        new = old.clone()
        new[1, 77_777] = change
        assert distance_of(new, old).misplaced == 1
        assert distance_of(new, new.clone()) == distance_of(old, old)


@pytest.mark.parametrize(
    ("new", "old", "message"),
    [
        (torch.ones(2), torch.ones(3), "the shape is (2,), not (3,)"),
        (torch.ones(2).long(), torch.ones(2), "the dtype is torch.int64, not torch.float32"),
        (torch.ones(2, device="meta"), torch.ones(2), "the device is meta, not cpu"),
        (torch.tensor([1, 2]), torch.tensor([1, 3]), "1 of 2 elements differ"),
        ((SCORES,), [SCORES], "the structure is"),
        (SCORES, 3.0, "a value of type Tensor, not float"),
        (2, 3, "2, not 3"),
        (torch.tensor([math.inf]), torch.tensor([-math.inf]), "NaN or infinity at other places"),
        (torch.tensor([math.nan, 1]), torch.tensor([1, math.nan]), "NaN or infinity at other"),
    ],
)
def test_what_differs_in_kind_says_so(new: object, old: object, message: str) -> None:
    found = worst(differences(new, old))

    assert found.in_kind
    assert found.error == math.inf
    assert found.message.startswith(message)


def test_nan_and_infinity_at_the_same_places_are_equal() -> None:
    value = torch.tensor([math.nan, math.inf, -math.inf, 1.0])

    assert worst(differences((value, math.nan), (value.clone(), math.nan))).error == 0
    assert bit_equal(value, value.clone()).error == 0


def test_float_dtypes_count_only_where_asked() -> None:
    assert not worst(differences(SCORES.float(), SCORES)).in_kind
    assert worst(differences(SCORES.float(), SCORES, dtypes=True)).in_kind


def test_leaves_are_named() -> None:
    found = worst(differences({"a": [SCORES, SCORES * 2]}, {"a": [SCORES, SCORES]}))

    assert found.where == "['a'][1]"
    assert "not bit-equal" in bit_equal(SCORES * 2, SCORES).message

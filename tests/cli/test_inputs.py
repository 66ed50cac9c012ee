"""Example inputs drawn from what they look like."""

import re
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fxpasses.cli.inputs import call_of
from fxpasses.errors import ArgumentError, FxPassesError


def one(text: str, seed: int = 0) -> Any:
    call = call_of([text], seed)
    assert call is not None
    (value,) = (*call[0], *call[1].values())
    return value


@pytest.mark.parametrize(
    ("text", "shape", "dtype"),
    [
        ("2x3x4", (2, 3, 4), torch.float32),
        ("5", (5,), torch.float32),
        ("0x3", (0, 3), torch.float32),
        ("scalar", (), torch.float32),
        (" 2x3 : float64 ", (2, 3), torch.float64),
        ("2x3:bfloat16", (2, 3), torch.bfloat16),
        ("2:float8_e4m3fn", (2,), torch.float8_e4m3fn),
        ("2:complex64", (2,), torch.complex64),
        ("2:bool", (2,), torch.bool),
        ("2:int64", (2,), torch.int64),
        ("2:uint16", (2,), torch.uint16),
        ("scalar:int8[-3,3]", (), torch.int8),
        ("2x3[0,1]", (2, 3), torch.float32),
    ],
)
def test_a_tensor_has_the_shape_and_dtype_that_are_given(
    text: str, shape: tuple[int, ...], dtype: torch.dtype
) -> None:
    assert (one(text).shape, one(text).dtype) == (shape, dtype)


def test_ranges_hold_for_every_element() -> None:
    even = one("1000[-1.5,2]")
    assert (even.min() >= -1.5, even.max() <= 2, even.max() - even.min() > 3) == (True,) * 3
    assert set(one("200:int64[5,7]").tolist()) == {5, 6, 7}
    assert set(one("50:uint8").tolist()) == {0, 1}
    assert set(one("50:bool").tolist()) == {False, True}
    assert one("3:int64[7,7]").tolist() == [7, 7, 7]
    assert one("1:int8[-128,-128]").item() == -128


def test_equal_seeds_draw_equal_inputs() -> None:
    assert torch.equal(one("2x3", seed=1), one("2x3", seed=1))
    assert not torch.equal(one("2x3", seed=1), one("2x3", seed=2))
    first, second = call_of(["4", "4"], 0)[0]  # type: ignore[index]
    assert not torch.equal(first, second)


def test_the_global_generator_is_left_alone() -> None:
    before = torch.get_rng_state()
    one("2x3")
    assert torch.equal(torch.get_rng_state(), before)


def test_names_lists_mappings_and_plain_values() -> None:
    specs = ["2x3", "x=4", "images=[3x2x2,3x4x4[0,1]]", "by_key={a=2,b=[3]}", "n==3", "==[1,none]"]
    args, kwargs = call_of([*specs, 'mode == "two words"'], 0) or ((), {})
    assert [getattr(value, "shape", value) for value in args] == [(2, 3), [1, None]]
    assert list(kwargs) == ["x", "images", "by_key", "n", "mode"]
    assert [tuple(image.shape) for image in kwargs["images"]] == [(3, 2, 2), (3, 4, 4)]
    assert (tuple(kwargs["by_key"]["a"].shape), len(kwargs["by_key"]["b"])) == ((2,), 1)
    assert (kwargs["n"], kwargs["mode"]) == (3, "two words")


def test_no_input_is_no_call() -> None:
    assert call_of([], 0) is None


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "expected a shape such as 1x3x224x224, or scalar at character 1"),
        ("2x", "expected the end at character 2"),
        ("-1x3", "expected a shape"),
        ("2x3:", "expected a dtype such as float32"),
        ("2x3:float31", "there is no dtype 'float31'"),
        ("2x3:nn", "there is no dtype 'nn'"),
        ("2x3:qint8", "nothing can be drawn of qint8"),
        ("2x3[1,0]", r"the range \[1,0\] is empty"),
        ("2x3[0]", "expected ','"),
        ("2x3[a,b]", "'a' is no number"),
        ("2x3[0,inf]", "inf is no end of a range"),
        ("2:int64[0,1.5]", "1.5 is no int64"),
        ("2:uint8[0,256]", "256 is no uint8"),
        ("2:uint8[-1,2]", "-1 is no uint8"),
        ("2:bool[0,1]", "bool takes no range"),
        ("2:complex64[0,1]", "complex64 takes no range"),
        ("[2,3", "expected ']'"),
        ("{a=2,a=3}", "a is given twice"),
        ("=2", "expected a shape"),
        ("x==", "expected a value"),
        ("x=2 3", "expected the end"),
        ("99999999999x99999999999", "torch cannot make it"),
        ("1" + "0" * 30, "0 is no size of a tensor"),
        ("1" + "0" * 5000, "a number of 5001 digits is too long"),
        ("[" * 60, "an input is nested deeper than 50 levels"),
    ],
)
def test_what_is_no_input_shows_where(text: str, message: str) -> None:
    with pytest.raises(FxPassesError, match=message) as caught:
        call_of([text], 0)
    assert f"--input {text!r}" in str(caught.value) or "nested" in message


@settings(deadline=None, derandomize=True, database=None)
@given(st.text('xa=[]{},:."-0123 ', max_size=16).filter(lambda text: not re.search(r"\d\d", text)))
def test_no_text_makes_the_reader_fail_in_another_way(text: str) -> None:
    try:
        call_of([text], 0)
    except FxPassesError:
        return


def test_a_name_twice_is_an_error() -> None:
    with pytest.raises(ArgumentError, match="x is given twice"):
        call_of(["x=1", "x=2"], 0)

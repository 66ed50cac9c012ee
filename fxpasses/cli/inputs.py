"""Example inputs by what they look like, drawn at random.

input  := [name "="] item | [name] "==" value
item   := tensor | "[" item,* "]" | "{" key "=" item,* "}"
tensor := shape [":" dtype] ["[" low "," high "]"]
shape  := integer ("x" integer)* | "scalar"

A `value` is that of a pipeline, and is passed as it is.
"""

import math
import re
from collections.abc import Callable, Iterable
from typing import Any, Final

import torch
from torch import Tensor

from fxpasses.core.given import Call
from fxpasses.errors import ArgumentError
from fxpasses.registry.values import Reader

_NAME: Final = re.compile(r"\s*([A-Za-z_]\w*)\s*=(.*)", re.DOTALL)
_SHAPE: Final = re.compile(r"scalar(?!\w)|\d+(?:x\d+)*", re.ASCII)
_DTYPE: Final = re.compile(r"[a-z]\w*", re.ASCII)
_WHOLE: Final[frozenset[torch.dtype]] = frozenset(
    getattr(torch, f"{sign}int{bits}") for sign in ("", "u") for bits in (8, 16, 32, 64)
)


def call_of(specs: Iterable[str], seed: int) -> Call | None:
    """The arguments of one call: in order, and by name where a name is given.

    Floating-point values are drawn from a normal distribution or evenly from a range, integers
    from a range that includes both of its ends, by default 0 and 1.

    Returns:
        Positional arguments and arguments by name; None where there is no input at all.

    Raises:
        ArgumentError: one does not follow the grammar, or has a name twice.
    """
    generator = torch.Generator().manual_seed(seed)
    args: list[Any] = []
    kwargs: dict[str, Any] = {}
    for text in specs:
        name, plain, rest = _split(text)
        if name in kwargs:
            raise ArgumentError(f"--input {text!r}: {name} is given twice")
        value = _argument(rest, text, generator, plain=plain)
        if name is None:
            args.append(value)
        else:
            kwargs[name] = value
    return (tuple(args), kwargs) if args or kwargs else None


def _split(text: str) -> tuple[str | None, bool, str]:
    """The name, if there is one; whether a plain value follows; and what follows."""
    named = _NAME.fullmatch(text)
    # The first of two signs ends the name.
    rest, sign = (named[2], "=") if named else (text, "==")
    name = named[1] if named else None
    return name, rest.startswith(sign), rest.removeprefix(sign)


def _argument(text: str, whole: str, generator: torch.Generator, *, plain: bool) -> Any:
    def error(message: str) -> ArgumentError:
        return ArgumentError(f"--input {whole!r}: {message}")

    reader = _Inputs(text, generator, error)
    value = reader.value() if plain else reader.item()
    reader.end()
    return value


class _Inputs(Reader):
    def __init__(
        self, text: str, generator: torch.Generator, error: Callable[[str], ArgumentError]
    ) -> None:
        super().__init__(text, "an input", error)
        self._generator = generator

    def item(self) -> Any:
        with self.deeper():
            if self.take("["):
                return self.listed("]", self.item)
            if self.take("{"):
                return self.named("}", self.item)
        try:
            return self._tensor()
        except RuntimeError as error:
            # There is no memory for it, or its number of elements is beyond all numbers.
            self.fail(f"torch cannot make it, {str(error).partition(chr(10))[0]},")

    def _tensor(self) -> Tensor:
        text = self.match(_SHAPE, "a shape such as 1x3x224x224, or scalar")
        shape = () if text == "scalar" else tuple(map(self._size, text.split("x")))
        dtype = self._dtype() if self.take(":") else torch.float32
        low, high = self._range() if self.take("[") else (None, None)
        if dtype in _WHOLE:
            return self._integers(shape, dtype, low, high)
        if low is None or high is None:
            return self._unbounded(shape, dtype)
        if not dtype.is_floating_point:
            self.fail(f"{_name(dtype)} takes no range")
        unit = torch.rand(shape, generator=self._generator)
        return (low + (high - low) * unit).to(dtype)

    def _size(self, digits: str) -> int:
        size = self.integer(digits)
        if size > torch.iinfo(torch.int64).max:
            self.fail(f"{size} is no size of a tensor")
        return size

    def _dtype(self) -> torch.dtype:
        name = self.match(_DTYPE, "a dtype such as float32")
        dtype = getattr(torch, name, None)
        if not isinstance(dtype, torch.dtype):
            self.fail(f"there is no dtype {name!r}")
        drawn = dtype.is_floating_point or dtype.is_complex or dtype is torch.bool
        if not drawn and dtype not in _WHOLE:
            self.fail(f"nothing can be drawn of {name}")
        return dtype

    def _range(self) -> tuple[float, float]:
        low = self._number()
        self.need(",")
        high = self._number()
        self.need("]")
        if not low <= high:
            self.fail(f"the range [{low},{high}] is empty")
        return low, high

    def _number(self) -> float:
        number = self.value()
        if isinstance(number, bool) or not isinstance(number, int | float):
            self.fail(f"{number!r} is no number")
        if not math.isfinite(number):
            self.fail(f"{number} is no end of a range")
        return number

    def _integers(
        self, shape: tuple[int, ...], dtype: torch.dtype, low: float | None, high: float | None
    ) -> Tensor:
        first, last = (0, 1) if low is None or high is None else (low, high)
        limits = torch.iinfo(dtype)
        for end in (first, last):
            if not isinstance(end, int) or not limits.min <= end <= min(limits.max, 2**63 - 2):
                self.fail(f"{end} is no {_name(dtype)}")
        drawn = torch.randint(int(first), int(last) + 1, shape, generator=self._generator)
        return drawn.to(dtype)

    def _unbounded(self, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        if dtype is torch.bool:
            return torch.rand(shape, generator=self._generator) < 0.5
        wide = dtype if dtype.is_complex else torch.float32
        return torch.randn(shape, generator=self._generator, dtype=wide).to(dtype)


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")

"""What was measured of nodes, as numbers that colours can show."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, Literal, TypeAlias

Unit: TypeAlias = Literal["seconds", "bytes", "error", "number"]

UNITS: Final[Mapping[str, Unit]] = {
    "error": "error",
    "time": "seconds",
    "memory": "bytes",
    "saved": "bytes",
}
"""The modes whose unit is known; what is measured under any other name is a plain number."""

_STEPS: Final = 6
_DECADES_SHOWN: Final = 12.0
"""Of errors: what is smaller than the largest by more than that is told with the smallest."""


@dataclass(frozen=True, slots=True)
class Scale:
    """Numbers by the full names of nodes, and how they become one of a few steps of colour."""

    name: str
    values: Mapping[str, float]
    limit: float | None = None
    """What is above it is marked as too much."""
    least: float = 0.0
    most: float = 1.0
    steps: int = field(default=_STEPS, init=False)

    @property
    def unit(self) -> Unit:
        return UNITS.get(self.name, "number")

    @property
    def is_logarithmic(self) -> bool:
        return self.unit == "error"

    def step_of(self, value: float) -> int:
        """From 0 for the least to `steps - 1` for the most; NaN and infinities are the most."""
        if not math.isfinite(value):
            return self.steps - 1
        low, high, at = self._placed(self.least), self._placed(self.most), self._placed(value)
        share = (at - low) / (high - low) if high > low else 1.0
        return min(max(int(share * self.steps), 0), self.steps - 1)

    def start_of(self, step: int) -> float:
        """The least value of a step."""
        low, high = self._placed(self.least), self._placed(self.most)
        at = low + (high - low) * step / self.steps
        return 10.0**at if self.is_logarithmic else at

    def is_over(self, value: float) -> bool:
        return not math.isfinite(value) or (self.limit is not None and value > self.limit)

    def text_of(self, value: float) -> str:
        """`1.2 ms`, `3.1 MiB`, `4.0e-13`."""
        return _text(value, self.unit)

    def combined(self, values: list[float]) -> float | None:
        """Of many nodes told in one: the worst error, else the sum; None where none is measured."""
        if not values:
            return None
        if self.unit != "error":
            return sum(values)
        odd = [value for value in values if not math.isfinite(value)]
        return odd[0] if odd else max(values)

    def _placed(self, value: float) -> float:
        if not self.is_logarithmic:
            return value
        return math.log10(max(value, self.least, 1e-300))


def fitted(scale: Scale, shown: list[float]) -> Scale:
    """The scale from the least to the most of what is shown."""
    finite = [value for value in shown if math.isfinite(value)]
    ends: list[float] = finite if scale.limit is None else [*finite, scale.limit]
    most = max(ends) if ends else 1.0
    if not scale.is_logarithmic:
        return Scale(scale.name, scale.values, scale.limit, min([0.0, *finite]), most)
    positive = [value for value in finite if value > 0]
    least = max(min(positive, default=most), most * 10.0**-_DECADES_SHOWN)
    return Scale(scale.name, scale.values, scale.limit, least, most)


def _text(value: float, unit: Unit) -> str:
    if not math.isfinite(value):
        return "NaN" if math.isnan(value) else "inf" if value > 0 else "-inf"
    match unit:
        case "error":
            return f"{value:.1e}" if value else "0"
        case "seconds":
            return _scaled(value, ((1.0, "s"), (1e-3, "ms"), (1e-6, "us")))
        case "bytes":
            return _scaled(value, ((2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB"), (1, "B")))
        case "number":
            return count_text(value)


def count_text(value: float) -> str:
    """`9.4K`, `25.6M`; what is below a thousand as it is."""
    for size, letter in ((1e9, "G"), (1e6, "M"), (1e3, "K")):
        if abs(value) >= size:
            return f"{value / size:.1f}{letter}"
    return f"{value:.0f}" if value == int(value) else f"{value:.3g}"


def _scaled(value: float, units: tuple[tuple[float, str], ...]) -> str:
    for size, name in units:
        if abs(value) >= size or size == units[-1][0]:
            number = value / size
            text = f"{number:.0f}" if abs(number) >= 100 else f"{number:.1f}".removesuffix(".0")
            return f"{text} {name}"
    raise AssertionError("the last unit takes everything")

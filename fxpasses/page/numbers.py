"""Numbers and places as short text."""

from fxpasses.core.plain import installed_place

_UNITS = ("B", "KiB", "MiB", "GiB", "TiB")


def size(number_of_bytes: int) -> str:
    """`0 B`, `1.5 MiB`."""
    value, unit = float(number_of_bytes), 0
    while value >= 1024 and unit < len(_UNITS) - 1:
        value, unit = value / 1024, unit + 1
    return f"{value:.0f} B" if unit == 0 else f"{value:.1f} {_UNITS[unit]}"


def share(fraction: float | None) -> str:
    """`100 %`, `99.4 %`; never rounded up to 100."""
    if fraction is None:
        return "not measured"
    percent = min(100 * fraction, 100.0)
    if percent < 100 and round(percent, 1) >= 100:
        return "over 99.9 %"
    return f"{percent:.0f} %" if percent == round(percent) else f"{percent:.1f} %"


def seconds(value: float) -> str:
    return f"{value:.2f} s" if value < 10 else f"{value:.0f} s"


def duration(value: float) -> str:
    """Of what may be short: `12.3 ms`, `45 us`, `1.20 s`."""
    if value >= 1:
        return seconds(value)
    return f"{1e3 * value:.1f} ms" if value >= 1e-3 else f"{1e6 * value:.0f} us"


def amount(number: float) -> str:
    """Three digits of a count: `1.82 G`, `640`."""
    for unit, name in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if number >= unit:
            return f"{number / unit:.3g} {name}"
    return f"{number:.0f}"


def small(value: float | None) -> str:
    """An error or a bound, two digits."""
    return "-" if value is None else f"{value:.1e}"


def count(number: int, noun: str, plural: str | None = None) -> str:
    """`1 graph`, `2 graphs`, `no graph`."""
    if number == 0:
        return f"no {noun}"
    return f"{number:,} {noun if number == 1 else plural or noun + 's'}"


def place(source: str | None) -> str:
    """A source line without the way to the installed packages."""
    return "no source line" if source is None else installed_place(source)

"""The nearest match of a name that does not exist."""

import difflib
from collections.abc import Iterable


def did_you_mean(name: object, known: Iterable[object]) -> str:
    """`; did you mean X?` if anything is near, else what there is if it is little, else nothing."""
    names = [str(item) for item in known]
    near = difflib.get_close_matches(str(name), names, n=1, cutoff=0.5)
    if near:
        return f"; did you mean {near[0]}?"
    return f"; there is {', '.join(sorted(names))}" if 0 < len(names) <= 12 else ""

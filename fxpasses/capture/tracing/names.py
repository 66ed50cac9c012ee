"""Names that are safe in generated code, and aliases for those that are not."""

import keyword
import re
from functools import lru_cache

_HARMLESS = re.compile(r"[ -!#-\[\]-~]+").fullmatch  # printable ASCII but " and \


def is_identifier(name: str) -> bool:
    """Whether generated code can spell `name` as a name and mean the same."""
    return name.isascii() and name.isidentifier() and not keyword.iskeyword(name)


@lru_cache(maxsize=1024)  # models have few names, each in many places
def is_safe_atom(name: str) -> bool:
    """Whether torch's code generation reaches an attribute of this name, and nothing else.

    It writes identifiers after a dot and puts all else between double quotes as it is.
    """
    if is_identifier(name):
        return True
    return not name.isidentifier() and _HARMLESS(name) is not None


def is_safe_path(path: str) -> bool:
    return all(map(is_safe_atom, path.split(".")))

"""YAML that says one thing only: plain data, no key twice, and a number is what looks like one.

Scalars are those of YAML 1.2, where `no` and `on` are words, and `1e-5` is a number.
"""

import re
from typing import Any, Final

import yaml

from fxpasses.core.plain import Plain

_SCALARS: Final = (
    ("null", re.compile(r"~|null|Null|NULL|"), "~nN"),
    ("bool", re.compile(r"true|True|TRUE|false|False|FALSE"), "tTfF"),
    ("int", re.compile(r"[-+]?[0-9]+", re.ASCII), "-+0123456789"),
    (
        "float",
        re.compile(
            r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?"
            r"|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)",
            re.ASCII,
        ),
        "-+.0123456789",
    ),
)
_KINDS: Final = ("null", "bool", "int", "float", "str", "seq", "map")


def _tag(kind: str) -> str:
    return f"tag:yaml.org,2002:{kind}"


class _Loader(yaml.SafeLoader):
    """Constructs nothing but plain data."""

    yaml_implicit_resolvers: dict[str, Any] = {}  # noqa: RUF012  as the base declares it
    yaml_constructors = {  # noqa: RUF012  as the base declares it
        tag: construct
        for tag, construct in yaml.SafeLoader.yaml_constructors.items()
        if tag is None or tag in map(_tag, _KINDS)
    }


class _Dumper(yaml.SafeDumper):
    """Puts in quotes what `_Loader` would take for something else than text."""

    yaml_implicit_resolvers: dict[str, Any] = {}  # noqa: RUF012  as the base declares it

    def ignore_aliases(self, data: Any) -> bool:  # noqa: ARG002  the signature of the base
        return True


def _integer(loader: _Loader, node: yaml.ScalarNode) -> int:
    # Without this a leading zero would make it octal.
    return int(loader.construct_scalar(node))


def _mapping(loader: _Loader, node: yaml.MappingNode) -> dict[Any, Any]:
    found: dict[Any, Any] = {}
    for key_node, value_node in node.value:
        key = loader.construct_object(key_node, deep=True)
        if not isinstance(key, str):
            _fail(f"the key {key!r} is no text", key_node)
        if key in found:
            _fail(f"the key {key!r} is there twice", key_node)
        found[key] = loader.construct_object(value_node, deep=True)
    return found


def _fail(problem: str, node: yaml.Node) -> None:
    raise yaml.MarkedYAMLError(None, None, problem, node.start_mark)


for _kind, _pattern, _first in _SCALARS:
    for _class in (_Loader, _Dumper):
        _class.add_implicit_resolver(
            _tag(_kind), re.compile(rf"(?:{_pattern.pattern})\Z"), [*_first, ""]
        )
_Loader.add_constructor(_tag("map"), _mapping)
_Loader.add_constructor(_tag("int"), _integer)


def load(text: str) -> Any:
    """What a YAML text says, as plain data.

    Raises:
        yaml.YAMLError: it is no YAML, holds more than plain data, or says something twice.
    """
    try:
        return yaml.load(text, Loader=_Loader)
    except ValueError as error:
        # What a tag calls a number, and is none.
        raise yaml.YAMLError(str(error)) from error
    except RecursionError:
        raise yaml.YAMLError("it is nested too deep") from None


def dump(data: Plain) -> str:
    """The data as YAML that `load` reads."""
    return yaml.dump(data, Dumper=_Dumper, sort_keys=False)

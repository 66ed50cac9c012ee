"""Pipelines written back as text."""

from fxpasses.core import ForeignPass, GraphPass, Group
from fxpasses.registry.options import set_options
from fxpasses.registry.syntax import text_of_options


def text_of_group(group: Group) -> str:
    """The group as text; what `repeat` of the outermost group says is kept by parentheses."""
    inside = ",".join(_text(item) for item in group.items)
    return f"({inside})*{group.repeat}" if group.repeat > 1 and group.items else inside


def _text(item: "GraphPass | ForeignPass | Group") -> str:
    if isinstance(item, Group):
        inside = ",".join(_text(part) for part in item.items)
        return f"({inside})*{item.repeat}"
    if isinstance(item, ForeignPass):
        return item.name
    options = text_of_options(set_options(item))
    return f"{item.name}{{{options}}}" if options else item.name

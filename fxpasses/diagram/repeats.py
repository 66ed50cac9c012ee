"""Modules that are built as another before them is."""

from collections import defaultdict
from collections.abc import Hashable, Iterator

from fxpasses.diagram.scene import Box, Modules, Scene
from fxpasses.diagram.structure import Group, whole, within_modules


def repeated(scene: Scene) -> Iterator[Group]:
    """All but the first of those built alike, wherever they stand; neighbours in one."""
    members = within_modules(scene)
    children: defaultdict[Modules, list[Modules]] = defaultdict(list)
    for modules in members:
        children[modules[:-1]].append(modules)
    sources: defaultdict[str, list[str]] = defaultdict(list)
    for source, target in scene.edges:
        sources[target].append(source)
    forms = {
        modules: _form(scene, modules, keys, sources)
        for modules, keys in members.items()
        if len(keys) > 1
    }
    first_of: dict[Hashable, Modules] = {}
    # A module that is folded is not looked into; a list as a stack, for any depth.
    waiting: list[Modules] = [()]
    while waiting:
        row: list[Modules] = []
        looked_into: list[Modules] = []
        for modules in children[waiting.pop()]:
            form = forms.get(modules)
            is_repeat = form is not None and form in first_of
            if row and not (is_repeat and forms[row[0]] == form):
                yield _group(row, members, first_of[forms[row[0]]])
                row = []
            if is_repeat:
                row.append(modules)
                continue
            if form is not None:
                first_of[form] = modules
            looked_into.append(modules)
        if row:
            yield _group(row, members, first_of[forms[row[0]]])
        waiting += reversed(looked_into)


def _group(row: list[Modules], members: dict[Modules, tuple[str, ...]], first: Modules) -> Group:
    keys = tuple(key for modules in row for key in members[modules])
    return whole(row, keys, first)


def _form(
    scene: Scene, modules: Modules, keys: tuple[str, ...], sources: defaultdict[str, list[str]]
) -> Hashable:
    """Class, boxes with their signs, and which of them read which."""
    number = {key: n for n, key in enumerate(keys)}
    boxes = (
        (
            _what(scene.boxes[key]),
            scene.boxes[key].sign,
            tuple(number[one] for one in sources[key] if one in number),
        )
        for key in keys
    )
    return (modules[-1][1], *boxes)


def _what(box: Box) -> Hashable:
    """What a box computes, whatever it is called."""
    return box.title if box.holds is None else tuple(sorted(box.holds.items()))

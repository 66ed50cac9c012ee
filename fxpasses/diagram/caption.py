"""What a diagram shows, in words."""

from collections.abc import Iterator

from fxpasses.core.plain import printable
from fxpasses.diagram.scene import Scene, Sign

_CHANGES = (Sign.ADDED, Sign.REMOVED, Sign.CHANGED)


def caption_of(scene: Scene) -> str:
    """The model, how many nodes there are, what became of them, and how many are seen."""
    return f"{printable(scene.title)}, {numbers_of(scene)}"


def numbers_of(scene: Scene) -> str:
    """The same without the model."""
    return ", ".join([*_numbers(scene), *_shown(scene)])


def _numbers(scene: Scene) -> Iterator[str]:
    counts = scene.counted()
    nodes = counts.total()
    if not scene.is_comparison:
        yield f"{nodes:,} node{'' if nodes == 1 else 's'}"
        return
    before, after = nodes - counts[Sign.ADDED], nodes - counts[Sign.REMOVED]
    yield f"{before:,} -> {after:,} nodes"
    changes = [f"{sign} {counts[sign]:,} {sign.name.lower()}" for sign in _CHANGES if counts[sign]]
    yield from changes or ["no difference"]
    if refused := scene.refused():
        yield f"{Sign.REFUSED} {refused:,} refused"
    if failed := counts[Sign.FAILED]:
        yield f"{Sign.FAILED} {failed:,} found wrong and undone"


def _shown(scene: Scene) -> Iterator[str]:
    folded = sum(box.is_folded for box in scene.boxes.values())
    if folded or scene.focus:
        yield f"showing {scene.shown():,} of {scene.counted().total():,}"
    if folded:
        yield f"the rest in {folded:,} folded box{'' if folded == 1 else 'es'}"
    if scene.focus:
        yield printable(scene.focus)

"""Scores that meet a mask of windows: their batch is split into groups, and joined again.

    scores.view(-1, windows, heads, n, n) + mask  ->  .view(-1, heads, n, n)

As shifted windows do. The mask meets the scores alike once it is repeated for every group.
"""

from collections.abc import Iterable
from typing import Any, Final

from torch.fx import Node

from fxpasses.core import Facts
from fxpasses.views.contractions import Axes, Operand
from fxpasses.views.score_links import Leads, Link, link_of
from fxpasses.views.shapes import Reshape
from fxpasses.views.sizes import Sizes

_GROUPS, _WINDOWS = "/groups", "/windows"
_FARTHEST: Final = 48
"""How many calls are looked at for the sizes of scores."""


def is_split(axes: Axes) -> bool:
    """Whether the batch lies on two axes."""
    return axes[0].endswith(_GROUPS)


def rejoined(axes: Axes) -> Axes:
    """The axes as they are where the batch lies on one."""
    return (axes[0].removesuffix(_GROUPS), *axes[2:]) if is_split(axes) else axes


def window_link(result: Operand, leads: Leads) -> Link | None:
    """A call that splits or rejoins the batch of scores, where another does the opposite."""
    reshape = Reshape.at(result.node)
    if reshape is None or len(_sizes(reshape)) != len(result.axes):
        return None
    if is_split(result.axes):
        return Link(result, Operand(reshape.input, rejoined(result.axes)))
    first, *others = result.axes
    split = Operand(reshape.input, (f"{first}{_GROUPS}", f"{first}{_WINDOWS}", *others))
    return Link(result, split) if _is_split_above(split, leads) else None


def _is_split_above(operand: Operand, leads: Leads) -> bool:
    """Whether the batch is split before anything but the plainest is done to the scores."""
    while (link := link_of(operand, leads)) is not None and link.result.axes == link.input.axes:
        operand = link.input
    reshape = Reshape.at(operand.node)
    return reshape is not None and len(_sizes(reshape)) == len(operand.axes)


def _sizes(reshape: Reshape) -> list[Any]:
    size = reshape.size
    return list(size) if isinstance(size, (tuple, list)) else []


def splits_of(links: Iterable[Link]) -> dict[Node, Link]:
    """By the link of each tensor that meets split scores, the link that split them.

    `links` go from the softmax up.
    """
    found: dict[Node, Link] = {}
    waiting: list[Node] = []
    for link in links:
        if is_split(link.result.axes) and not is_split(link.input.axes):
            found.update(dict.fromkeys(waiting, link))
            waiting = []
        elif is_split(link.result.axes) and link.tensor is not None:
            waiting.append(link.tensor)
    return found


def misfit_of_windows(links: Iterable[Link], node: Node, facts: Facts) -> str | None:
    """Why a mask may belong to other windows than those of the scores; None if to none.

    What comes of the batch is checked as the graph runs, where the mask is repeated.
    """
    links = list(links)
    changing = [link for link in links if is_split(link.result.axes) != is_split(link.input.axes)]
    if not changing:
        return None
    sizes = Sizes(_above(node), facts)
    for link in changing:
        others = len(rejoined(link.result.axes)) - 1
        if not sizes.agree(link.node, link.input.node, others):
            return f"{link.node.name} may put heads, queries or keys elsewhere"
    for tensor, split in splits_of(links).items():
        if facts.rank(tensor) != len(split.result.axes) or not sizes.holds(split.node, tensor):
            return f"{tensor.name} may not be one for each window"
    return None


def _above(node: Node) -> list[Node]:
    """What is computed on the way to a node, as far as sizes are looked for, in order."""
    found, front = {node: None}, [node]
    while front and len(found) < _FARTHEST:
        front = [i for one in front for i in one.all_input_nodes if i not in found]
        found.update(dict.fromkeys(front))
    return sorted(found)

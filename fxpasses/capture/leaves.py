"""Functions of known packages that stay one node without being asked for."""

import sys
from collections.abc import Callable, Iterator
from typing import Any, Final

from fxpasses.capture.tracing.request import Sizes

_ALWAYS: Final[dict[str, tuple[str, ...]]] = {
    # Looks its backend up by the class of the tensor, and keeps recipes by sizes.
    "einops": ("rearrange", "reduce", "repeat", "einsum", "pack", "unpack"),
    # Loop or branch on data.
    "torchvision.ops": ("batched_nms", "masks_to_boxes"),
}


def default_leaves(sizes: Sizes, *, has_example: bool) -> Iterator[Callable[..., Any]]:
    """The functions of packages that are loaded: nothing is imported for this."""
    for package, names in _ALWAYS.items():
        module = sys.modules.get(package)
        yield from (found for name in names if callable(found := getattr(module, name, None)))
    if not _can_branch(sizes, has_example=has_example):
        yield from _not_traced_by_timm()


def traced_though_wrapped(sizes: Sizes, *, has_example: bool) -> Iterator[Callable[..., Any]]:
    """Functions given to `torch.fx.wrap` that are traced through all the same.

    What timm lists as not traceable branches on sizes or on what is None, which is no hindrance
    where guards can be asked; there passes are to see what it computes.
    """
    if _can_branch(sizes, has_example=has_example):
        yield from _not_traced_by_timm()


def _can_branch(sizes: Sizes, *, has_example: bool) -> bool:
    return has_example and sizes != "kinds"


def _not_traced_by_timm() -> list[Callable[..., Any]]:
    listing = sys.modules.get("timm.layers._fx")
    return [] if listing is None else listing.get_notrace_functions()

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
    """The functions of packages that are loaded: nothing is imported for this.

    What timm lists as not traceable branches on sizes, which is no hindrance where guards can be
    asked; there it is traced through, so that passes see what it computes.
    """
    for package, names in _ALWAYS.items():
        module = sys.modules.get(package)
        yield from (found for name in names if callable(found := getattr(module, name, None)))
    listing = sys.modules.get("timm.layers._fx")
    if listing is not None and not (has_example and sizes != "kinds"):
        yield from listing.get_notrace_functions()

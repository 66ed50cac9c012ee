"""Steps of optimizers count as writes, by whatever kernel they are done.

Torch's fused optimizers (`fused=True`), and those of other packages, write weights without
counting it, so that a folded weight would go stale unseen.
"""

import weakref
from collections.abc import Sequence
from typing import Any, Protocol

import torch
from torch.autograd.graph import increment_version
from torch.optim.optimizer import Optimizer, register_optimizer_step_post_hook

from fxpasses.core import Watch


class Watching(Protocol):
    watches: list[Watch]


def count_steps(watching: Watching) -> None:
    """As long as `watching` lives, steps of optimizers count as writes of what it watches."""
    if not any(isinstance(watch.tensor(), torch.nn.Parameter) for watch in watching.watches):
        return
    alive = weakref.ref(watching)

    def after_step(optimizer: Optimizer, _args: Any, _kwargs: Any) -> None:
        held = alive()
        if held is not None:
            _count(optimizer, held.watches)

    hook = register_optimizer_step_post_hook(after_step)
    weakref.finalize(watching, hook.remove)


def _count(optimizer: Optimizer, watches: Sequence[Watch]) -> None:
    # What has no gradient is passed over by a step.
    stepped = {
        id(parameter)
        for group in optimizer.param_groups
        for parameter in group["params"]
        if parameter.grad is not None
    }
    watched = (watch.tensor() for watch in watches)
    written = [tensor for tensor in watched if tensor is not None and id(tensor) in stepped]
    if written:
        increment_version(written)

"""Whether what `run` makes of a model does what the model does, called side by side."""

import copy
import warnings
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule

import fxpasses
from fxpasses.core import Numerics
from fxpasses.testing import Model
from fxpasses.testing.behaviour import (
    Behaviour,
    behaviour_of,
    difference_between,
    vanishing_gradients,
)

PASSES = {
    "constant_fold": Numerics.ROUNDING,
    "cse": Numerics.EXACT,
    "merge_linears": Numerics.ROUNDING,
    "remove_bias_before_bn": Numerics.ROUNDING,
    "simplify": Numerics.ROUNDING,
    "dce": Numerics.EXACT,
    "expand_composites": Numerics.ROUNDING,
    "fuse_attention": Numerics.ROUNDING,
    "fold_input_norm": Numerics.ROUNDING,
    "fold_scale": Numerics.ROUNDING,
    "fuse_conv_bn": Numerics.ROUNDING,
    "inplace": Numerics.EXACT,
    "fuse_conv_bn_relu": Numerics.ROUNDING,
    # Another spelling of the same function.
    "swap_activation{mapping={relu={threshold={threshold=0.0,value=0.0}}}}": Numerics.ROUNDING,
}


def pipeline(choose: Callable[[Sequence[Any]], Any]) -> list[Any]:
    """A few passes in any order, the last ones maybe over and over."""
    names = [choose(tuple(PASSES)) for _ in range(choose((0, 1, 2, 3, 4, 5)))]
    times = choose((1, 1, 1, 2, 3))
    group = [{"repeat": times, "passes": names[-2:]}] if names and times > 1 else []
    return [*names, *group]


def wrong(model: Model, passes: Sequence[Any], *, verify: bool = False) -> str | None:
    """What the optimised model does in another way; None if nothing, or if it cannot be called."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of what torch thinks of some programs
        wanted = _behaviour(model)
        if wanted is None:
            return None
        result = _optimised(model, passes, verify=verify)
        got = behaviour_of(result, result, model, gradients=bool(wanted.gradients))
        exact = all(PASSES.get(str(item)) is Numerics.EXACT for item in passes)
        numerics = Numerics.EXACT if exact else Numerics.ROUNDING
        text = difference_between(
            got, wanted, numerics, lambda: vanishing_gradients(model.own().module, model)
        )
        return None if text and not exact and _hangs_on_rounding(model, wanted) else text


def changing(model: Model, names: Sequence[str]) -> set[str]:
    """The passes that rewrite something of the model, each on its own."""
    records = {name: _optimised(model, [name]).meta["fxpasses"]["passes"][0] for name in names}
    return {name for name, record in records.items() if record["status"] == "changed"}


def _optimised(model: Model, passes: Sequence[Any], *, verify: bool = False) -> GraphModule:
    own = model.own()
    before = {name: tensor.clone() for name, tensor in own.module.state_dict().items()}
    args, kwargs = own.arguments()
    result = fxpasses.run(own.module, list(passes), args, kwargs, verify=verify)
    torch.testing.assert_close(own.module.state_dict(), before, rtol=0, atol=0, equal_nan=True)
    return result


def _behaviour(model: Model, noise: float = 0.0) -> Behaviour | None:
    """What the model does, with gradients where it is to be trained and has any."""
    for gradients in (True, False) if model.is_for_training else (False,):
        own = copy.deepcopy(model)
        if noise:
            _disturb([*own.module.parameters(), *own.module.buffers(), *own.tensors()], noise)
        # A program may raise on what its buffers have become, and write what a backward needs.
        with suppress(Exception):
            return behaviour_of(own.module, own.module, own, gradients=gradients)
    return None


def _hangs_on_rounding(model: Model, wanted: Behaviour) -> bool:
    """Whether a noise of a few roundings changes what comes out, too."""
    for number in range(3):
        torch.manual_seed(number)
        noisy = _behaviour(model, 16.0)
        if noisy is None or difference_between(noisy, wanted) is not None:
            return True
    return False


def _disturb(tensors: Sequence[Tensor], noise: float) -> None:
    with torch.no_grad():
        for tensor in tensors:
            if tensor.is_floating_point():
                eps = torch.finfo(tensor.dtype).eps
                factor = 1 + noise * eps * (2 * torch.rand(tensor.shape) - 1)
                tensor.copy_((tensor.double() * factor).to(tensor.dtype))

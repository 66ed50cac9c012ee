"""What the vocabulary says autograd keeps, tried on every spelling of every op."""

import copy
import warnings
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map_only

from fxpasses.ops import OPERANDS_NOT_SAVED, RESULT_SAVED, RESULT_SAVED_IN_PLACE, VOCABULARY, Op
from tests.test_ops import OUT, Call, calls_of


def tensors(value: Any) -> list[Tensor]:
    return [leaf for leaf in tree_leaves(value) if isinstance(leaf, Tensor)]


def places(found: list[Tensor]) -> set[int]:
    return {tensor.untyped_storage().data_ptr() for tensor in found}


def needing_gradients(value: Any) -> Any:
    """Copies that are no leaves."""
    return tree_map_only(
        Tensor, lambda t: t.clone().requires_grad_() * 1 if t.is_floating_point() else t, value
    )


def kept(call: Call) -> tuple[bool, bool, bool] | None:
    """Whether result and operands are kept, and whether an operand is written."""
    if any(value is OUT for value in (*call.args, *call.kwargs.values())):
        return None
    args, kwargs = needing_gradients((list(call.args), dict(call.kwargs)))
    operands = tensors((args, kwargs))
    versions = [tensor._version for tensor in operands]
    saved: list[Tensor] = []
    try:
        with torch.autograd.graph.saved_tensors_hooks(lambda t: saved.append(t) or t, lambda t: t):
            result = tensors(_called(call, args, kwargs))
    except Exception:  # not every op can be differentiated
        return None
    writes = versions != [tensor._version for tensor in operands]
    own = places(result) if writes else places(result) - places(operands)
    return bool(own & places(saved)), bool(places(operands) & places(saved)), writes


def _called(call: Call, args: Any, kwargs: Any) -> Any:
    if call.kind == "call_method":
        return getattr(args[0], call.target)(*args[1:], **kwargs)
    target = call.target
    if isinstance(target, nn.Module):
        target = copy.deepcopy(target).train(call.training)
    return target(*args, **kwargs)


@pytest.mark.parametrize("op", VOCABULARY)
def test_what_is_kept_is_told(op: Op) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = [one for call in calls_of(op) if (one := kept(call)) is not None]
    for result, operands, writes in found:
        assert not result or op in (RESULT_SAVED_IN_PLACE if writes else RESULT_SAVED)
        assert not operands or writes or op not in OPERANDS_NOT_SAVED

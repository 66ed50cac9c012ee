"""Which models can be captured at all. The rest is told what to do."""

import torch
from torch import Tensor, nn
from torch.fx import GraphModule
from torch.nn.modules.lazy import LazyModuleMixin
from torch.nn.parameter import is_lazy

from fxpasses.capture.inside import (
    buffers_of,
    is_sealed,
    modules_of,
    overrides_operations,
    parameters_of,
)
from fxpasses.capture.result.forms import tensors_of
from fxpasses.core.given import an
from fxpasses.errors import CaptureError

# Tensors without values, with which capture and torch trace.
_FAKES = ("torch._subclasses", "fxpasses.capture")


def check_model(model: object) -> None:
    if not isinstance(model, nn.Module):
        raise CaptureError(f"{an(type(model))} is not an nn.Module: pass the module itself")
    if isinstance(model, torch.jit.ScriptModule):
        raise CaptureError(
            "the model is TorchScript, which has no Python code to trace: pass the module that "
            "it was made from, and script or trace the result"
        )
    if is_sealed(model):
        raise CaptureError(
            "the model is the result of torch.compile: pass the module inside (`_orig_mod`), and "
            "compile the result"
        )
    if isinstance(model, (nn.parallel.DistributedDataParallel, nn.DataParallel)):
        raise CaptureError(
            f"the model is wrapped in {type(model).__name__}: pass the module inside (`module`), "
            "and wrap the result"
        )
    if type(model).__call__ is not nn.Module.__call__ and not isinstance(model, GraphModule):
        raise CaptureError(
            f"{type(model).__name__} overrides `__call__`, which its result would not have: put "
            "that code into `forward`, or pass a module whose forward calls the model"
        )
    _check_weights(model)


def check_example(values: object) -> None:
    """Refuse tensors that hold other tensors: a graph of what was called on them says nothing.

    Raises:
        CaptureError: one of the arguments is of such a class.
    """
    for tensor in tensors_of(values):
        kind = type(tensor)
        wraps = overrides_operations(kind) and not kind.__module__.startswith(_FAKES)
        if wraps or tensor.is_nested:
            name = "nested tensor" if tensor.is_nested else kind.__name__
            raise CaptureError(
                f"the example holds a {name}, which does something of its own at every operation: "
                "pass a plain tensor"
            )


def _check_weights(model: nn.Module) -> None:
    for name, module in named_modules(model):
        tensors = _tensors_of(module)
        if isinstance(module, LazyModuleMixin) and any(map(is_lazy, tensors)):
            raise CaptureError(
                f"the weights of {name or 'the model'} are not known yet (a lazy layer): run the "
                "model once on real inputs first"
            )
        if any(tensor.is_meta for tensor in tensors):
            raise CaptureError(
                f"the weights of {name or 'the model'} are on the meta device and hold no values: "
                "load them first, as with `model.to_empty(device=...)` and `load_state_dict`"
            )


def _tensors_of(module: nn.Module) -> list[Tensor]:
    if is_sealed(module):  # whose dicts are none, if it has any
        return [*module.parameters(), *module.buffers()]
    held = (*parameters_of(module).values(), *buffers_of(module).values())
    return [tensor for tensor in held if tensor is not None]


def named_modules(model: nn.Module) -> list[tuple[str, nn.Module]]:
    """Each module once with its path, without recursion."""
    found: list[tuple[str, nn.Module]] = []
    seen: set[int] = set()
    stack = [("", model)]
    while stack:
        path, module = stack.pop()
        if id(module) in seen:
            continue
        seen.add(id(module))
        found.append((path, module))
        if not is_sealed(module):
            stack.extend(children_of(module, path))
    return found


def children_of(module: nn.Module, path: str) -> list[tuple[str, nn.Module]]:
    """The registered children of a module, each with its path."""
    prefix = f"{path}." if path else ""
    children = modules_of(module).items()
    return [(f"{prefix}{name}", child) for name, child in children if child is not None]

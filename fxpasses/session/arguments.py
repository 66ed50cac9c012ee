"""What a caller of `run` may pass, checked before anything is done."""

from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor, nn

from fxpasses.errors import ArgumentError, CaptureError

Call = tuple[tuple[Any, ...], dict[str, Any]]


def require_module(model: object) -> nn.Module:
    """The model, if it is one.

    Raises:
        CaptureError: it is a class, a function, or anything else that is no module.
    """
    if isinstance(model, nn.Module):
        return model
    if isinstance(model, type) and issubclass(model, nn.Module):
        raise CaptureError(
            f"the model is the class {model.__name__}: pass an instance, {model.__name__}(...)"
        )
    raise CaptureError(f"the model is of type {type(model).__name__}: pass a torch.nn.Module")


def as_call(example_inputs: Any, example_kwargs: Any) -> Call | None:
    """The example as positional and keyword arguments; None where none was given.

    Raises:
        ArgumentError: `example_inputs` is no tuple, list or tensor, or `example_kwargs` no mapping
            with text as keys.
    """
    if example_inputs is None and example_kwargs is None:
        return None
    return _positional(example_inputs), _keywords(example_kwargs)


def _positional(inputs: Any) -> tuple[Any, ...]:
    if inputs is None:
        return ()
    if isinstance(inputs, Tensor):
        return (inputs,)
    if isinstance(inputs, Mapping):
        raise ArgumentError(
            "example_inputs is a mapping: pass keyword arguments as example_kwargs, and a mapping "
            "that is itself the argument as (mapping,)"
        )
    if isinstance(inputs, Sequence) and not isinstance(inputs, str | bytes):
        return tuple(inputs)
    raise ArgumentError(
        f"example_inputs is of type {type(inputs).__name__}: pass a tuple of the positional "
        "arguments, or the one tensor"
    )


def _keywords(kwargs: Any) -> dict[str, Any]:
    if kwargs is None:
        return {}
    if not isinstance(kwargs, Mapping):
        raise ArgumentError(
            f"example_kwargs is of type {type(kwargs).__name__}: pass a mapping of names to values"
        )
    if unnamed := [key for key in kwargs if not isinstance(key, str)]:
        raise ArgumentError(f"example_kwargs has the key {unnamed[0]!r}: keys are argument names")
    return dict(kwargs)

"""The model that a caller of `run` passes, checked before anything is done."""

from torch import nn

from fxpasses.errors import CaptureError


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

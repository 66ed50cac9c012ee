"""A model that a pass is tried on, and how it is called."""

import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias, cast

from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map_only

from fxpasses.core.given import as_call, instance
from fxpasses.errors import ArgumentError


def _nothing(module: nn.Module) -> None: ...


@dataclass(frozen=True, slots=True, eq=False)
class Model:
    """A module and the arguments of one call of it."""

    module: nn.Module
    inputs: tuple[Any, ...]
    kwargs: Mapping[str, Any] = field(default_factory=dict[str, Any])
    training: bool | None = None
    """What the result is for; None takes the mode of the module."""
    then: Callable[[nn.Module], object] = _nothing
    """What is done to model and result before they are compared, such as `lambda m: m.half()`."""
    name: str = ""

    @property
    def is_for_training(self) -> bool:
        return self.module.training if self.training is None else self.training

    def arguments(self) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Copies of the arguments, so that a call may write them."""
        return copy.deepcopy((self.inputs, dict(self.kwargs)))

    def own(self) -> "Model":
        """The same with a copy of the module."""
        return replace(self, module=copy.deepcopy(self.module))

    def tensors(self) -> list[Tensor]:
        return tensors_in((self.inputs, dict(self.kwargs)))

    def resized(self, change: Callable[[Tensor], Tensor]) -> "Model | None":
        """Called with arguments of another batch size; None where they share none."""
        sizes = {tensor.shape[0] if tensor.dim() else None for tensor in self.tensors()}
        if len(sizes) != 1 or None in sizes:
            return None
        return self.changed(change)

    def changed(self, change: Callable[[Tensor], Tensor]) -> "Model":
        """Called with other tensors."""
        given = (self.inputs, dict(self.kwargs))
        inputs, kwargs = tree_map_only(Tensor, lambda t: change(t.detach()).clone(), given)
        return replace(self, inputs=inputs, kwargs=kwargs)


ModelLike: TypeAlias = "Model | tuple[nn.Module, Any]"


def as_model(given: ModelLike, argument: str = "models") -> Model:
    """The model that a caller has given as one, or as `(module, inputs)`.

    Raises:
        ArgumentError: it is neither.
    """
    advice = "(module, inputs) pairs or fxpasses.testing.Model"
    if isinstance(given, tuple):
        if len(given) != 2:
            raise ArgumentError(f"{argument} holds a tuple of {len(given)}: pass {advice}")
        given = Model(*given)
    model = instance(cast("object", given), argument, Model, advice)
    instance(model.module, argument, nn.Module, f"{advice}; the module is a torch.nn.Module")
    call = as_call(model.inputs, model.kwargs)
    inputs, kwargs = call or ((), {})
    return replace(
        model, inputs=inputs, kwargs=kwargs, name=model.name or type(model.module).__name__
    )


def tensors_in(value: Any) -> list[Tensor]:
    return [leaf for leaf in tree_leaves(value) if isinstance(leaf, Tensor)]

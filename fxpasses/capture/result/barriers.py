"""Folded weights need gradients as what they are made of does, and stop a backward that asks.

Without, the outputs of a result would need no gradient where the model's do, or a backward would
leave out the folded weights and say nothing. A backward that does not go through them, such as one
for the inputs alone (`torch.autograd.grad(loss, x)`), is right, and is not stopped.
"""

import copy
import weakref
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor, nn
from torch.utils.hooks import unserializable_hook

from fxpasses.capture.inside import attributes_of, buffers_of, parameters_of
from fxpasses.core import Watch
from fxpasses.errors import GradientError


@dataclass(eq=False)
class FoldedWeight:
    """A tensor of a result that was made of weights of the model."""

    owner: nn.Module
    name: str
    sources: tuple[str, ...]
    """The names of the watches on those weights."""
    _stopped: "weakref.ref[Tensor] | None" = field(default=None, repr=False)
    """The tensor that has the hook; a conversion makes another."""

    def tensor(self) -> Tensor | None:
        owner = self.owner
        for held in (parameters_of(owner), buffers_of(owner), attributes_of(owner)):
            found = held.get(self.name)
            if isinstance(found, Tensor):
                return found
        return None

    def follow(self, trained: dict[str, bool]) -> None:
        """Need a gradient where a source does, by name; as before where all of them are gone."""
        tensor = self.tensor()
        if tensor is None or not tensor.is_leaf or tensor.is_inference():
            return
        known = [trained[name] for name in self.sources if name in trained]
        if known and tensor.requires_grad is not any(known):
            tensor.requires_grad_(any(known))
        stopped = None if self._stopped is None else self._stopped()
        if tensor.requires_grad and stopped is not tensor:
            tensor.register_hook(_stop_for(self.sources))
            self._stopped = weakref.ref(tensor)

    def __deepcopy__(self, memo: dict[int, Any]) -> "FoldedWeight":
        return FoldedWeight(copy.deepcopy(self.owner, memo), self.name, self.sources)

    def __reduce__(self) -> tuple[Any, ...]:
        return FoldedWeight, (self.owner, self.name, self.sources)


class Barriers:
    """All folded weights of a result."""

    def __init__(self, weights: Sequence[FoldedWeight] = ()) -> None:
        self.weights = list(weights)
        self._seen: dict[str, bool] | None = None

    def follow(self, watches: Sequence[Watch]) -> None:
        """See which sources are trained now. Costs one look at each where nothing has changed."""
        watched = ((watch.name, watch.tensor()) for watch in watches)
        trained = {name: t.requires_grad for name, t in watched if t is not None}
        if trained != self._seen:
            self._seen = trained
            for weight in self.weights:
                weight.follow(trained)

    def moved(self, old: nn.Module, new: nn.Module) -> "Barriers":
        """With `new` in the place of an owner that it shares its tensors with."""
        return Barriers(
            [
                FoldedWeight(new if w.owner is old else w.owner, w.name, w.sources)
                for w in self.weights
            ]
        )

    def forget(self) -> None:
        """The tensors are others now."""
        self._seen = None

    def __deepcopy__(self, memo: dict[int, Any]) -> "Barriers":
        return Barriers(copy.deepcopy(self.weights, memo))

    def __getstate__(self) -> dict[str, Any]:
        return {"weights": self.weights, "_seen": None}


def _stop_for(sources: Sequence[str]) -> Any:
    @unserializable_hook
    def stop(_: Tensor) -> None:
        first, more = sources[0], len(sources) - 1
        names = f"{first} and {more} more" if more else first
        raise GradientError(
            f"no gradient reaches {names}: a pass has folded what depends on it. To train, run "
            "the passes with training=True; for gradients of other tensors alone, name them, as "
            "in torch.autograd.grad(loss, x) or loss.backward(inputs=[x]), or freeze the weights "
            "with requires_grad_(False)"
        )

    return stop

"""Tensors computed ahead of time, each with the formula that made it."""

import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

Formula = Callable[..., Tensor]

_PLAIN = frozenset({Tensor, nn.Parameter})
_PIECE = 2**16  # elements: in float64, about what the nearest caches hold

_WIDE = {
    torch.float16: torch.float64,
    torch.bfloat16: torch.float64,
    torch.float32: torch.float64,
    torch.complex64: torch.complex128,
}


def widened(tensor: Tensor) -> Tensor:
    """The tensor in float64 (complex128); integers, booleans and what is wide already as it is."""
    wide = _WIDE.get(tensor.dtype)
    return tensor.detach() if wide is None else tensor.detach().to(wide)


def rounds_integers(func: Any, result: Any) -> bool:
    """Whether an op made narrow floats of integers, which it was given alone: `pixels / 255`."""
    is_narrow = isinstance(result, Tensor) and result.dtype in _WIDE
    return is_narrow and torch.Tag.pointwise in func.tags and not func._schema.is_mutable  # noqa: SLF001  torch has no public name


def integers_widened(tensor: Tensor) -> Tensor:
    """The tensor; whole numbers as float64."""
    is_whole = tensor.dtype is not torch.bool and not tensor.dtype.is_floating_point
    return tensor.to(torch.float64) if is_whole and not tensor.dtype.is_complex else tensor


def memory_of(tensor: Tensor) -> int | None:
    """Where the memory of a tensor starts; None where it has none of its own."""
    if tensor.layout is not torch.strided or tensor.is_meta:
        return None
    return tensor.untyped_storage().data_ptr() or None


@dataclass(frozen=True, slots=True, eq=False)
class Fold:
    """A tensor that a formula made out of others, computed in float64 and rounded once."""

    value: Tensor
    formula: Formula
    sources: tuple[Tensor, ...]
    by_rows: bool = False
    """Whether each row of it follows from that row of every source."""
    trained: tuple[Tensor, ...] | None = None
    """The sources that its gradient reaches, where others lie behind a `detach`; None: all."""


class Folds:
    """Every tensor folded in one run, so that folds of folds are rounded once and can be checked.

    Tensors are known by identity; what is registered is kept alive as long as this object.
    """

    def __init__(self) -> None:
        self._folds: dict[int, Fold] = {}
        self._by_address: dict[int, Tensor] | None = None
        self._aliases: set[int] = set()
        self._without_gradient: dict[int, tuple[Tensor, int]] = {}
        """With how many folds there were."""

    def fold(
        self,
        formula: Formula,
        sources: Sequence[Tensor],
        dtype: torch.dtype,
        *,
        by_rows: bool = False,
        trained: Sequence[Tensor] | None = None,
    ) -> Fold:
        """Compute `formula` of the float64 values of `sources` and round the result to `dtype`.

        Args:
            formula: takes as many tensors as there are sources.
            sources: what the result follows from.
            dtype: of the result.
            by_rows: whether the result has the shape of the first source, and each row of it
                (along axis 0) follows from that row of every source. Large ones then are made
                piece by piece, so that no float64 copy of the whole is needed.
            trained: the sources that gradients of the result reach, by default all of them.
        """
        with torch.no_grad():
            if by_rows and sources[0].numel() > _PIECE:
                value = _in_pieces(formula, self._known(sources), dtype)
            else:
                wide = formula(*(_own(self.exact(source), source) for source in sources))
                value = _compact(wide.to(dtype))
        reached = None if trained is None else tuple(trained)
        return self.add(Fold(value, formula, tuple(sources), by_rows, reached))

    def __iter__(self) -> Iterator[Fold]:
        return iter(self._folds.values())

    def __len__(self) -> int:
        return len(self._folds)

    def since(self, length: int) -> list[Fold]:
        """The folds that were added after there were `length`, each once."""
        added = list(self._folds.items())[length:]
        return [fold for key, fold in added if key not in self._aliases]

    def forget_since(self, length: int) -> None:
        """Drop the folds that were added after there were `length`: their pass is rolled back."""
        for key in list(self._folds)[length:]:
            del self._folds[key]
            self._aliases.discard(key)
        noted = self._without_gradient.items()
        self._without_gradient = {k: (t, n) for k, (t, n) in noted if n < length}
        self._by_address = None

    def drop_gradient(self, tensor: Tensor) -> None:
        """Note that the result computes no gradient of `tensor`: it is zero but for rounding."""
        self._without_gradient[id(tensor)] = tensor, len(self)

    @property
    def without_gradient(self) -> frozenset[int]:
        """The tensors, by identity, whose gradient is zero and is not computed any more."""
        return frozenset(self._without_gradient)

    def add(self, fold: Fold) -> Fold:
        self._folds[id(fold.value)] = fold
        self._by_address = None
        return fold

    @property
    def by_address(self) -> Mapping[int, Tensor]:
        """The folded tensors by where their memory starts."""
        if self._by_address is None:
            tensors = (fold.value for fold in self)
            found = ((memory_of(tensor), tensor) for tensor in tensors)
            self._by_address = {at: tensor for at, tensor in found if at is not None}
        return self._by_address

    def find(self, tensor: Tensor) -> Fold | None:
        return self._folds.get(id(tensor))

    def alias(self, fold: Fold, tensor: Tensor) -> None:
        """Also know `fold` by `tensor`: a Parameter made over its value."""
        self._aliases.add(id(tensor))
        self.add(Fold(tensor, fold.formula, fold.sources, fold.by_rows, fold.trained))

    def exact(self, tensor: Tensor) -> Tensor:
        """The float64 value of `tensor` before any rounding, through all folds behind it."""
        fold = self.find(tensor)
        if fold is None:
            return widened(tensor)
        with torch.no_grad():
            if fold.by_rows and tensor.numel() > _PIECE:
                wide = _WIDE.get(tensor.dtype, tensor.dtype)
                return _in_pieces(fold.formula, self._known(fold.sources), wide)
            return fold.formula(*(self.exact(source) for source in fold.sources))

    def _known(self, sources: Sequence[Tensor]) -> list[Tensor]:
        """The sources, those that are rounded folds themselves by their exact values."""
        return [self.exact(source) if self.find(source) else source for source in sources]

    def trained(self, tensor: Tensor) -> tuple[Tensor, ...]:
        """The tensors of the original whose gradients are lost in `tensor`, which was folded."""
        fold = self.find(tensor)
        if fold is None:
            return (tensor,)
        reached = fold.sources if fold.trained is None else fold.trained
        return self._behind(reached, self.trained)

    def roots(self, tensor: Tensor) -> tuple[Tensor, ...]:
        """The tensors of the original that `tensor` was computed from, or itself."""
        fold = self.find(tensor)
        if fold is None:
            return (tensor,)
        return self._behind(fold.sources, self.roots)

    def _behind(
        self, sources: Sequence[Tensor], look: Callable[[Tensor], tuple[Tensor, ...]]
    ) -> tuple[Tensor, ...]:
        """The tensors of the original that `sources` are, or `look` finds behind them."""
        found: dict[int, Tensor] = {}
        for source in sources:
            if self.find(source) is None:
                found[id(source)] = source
            else:
                found.update((id(root), root) for root in look(source))
        return tuple(found.values())


def _in_pieces(formula: Formula, sources: Sequence[Tensor], dtype: torch.dtype) -> Tensor:
    value = torch.empty_like(sources[0], dtype=dtype, requires_grad=False)
    rows = max(1, _PIECE * len(value) // value.numel())
    # What is small is widened once, not piece by piece.
    parts = [s.detach() if s.numel() > _PIECE else widened(s) for s in sources]
    for made, *piece in zip(value.split(rows), *(part.split(rows) for part in parts), strict=True):
        made.copy_(formula(*(_own(widened(part), part) for part in piece)))
    return value


def _own(wide: Tensor, source: Tensor) -> Tensor:
    """A copy where `wide` is the source itself, which a formula must not be able to write."""
    shares = wide.untyped_storage().data_ptr() == source.untyped_storage().data_ptr()
    return wide.clone() if shares else wide


def _compact(value: Tensor) -> Tensor:
    """The tensor in a storage that holds nothing else."""
    storage_bytes = value.untyped_storage().nbytes()
    return value.clone() if storage_bytes != value.numel() * value.element_size() else value


@dataclass(frozen=True, slots=True)
class Watch:
    """What tells that a tensor was written since it was folded.

    Torch counts most writes; others move its memory (`p.data = ...`, `vector_to_parameters`).
    Batch norms count none in their statistics, so of those the values can be kept. Not seen are
    writes into the memory itself: through `.data`, NumPy or another library.

    The tensor is held weakly: once it is gone nobody can write it. Tensors made in inference mode
    have no versions and are not watched.
    """

    name: str
    tensor: weakref.ref[Tensor]
    version: int
    address: int = 0
    kept: Tensor | None = None
    """The values that it was folded with, where they are kept."""

    @classmethod
    def on(cls, name: str, tensor: Tensor, *, keep: bool = False) -> "Watch | None":
        if tensor.is_inference():
            return None
        kept = tensor.detach().clone() if keep else None
        version = tensor._version  # noqa: SLF001  torch has no public name
        return cls(name, weakref.ref(tensor), version, _address(tensor), kept)

    def on_copy(self, tensor: Tensor) -> "Watch | None":
        """A watch on what the tensor has become elsewhere, stale where this one is."""
        return Watch._made(self.name, tensor, self.kept is not None, self.stale or self.differs)

    @classmethod
    def _made(cls, name: str, tensor: Tensor, keep: bool, stale: bool) -> "Watch | None":
        made = cls.on(name, tensor, keep=keep)
        return replace(made, version=-1) if made is not None and stale else made

    def __reduce__(self) -> tuple[Any, ...]:
        stale = self.stale or self.differs
        return Watch._made, (self.name, self.tensor(), self.kept is not None, stale)

    @property
    def stale(self) -> bool:
        tensor = self.tensor()
        if tensor is None:
            return False
        return tensor._version != self.version or _address(tensor) != self.address  # noqa: SLF001

    @property
    def differs(self) -> bool:
        """Whether the values are others than those that were kept. Waits for a GPU."""
        tensor = self.tensor()
        return tensor is not None and self.kept is not None and not torch.equal(tensor, self.kept)


def _address(tensor: Tensor) -> int:
    return tensor.data_ptr() if type(tensor) in _PLAIN and tensor.layout is torch.strided else 0

"""Run any code on tensors in float64, without a second copy of the weights.

Two modes of torch do it. One widens every tensor as an op reads it, so that at most the widest
layer exists twice; the other widens one level higher, where ops compare dtypes before they are
dispatched. Nothing real is written: what an op writes is a stand-in from then on.
"""

from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import (
    TorchDispatchMode,
    _disable_current_modes,  # pyright: ignore[reportPrivateUsage]  torch has no public name
)

from fxpasses.core import Folds, integers_widened, memory_of, rounds_integers, widened
from fxpasses.verify.structures import mapped, tensors_of
from fxpasses.verify.trail import Trail
from fxpasses.verify.workspace import computed

WIDE = {
    torch.float16: torch.float64,
    torch.bfloat16: torch.float64,
    torch.float32: torch.float64,
    torch.complex64: torch.complex128,
}

# These look at the dtypes of their operands before they are dispatched.
_CHECKED_EARLY = frozenset(
    [
        *(getattr(torch, f"conv{n}d") for n in (1, 2, 3)),
        *(getattr(torch, f"conv_transpose{n}d") for n in (1, 2, 3)),
        *(getattr(F, f"conv{n}d") for n in (1, 2, 3)),
        *(getattr(F, f"conv_transpose{n}d") for n in (1, 2, 3)),
        *(getattr(torch.ops.aten, f"conv{n}d").default for n in (1, 2, 3)),
        torch.ops.aten.conv_transpose1d.default,
        torch.ops.aten.conv_transpose2d.input,
        torch.ops.aten.conv_transpose3d.input,
        F.scaled_dot_product_attention,
        torch.ops.aten.scaled_dot_product_attention.default,
        *(torch.lstm, torch.gru, torch.rnn_tanh, torch.rnn_relu),
    ]
)
_READS_DTYPE = Tensor.dtype.__get__  # pyright: ignore[reportAttributeAccessIssue]  a getset descriptor

# Their schemas do not say that they write running statistics when training.
_WRITES_STATISTICS = frozenset({"native_batch_norm", "cudnn_batch_norm", "miopen_batch_norm"})
_STATISTICS = frozenset({"running_mean", "running_var"})

# Draw other numbers for another dtype, unlike `bernoulli` and with it every dropout.
_DRAWS_IN_PLACE = frozenset({"normal_", "uniform_", "exponential_", "cauchy_", "log_normal_"})


class Float64:
    """What is known while code runs in float64. See `float64`."""

    def __init__(
        self,
        folds: Folds | None,
        protected: Iterable[Tensor],
        own: torch.dtype,
        noise: float,
        trail: Trail | None,
    ) -> None:
        self.folds = folds
        self.own = own
        self.trail = trail
        self.asleep = False
        self._noise = noise
        self._generators: dict[torch.device, torch.Generator] = {}
        self._protected = {p for t in protected if (p := memory_of(t)) is not None}
        self._folded: Mapping[int, Tensor] = {} if folds is None else folds.by_address
        self._standins: dict[int, tuple[Tensor, Tensor]] = {}

    def reads(self, value: Any) -> Any:
        """`read` for all tensors in a structure, whether the modes look on or not."""
        # They would answer that a narrow dtype is wide, and widen what is being widened.
        with unaffected():
            return mapped(value, self.read)

    def read(self, tensor: Tensor) -> Tensor:
        """The value that the code sees: a stand-in where written, unrounded where folded.

        For where no mode looks on; elsewhere `reads`.
        """
        value = self._read(tensor)
        # Ops add up what they are given out of sight: their results alone do not show it.
        return self.disturbed(value) if self._is_given(tensor) else value

    def _is_given(self, tensor: Tensor) -> bool:
        """Whether the code did not compute the tensor: a weight, an argument."""
        return self.is_low(tensor) or memory_of(tensor) in self._protected

    def _read(self, tensor: Tensor) -> Tensor:
        address = memory_of(tensor) or 0
        if address in self._standins:
            standin, _ = self._standins[address]
            return _window(standin, tensor)
        if tensor.dtype not in WIDE:
            return tensor
        if address in self._folded:
            return self._unrounded(self._folded[address], tensor)
        if tensor.dim() and tensor.layout is torch.strided and 0 in tensor.stride():
            return _widened_expanded(tensor)
        return widened(tensor)

    def wrote(self, tensor: Tensor) -> bool:
        """Whether something was written to the memory of `tensor`, which is as it was."""
        return memory_of(tensor) in self._standins

    def is_low(self, tensor: Tensor) -> bool:
        return tensor.dtype in WIDE

    def stand_in(self, tensor: Tensor) -> None:
        """From now on the memory of `tensor` has a stand-in, if it is not the code's own."""
        address = memory_of(tensor)
        if address is None or address in self._standins:
            return
        if self.is_low(tensor) or address in self._protected:
            whole = torch.empty(0, dtype=tensor.dtype, device=tensor.device)
            whole.set_(tensor.untyped_storage())
            # The real tensor is kept alive, so that its address cannot be reused.
            self._standins[address] = (self._filled(whole, tensor), tensor)

    def _filled(self, whole: Tensor, tensor: Tensor) -> Tensor:
        if not self.is_low(tensor):
            return whole.clone()
        folded = self._folded.get(memory_of(tensor) or 0)
        return widened(whole) if folded is None else self._unrounded(folded, whole).clone()

    def _unrounded(self, folded: Tensor, view: Tensor) -> Tensor:
        assert self.folds is not None
        # A formula must not be helped by the modes: casts in it would be raised.
        with unaffected():
            exact = self.folds.exact(folded)
        if exact.stride() != folded.stride():
            exact = torch.empty_strided(
                folded.shape, folded.stride(), dtype=exact.dtype, device=exact.device
            ).copy_(exact)
        offset = exact.storage_offset() + view.storage_offset() - folded.storage_offset()
        return exact.as_strided(view.shape, view.stride(), offset)

    @contextmanager
    def paused(self) -> Generator[None]:
        """Inside, ops find their operands as they are; other modes may widen them."""
        before, self.asleep = self.asleep, True
        try:
            yield
        finally:
            self.asleep = before

    def disturbed(self, value: Tensor) -> Tensor:
        """The value moved by the noise, relative to each element, if there is to be any."""
        if not self._noise or not value.is_floating_point():
            return value
        generator = self._generators.get(value.device)
        if generator is None:
            generator = torch.Generator(value.device).manual_seed(0)
            self._generators[value.device] = generator
        ups = torch.randint(0, 2, value.shape, generator=generator, device=value.device)
        return value * (1 + self._noise * (2 * ups.to(value.dtype) - 1))


@contextmanager
def float64(
    folds: Folds | None = None,
    *,
    protected: Iterable[Tensor] = (),
    own: torch.dtype = torch.float32,
    noise: float = 0.0,
    trail: Trail | None = None,
    grad: bool = False,
) -> Generator[Float64]:
    """Inside, every op computes in float64 (complex128), whatever dtype its operands have.

    Gradients need leaves that are wide themselves: autograd refuses wide ones of narrow leaves.

    Args:
        folds: tensors to replace by their unrounded values.
        protected: tensors not to be written even where they are wide or integers already. What
            has a narrow float dtype is never written.
        own: the dtype that random numbers are drawn in, since other dtypes draw other numbers.
        noise: moves what the code is given and the result of every op by this share of each
            element, up or down.
        trail: is told of every op.
        grad: whether autograd records what runs.
    """
    seen = Float64(folds, protected, own, noise, trail)
    off = torch.autocast  # Would round weights to half before they can be widened.
    with (
        torch.set_grad_enabled(grad),
        off("cpu", enabled=False),
        off("cuda", enabled=False) if torch.cuda.is_initialized() else nullcontext(),
        _WidensEarly(seen),
        _Widens(seen),
    ):
        yield seen


class _Widens(TorchDispatchMode):
    """Widens each tensor as an op reads it."""

    def __init__(self, seen: Float64) -> None:
        super().__init__()
        self.seen = seen

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        if self.seen.asleep:
            return func(*args, **(kwargs or {}))
        # The other mode must not answer for what is asked here.
        with torch._C.DisableTorchFunction():  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]  no public name
            return self._call(func, args, kwargs or {})

    def _call(self, func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        seen = self.seen
        tensors = list(tensors_of((args, kwargs)))
        if func.is_view and any(seen.is_low(tensor) for tensor in tensors):
            # A view of a parameter is widened by who reads it: it may be small, or expanded.
            return func(*args, **kwargs)
        for tensor in _written(func, args, kwargs):
            seen.stand_in(tensor)
        if tensors:
            args, kwargs = _with_dtypes_raised(func, args, kwargs, seen.own)
        args, kwargs = mapped(tuple(args), seen.read), mapped(kwargs, seen.read)
        if _name(func) in _DRAWS_IN_PLACE:
            return _draw_in_place(func, args, kwargs, seen.own)
        result = computed(func, args, kwargs)
        if tensors and rounds_integers(func, result):
            args, kwargs = mapped(args, integers_widened), mapped(kwargs, integers_widened)
            result = computed(func, args, kwargs)
        if seen.trail is not None:
            seen.trail.met(func, list(tensors_of((args, kwargs))), result)
        if func.is_view or func._schema.is_mutable:  # noqa: SLF001  torch has no public name
            return result
        return mapped(result, lambda tensor: seen.disturbed(_wide(tensor)))


class _WidensEarly(TorchFunctionMode):
    """Widens the operands of functions that compare dtypes themselves, and answers for dtypes."""

    def __init__(self, seen: Float64) -> None:
        super().__init__()
        self.seen = seen

    def __torch_function__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if self.seen.asleep:
            return func(*args, **kwargs)
        if func == _READS_DTYPE:
            # Python code compares dtypes as well: recurrent layers do.
            dtype = func(*args)
            return WIDE.get(dtype, dtype)
        if func in _CHECKED_EARLY:
            args, kwargs = self.seen.reads(tuple(args)), self.seen.reads(kwargs)
        return func(*args, **kwargs)


@contextmanager
def unaffected() -> Generator[None]:
    """Inside, tensors are as they are, also while code around it runs in float64."""
    with _disable_current_modes(), torch._C.DisableTorchFunction():  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]  no public name
        yield


def _name(func: Any) -> str:
    return func.overloadpacket.__name__


def _window(whole: Tensor, tensor: Tensor) -> Tensor:
    return whole.as_strided(tensor.shape, tensor.stride(), tensor.storage_offset())


def _widened_expanded(tensor: Tensor) -> Tensor:
    """Widening an expanded tensor as it is would write out every copy."""
    sizes = [
        1 if stride == 0 else size
        for size, stride in zip(tensor.shape, tensor.stride(), strict=True)
    ]
    once = tensor.detach().as_strided(sizes, tensor.stride(), tensor.storage_offset())
    return widened(once).expand(tensor.shape)


def _wide(tensor: Tensor) -> Tensor:
    return widened(tensor) if tensor.dtype in WIDE else tensor


def _written(func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Iterator[Tensor]:
    """The tensors among the operands that a call writes."""
    schema = func._schema  # noqa: SLF001  torch has no public name
    may_measure = _name(func) in _WRITES_STATISTICS
    if not schema.is_mutable and not may_measure:
        return
    given = {
        argument.name: args[position] if position < len(args) else kwargs.get(argument.name)
        for position, argument in enumerate(schema.arguments)
    }
    measures = may_measure and given["training"] is not False
    for argument in schema.arguments:
        written = argument.alias_info is not None and argument.alias_info.is_write
        if written or (measures and argument.name in _STATISTICS):
            yield from tensors_of(given[argument.name])


def _with_dtypes_raised(
    func: Any, args: Sequence[Any], kwargs: dict[str, Any], own: torch.dtype
) -> tuple[Sequence[Any], dict[str, Any]]:
    """A cast to a narrow float becomes one to float64; random numbers are drawn as they were."""
    if torch.Tag.nondeterministic_seeded in func.tags and _name(func).endswith("_like"):
        return args, {**kwargs, "dtype": kwargs.get("dtype") or own}

    def raised(value: Any) -> Any:
        return WIDE.get(value, value) if isinstance(value, torch.dtype) else value

    return [raised(value) for value in args], {k: raised(v) for k, v in kwargs.items()}


def _draw_in_place(
    func: Any, args: Sequence[Any], kwargs: dict[str, Any], own: torch.dtype
) -> Tensor:
    target, *rest = args
    if target.dtype is not torch.float64:
        return func(*args, **kwargs)
    return target.copy_(func(torch.empty_like(target, dtype=own), *rest, **kwargs))

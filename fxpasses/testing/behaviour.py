"""What calling a module gives, changes and draws, and where two modules differ in that."""

import math
from collections.abc import Callable, Collection, Generator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, Final

import torch
from torch import Tensor, nn
from torch.utils._pytree import keystr, tree_flatten_with_path, tree_map_only

from fxpasses.core import Numerics, widened
from fxpasses.core.randomness import PythonNumbers
from fxpasses.testing.model import Model, tensors_in
from fxpasses.verify.gradients import FLOOR

# How far elements may lie apart, as a share of the largest; the verifier's bounds are narrower.
_ROUNDING: Final[Mapping[torch.dtype, float]] = {
    torch.float64: 1e-9,
    torch.complex128: 1e-9,
    torch.float32: 1e-4,
    torch.complex64: 1e-4,
    torch.float16: 1e-2,
    torch.bfloat16: 5e-2,
}
# One ReLU that changes sides moves a gradient by much more than the rounding that did it.
_GRADIENT_SLACK: Final = 100.0
_SEED: Final = 0


@dataclass(slots=True)
class Behaviour:
    """What two calls of a module in a row gave and left behind."""

    outputs: list[Any] = field(default_factory=list[Any])
    arguments: list[Any] = field(default_factory=list[Any])
    """As each call left them."""
    written: list[Any] = field(default_factory=list[Any])
    """Outputs and arguments once each output is filled with its number, as a caller might."""
    buffers: dict[str, Tensor] = field(default_factory=dict[str, Tensor])
    random: Tensor | None = None
    """The state of torch's generator afterwards."""
    gradients: dict[str, Tensor | None] = field(default_factory=dict[str, Tensor | None])


def behaviour_of(
    call: Callable[..., Any], holder: nn.Module, model: Model, *, gradients: bool = False
) -> Behaviour:
    """Call twice with equal arguments from one random state.

    After each call whatever it returned is written, so that memory which is handed out twice, or
    used again, shows.

    Args:
        call: what is called.
        holder: whose parameters and buffers are looked at; they may be written.
        model: what the arguments are taken of.
        gradients: whether the sum of the squares of what is returned is sent backwards.
    """
    seen = Behaviour()
    with randomness_kept():
        torch.manual_seed(_SEED)
        for _ in range(2):
            args, kwargs = model.arguments()
            outputs = call(*args, **kwargs)
            seen.outputs.append(_kept(outputs))
            if gradients:
                _send_back(outputs)
            seen.arguments.append(_kept((args, kwargs)))
            _fill(outputs)
            seen.written.append(_kept((outputs, args, kwargs)))
        seen.random = torch.get_rng_state()
    seen.buffers = {name: buffer.clone() for name, buffer in holder.named_buffers()}
    if gradients:
        seen.gradients = {name: p.grad for name, p in holder.named_parameters()}
    return seen


@contextmanager
def randomness_kept() -> Generator[None]:
    """Put the random states of torch's CPU, of Python and of NumPy back at the end."""
    numbers = PythonNumbers()
    with torch.random.fork_rng(devices=()):
        yield
    numbers.restore()


def vanishing_gradients(module: nn.Module, model: Model) -> frozenset[str]:
    """The parameters that are trained by nothing but rounding: their gradients are zero in float64.

    So is that of a bias before a norm that takes it away again. Zero is what rounding in float64
    leaves of the largest gradient. Empty where the model cannot be called in float64.

    Args:
        module: what `model` calls; it is of float64 afterwards, and has been called.
        model: what the arguments are taken of.
    """
    wide = model.changed(widened)
    try:
        found = behaviour_of(module.double(), module, wide, gradients=True).gradients
    except Exception:  # a model need not take float64
        return frozenset()
    sizes = {name: _largest(gradient) for name, gradient in found.items() if gradient is not None}
    floor = FLOOR * max((size for size in sizes.values() if math.isfinite(size)), default=0.0)
    return frozenset(name for name, size in sizes.items() if size <= floor)


def _largest(gradient: Tensor) -> float:
    return float(gradient.abs().max()) if gradient.numel() else 0.0


def difference_between(
    got: Behaviour,
    wanted: Behaviour,
    numerics: Numerics = Numerics.ROUNDING,
    vanishing: Callable[[], Collection[str]] = frozenset,
) -> str | None:
    """What is not as it should be, in words; None if nothing.

    Buffers count that both have. Gradients may come out in another order of additions. Of a pass
    that changes the meaning or the precision only the form of what comes out is compared.

    Args:
        got: of what is judged.
        wanted: of what it is compared with.
        numerics: how far values may lie apart.
        vanishing: tells which parameters need not have the gradient that is `wanted` of them,
            unless the pass is exact. Asked where one is missing.
    """
    if numerics not in (Numerics.EXACT, Numerics.ROUNDING):
        return difference(_forms(got.outputs), _forms(wanted.outputs))
    exact = numerics is Numerics.EXACT
    names = [name for name in wanted.buffers if name in got.buffers]
    parts = [
        *_numbered("the output", got.outputs, wanted.outputs),
        *_numbered("the argument", got.arguments, wanted.arguments),
        *_numbered("what shares memory with outputs", got.written, wanted.written),
        ("torch's random state", got.random, wanted.random),
        *((f"the buffer {name}", got.buffers[name], wanted.buffers[name]) for name in names),
    ]
    for what, one, other in parts:
        if text := difference(one, other, exact=exact):
            return f"{what}{text}"
    missing = {
        name
        for name, gradient in wanted.gradients.items()
        if gradient is not None and got.gradients.get(name) is None
    }
    excused = frozenset(vanishing()) if missing and not exact else frozenset[str]()
    for name, gradient in wanted.gradients.items():
        if name in missing & excused:
            continue
        if text := difference(got.gradients.get(name), gradient, slack=_GRADIENT_SLACK):
            return f"the gradient of {name}{text}"
    return None


def _forms(outputs: list[Any]) -> list[Any]:
    """The tensors without their values."""
    return tree_map_only(Tensor, lambda tensor: tensor.to("meta"), outputs)


def _numbered(what: str, got: list[Any], wanted: list[Any]) -> list[tuple[str, Any, Any]]:
    calls = ("", " of a second call")
    return [(what + which, *pair) for which, *pair in zip(calls, got, wanted, strict=True)]


def difference(got: Any, wanted: Any, *, exact: bool = False, slack: float = 1.0) -> str | None:
    """How a value differs from what it should be, after the name of the value; None if not."""
    given, structure = tree_flatten_with_path(got)
    expected, structure_expected = tree_flatten_with_path(wanted)
    if structure != structure_expected:
        return f" is built as {_short(structure)}, not {_short(structure_expected)}"
    for (path, one), (_, other) in zip(given, expected, strict=True):
        if text := _leaf_difference(one, other, exact=exact, slack=slack):
            return f"{keystr(path)} {text}"
    return None


def _leaf_difference(got: Any, wanted: Any, *, exact: bool, slack: float) -> str | None:
    if not isinstance(got, Tensor) or not isinstance(wanted, Tensor):
        same = type(got) is type(wanted) and (isinstance(got, Tensor) or _equal(got, wanted))
        return None if same else f"is {_short(got)}, not {_short(wanted)}"
    for name in ("shape", "dtype", "device", "layout"):
        one, other = getattr(got, name), getattr(wanted, name)
        if one != other:
            return f"has the {name} {one}, not {other}"
    if got.is_meta or same_bits(got, wanted):
        return None
    if exact:
        return f"is not bit-equal: it differs by {_worst(got, wanted):.1e}"
    return _rounding_difference(got, wanted, slack)


def _equal(a: Any, b: Any) -> bool:
    return a is b or a == b or (a != a and b != b)  # noqa: PLR0124  NaN is NaN


def same_bits(a: Tensor, b: Tensor) -> bool:
    """Whether two tensors hold the same values, NaN being NaN."""
    if a.shape != b.shape or a.dtype != b.dtype or a.device != b.device or a.layout != b.layout:
        return False
    if a.layout is not torch.strided:
        a, b = a.to_dense(), b.to_dense()
    return bool(((a == b) | ((a != a) & (b != b))).all())  # noqa: PLR0124  NaN is NaN


def _rounding_difference(got: Tensor, wanted: Tensor, slack: float) -> str | None:
    allowed = _ROUNDING.get(wanted.dtype)
    if allowed is None:
        return f"differs by {_worst(got, wanted):.1e}"
    if not same_bits(_odd_ones(got), _odd_ones(wanted)):
        return "is NaN or infinite in other places"
    finite = wanted[wanted.isfinite()]
    scale = float(finite.abs().max()) if finite.numel() else 0.0
    worst, bound = _worst(got, wanted), slack * allowed * (scale + 0.1)
    return None if worst <= bound else f"differs by {worst:.1e}, where {bound:.1e} is allowed"


def _odd_ones(tensor: Tensor) -> Tensor:
    """NaN and the infinities, everything else zero."""
    return torch.where(tensor.isfinite(), torch.zeros_like(tensor), tensor)


def _worst(got: Tensor, wanted: Tensor) -> float:
    gap = _wide(got) - _wide(wanted)
    return float(gap[gap.isfinite()].abs().max()) if bool(gap.isfinite().any()) else float("inf")


def _wide(tensor: Tensor) -> Tensor:
    dense = tensor.to_dense() if tensor.layout is not torch.strided else tensor
    return dense.to(torch.complex128 if dense.is_complex() else torch.float64)


def _short(value: Any) -> str:
    if isinstance(value, Tensor):
        return f"a tensor of shape {tuple(value.shape)}"
    text = " ".join(str(value).split())
    return text if len(text) <= 60 else f"{text[:57]}..."


def _kept(value: Any) -> Any:
    return tree_map_only(Tensor, lambda tensor: tensor.detach().clone(), value)


def _fill(outputs: Any) -> None:
    for number, tensor in enumerate(tensors_in(outputs)):
        with suppress(RuntimeError):  # torch does not write what lies in one place
            tensor.detach().fill_(number)


def _send_back(outputs: Any) -> None:
    losses = [t.double().square().sum() for t in tensors_in(outputs) if _has_gradient(t)]
    if losses:
        torch.stack(losses).sum().backward()


def _has_gradient(tensor: Tensor) -> bool:
    return tensor.requires_grad and (tensor.is_floating_point())

"""`advise`: a model is captured, and every check looks at it."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

from torch import nn

from fxpasses.advise.advice import Advice, Finding, Kind
from fxpasses.advise.biases import biases_before_norms
from fxpasses.advise.channels import odd_channels
from fxpasses.advise.constants import large_constants
from fxpasses.advise.dtypes import double_precision
from fxpasses.advise.layouts import lost_layouts
from fxpasses.advise.leaves import opaque_leaves
from fxpasses.advise.subject import Subject
from fxpasses.advise.syncs import synchronising_calls
from fxpasses.capture import capture, infer_arguments
from fxpasses.core.given import as_call, flag
from fxpasses.core.randomness import own_generator
from fxpasses.core.surroundings import surroundings_kept
from fxpasses.session.arguments import require_module

Check = Callable[[Subject], Iterator[Finding]]

_CHECKS: Final[tuple[Check, ...]] = (
    opaque_leaves,
    synchronising_calls,
    lost_layouts,
    double_precision,
    odd_channels,
    biases_before_norms,
    large_constants,
)
_ORDER: Final = {kind: number for number, kind in enumerate(Kind)}


def advise(
    model: nn.Module,
    example_inputs: Any = None,
    example_kwargs: Mapping[str, Any] | None = None,
    *,
    training: bool | None = None,
) -> Advice:
    """What will cost speed in `model`, each with its source line and what to do about it.

    Args:
        model: Any module; it is captured, and nothing of it is changed.
        example_inputs: The positional arguments of one call. Without it, it is inferred where
            that is unambiguous; without any, less is found.
        example_kwargs: The keyword arguments of that call.
        training: The mode to look at; by default that of `model`.

    Raises:
        ArgumentError: an argument is of another kind than these.
        CaptureError: `model` is no module, or cannot be captured.
    """
    require_module(model)
    call, how = as_call(example_inputs, example_kwargs), "given"
    mode = model.training if training is None else flag(training, "training")
    with surroundings_kept(), own_generator():
        if call is None:
            inferred = infer_arguments(model)
            how = "none" if inferred is None else f"inferred: {inferred[1]}"
            call = None if inferred is None else (inferred[0].args, inferred[0].kwargs)
        args, kwargs = (None, None) if call is None else call
        captured = capture(model, args, kwargs, training=mode)
        subject = Subject(model, captured)
        # One line may be found by several checks, and run several times.
        found = dict.fromkeys(one for check in _CHECKS for one in check(subject))
    notes = ("without an example, less is found: pass example_inputs=(...)",)
    return Advice(
        type(model).__name__,
        how,
        tuple(sorted(_once(found), key=lambda one: _ORDER[one.kind])),
        notes if call is None else (),
    )


def _once(findings: Mapping[Finding, None]) -> Iterator[Finding]:
    """Where a module is called several times, what is said of it is said once."""
    seen: set[tuple[str, str, str, str | None]] = set()
    for one in findings:
        key = (one.kind, one.path, one.message, one.source)
        if key not in seen:
            seen.add(key)
            yield one

"""`run` and `plan`: from a model and pass names to an optimised module or a record."""

import warnings
from collections.abc import Iterable, Mapping
from os import PathLike
from typing import Any

from torch import nn
from torch.fx import GraphModule

from fxpasses.capture import release
from fxpasses.core import Record
from fxpasses.core.given import as_call, count_of, flag, one_of, texts
from fxpasses.core.randomness import own_generator
from fxpasses.core.surroundings import surroundings_kept
from fxpasses.manager import Observer
from fxpasses.registry import Registry
from fxpasses.session.arguments import require_module
from fxpasses.session.dump import dump_to
from fxpasses.session.placement import device_of, named_device
from fxpasses.session.settings import OnFailure, Settings, level_of, observers_of, registry_of
from fxpasses.session.stages import Request, Session

_AFTER_FAILURES: tuple[OnFailure, ...] = ("raise", "skip")
_IDS = "rewrite ids"


def run(  # noqa: PLR0913  the one entry point; all but two have defaults
    model: nn.Module,
    passes: Any,
    example_inputs: Any = None,
    example_kwargs: Mapping[str, Any] | None = None,
    *,
    target: str | None = None,
    training: bool | None = None,
    verify: bool | str = True,
    on_failure: str = "raise",
    copy: bool = False,
    fallback: bool = True,
    registry: Registry | None = None,
    guard_weights: bool = True,
    skip: Iterable[str] = (),
    only: Iterable[str] | None = None,
    stop_after: int | None = None,
    observers: Iterable[Observer] = (),
    history: bool = False,
    dump: str | PathLike[str] | None = None,
    dump_changed: bool = False,
) -> GraphModule:
    """Optimise `model` by `passes` and return the result; the model itself stays as it is.

    Args:
        model: any module. It is never written, moved, or switched to another mode.
        passes: a pipeline as text (`"fuse_conv_bn,dce"`), or a list of names, passes and
            callables on a GraphModule. An empty list captures the model and changes nothing.
        example_inputs: the positional arguments of one call, as a tuple or list; a bare tensor
            is the one argument. Without it, it is inferred where that is unambiguous.
        example_kwargs: the keyword arguments of that call.
        target: None leaves the result where the model is; "auto", "cpu" or "cuda" move a copy.
        training: what the result is for; None takes the model's mode.
        verify: True checks every rewrite at its site and the whole once; "each" the whole after
            each pass; "full" also gradients and more probes; False checks nothing.
        on_failure: "raise", or "skip" to leave out failing passes and rewrites found wrong.
        copy: whether the result gets weights of its own. By default it shares the model's.
        fallback: whether calls outside the captured pattern run the model's own code. Without,
            they raise `GuardError`.
        registry: where names are looked up; the default registry if None.
        guard_weights: whether a call raises once a weight that was folded has been written.
        skip: ids of rewrites that must not happen.
        only: ids of the only rewrites that may happen.
        stop_after: the number of rewrites to stop after.
        observers: told of the stages and the passes as they run.
        history: whether the graphs are kept as every pass leaves them, for
            `report(result).history`. They share their tensors with the result, which holds them
            as long as it lives; its pickles and deep copies are without.
        dump: a folder for the graphs as readable Python, `00_captured.py`, `01_constant_fold.py`
            and so on, each written as soon as its pass has run. Those of an earlier run go.
        dump_changed: whether only those are written that a pass has changed.

    Raises:
        FxPassesError: one of its kinds; nothing has been changed then. What the model itself
            raises on the example is shown, as its cause.
    """
    device = device_of(target)
    settings = Settings(
        training=_mode_of(model, training),
        target=None if device is None else device.type,
        level=level_of(verify),
        on_failure=one_of(on_failure, "on_failure", _AFTER_FAILURES),
        skip=texts(skip, "skip", _IDS),
        only=None if only is None else texts(only, "only", _IDS),
        stop_after=count_of(stop_after, "stop_after", "rewrites"),
        observers=observers_of(observers),
        history=flag(history, "history"),
        dump=dump_to(dump, changed_only=flag(dump_changed, "dump_changed")),
    )
    session = _session(model, passes, (example_inputs, example_kwargs), registry, settings)
    copy, fallback = flag(copy, "copy"), flag(fallback, "fallback")
    guard_weights = flag(guard_weights, "guard_weights")
    with surroundings_kept(), own_generator():
        session.place(device, copy=copy)
        captured = session.capture()
        attempt = session.optimise(captured)
        result = session.finished(attempt, captured, guard_weights=guard_weights)
    if not fallback:
        release(result)
    for warning in session.warnings:
        warnings.warn(warning, stacklevel=2)
    return result


def plan(  # noqa: PLR0913  the options of `run` that a plan can have
    model: nn.Module,
    passes: Any,
    example_inputs: Any = None,
    example_kwargs: Mapping[str, Any] | None = None,
    *,
    target: str | None = None,
    training: bool | None = None,
    registry: Registry | None = None,
    skip: Iterable[str] = (),
    only: Iterable[str] | None = None,
    observers: Iterable[Observer] = (),
) -> Record:
    """What `run` would do, as a record: the passes run on a fork that is thrown away."""
    device = None if target is None else named_device(target)
    settings = Settings(
        training=_mode_of(model, training),
        target=None if device is None else device.type,
        skip=texts(skip, "skip", _IDS),
        only=None if only is None else texts(only, "only", _IDS),
        observers=observers_of(observers),
    )
    session = _session(model, passes, (example_inputs, example_kwargs), registry, settings)
    session.record.target = None if device is None else str(device)
    session.record.dry_run = True
    with surroundings_kept(), own_generator():
        session.optimise(session.capture())
    return session.record


def _session(
    model: object, passes: Any, example: tuple[Any, Any], registry: object, settings: Settings
) -> Session:
    known = registry_of(registry)
    request = Request(require_module(model), known, as_call(*example), settings)
    return Session(request, known.resolve(passes))


def _mode_of(model: object, training: object) -> bool:
    return require_module(model).training if training is None else flag(training, "training")

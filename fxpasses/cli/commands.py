"""What the commands do. Loads torch, so it is imported once one of them is called."""

import os
import sys
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import typer
from torch import nn

import fxpasses
from fxpasses.capture import graphs_of, infer_arguments
from fxpasses.cli import files, models
from fxpasses.cli.choices import (
    Capturing,
    Checks,
    Dumping,
    Pipeline,
    Profiling,
    Showing,
    Subject,
    Verify,
)
from fxpasses.cli.inputs import call_of
from fxpasses.cli.outcome import FAILED, beside, say
from fxpasses.cli.progress import Bar
from fxpasses.cli.showing import show
from fxpasses.core import Group
from fxpasses.core.code import plain_code
from fxpasses.core.given import Call
from fxpasses.core.nearest import did_you_mean
from fxpasses.errors import FxPassesWarning, RegistryError
from fxpasses.page.captured import CaptureReport
from fxpasses.page.listing import ListingReport
from fxpasses.page.report import Report
from fxpasses.registry import Listing, Registry, listed
from fxpasses.session.stages import capture_record, note_coverage


def run(
    subject: Subject,
    pipeline: Pipeline,
    checks: Checks,
    showing: Showing,
    output: Path | None,
    dumping: Dumping,
) -> None:
    """Optimise, save and report.

    Raises:
        typer.Exit: the result could not be verified.
        FxPassesError: something else is wrong.
    """
    files.require(output, "--output", files.RESULTS)
    files.require(showing.report, "--report", files.REPORTS)
    model, call = made(subject)
    args, kwargs = call or (None, None)
    registry, passes = resolved(pipeline)
    with beside(), Bar("preparing", passes) as bar:
        result = fxpasses.run(
            model,
            passes,
            args,
            kwargs,
            **pipeline.arguments(),
            verify=checks.verify.level,
            on_failure=checks.on_failure.value,
            registry=registry,
            stop_after=checks.stop_after,
            observers=(bar,),
            dump=dumping.folder,
            dump_changed=dumping.changed_only,
        )
    report = fxpasses.report(result)
    show(report, showing)
    files.write_result(result, output)
    _require_verified(report, checks)


def _require_verified(report: Report, checks: Checks) -> None:
    if checks.verify is Verify.OFF or report.record.verification.ok:
        return
    say("the result is not verified: give the example by --input, or switch it off by --verify off")
    raise typer.Exit(FAILED)


def plan(subject: Subject, pipeline: Pipeline, showing: Showing) -> None:
    """Report what `run` would do."""
    files.require(showing.report, "--report", files.REPORTS)
    model, call = made(subject)
    args, kwargs = call or (None, None)
    registry, passes = resolved(pipeline)
    with beside(), Bar("planning"):
        report = fxpasses.plan(
            model,
            passes,
            args,
            kwargs,
            **pipeline.arguments(),
            registry=registry,
        )
    show(report, showing)


def explain(
    subject: Subject,
    pipeline: Pipeline,
    showing: Showing,
    node: str | None,
    pass_name: str | None,
) -> None:
    """Report which conditions hold where."""
    files.require(showing.report, "--report", files.REPORTS)
    model, call = made(subject)
    args, kwargs = call or (None, None)
    registry, passes = resolved(pipeline)
    with beside(), Bar("explaining"):
        explanation = fxpasses.explain(
            model,
            passes,
            args,
            kwargs,
            node=node,
            pass_name=pass_name,
            **pipeline.arguments(),
            registry=registry,
        )
    show(explanation, showing)


def passes(names: Sequence[str], registries: Sequence[Path], showing: Showing) -> None:
    """List what there is, and what is broken.

    Raises:
        RegistryError: there is nothing of one of the names.
    """
    with warnings.catch_warnings(), beside():
        # They are lines of the listing.
        warnings.simplefilter("ignore", FxPassesWarning)
        listing = listed(_registry(registries))
    show(ListingReport(_only(listing, names)), showing)


def _only(listing: Listing, names: Sequence[str]) -> Listing:
    if not names:
        return listing
    known = [one.name for one in (*listing.passes, *listing.pipelines)]
    for name in names:
        if name not in known:
            hint = did_you_mean(name, known)
            raise RegistryError(f"there is no pass or pipeline {name!r}{hint}")
    passes = tuple(one for one in listing.passes if one.name in names)
    pipelines = tuple(one for one in listing.pipelines if one.name in names)
    return Listing(passes, pipelines)


def capture(subject: Subject, capturing: Capturing, showing: Showing) -> None:
    """Report what becomes a graph and what does not, or show the code."""
    files.require(showing.report, "--report", files.REPORTS)
    model, call = made(subject)
    with beside(), Bar("capturing"):
        call, how = call_or_inferred(model, call)
        args, kwargs = call or (None, None)
        captured = fxpasses.capture(
            model,
            args,
            kwargs,
            sizes=cast("Any", capturing.sizes.value),
            leaf_functions=capturing.leaf_functions,
        )
        record = capture_record(captured, how)
        note_coverage(record, captured)
    if capturing.code:
        typer.echo(plain_code(graphs_of(captured.program.root)))
        return
    mode = "training" if subject.train else "eval"
    show(CaptureReport(f"{type(model).__name__}, {mode} mode", record), showing)


def advise(subject: Subject, showing: Showing) -> None:
    """Report what will cost speed."""
    files.require(showing.report, "--report", files.REPORTS)
    model, call = made(subject)
    args, kwargs = call or (None, None)
    with beside(), Bar("looking"):
        advice = fxpasses.advise(model, args, kwargs)
    show(advice, showing)


def profile(
    subject: Subject, pipeline: Pipeline | None, profiling: Profiling, showing: Showing
) -> None:
    """Report what each node costs, of the model as it is or as passes leave it."""
    files.require(showing.report, "--report", files.REPORTS)
    files.require(profiling.trace, "--trace", files.TRACES)
    model, call = made(subject)
    registry, passes = (None, None) if pipeline is None else resolved(pipeline)
    with beside(), Bar("measuring", passes) as bar:
        args, kwargs = call_or_inferred(model, call)[0] or (None, None)
        if pipeline is not None:
            model = fxpasses.run(
                model,
                passes,
                args,
                kwargs,
                **pipeline.arguments(),
                registry=registry,
                observers=(bar,),
            )
        found = fxpasses.profile(
            model, args, kwargs, repeats=profiling.repeats, finite=profiling.finite
        )
        if profiling.trace is not None:
            found.save_trace(profiling.trace)
    show(found, showing)
    if profiling.trace is not None:
        say(f"written: {profiling.trace}")


def call_or_inferred(model: nn.Module, call: Call | None) -> tuple[Call | None, str]:
    """The call that was given, else one that is found out if there is one; and which it is."""
    if call is not None:
        return call, "given"
    found = infer_arguments(model)
    if found is None:
        return None, "none"
    arguments, text = found
    return (arguments.args, dict(arguments.kwargs)), f"inferred: {text}"


def made(subject: Subject) -> tuple[nn.Module, Call | None]:
    """The model in its mode, and the example call if one is given."""
    call = call_of(subject.inputs, subject.seed)
    _find_modules_here()
    with beside():
        model = models.built(subject.model, subject.seed)
    return model.train(subject.train), call


def resolved(pipeline: Pipeline) -> tuple[Registry, Group]:
    """The passes that were asked for, and where they were looked up."""
    registry = _registry(pipeline.registries)
    with beside():
        return registry, registry.resolve(pipeline.passes)


def _registry(paths: Sequence[Path]) -> Registry:
    """The default registry, with those files in a scope of their own."""
    _find_modules_here()
    registry = fxpasses.registry.child()
    for path in paths:
        registry.load(path)
    return registry


def _find_modules_here() -> None:
    """Let a console script find modules where it is called, as `python -m` does."""
    if os.getcwd() not in sys.path and "" not in sys.path:
        sys.path.insert(0, os.getcwd())

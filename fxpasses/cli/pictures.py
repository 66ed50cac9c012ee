"""The commands that draw. Loads torch, so it is imported once one of them is called."""

import json
from pathlib import Path
from typing import Any

import typer
from torch import nn

import fxpasses
from fxpasses.cli import files
from fxpasses.cli.choices import Color, Picture, Pipeline, Subject
from fxpasses.cli.commands import call_or_inferred, made, resolved
from fxpasses.cli.outcome import beside, say
from fxpasses.cli.progress import Bar
from fxpasses.core.given import Call
from fxpasses.diagram import SUFFIXES, Diagram
from fxpasses.errors import DrawingError


def draw(subject: Subject, picture: Picture) -> None:
    """The graph of a model."""
    model, call = _asked(subject, picture)
    args, kwargs = call or (None, None)
    with beside(), Bar("capturing"):
        shown = {**picture.arguments(), **_measured(picture, model, call)}
        diagram = fxpasses.draw(model, args, kwargs, **shown)
    _show(diagram, picture)


def diff(subject: Subject, pipeline: Pipeline, picture: Picture) -> None:
    """What passes do to a model; a rewrite that is found wrong is shown and left out."""
    model, call = _asked(subject, picture)
    args, kwargs = call or (None, None)
    registry, passes = resolved(pipeline)
    with beside(), Bar("preparing", passes) as bar:
        result = fxpasses.run(
            model,
            passes,
            args,
            kwargs,
            **pipeline.arguments(),
            verify=picture.color is Color.ERROR,
            on_failure="skip",
            registry=registry,
            observers=(bar,),
        )
        shown = {**picture.arguments(), **_measured(picture, result, call)}
        diagram = fxpasses.diff(model, result, args, kwargs, **shown)
    _show(diagram, picture)


def _measured(picture: Picture, model: nn.Module, call: Call | None) -> dict[str, Any]:
    """What colours show that nothing but a run tells."""
    if picture.color is not Color.TIME:
        return {}
    args, kwargs = call or (None, None)
    return {"values": fxpasses.profile(model, args, kwargs).seconds}


def _asked(subject: Subject, picture: Picture) -> tuple[nn.Module, Call | None]:
    files.require(picture.output, "--output", SUFFIXES)
    model, call = made(subject)
    with beside():
        return model, call_or_inferred(model, call)[0]


def _show(diagram: Diagram, picture: Picture) -> None:
    if picture.json:
        typer.echo(json.dumps(diagram.as_dict(), indent=2))
    if picture.output is not None:
        _write(diagram, picture.output)
    elif not picture.json:
        typer.echo(diagram.text())


def _write(diagram: Diagram, path: Path) -> None:
    try:
        said = diagram.save(path)
    except DrawingError as error:
        # That nothing can draw is no failure: the text says the same.
        path = path.with_suffix(".txt")
        diagram.save(path)
        said = f"as text: {error}"
    say(f"written: {path}, {said}")

"""How a command ends: its exit code, and one message where something is wrong."""

import sys
import traceback
import warnings
from collections.abc import Generator
from contextlib import contextmanager, redirect_stdout
from typing import Any, Final

import typer

from fxpasses import errors

FAILED: Final = 1
WRONG_USE: Final = 2
INTERRUPTED: Final = 130

_WRONG_USE: Final = (
    errors.ArgumentError,
    errors.PipelineError,
    errors.RegistryError,
    errors.TargetError,
)


def say(text: str) -> None:
    """A line beside the output."""
    typer.echo(text, err=True)


@contextmanager
def beside() -> Generator[None]:
    """What the code of models and passes prints goes beside the output, which may be data."""
    with redirect_stdout(sys.stderr):
        yield


@contextmanager
def told(*, debug: bool) -> Generator[None]:
    """Turn what is raised inside into a message and an exit code; warnings become lines.

    Raises:
        typer.Exit: anything was raised.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("always", errors.FxPassesWarning)
        warnings.showwarning = _show_warning
        try:
            yield
        except KeyboardInterrupt:
            say("interrupted")
            raise typer.Exit(INTERRUPTED) from None
        except (typer.Exit, BrokenPipeError):
            raise
        except Exception as error:  # the last place where anything can be caught
            if debug:
                traceback.print_exc()
            say(f"error: {_message(error)}")
            raise typer.Exit(_code(error)) from None


def _code(error: Exception) -> int:
    return WRONG_USE if isinstance(error, _WRONG_USE) else FAILED


def _message(error: Exception) -> str:
    if isinstance(error, errors.FxPassesError):
        return str(error)
    # Nothing of ours, so its text alone may say little.
    return f"{type(error).__name__}: {error} (--debug shows where)"


def _show_warning(message: Warning | str, *_: Any, **__: Any) -> None:
    say(f"warning: {message}")

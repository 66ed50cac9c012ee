"""DOT as a picture, by whichever renderer is there."""

import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal, TypeAlias

Form: TypeAlias = Literal["svg", "png"]

_SECONDS: Final = 10.0
# Straight edges are laid out much faster.
_ATTEMPTS: Final = ((), ("-Gsplines=line", "-Gnslimit=2", "-Gnslimit1=2"))
RENDERERS: Final = {"dot": "Graphviz dot", "graphviz-pure": "graphviz-pure"}
TEXT: Final = "text"
HOW_TO_DRAW: Final = (
    "no Graphviz was found: install `dot` (the package graphviz of your system), or "
    "`pip install fxpasses[render]`"
)


@dataclass(frozen=True, slots=True)
class Renderer:
    name: str
    path: str


@dataclass(frozen=True, slots=True)
class Drawn:
    """A picture, and which renderer made it; or None, and why there is none."""

    picture: bytes | None
    by: str


def find_renderer(choice: str | None = None) -> Renderer | None:
    """The chosen one; by default `dot`, else `graphviz-pure`, which installs itself beside Python.

    None where there is none, and for the choice of `"text"`.
    """
    for program, name in RENDERERS.items():
        path = shutil.which(program) or shutil.which(program, path=str(Path(sys.executable).parent))
        if path and choice in (None, program):
            return Renderer(name, path)
    return None


def render(dot_by: Callable[[str], str], form: Form, choice: str | None = None) -> Drawn:
    """Lay out and draw what `dot_by` gives for the name of the renderer.

    Not an error where nothing can: `Drawn.by` says why.
    """
    renderer = find_renderer(choice)
    if renderer is None:
        return Drawn(None, _missing(choice))
    failed = ""
    for number, options in enumerate(_ATTEMPTS):
        command = [renderer.path, f"-T{form}", *options]
        by = renderer.name + (", straight edges" if number else "")
        try:
            done = subprocess.run(
                command,
                input=dot_by(by).encode(),
                capture_output=True,
                timeout=_SECONDS,
                check=True,
            )
        except subprocess.TimeoutExpired:
            failed = f"{renderer.name} took longer than {_SECONDS:.0f} s"
        except subprocess.CalledProcessError as error:
            said = error.stderr.decode(errors="replace").strip().partition("\n")[0]
            failed = f"{renderer.name} failed: {said}"
        except OSError as error:
            return Drawn(None, f"{renderer.name} cannot be run: {error}")
        else:
            if not done.stdout:
                return Drawn(None, f"{renderer.name} failed: it drew nothing")
            return Drawn(done.stdout, by)
    return Drawn(None, failed)


def _missing(choice: str | None) -> str:
    if choice is None:
        return HOW_TO_DRAW
    return "as was asked" if choice == TEXT else f"{choice} was not found"

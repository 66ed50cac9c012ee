"""DOT as a picture, by whichever renderer is there."""

import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal, TypeAlias

Form: TypeAlias = Literal["svg", "png"]

_SECONDS: Final = 10.0
# Straight edges are laid out much faster.
_ATTEMPTS: Final = ((), ("-Gsplines=line", "-Gnslimit=2", "-Gnslimit1=2"))
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


def find_renderer() -> Renderer | None:
    """`dot`, else `graphviz-pure`, which installs itself beside Python."""
    if path := shutil.which("dot"):
        return Renderer("Graphviz dot", path)
    beside = str(Path(sys.executable).parent)
    path = shutil.which("graphviz-pure") or shutil.which("graphviz-pure", path=beside)
    return Renderer("graphviz-pure", path) if path else None


def render(dot: str, form: Form) -> Drawn:
    """Lay out and draw. Not an error where nothing can: `Drawn.by` says why."""
    renderer = find_renderer()
    if renderer is None:
        return Drawn(None, HOW_TO_DRAW)
    failed = ""
    for number, options in enumerate(_ATTEMPTS):
        command = [renderer.path, f"-T{form}", *options]
        try:
            done = subprocess.run(
                command, input=dot.encode(), capture_output=True, timeout=_SECONDS, check=True
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
            return Drawn(done.stdout, renderer.name + (", straight edges" if number else ""))
    return Drawn(None, failed)

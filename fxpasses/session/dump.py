"""Stages as numbered Python files in a folder."""

import re
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from fxpasses.core import Stage
from fxpasses.core.files import whole_file
from fxpasses.core.given import shown
from fxpasses.core.plain import printable
from fxpasses.errors import ArgumentError

_MARK: Final = "# fxpasses, stage "
"""How every file begins, so that those of an earlier run are known."""
_LONGEST_NAME: Final = 60


@dataclass(frozen=True, slots=True)
class Dump:
    """A folder that takes stages. Every file in it is whole."""

    folder: Path
    changed_only: bool = False

    def clear(self) -> None:
        """Remove the files of an earlier run, and nothing else."""
        with _told(self.folder):
            for path in self.folder.glob("*.py"):
                if _is_of_a_run(path):
                    path.unlink()

    def write(self, stage: Stage, digits: int) -> None:
        """Write one stage; its number has that many digits, so that the files sort."""
        if self.changed_only and stage.status not in ("captured", "changed"):
            return
        name = re.sub(r"\W+", "_", stage.name)[:_LONGEST_NAME].strip("_") or "pass"
        heading = "\n".join(_heading(stage))
        text = f"{_MARK}{heading}\n\n{stage.code}"
        with _told(self.folder):
            _write_whole(self.folder / f"{stage.number:0{digits}}_{name}.py", text)


def dump_to(given: Any, *, changed_only: bool) -> Dump | None:
    """The folder that `dump=` names, made if need be; None for no dump.

    Raises:
        ArgumentError: nothing can be written there, or `given` is no path.
    """
    if given is None:
        if changed_only:
            raise ArgumentError("dump_changed=True without dump: pass dump, the folder to write to")
        return None
    try:
        folder = Path(given)
    except TypeError as error:
        raise ArgumentError(f"dump={shown(given)}: pass the name of a folder") from error
    with _told(folder):
        folder.mkdir(parents=True, exist_ok=True)
        _write_whole(folder / ".fxpasses", "")
        (folder / ".fxpasses").unlink()
    return Dump(folder, changed_only)


@contextmanager
def _told(folder: Path) -> Generator[None]:
    try:
        yield
    except OSError as error:
        reason = error.strerror or type(error).__name__
        raise ArgumentError(f"dump={str(folder)!r}: it cannot be written to, {reason}") from error


def _write_whole(path: Path, text: str) -> None:
    with whole_file(path) as unfinished:
        unfinished.write_text(text, encoding="utf-8")


def _is_of_a_run(path: Path) -> bool:
    mark = _MARK.encode()
    with path.open("rb") as file:
        return file.read(len(mark)) == mark


def _heading(stage: Stage) -> Iterator[str]:
    """What the pass did, in comments."""
    yield printable(stage.title())
    if stage.record is None:
        return
    if stage.record.options:
        yield printable(f"# options: {stage.record.options}")
    if stage.record.error:
        yield printable(f"# failed: {stage.record.error}")
    for rewrite in stage.record.rewrites:
        yield printable(f"# rewrite {rewrite.id}: {rewrite.why}")
    for refusal in stage.record.refusals:
        yield printable(f"# refused {refusal.node}: {refusal.condition}: {refusal.reason}")

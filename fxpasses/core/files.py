"""Files that are written whole or not at all."""

import os
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def whole_file(path: Path) -> Generator[Path]:
    """Gives the path to write to; the file takes its place once the block has ended well.

    Raises:
        OSError: it cannot be put there.
    """
    unfinished = path.with_name(f".{path.name}.unfinished")
    try:
        yield unfinished
        os.replace(unfinished, path)
    finally:
        unfinished.unlink(missing_ok=True)

"""Python's garbage collections, put off while graphs and modules are made that stay."""

import gc
import threading
from collections.abc import Generator
from contextlib import contextmanager

_lock = threading.Lock()
_pauses = 0
_was_on = False


@contextmanager
def collections_paused() -> Generator[None]:
    """Collect no cycles inside the block, whichever thread makes them.

    A preparation makes some ten thousand objects, nearly all of which stay: each full collection
    that they set off looks through all that torch has imported, and frees nothing. What other
    threads drop in the meantime is collected right afterwards.
    """
    global _pauses, _was_on  # noqa: PLW0603  the switch is the process's too
    with _lock:
        if not _pauses:
            _was_on = gc.isenabled()
            gc.disable()
        _pauses += 1
    try:
        yield
    finally:
        with _lock:
            _pauses -= 1
            if not _pauses and _was_on:
                gc.enable()

"""The command line: the verbs of fxpasses on models that are named, not built by the caller.

Nothing here is loaded by `import fxpasses`, and torch only once a command needs it.
"""

from fxpasses.cli.app import app, main

__all__ = ["app", "main"]

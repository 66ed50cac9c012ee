"""One run: capture, passes, verification and record meet here and nowhere else."""

from fxpasses.session.run import plan, run

__all__ = ["plan", "run"]

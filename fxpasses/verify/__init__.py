"""Does an optimised model compute what the original computes, and if not, who is to blame."""

from fxpasses.verify.check import check, pieces
from fxpasses.verify.public import verify
from fxpasses.verify.verdict import Blame, Verdict

__all__ = ["Blame", "Verdict", "check", "pieces", "verify"]

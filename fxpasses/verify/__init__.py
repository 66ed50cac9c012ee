"""Does an optimised model compute what the original computes, and if not, who is to blame."""

from fxpasses.verify.activations import peak_activations
from fxpasses.verify.check import check
from fxpasses.verify.pieces import Cut
from fxpasses.verify.public import verify
from fxpasses.verify.verdict import Blame, Verdict

__all__ = ["Blame", "Cut", "Verdict", "check", "peak_activations", "verify"]

"""What will cost speed, before any pass is run."""

from fxpasses.advise.advice import Advice, Finding, Kind
from fxpasses.advise.asking import advise

__all__ = ["Advice", "Finding", "Kind", "advise"]

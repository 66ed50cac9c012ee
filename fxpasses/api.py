"""The public verbs and types, in one place. `fxpasses` itself shows the same names, lazily."""

from fxpasses.advise import Advice, advise
from fxpasses.capture import Capture, capture, release
from fxpasses.core import GraphPass, Numerics, Rewrite, foreign
from fxpasses.debug import Explanation, Profile, explain, profile
from fxpasses.diagram import Diagram, diff, draw
from fxpasses.manager import PassManager, apply
from fxpasses.page import Report, plan, report
from fxpasses.registry import Registry
from fxpasses.session import run
from fxpasses.verify import Verdict, verify

registry = Registry.default()
register = registry.register

__all__ = [
    "Advice",
    "Capture",
    "Diagram",
    "Explanation",
    "GraphPass",
    "Numerics",
    "PassManager",
    "Profile",
    "Registry",
    "Report",
    "Rewrite",
    "Verdict",
    "advise",
    "apply",
    "capture",
    "diff",
    "draw",
    "explain",
    "foreign",
    "plan",
    "profile",
    "register",
    "registry",
    "release",
    "report",
    "run",
    "verify",
]

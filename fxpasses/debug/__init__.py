"""What passes saw of a model, and what each node costs."""

from fxpasses.debug.costs import ModuleCost, NodeCost, NonFinite
from fxpasses.debug.explaining import explain
from fxpasses.debug.explanation import Answer, Explanation, NearMiss, Outcome, Site
from fxpasses.debug.nodes import NodeFacts
from fxpasses.debug.profiling import Profile, profile

__all__ = [
    "Answer",
    "Explanation",
    "ModuleCost",
    "NearMiss",
    "NodeCost",
    "NodeFacts",
    "NonFinite",
    "Outcome",
    "Profile",
    "Site",
    "explain",
    "profile",
]

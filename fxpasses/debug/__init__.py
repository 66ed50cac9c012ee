"""What passes saw of a model, and what each node costs."""

from fxpasses.debug.explaining import explain
from fxpasses.debug.explanation import Answer, Explanation, NearMiss, NodeFacts, Outcome, Site

__all__ = ["Answer", "Explanation", "NearMiss", "NodeFacts", "Outcome", "Site", "explain"]

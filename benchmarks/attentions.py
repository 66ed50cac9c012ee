"""How many attentions a model holds, and how many of them become one call."""

from dataclasses import dataclass

from fxpasses.analysis.facts import GraphFacts
from fxpasses.core import Program
from fxpasses.ops import Op, op_of
from fxpasses.passes.fuse_attention import FuseAttention


@dataclass(slots=True)
class Attentions:
    """Counts over all graphs of a model; what runs its own code is not in them."""

    written: int = 0
    """A softmax between two products, whatever else lies there."""
    fused: int = 0
    """Those of them that `fuse_attention` rewrites."""
    ready: int = 0
    """Calls of `scaled_dot_product_attention` that the model makes itself."""


def attentions_in(program: Program) -> Attentions:
    """Count them, without rewriting anything."""
    found, fusing = Attentions(), FuseAttention()
    for module in program.graphs.values():
        facts = GraphFacts(module)
        for node in module.graph.nodes:
            found.ready += op_of(node) is Op.SDPA
            site = fusing.match(node, facts)
            if site is not None and site.found.has_scores:
                found.written += 1
                found.fused += fusing.refusal(node, site, facts) is None
    return found

"""Layers of torch that are made of several ops, and how each is written out in ops."""

from fxpasses.views.composites.attention import written_attention
from fxpasses.views.composites.call import CompositeCall, Results
from fxpasses.views.composites.cells import written_cell
from fxpasses.views.composites.transformers import written_transformer

__all__ = [
    "CompositeCall",
    "Results",
    "written_attention",
    "written_cell",
    "written_transformer",
]

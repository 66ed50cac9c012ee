"""Graphs as pictures and as text, one alone or before against after."""

from fxpasses.diagram.diagram import Diagram
from fxpasses.diagram.drawing import diff, draw

__all__ = ["Diagram", "diff", "draw"]

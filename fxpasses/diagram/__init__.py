"""Graphs as pictures and as text, one alone or before against after."""

from fxpasses.diagram.diagram import SUFFIXES, Diagram
from fxpasses.diagram.drawing import diff, draw

__all__ = ["SUFFIXES", "Diagram", "diff", "draw"]

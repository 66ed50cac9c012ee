"""Passes and pipelines by name, and the grammar of pipelines."""

from fxpasses.registry.entries import PassEntry, PipelineEntry, Problem
from fxpasses.registry.listing import Listing, listed
from fxpasses.registry.registry import Registry
from fxpasses.registry.syntax import parse

__all__ = ["Listing", "PassEntry", "PipelineEntry", "Problem", "Registry", "listed", "parse"]

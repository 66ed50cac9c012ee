"""Passes and pipelines by name, and the grammar of pipelines."""

from fxpasses.registry.registry import PassEntry, PipelineEntry, Registry
from fxpasses.registry.syntax import parse

__all__ = ["PassEntry", "PipelineEntry", "Registry", "parse"]

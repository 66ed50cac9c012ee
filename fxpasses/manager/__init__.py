"""Runs pipelines over programs: every pass a transaction over all graphs."""

from fxpasses.manager.manager import PassManager, apply
from fxpasses.manager.observer import Observer
from fxpasses.manager.transaction import PassRun

__all__ = ["Observer", "PassManager", "PassRun", "apply"]

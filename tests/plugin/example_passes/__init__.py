"""Passes for fxpasses from another package."""

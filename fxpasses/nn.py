"""Modules that passes put in the place of several: fused units, known to the vocabulary."""

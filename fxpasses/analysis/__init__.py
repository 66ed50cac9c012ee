"""Facts about a graph: effects, aliasing, shapes, liveness."""

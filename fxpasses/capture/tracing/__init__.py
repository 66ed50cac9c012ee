"""Recording what a module's code computes as a graph, while the example runs along.

`tracer` starts it; `recorder`, `functions` and `modules` make the nodes; `values` and `proxies`
are what flows through the model's code; `patches`, `modes` and `watch` see what Python hides.
"""

"""What the user gets: a module that runs a graph, and which calls that graph takes.

`entry` stands at its door, `pattern` and `forms` say what a call must look like, and `guards`
check inside the graph what the trace took for granted.
"""

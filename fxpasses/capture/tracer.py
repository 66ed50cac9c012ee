"""Record what a module computes as a graph, and what cannot be recorded as opaque leaves."""

from fxpasses.capture.request import (
    Call,
    Opaque,
    OpaqueKind,
    Outside,
    Refused,
    Request,
    Trace,
    Untraceable,
)

__all__ = [
    "Call",
    "Opaque",
    "OpaqueKind",
    "Outside",
    "Refused",
    "Request",
    "Trace",
    "Untraceable",
    "trace",
]


def trace(request: Request) -> Trace:
    """Trace `request.root`.

    Raises:
        Untraceable: the root itself does what no graph can represent.
        Outside: globals changed and `request.strict` is off.
    """
    raise NotImplementedError

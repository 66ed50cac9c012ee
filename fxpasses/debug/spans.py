"""How much of something passes while nodes run, each without those that run inside of it."""

import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch.utils.flop_counter import FlopCounterMode

Key = tuple[str, str]
"""The path of a graph, and the name of a node in it."""


class Clock(Protocol):
    """Something that goes on as nodes run: time, or work."""

    def stamp(self) -> Any:
        """How far it is."""
        ...

    def between(self, begin: Any, end: Any) -> float:
        """How much has passed. Asked after all stamps have been made."""
        ...


class HostClock:
    """Seconds, for what the host computes itself."""

    def stamp(self) -> float:
        return time.perf_counter()

    def between(self, begin: float, end: float) -> float:
        return end - begin


class CudaClock:
    """Seconds on the device, by events in its queue: nobody waits while nodes are run."""

    def stamp(self) -> torch.cuda.Event:
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def between(self, begin: torch.cuda.Event, end: torch.cuda.Event) -> float:
        end.synchronize()
        return begin.elapsed_time(end) / 1000


class Work:
    """Floating-point operations that a counter has seen."""

    def __init__(self, counter: FlopCounterMode) -> None:
        self._counter = counter

    def stamp(self) -> int:
        return self._counter.get_total_flops()

    def between(self, begin: int, end: int) -> float:
        return end - begin


@dataclass(slots=True)
class _Span:
    key: Key
    outer: int | None
    begin: Any
    end: Any = None


class Spans:
    """Measures nodes, those of inner graphs inside of the node that calls them."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._spans: list[_Span] = []
        self._open: list[int] = []

    def around(self, key: Key, run: Callable[[], Any]) -> Any:
        """Run a node, and note what passes meanwhile."""
        number, outer = len(self._spans), self._open[-1] if self._open else None
        span = _Span(key, outer, self._clock.stamp())
        self._spans.append(span)
        self._open.append(number)
        try:
            return run()
        finally:
            self._open.pop()
            span.end = self._clock.stamp()

    def own(self) -> dict[Key, float]:
        """What passed in each node, over all its calls, less what passed in nodes inside of it."""
        own: defaultdict[Key, float] = defaultdict(float)
        for span in self._spans:
            passed = self._clock.between(span.begin, span.end)
            own[span.key] += passed
            if span.outer is not None:
                own[self._spans[span.outer].key] -= passed
        return dict(own)

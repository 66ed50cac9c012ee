"""How much of a verification is done, for whoever watches it."""

from collections.abc import Callable
from typing import Final, TypeAlias

Tell: TypeAlias = Callable[[int, int], None]
"""Is told of steps: how many are done, of how many that are known."""

FORWARDS: Final = 6
"""What a verification without gradients takes as a rule, beside that of the capture."""


class Progress:
    """Counts the steps of a verification: forwards, and sites that are looked at."""

    def __init__(self, tell: Tell | None = None) -> None:
        self._tell = tell
        self._done = self._known = 0
        self._sites = set[int]()

    def expects(self, steps: int) -> None:
        """More steps are known of."""
        self._known += steps

    def looked_at(self, site: object) -> None:
        """A site was compared; later probes look at it again."""
        if id(site) not in self._sites:
            self._sites.add(id(site))
            self.step()

    def step(self) -> None:
        """One is done, expected or not."""
        self._done += 1
        self._known = max(self._known, self._done)
        if self._tell is not None:
            self._tell(self._done, self._known)

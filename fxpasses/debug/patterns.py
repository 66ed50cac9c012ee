"""How near a place came to a pattern, told by what a pass asked of the nodes there.

Patterns are code: a pass asks for views, node by node, until one is not what it is looking for.
"""

import sys
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import FrameType
from typing import Any, Final

from torch.fx import Node

from fxpasses.views import HAND_ON, View, view_at

_ASKED: Final = view_at.__code__
_MOST_OPERANDS: Final = 200


@dataclass(frozen=True, slots=True)
class Question:
    """Whether a node is one of some kinds of call."""

    node: Node
    kinds: tuple[type[View], ...]
    found: str
    """The one that it is; "" for none of them."""


@dataclass(slots=True)
class Chain:
    """Questions about a node that began well, and about what it is computed from."""

    questions: list[Question]
    operands: set[Node] = field(default_factory=set[Node])
    """What its node is computed from, near by."""

    @property
    def root(self) -> Node:
        return self.questions[0].node

    @property
    def matched(self) -> list[Question]:
        """Those that hold, each node once."""
        return list({q.node: q for q in self.questions if q.found}.values())

    @property
    def missing(self) -> tuple[Node, list[str]] | None:
        """The last node asked, and what it might have been; None if it was one of that."""
        last = self.questions[-1].node
        about = [question for question in self.questions if question.node is last]
        if any(question.found for question in about):
            return None
        kinds = dict.fromkeys(kind for question in about for kind in question.kinds)
        # What hands a value on is looked through, not for.
        wanted = [kind for kind in kinds if kind not in HAND_ON] or list(kinds)
        return last, [kind.__name__ for kind in wanted]


class Listener:
    """Hears what views are asked for in this thread, and only while it listens.

    A profiling hook sees the answers of `view_at` as they are returned, so that nothing has to be
    noted where nobody wants an explanation.
    """

    def __init__(self) -> None:
        self.chains: list[Chain] = []
        self._open: Chain | None = None

    @contextmanager
    def listening(self) -> Generator[None]:
        before = sys.getprofile()
        sys.setprofile(self._hear)
        try:
            yield
        finally:
            sys.setprofile(before)

    def _hear(self, frame: FrameType, event: str, value: Any) -> None:
        if event == "return" and frame.f_code is _ASKED:
            self._note(frame.f_locals["node"], frame.f_locals["kinds"], value)

    def _note(self, node: object, kinds: Sequence[type[View]], view: object) -> None:
        # A view of any call says nothing of what is looked for.
        told = tuple(kind for kind in kinds if kind.ops is not None)
        if not isinstance(node, Node) or not told:
            return
        question = Question(node, told, "" if view is None else type(view).__name__)
        if self._open is not None and node in self._open.operands:
            self._open.questions.append(question)
        elif question.found:
            self._open = Chain([question], _operands(node))
            self.chains.append(self._open)
        else:
            self._open = None


def _operands(node: Node) -> set[Node]:
    found: dict[Node, None] = {}
    waiting = list(node.all_input_nodes)
    while waiting and len(found) < _MOST_OPERANDS:
        near = waiting.pop(0)
        if near not in found:
            found[near] = None
            waiting += near.all_input_nodes
    return set(found)

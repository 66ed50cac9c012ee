"""Answers about tensors that are part of the pattern once the model has asked."""

from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Final, Protocol

import torch
from torch import Tensor

from fxpasses.capture.result.questions import MISSING, answer_of
from fxpasses.capture.tracing.memory import Memory
from fxpasses.capture.tracing.proxies import Held, Value
from fxpasses.capture.tracing.refusal import Refusal
from fxpasses.capture.tracing.request import OpaqueKind
from fxpasses.capture.tracing.structures import PLAIN
from fxpasses.capture.tracing.values import UNKNOWN
from fxpasses.core.given import an


class Host(Protocol):
    """What asking needs of the tracer."""

    memory: Memory

    def refuse(self, kind: OpaqueKind, reason: str) -> Refusal: ...
    def quiet(self) -> AbstractContextManager[None]: ...


@dataclass(frozen=True, slots=True, eq=False)
class _Input:
    value: Value  # kept alive: it is found by its identity
    number: int
    example: Tensor


class Asking:
    """The tensors that the call gives, and what the model has asked of each."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self._inputs: dict[int, _Input] = {}
        self._asked: dict[int, dict[str, Any]] = {}

    def add_input(self, value: Value, number: int, example: Tensor | None) -> None:
        """`value` stands for the tensor of this number among those of the call."""
        given = _SOME_TENSOR if example is None else example
        self._inputs[id(value)] = _Input(value, number, given)

    def answers(self, *, reads_device: bool) -> dict[int, dict[str, Any]]:
        """By the number of the input, each question that was asked, and its answer."""
        if reads_device:
            for found in self._inputs.values():
                device = found.example.device
                if device != torch.device(device.type):
                    self._answer(found, "device")
        return self._asked

    def ask_for_sizes(self) -> None:
        """The sizes of every input, and how it lies in memory, are part of the pattern."""
        for found in self._inputs.values():
            is_strided = found.example.layout is torch.strided
            for question in _ABOUT_SIZES if is_strided else ("shape",):
                answers = self._asked.setdefault(found.number, {})
                answers[question] = answer_of(found.example, question)

    def ask(self, value: Value, question: str) -> Any:
        """The answer to a question about a tensor, the same for every call from now on."""
        if isinstance(value, Held):
            return self._plain(value.real, question)
        found = self._inputs.get(id(value))
        return self._computed(value, question) if found is None else self._answer(found, question)

    def _computed(self, value: Value, question: str) -> Any:
        """Operations may return what they are given, where they find nothing to do."""
        known, memory = value.known, self._host.memory
        if known is UNKNOWN or memory.has_copy(known) or memory.is_parameter(known):
            raise self._refusal(question, "a computed value")
        answer = self._plain(known, question)
        is_python = question == "class" or question.startswith(".")
        for found in self._inputs.values():
            if self._answer(found, question) != answer and is_python:
                raise self._refusal(question, "what may be an input itself")
        return answer

    def _answer(self, found: _Input, question: str) -> Any:
        answer = self._plain(found.example, question)
        self._asked.setdefault(found.number, {})[question] = answer
        return answer

    def _plain(self, tensor: Tensor, question: str) -> Any:
        with self._host.quiet():
            answer = answer_of(tensor, question)
        if type(answer) in PLAIN or answer is MISSING:
            return answer
        reason = f"reads {question} of a tensor, {an(type(answer))}"
        raise self._host.refuse(OpaqueKind.UNTRACEABLE_VALUE, reason)

    def _refusal(self, question: str, of: str) -> Refusal:
        what = "the class" if question == "class" else question
        return self._host.refuse(OpaqueKind.CONTROL_FLOW, f"{what} of {of}")


_ABOUT_SIZES: Final = ("shape", "stride", "storage_offset")
_SOME_TENSOR: Final = torch.empty(0)

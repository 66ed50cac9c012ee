"""Modules as programs that can be read and run again.

A module is written line by line. Each line is run at once: its values tell what can follow, and a
line that raises is left out.
"""

import linecache
import operator
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

T = TypeVar("T")
Choose = Callable[[Sequence[T]], T]
"""Picks one of several; hypothesis or a generator of random numbers does."""

_LARGEST = 512
"""Elements of a value; larger ones are not read on."""


def fit(x: Tensor, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
    """Numbers between 0.1 and 0.9 (or few integers) of any shape, made of `x`."""
    size = max(1, torch.Size(shape).numel())
    flat = x.reshape(-1).to(torch.float32).sigmoid() * 0.8 + 0.1
    flat = flat.repeat(size // max(1, flat.numel()) + 1)[: torch.Size(shape).numel()]
    return flat.reshape(shape).to(dtype) if dtype.is_floating_point else (flat * 3).to(dtype)


NAMES: dict[str, Any] = {
    "torch": torch,
    "F": F,
    "operator": operator,
    "Tensor": Tensor,
    "fit": fit,
    "device": torch.device,
    "inf": float("inf"),
    "nan": float("nan"),
}


class Program(nn.Module):
    """A module whose forward is a text."""

    def __init__(self, arguments: Sequence[str]) -> None:
        super().__init__()
        self.text = ""
        self.arguments = tuple(arguments)

    def hold(self, name: str, value: Any) -> None:
        if isinstance(value, Tensor) and not isinstance(value, nn.Parameter):
            self.register_buffer(name, value)
        else:
            setattr(self, name, value)

    def finish(self, lines: Sequence[str], result: str) -> None:
        body = "".join(f"    {line}\n" for line in [*lines, f"return {result}"])
        self.text = f"def forward(self, {', '.join(self.arguments)}):\n{body}"

    def forward(self, *args: Tensor) -> Any:
        return compiled(self.text)(self, *args)

    def extra_repr(self) -> str:
        return self.text


@cache
def compiled(text: str) -> Callable[..., Any]:
    file = f"<program {abs(hash(text))}>"
    linecache.cache[file] = (len(text), None, text.splitlines(keepends=True), file)
    names = dict(NAMES)
    exec(compile(text, file, "exec"), names)
    return names["forward"]


@dataclass
class Writer:
    """Writes one module."""

    choose: Choose[Any]
    inputs: Sequence[Tensor]
    depth: int = 0
    lines: list[str] = field(default_factory=list)
    rights: list[str] = field(default_factory=list)
    """The right sides of lines so far."""

    def __post_init__(self) -> None:
        self.arguments = [f"x{number}" for number in range(len(self.inputs))]
        self.module = Program(self.arguments)
        self.values: dict[str, Tensor] = {}
        self.names: dict[str, Any] = {**NAMES, "self": self.module}
        for name, tensor in zip(self.arguments, self.inputs, strict=True):
            self._add(name, tensor.clone())

    # -- lines

    def write(self, right: str) -> str | None:
        """Add `name = right`; None where it raises. Tensors in a tuple get names too."""
        name = f"v{len(self.lines)}"
        try:
            with warnings.catch_warnings():
                # Some of torch's come once a process: the same line would raise once, and then run.
                warnings.simplefilter("ignore")
                made = eval(right, self.names)
        except Exception:  # what cannot be run is no part of the program
            return None
        self.lines.append(f"{name} = {right}")
        self.rights.append(right)
        self.names[name] = made
        if isinstance(made, Tensor):
            self._add(name, made)
        elif isinstance(made, (tuple, list)) and all(isinstance(part, Tensor) for part in made):
            for number in range(min(2, len(made))):
                self.write(f"{name}[{number}]")
        return name

    def _add(self, name: str, value: Tensor) -> None:
        self.names[name] = value
        if value.numel() <= _LARGEST and value.layout is torch.strided:
            self.values[name] = value

    def hold(self, near: str, value: Any) -> str:
        name = f"{near}{sum(1 for known in self.held() if known.startswith(near))}"
        self.module.hold(name, value)
        return f"self.{name}"

    def held(self) -> list[str]:
        module = self.module
        return [*module._modules, *module._parameters, *module._buffers]

    # -- values

    def value(self, fits: Callable[[Tensor], bool] = lambda value: True) -> str | None:
        """One of the values, mostly a late one."""
        found = [name for name, value in self.values.items() if fits(value)]
        if not found:
            return None
        return found[-1] if self.choose((True, True, False)) else self.choose(found)

    def floats(self, *ranks: int) -> str | None:
        return self.value(lambda v: v.is_floating_point() and (not ranks or v.dim() in ranks))

    def finished(self) -> Program:
        names = [self.choose(list(self.values)) for _ in range(self.choose((0, 1, 2)))]
        last = list(self.values)[-1]
        parts = list(dict.fromkeys([last, *names]))
        self.module.finish(self.lines, ", ".join(parts))
        return self.module

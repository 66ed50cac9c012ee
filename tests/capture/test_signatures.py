"""Every signature that Python allows, called in every way that it allows."""

import inspect
from dataclasses import dataclass
from typing import Any

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from fxpasses.capture import calls_of, capture

KINDS = tuple(inspect._ParameterKind)  # in the order of a signature
NAMES = (
    "x",
    "y",
    "self_",
    "torch",
    "inf",
    "input",
    "args",
    "kwargs",
    "x_1",
    "device",
    "type",
    "id",
)
X = torch.linspace(-1, 1, 4)


class Thing:
    """A default that no generated code can spell."""

    scale = 3


DEFAULTS = {"number": 2, "nothing": None, "tensor": X.clone(), "object": Thing(), "pair": (1, 2)}


@dataclass(frozen=True)
class Parameter:
    name: str
    kind: Any
    default: str | None

    def spelled(self) -> str:
        star = {inspect.Parameter.VAR_POSITIONAL: "*", inspect.Parameter.VAR_KEYWORD: "**"}
        default = "" if self.default is None else f"=DEFAULTS[{self.default!r}]"
        return star.get(self.kind, "") + self.name + default


@st.composite
def signatures(draw: st.DrawFn) -> list[Parameter]:
    names = draw(st.lists(st.sampled_from(NAMES), min_size=1, max_size=5, unique=True))
    kinds = sorted(draw(st.sampled_from(KINDS)) for _ in names)
    found: list[Parameter] = []
    for name, kind in zip(names, kinds, strict=True):
        is_variable = kind in (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
        if is_variable and any(other.kind is kind for other in found):
            continue
        must = kind < inspect.Parameter.VAR_POSITIONAL and any(
            o.default and o.kind < inspect.Parameter.VAR_POSITIONAL for o in found
        )
        has_default = not is_variable and (must or draw(st.booleans()))
        found.append(
            Parameter(name, kind, draw(st.sampled_from([*DEFAULTS])) if has_default else None)
        )
    return found


def model_of(parameters: list[Parameter]) -> nn.Module:
    words: list[str] = []
    for before, parameter in zip([None, *parameters], parameters, strict=False):
        kind, earlier = parameter.kind, before and before.kind
        if earlier is inspect.Parameter.POSITIONAL_ONLY and kind is not earlier:
            words.append("/")
        is_first_keyword = kind is inspect.Parameter.KEYWORD_ONLY and (
            earlier is None or earlier < inspect.Parameter.VAR_POSITIONAL
        )
        words += ["*"] if is_first_keyword else []
        words.append(parameter.spelled())
    if parameters[-1].kind is inspect.Parameter.POSITIONAL_ONLY:
        words.append("/")
    given_ = ", ".join(parameter.name for parameter in parameters)
    space: dict[str, Any] = {"DEFAULTS": DEFAULTS, "combined": combined}
    exec(f"def forward(this, {', '.join(words)}):\n    return combined([{given_}])", space)

    class Subject(nn.Module):
        forward = space["forward"]

    return Subject().eval()


def combined(values: list[Any]) -> Tensor:
    """A number that tells all arguments, and their order, from each other."""
    total = torch.zeros(4)
    for value in values:
        if isinstance(value, dict):
            value = combined([len(key) * item for key, item in value.items()])  # noqa: PLW2901
        elif isinstance(value, tuple):
            value = combined(list(value))  # noqa: PLW2901
        term = 7 if value is None else value.scale if isinstance(value, Thing) else value
        total = total * 3 + term + 1
    return total


@st.composite
def calls(draw: st.DrawFn, parameters: list[Parameter]) -> tuple[list[Any], dict[str, Any]]:
    args: list[Any] = []
    kwargs: dict[str, Any] = {}
    value = st.sampled_from([lambda: X + 1, lambda: X * 2, lambda: 5]).map(lambda make: make())
    by_position = True
    for parameter in parameters:
        kind = parameter.kind
        if kind is inspect.Parameter.VAR_KEYWORD:
            taken = {p.name for p in parameters if p.kind in (1, 3)}
            free = [name for name in NAMES if name not in taken]
            for name in draw(st.lists(st.sampled_from(free), max_size=2, unique=True)):
                kwargs[name] = draw(value)
        elif kind is inspect.Parameter.VAR_POSITIONAL:
            args += draw(st.lists(value, max_size=2)) if by_position else []
        elif parameter.default is not None and draw(st.booleans()):
            by_position = by_position and kind is inspect.Parameter.KEYWORD_ONLY
        elif kind is inspect.Parameter.POSITIONAL_ONLY:
            if by_position:
                args.append(draw(value))
        elif kind is inspect.Parameter.KEYWORD_ONLY or not by_position or draw(st.booleans()):
            by_position = by_position and kind is inspect.Parameter.KEYWORD_ONLY
            kwargs[parameter.name] = draw(value)
        else:
            args.append(draw(value))
    return args, kwargs


@settings(max_examples=40, deadline=None, derandomize=True, database=None)
@given(st.data())
def test_every_signature_and_every_call(data: st.DataObject) -> None:
    parameters = data.draw(signatures())
    model = model_of(parameters)
    args, kwargs = data.draw(calls(parameters))
    found = capture(model, args, kwargs)
    assert not found.opaque
    assert torch.equal(found.program.root(*args, **kwargs), model(*args, **kwargs))
    assert calls_of(found.program.root)["graph"] == 1
    args, kwargs = data.draw(calls(parameters))
    assert torch.equal(found.program.root(*args, **kwargs), model(*args, **kwargs))


def test_a_keyword_without_a_default_behind_one_with_a_default() -> None:
    class Model(nn.Module):
        def forward(self, x: Tensor, *, a: int = 1, b: Tensor) -> Tensor:
            return x * a + b

    root = capture(Model().eval(), (X,), {"b": X}).program.root
    assert torch.equal(root(X, b=X), X + X)
    assert torch.equal(root(X, b=X, a=2), 2 * X + X)
    assert torch.equal(torch.fx.Interpreter(root).run(X, 1, X), X + X)

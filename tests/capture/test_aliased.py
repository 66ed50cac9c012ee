"""Examples and calls that give one tensor several times."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from fxpasses.capture import calls_of, capture
from fxpasses.capture.aliased import SHARING_MATTERS
from tests.capture.tracing import module

X, Y = torch.linspace(-1, 1, 6).reshape(2, 3), torch.ones(2, 3)


class Writes(nn.Module):
    def forward(self, a: Tensor) -> Tensor:
        return a.add_(1) if a.sum() > -100 else a


def writes(self: Any, a: Tensor, b: Tensor) -> Tensor:
    a.add_(1)
    return a * b


def asks(self: Any, a: Tensor, b: Tensor) -> Tensor:
    return a * 2 if a is b else a + b


HARMLESS: dict[str, tuple[Any, Any]] = {
    "sum": (lambda s, a, b: a + b, lambda x, y: (x, y)),
    "layers": (lambda s, a, b: s.layer(a) @ s.layer(b).T, lambda x, y: (x, y)),
    "sizes": (lambda s, a, b: a * b.shape[0] if a.shape == b.shape else a, lambda x, y: (x, y)),
    "list": (lambda s, ab: ab[0] + ab[1] * 2, lambda x, y: ([x, y],)),
    "dict": (lambda s, d: d["a"][0] - d["b"], lambda x, y: ({"a": x, "b": y},)),
    "views": (lambda s, a, b: a[:1] + b, lambda x, y: (x, y[:1])),
    "of_more": (lambda s, a, b, c: a + b * c, lambda x, y: (x, y, y)),
    "branch_inside": (lambda s, a, b: s.opaque(a) + b, lambda x, y: (x, y)),
}
MATTERS: dict[str, Any] = {
    "writes": writes,
    "writes_below": lambda s, a, b: s.writes(a) * b,
    "asks": asks,
}


def model_of(forward: Any) -> nn.Module:
    opaque = module(lambda s, x: x * 2 if x.sum() > 100 else x * 3)
    return module(forward, layer=nn.Linear(3, 3), opaque=opaque, writes=Writes())


def check(model: nn.Module, root: nn.Module, x: Tensor, y: Tensor, call: Any) -> None:
    def fresh() -> Any:
        a = x.clone()
        return call(a, a if y is x else y.clone())

    assert torch.equal(root(*fresh()), model(*fresh()))


@pytest.mark.parametrize("name", HARMLESS)
def test_one_tensor_twice_in_the_example_fits_every_call(name: str) -> None:
    forward, call = HARMLESS[name]
    model = model_of(forward)
    found = capture(model, call(X, X))
    check(model, found.program.root, X, Y, call)
    check(model, found.program.root, X, X, call)
    assert calls_of(found.program.root)["graph"] == 2
    assert SHARING_MATTERS not in found.notes


@pytest.mark.parametrize("name", MATTERS)
def test_where_it_matters_it_is_said(name: str) -> None:
    model = model_of(MATTERS[name])
    for example, fits in (((X.clone(),) * 2, X), ((X.clone(), Y.clone()), Y)):
        found = capture(model, example)
        for other in (X, Y):
            check(model, found.program.root, X, other, lambda x, y: (x, y))
        assert calls_of(found.program.root)["graph"] == 1
        assert (SHARING_MATTERS in found.notes) is (fits is X)


def test_without_an_example_arguments_are_apart_in_every_spelling() -> None:
    model = module(asks)
    root = capture(model).program.root
    for args, kwargs in [((X, X), {}), ((X,), {"b": X}), ((X, Y), {}), ((X,), {"b": Y})]:
        assert torch.equal(root(*args, **kwargs), model(*args, **kwargs))
    assert calls_of(root)["graph"] == 2

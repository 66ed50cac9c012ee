"""A result is a GraphModule for torch's own tools, too."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.fx import GraphModule, Interpreter, symbolic_trace
from torch.fx.passes.shape_prop import ShapeProp

from fxpasses.capture import calls_of, capture
from fxpasses.capture.result.guards import GuardMiss
from fxpasses.errors import ResultError
from tests.capture.tracing import module

X = torch.linspace(-1, 1, 6).reshape(2, 3)


def guarded(self: Any, x: Tensor) -> Tensor:
    return self.layer(x) * 2 if x.shape[1] == 3 else x


def with_defaults(self: Any, x: Tensor, flag: bool = False, *, scale: int = 1, y: Tensor) -> Tensor:
    return x * scale + y if flag else x - y


def opaque(self: Any, x: Tensor) -> Tensor:
    with torch.no_grad():
        return self.layer(x)


MODELS: dict[str, tuple[Any, tuple[Any, ...], dict[str, Any]]] = {
    "layers": (lambda s, x: s.layer(x).relu(), (X,), {}),
    "guarded": (guarded, (X,), {}),
    "keywords": (with_defaults, (X,), {"y": X + 1}),
    "unsafe_names": (lambda s, input: input * 2, (X,), {}),  # noqa: A006
    "structure": (lambda s, d: d["a"] + d["b"][0], ({"a": X, "b": [X + 1]},), {}),
}


def captured(name: str) -> tuple[nn.Module, Any, tuple[Any, ...], dict[str, Any]]:
    forward, args, kwargs = MODELS[name]
    model = module(forward, layer=nn.Linear(3, 3))
    return model, capture(model, args, kwargs).program.root, args, kwargs


@pytest.mark.parametrize("name", MODELS)
def test_it_is_traced_through(name: str) -> None:
    model, root, args, kwargs = captured(name)
    again = symbolic_trace(root)
    assert type(again) is not type(root)
    assert [n.op for n in again.graph.nodes] == [n.op for n in root.graph.nodes]
    assert torch.equal(again(*args, **kwargs), model(*args, **kwargs))


def test_a_guard_stays_one() -> None:
    _, root, _, _ = captured("guarded")
    with pytest.raises(GuardMiss):
        symbolic_trace(root)(torch.ones(2, 4))


@pytest.mark.parametrize("flag", [False, True])
@pytest.mark.parametrize("shared", [False, True])
def test_inside_another_model_constants_and_aliases_decide(flag: bool, shared: bool) -> None:
    inner = capture(module(with_defaults), (X, True), {"y": X + 1}).program.root
    outer = module(lambda s, x: s.inner(x, flag, y=x if shared else x * 2), inner=inner)
    assert torch.equal(symbolic_trace(outer)(X), outer(X))


def test_an_opaque_root_is_traced_as_its_own_code_is() -> None:
    model = module(opaque, layer=nn.Linear(3, 3))
    root = capture(model, (X,)).program.root
    assert torch.equal(symbolic_trace(root)(X), model(X))


def test_any_number_of_arguments_is_an_error_that_says_so() -> None:
    root = capture(module(lambda s, *xs: sum(xs)), (X, X + 1)).program.root
    with pytest.raises(ResultError, match="any number of arguments"):
        symbolic_trace(root)


@pytest.mark.parametrize("name", ["layers", "guarded"])
def test_other_tools_of_torch(name: str) -> None:
    model, root, args, _ = captured(name)
    expected = root(*args)
    assert torch.equal(expected, model(*args))
    assert torch.equal(Interpreter(root).run(*args), expected)
    ShapeProp(root).propagate(*args)
    assert torch.equal(GraphModule(root, root.graph)(*args), expected)
    assert torch.equal(torch.export.export(root, args).module()(*args), expected)
    compiled = torch.compile(root, backend="eager", fullgraph=True)
    assert torch.equal(compiled(*args), expected)
    torch._dynamo.reset()


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
def test_torchscript_is_traced_and_not_scripted() -> None:
    model, root, args, _ = captured("layers")
    assert torch.equal(torch.jit.trace(root, args)(*args), model(*args))
    with pytest.raises(ResultError, match=r"torch\.jit\.trace"):
        torch.jit.script(root)


def test_a_result_that_is_captured_again_takes_other_spellings() -> None:
    model, root, args, kwargs = captured("keywords")
    again = capture(root, args, kwargs).program.root
    assert torch.equal(again(*args, **kwargs), model(*args, **kwargs))
    assert torch.equal(again(x=args[0], flag=False, **kwargs), model(*args, **kwargs))
    assert calls_of(again)["graph"] == 2

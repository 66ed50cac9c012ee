"""Each argument of each public verb, given something of another kind."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.fx import GraphModule, symbolic_trace

import fxpasses
from fxpasses.errors import (
    ArgumentError,
    CaptureError,
    FxPassesError,
    PipelineError,
    RegistryError,
    ResultError,
)

X = torch.ones(1, 3, 8, 8)
OTHERS: tuple[Any, ...] = (3, 1.5, "nonsense", [object()], torch.ones(2), object(), int, print)


def model() -> nn.Module:
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4)).eval()


def graph() -> GraphModule:
    return symbolic_trace(model())


class Nameless(fxpasses.GraphPass):
    """Says nothing of itself."""

    def steps(self, module: Any, facts: Any) -> Any:
        return iter(())


RIGHT: dict[str, dict[str, Any]] = {
    "run": {
        "passes": "dce",
        "example_inputs": (X,),
        "example_kwargs": {},
        "target": None,
        "training": False,
        "verify": False,
        "on_failure": "skip",
        "copy": False,
        "fallback": True,
        "registry": None,
        "guard_weights": True,
        "skip": (),
        "only": None,
        "stop_after": None,
    },
    "capture": {
        "args": (X,),
        "kwargs": {},
        "sizes": "kinds",
        "leaf_functions": (),
        "training": False,
    },
    "verify": {"example_inputs": (X,), "example_kwargs": {}, "training": False},
    "report": {"details": False},
    "foreign": {"name": None, "numerics": fxpasses.Numerics.EXACT},
    "register": {"name": "other", "numerics": fxpasses.Numerics.EXACT},
    "apply": {"training": False, "keep_regions": False, "target": None},
    "PassManager": {
        "training": False,
        "keep_regions": False,
        "target": None,
        "on_failure": "skip",
        "node_budget": None,
    },
}
RIGHT["plan"] = {
    name: RIGHT["run"][name]
    for name in (
        *("passes", "example_inputs", "example_kwargs", "target"),
        *("training", "registry", "skip", "only"),
    )
}

# What an argument takes of the values that are wrong elsewhere.
TAKEN: dict[str, tuple[Any, ...]] = {
    "passes": (print,),
    "stop_after": (3,),
    "node_budget": (3,),
    "name": ("nonsense",),
}
# Anything may be an argument of the model.
UNCHECKED_LISTS = ("example_inputs", "args")


def lend(module: GraphModule) -> None:
    """A function that is a pass."""


CALLS: dict[str, Callable[..., Any]] = {
    "run": lambda **kw: fxpasses.run(model(), **kw),
    "plan": lambda **kw: fxpasses.plan(model(), **kw),
    "capture": lambda **kw: fxpasses.capture(model(), **kw),
    "verify": lambda **kw: fxpasses.verify(model(), graph(), **kw),
    "report": lambda **kw: fxpasses.report(fxpasses.run(model(), [], verify=False), **kw),
    "foreign": lambda **kw: fxpasses.foreign(lend, **kw),
    "register": lambda **kw: fxpasses.Registry().register(lend, **kw),
    "apply": lambda **kw: fxpasses.apply(dce(), graph(), **kw),
    "PassManager": lambda **kw: fxpasses.PassManager(fxpasses.registry.resolve("dce"), **kw),
}


def dce() -> Any:
    return fxpasses.registry.get("dce")()


def is_taken(argument: str, value: Any) -> bool:
    if argument in UNCHECKED_LISTS and isinstance(value, (list, Tensor)):
        return True
    return any(value is taken for taken in TAKEN.get(argument, ()))


@pytest.mark.parametrize(
    ("verb", "argument"), [(verb, name) for verb, names in RIGHT.items() for name in names]
)
def test_each_argument_of_another_kind_is_a_typed_error(verb: str, argument: str) -> None:
    for value in OTHERS:
        if is_taken(argument, value):
            continue
        with pytest.raises(FxPassesError) as caught:
            CALLS[verb](**{**RIGHT[verb], argument: value})
        assert isinstance(caught.value, ArgumentError | PipelineError)
        assert argument in str(caught.value)


@pytest.mark.parametrize("thing", [None, *OTHERS])
@pytest.mark.parametrize(
    ("call", "kind"),
    [
        (lambda thing: fxpasses.run(thing, "dce"), CaptureError),
        (lambda thing: fxpasses.plan(thing, "dce"), CaptureError),
        (fxpasses.capture, CaptureError),
        (fxpasses.report, ResultError),
        (fxpasses.release, ResultError),
        (lambda thing: fxpasses.verify(thing, model(), (X,)), ArgumentError),
        (lambda thing: fxpasses.verify(model(), thing, (X,)), ArgumentError),
        (lambda thing: fxpasses.apply(thing, graph()), ArgumentError),
        (lambda thing: fxpasses.apply(dce(), thing), ArgumentError),
        (fxpasses.PassManager, ArgumentError),
        (fxpasses.Registry().to_text, ArgumentError),
    ],
)
def test_what_a_verb_works_on_has_to_be_that(thing: Any, call: Any, kind: type) -> None:
    with pytest.raises(kind):
        call(thing)


@pytest.mark.parametrize("thing", [None, 3, "dce", torch.ones(2), int])
def test_only_functions_and_pass_classes_are_registered(thing: Any) -> None:
    registry = fxpasses.registry.child()
    before = registry.names()
    if thing is not None:  # stands for the form with parentheses
        with pytest.raises(ArgumentError, match="is no pass"):
            registry.register(thing)
    with pytest.raises(ArgumentError, match="is no pass"):
        fxpasses.foreign(thing)
    assert registry.names() == before


def test_a_pass_class_that_says_nothing_of_itself_is_not_registered() -> None:
    with pytest.raises(RegistryError, match="Nameless does not declare its name and numerics"):
        fxpasses.registry.child().register(Nameless)


@pytest.mark.parametrize("thing", [3, torch.ones(2), None, ["x"]])
def test_what_a_registry_is_asked(thing: Any) -> None:
    registry = fxpasses.registry.child()
    for call in (registry.load, lambda one: registry.declare(one, "pure")):
        with pytest.raises(ArgumentError):
            call(thing)
    with pytest.raises(ArgumentError, match="effect"):
        registry.declare("mylib::op", thing)


@pytest.mark.parametrize("argument", ["skip", "only"])
@pytest.mark.parametrize("verb", [fxpasses.run, fxpasses.plan])
def test_an_id_that_nothing_has_names_the_nearest(verb: Any, argument: str) -> None:
    ids = [
        rewrite.id
        for one in fxpasses.plan(model(), "fuse_conv_bn", (X,)).record.passes
        for rewrite in one.rewrites
    ]
    assert ids
    wrong = f"{ids[0]}x"
    with pytest.raises(ArgumentError, match=f"{argument}: .*did you mean {ids[0]}"):
        verb(model(), "fuse_conv_bn", (X,), **{argument: [wrong]})
    verb(model(), "fuse_conv_bn", (X,), **{argument: ids})


@pytest.mark.parametrize("options", ["largest_bytes=-1", "largest_bytes=true", "largest_bytes=1.5"])
def test_options_out_of_range(options: str) -> None:
    with pytest.raises(PipelineError, match="largest_bytes"):
        fxpasses.run(model(), f"constant_fold{{{options}}}", (X,))


def nested(levels: int) -> list[Any]:
    made: list[Any] = ["dce"]
    for _ in range(levels):
        made = [made]
    return made


def endless() -> list[Any]:
    made: list[Any] = []
    made.append(made)
    return made


@pytest.mark.parametrize(
    "passes",
    [
        "(" * 2000 + "dce" + ")*1" * 2000,
        "constant_fold{largest_bytes=" + "[" * 2000 + "]" * 2000 + "}",
        nested(2000),
        endless(),
        [{"constant_fold": {"largest_bytes": nested(2000)}}],
    ],
    ids=["groups", "values", "lists", "endless", "options"],
)
def test_pipelines_without_an_end(passes: Any) -> None:
    with pytest.raises(PipelineError, match="nested deeper than 50 levels"):
        fxpasses.run(model(), passes, (X,))


@pytest.mark.parametrize("name", ["einops.*", "torch.nn.functional.sofmax", "softmax", "no.such"])
def test_leaf_functions_that_are_not_there(name: str) -> None:
    with pytest.raises(ArgumentError, match="leaf_functions"):
        fxpasses.capture(model(), (X,), leaf_functions=name if name == "einops.*" else [name])


def test_what_is_not_on_this_machine_can_be_planned_for() -> None:
    assert fxpasses.plan(model(), "dce", (X,), target="cuda").record.target == "cuda"

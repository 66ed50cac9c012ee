"""A pass without one of its conditions, and whether a rewrite that it forbids goes wrong."""

from collections.abc import Callable
from typing import Any

from fxpasses.capture import capture, fork
from fxpasses.core import Condition, GraphPass, Group, Program
from fxpasses.manager import PassManager, PassRun
from fxpasses.registry import Registry
from fxpasses.testing.behaviour import (
    behaviour_of,
    difference_between,
    vanishing_gradients,
)
from fxpasses.testing.model import Model, ModelLike, as_model
from fxpasses.verify.runner import run_program


def forced(graph_pass: GraphPass, *conditions: Condition[Any]) -> GraphPass:
    """The pass without some of its conditions, and without all that are about cost alone.

    Without `conditions` none is left.
    """
    kind = type(graph_pass)
    legal = graph_pass.legal_if
    left = tuple(one for one in legal if one not in conditions) if conditions else ()
    made = type(kind.__name__, (kind,), {"legal_if": left, "worthwhile_if": ()})
    return made(**graph_pass.options())


def goes_wrong(graph_pass: GraphPass, model: ModelLike) -> str | None:
    """How the pass breaks a model, in words; None where it does not.

    It raises, or outputs, arguments, buffers, random numbers or, in training, gradients come out
    in another way. The graphs are run as they are: nothing checks whether they hold for the call.
    """
    tried = as_model(model, "model")
    original, copied = tried.own(), tried.own()
    tried.then(original.module)
    training = tried.is_for_training
    wanted = behaviour_of(original.module, original.module, tried, gradients=training)
    try:
        program = optimised(graph_pass, copied)[0]
        tried.then(program.root)
        got = behaviour_of(caller(program), program.root, tried, gradients=training)
    except Exception as error:  # whatever it raises, the pass has broken the model
        return f"it raises {type(error).__name__}: {error}"
    unchanged = tried.own().module
    return difference_between(
        got, wanted, graph_pass.numerics, lambda: vanishing_gradients(unchanged, tried)
    )


def optimised(graph_pass: GraphPass, model: Model) -> tuple[Program, PassRun]:
    """The captured model after the pass, not verified, and what the pass did."""
    args, kwargs = model.arguments()
    captured = capture(model.module, args, kwargs, training=model.is_for_training)
    program = fork(captured.program)
    manager = PassManager(
        Group((graph_pass,)),
        training=model.is_for_training,
        effects=Registry.default().effects,
    )
    (run,) = manager.run(program)
    return program, run


def caller(program: Program) -> Callable[..., Any]:
    """Calls the graphs of a program themselves."""
    return lambda *args, **kwargs: run_program(program, args, kwargs)

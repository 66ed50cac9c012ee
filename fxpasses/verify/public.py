"""Compare any two modules, without knowing how the one was made of the other."""

from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor, nn
from torch.fx import GraphModule  # noqa: TC002  read where annotations are

from fxpasses.capture.result.entry import Forward
from fxpasses.capture.result.module import CapturedModule, entry_of
from fxpasses.core import Program
from fxpasses.core.given import as_call, flag, instance
from fxpasses.core.randomness import own_draws
from fxpasses.core.record import VerificationRecord
from fxpasses.core.surroundings import surroundings_kept
from fxpasses.errors import ArgumentError
from fxpasses.verify.findings import Findings
from fxpasses.verify.probes import example_probe
from fxpasses.verify.question import Question
from fxpasses.verify.stages import Verification
from fxpasses.verify.verdict import Verdict

_A_MODULE = "a torch.nn.Module"


def verify(
    original: nn.Module,
    optimised: nn.Module,
    example_inputs: Sequence[Any] | Tensor,
    example_kwargs: Mapping[str, Any] | None = None,
    *,
    training: bool = False,
) -> Verdict:
    """Whether `optimised` computes what `original` computes. Never raises on a mismatch.

    Both are run on the example and on further probes, in float64 and in their own dtype; neither
    is changed. Weights that were computed ahead of time are rounded, and here nobody knows from
    what: the bound in float64 leaves room for that.

    Raises:
        ArgumentError: an argument is of another kind than these.
        VerificationError: `original` itself raises on the example; what it raises is the cause.
    """
    call = as_call(example_inputs, example_kwargs)
    if call is None:
        raise ArgumentError("verify has no example: pass example_inputs=(...) of one call")
    findings = Findings(VerificationRecord(level="whole"))
    question = Question(
        _as_program(instance(original, "original", nn.Module, _A_MODULE)),
        _as_program(instance(optimised, "optimised", nn.Module, _A_MODULE)),
        [],
        example_probe(*call),
        training=flag(training, "training"),
        rounded_weights=True,
    )
    with surroundings_kept(), own_draws():
        return Verification(question, findings).verdict()


def _as_program(module: nn.Module) -> Program:
    """The graphs are run themselves: what an entry check lets run otherwise is not compared."""
    graphs: dict[str, GraphModule] = {}
    for path, inner in module.named_modules():
        stand_in = vars(inner).get("forward")
        graph = stand_in.serve if isinstance(stand_in, Forward) else inner
        if isinstance(graph, CapturedModule) and entry_of(graph).pattern is not None:
            graphs[path] = graph
    return Program(module, dict(reversed(graphs.items())))

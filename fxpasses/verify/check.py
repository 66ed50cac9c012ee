"""Verify an optimised program: every rewrite at its site, then the whole."""

from collections.abc import Mapping, Sequence
from typing import Any, Literal, Protocol, TypeAlias

from fxpasses.capture.inside import overrides_functions
from fxpasses.core import Numerics, Program
from fxpasses.core.randomness import own_draws
from fxpasses.core.record import VerificationRecord
from fxpasses.verify.findings import Findings
from fxpasses.verify.probes import example_probe
from fxpasses.verify.runs import Run, named_tensors
from fxpasses.verify.sites import PassRun
from fxpasses.verify.stages import Question, Verification
from fxpasses.verify.structures import tensors_of
from fxpasses.verify.verdict import Verdict

Level: TypeAlias = Literal["sites", "each", "full"]


class Arguments(Protocol):
    """How a model is called."""

    @property
    def args(self) -> tuple[Any, ...]: ...
    @property
    def kwargs(self) -> Mapping[str, Any]: ...


class Reference(Protocol):
    """What the model itself made of the example."""

    @property
    def outputs(self) -> Any: ...


def check(
    original: Program,
    optimised: Program,
    runs: Sequence[PassRun],
    arguments: Arguments | None,
    reference: Reference | None,
    *,
    level: Level = "sites",
    training: bool = False,
) -> Verdict:
    """Whether `optimised` computes what `original` does, and if not, which rewrite is to blame.

    Neither program, nor any random state, is changed. Where a pass gives the model another
    meaning by request, only what came before it is compared: check the pieces of such a pipeline
    one by one (`pieces`).

    Args:
        original: the program as it was captured.
        optimised: a fork of it that passes have changed.
        runs: the passes in order, with the regions that they kept.
        arguments: of the example call; without them nothing can be run.
        reference: the model's own run of the example, if there is one: it is not run again.
        level: "sites" and "each" check every site and the whole once; "full" tries more probes.
        training: whether the result is to be trained: gradients are compared as well.
    """
    findings = Findings(VerificationRecord(level=level))
    if arguments is None:
        findings.note("no example inputs were given, so nothing could be run")
        return Verdict(True, findings.record)
    if kind := _unlike_tensors((arguments.args, dict(arguments.kwargs))):
        findings.note(
            f"not comparable: the example holds a {kind.__name__}, which does something of its own "
            "where torch's functions are called"
        )
        return Verdict(True, findings.record)
    probe = example_probe(tuple(arguments.args), dict(arguments.kwargs))
    given = None if reference is None else Run(reference.outputs)
    question = Question(
        original,
        optimised,
        runs,
        probe,
        given,
        training=training,
        rounded_weights=_brings_weights(original, optimised, runs),
    )
    with own_draws():
        return Verification(question, findings).verdict()


def _unlike_tensors(values: Any) -> type | None:
    """The class of a tensor that takes no part in runs in float64 as tensors do."""
    kinds = (type(tensor) for tensor in tensors_of(values))
    return next((kind for kind in kinds if overrides_functions(kind)), None)


def _brings_weights(original: Program, optimised: Program, runs: Sequence[PassRun]) -> bool:
    """Whether a foreign pass made weights by formulas that nobody knows, so rounded them."""
    if not any(run.foreign and run.record.status == "changed" for run in runs):
        return False
    known = {id(tensor) for tensor in named_tensors(original).values()}
    return any(
        tensor.is_floating_point() and id(tensor) not in known and not optimised.folds.find(tensor)
        for tensor in named_tensors(optimised).values()
    )


def pieces(runs: Sequence[PassRun]) -> list[list[PassRun]]:
    """Cut a pipeline before and after each pass that changes the meaning by request.

    Each piece is verified against the program as it stood when the piece began; such a pass is a
    piece of its own.
    """
    cut: list[list[PassRun]] = [[]]
    for run in runs:
        alone = run.numerics is Numerics.MEANING
        if alone and cut[-1]:
            cut.append([])
        cut[-1].append(run)
        if alone:
            cut.append([])
    return [piece for piece in cut if piece]

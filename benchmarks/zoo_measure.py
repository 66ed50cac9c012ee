"""What one model of the zoo is measured by: capture, passes, and equality with the original."""

import contextlib
import copy
import dataclasses
import math
import traceback
import warnings
from pathlib import Path
from typing import Any, Final

import torch
from torch import Tensor, nn
from torch.fx import GraphModule, symbolic_trace
from torch.fx.experimental.optimization import fuse
from torch.nn.modules.batchnorm import _BatchNorm

import fxpasses
from benchmarks.attentions import attentions_in
from benchmarks.models import calibrated, randomised
from benchmarks.zoo_models import Call, Entry
from fxpasses.core import Record
from fxpasses.core.record import CheckRecord

PIPELINE: Final = "inference"
_BATCH: Final = 2
_OTHER_BATCH: Final = 1


@dataclasses.dataclass
class Outcome:
    """One row of the table, as plain data. Shares are from 0 to 1, times in seconds."""

    key: str
    note: str = ""
    example: str = ""
    problem: str = ""
    """What ended the measurement early; what came before it is kept."""
    traced: bool | None = None
    """Whether `torch.fx.symbolic_trace` takes the model."""
    calls: float | None = None
    flops: float | None = None
    warm_calls: float | None = None
    warm_flops: float | None = None
    """After a call, which may fill caches; None where all is in graphs from the start."""
    opaque: list[dict[str, Any]] = dataclasses.field(default_factory=list[dict[str, Any]])
    notes: list[str] = dataclasses.field(default_factory=list[str])
    norms: int = 0
    folded: int = 0
    folded_by_torch: int | None = None
    """By torch's `fuse`; None where it fails."""
    attentions: int = 0
    """Written out, as a softmax between two products."""
    attentions_fused: int = 0
    attentions_ready: int = 0
    """One call in the model itself."""
    nodes_before: int = 0
    nodes_after: int = 0
    guards: int = 0
    prepared: float = 0.0
    """Capture and passes."""
    verify: bool = False
    """Whether verification was asked for."""
    verified: bool | None = None
    rule: str = ""
    """The comparison that came nearest to its bound."""
    error: float | None = None
    bound: float | None = None
    verification: float = 0.0
    other_batch: str = ""
    """`graph` or `own code`: what ran the other batch size."""
    difference: float | None = None
    """Relative L2 of the outputs at the other batch size."""


def measure(entry: Entry, *, verify: bool) -> Outcome:
    """Build the model and measure it; a failure is part of the outcome."""
    outcome = Outcome(entry.key, entry.note, verify=verify)
    try:
        _Measurement(entry, outcome).run()
    except Exception as error:  # whatever a model or a pass raises is what the sweep looks for
        frames = traceback.extract_tb(error.__traceback__)
        where = f"{Path(frames[-1].filename).name}:{frames[-1].lineno}"
        outcome.problem = f"{type(error).__name__}: {error} (raised in {where})"
    return outcome


class _Measurement:
    def __init__(self, entry: Entry, outcome: Outcome) -> None:
        self._outcome = outcome
        self._example, self._other = entry.call(_BATCH, 1), entry.call(_OTHER_BATCH, 2)
        # A model that has never been run: what it caches at its first call is not there yet.
        self._model = randomised(entry.build())
        if outcome.verify:
            calibrated(self._model, *entry.call(_BATCH, 7)[0])
        outcome.example = described(self._example)
        outcome.norms = _norms(self._model)

    def run(self) -> None:
        result = self._optimise(verify=self._outcome.verify)
        self._look_into_graphs()
        if self._outcome.verify:
            self._compare(result)
        self._warm()
        self._stock()

    def _optimise(self, *, verify: bool) -> nn.Module:
        outcome = self._outcome
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", fxpasses.errors.FxPassesWarning)
            result = fxpasses.run(self._model, PIPELINE, *self._example, verify=verify)
        record = fxpasses.report(result).record
        captured = record.capture
        outcome.opaque = [dataclasses.asdict(leaf) for leaf in captured.opaque]
        outcome.calls, outcome.flops = captured.calls_covered, captured.flops_covered
        outcome.guards = captured.guards
        outcome.nodes_before, outcome.nodes_after = record.nodes_before, record.nodes_after
        folds = [one for one in record.passes if one.name == "fuse_conv_bn"]
        outcome.folded = sum(len(one.rewrites) for one in folds)
        outcome.prepared = record.seconds["capture"] + record.seconds["passes"]
        outcome.notes = [*map(str, captured.notes), *record.notes, *record.verification.notes]
        if verify:
            self._note_verification(record)
        return result

    def _look_into_graphs(self) -> None:
        outcome = self._outcome
        captured = fxpasses.capture(self._model, *self._example)
        if outcome.calls is None:
            # An unverified run does not make the forward that measures coverage.
            outcome.calls, outcome.flops = _coverage(captured)
        found = attentions_in(captured.program)
        outcome.attentions, outcome.attentions_fused = found.written, found.fused
        outcome.attentions_ready = found.ready

    def _note_verification(self, record: Record) -> None:
        outcome, verification = self._outcome, record.verification
        outcome.verified = verification.ok
        outcome.verification = record.seconds.get("verify", 0.0)
        measured = [check for check in verification.checks if check.error and check.bound]
        if measured:
            worst = max(measured, key=_tightness)
            outcome.rule, outcome.error, outcome.bound = worst.name, worst.error, worst.bound

    def _compare(self, result: nn.Module) -> None:
        """At another batch size than the example's."""
        args, kwargs = self._other
        with torch.no_grad():
            expected = self._model(*copy.deepcopy(args), **copy.deepcopy(kwargs))
            found = result(*copy.deepcopy(args), **copy.deepcopy(kwargs))
        calls: Any = fxpasses.report(result).calls
        self._outcome.other_batch = "graph" if calls["graph"] else "own code"
        self._outcome.difference = difference(found, expected)

    def _warm(self) -> None:
        """The first call fills caches."""
        if self._outcome.opaque:
            args, kwargs = self._example
            with torch.no_grad():
                self._model(*copy.deepcopy(args), **copy.deepcopy(kwargs))
            captured = fxpasses.capture(self._model, *self._example)
            self._outcome.warm_calls, self._outcome.warm_flops = _coverage(captured)

    def _stock(self) -> None:
        """Last, since torch leaves things on the models that it traces."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                traced = symbolic_trace(self._model)
            except Exception:
                self._outcome.traced = False
                return
            self._outcome.traced = True
            with contextlib.suppress(Exception):  # whatever torch's own pass raises on the model
                left = _norms_called(fuse(self._model))
                self._outcome.folded_by_torch = _norms_called(traced) - left


def _coverage(captured: fxpasses.Capture) -> tuple[float | None, float | None]:
    covered = captured.coverage()
    return (None, None) if covered is None else (covered.calls, covered.flops)


def _norms(model: nn.Module) -> int:
    """Batch norms, those that torchvision has frozen included."""
    return sum(
        isinstance(module, _BatchNorm) or type(module).__name__ == "FrozenBatchNorm2d"
        for module in model.modules()
    )


def _norms_called(module: GraphModule) -> int:
    """The nodes that are batch norms, in either spelling."""
    return sum(
        node.target is nn.functional.batch_norm
        or (node.op == "call_module" and isinstance(module.get_submodule(node.target), _BatchNorm))
        for node in module.graph.nodes
    )


def _tightness(check: CheckRecord) -> float:
    return (check.error or 0.0) / (check.bound or math.inf)


def described(call: Call) -> str:
    """The shapes of a call, such as `2x3x224x224` or `2 of 3x256x320`."""
    args, kwargs = call
    return ", ".join(_shape(value) for value in (*args, *kwargs.values()))


def _shape(value: Any) -> str:
    if isinstance(value, Tensor):
        return "x".join(map(str, value.shape))
    if isinstance(value, list):
        return f"{len(value)} of {_shape(value[0])}"
    return str(value)


def difference(found: Any, expected: Any) -> float:
    """The largest relative L2 difference of any tensor; infinite where structure or shape differ.

    What is no number has to be so in both, and is left out then.
    """
    ours, theirs = leaves(found), leaves(expected)
    if [leaf.shape for leaf in ours] != [leaf.shape for leaf in theirs]:
        return math.inf
    return max((_relative(*pair) for pair in zip(ours, theirs, strict=True)), default=0.0)


def _relative(found: Tensor, expected: Tensor) -> float:
    ours, theirs = plain(found), plain(expected)
    finite = theirs.isfinite()
    if not torch.equal(ours.isfinite(), finite):
        return math.inf
    ours, theirs = ours[finite], theirs[finite]
    distance, scale = float((ours - theirs).norm()), float(theirs.norm())
    return distance / scale if scale else distance


def plain(value: Tensor) -> Tensor:
    """`value` in float64, out of its quantised form."""
    return (value.dequantize() if value.is_quantized else value).detach().double()


def leaves(value: Any) -> list[Tensor]:
    """The tensors of an output, in order; objects that are no containers are not looked into."""
    if isinstance(value, Tensor):
        return [value]
    if isinstance(value, dict):
        return [leaf for item in value.values() for leaf in leaves(item)]
    if isinstance(value, list | tuple):
        return [leaf for item in value for leaf in leaves(item)]
    return []

"""Compare whole runs: form, effects, meaning in float64, precision in the model's own dtype."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_flatten_with_path, tree_leaves, tree_structure

from fxpasses.core.given import an
from fxpasses.verify.compare import Difference, bit_equal, differences, worst
from fxpasses.verify.findings import Findings, where
from fxpasses.verify.probes import Probe
from fxpasses.verify.runs import OUTPUTS, Run
from fxpasses.verify.state import flattens
from fxpasses.verify.trail import Event, Key

MEANING = 16
"""How many times the noise that float64 is expected to make two float64 runs may differ."""

SMALLEST_BOUND = 1e-12


@dataclass(frozen=True, slots=True)
class Comparison:
    """How far a run is from the truth, by place, up to the first decision that differs."""

    found: dict[Key, Difference]
    stopped_at: Key | None = None


def distance(run: Run, truth: Run, *, rows: bool) -> Comparison:
    """Compare two trails, in order."""
    found: dict[Key, Difference] = {}
    for key, expected in truth.trail.events.items():
        event = run.trail.events.get(key)
        if event is None or event.values is None or expected.values is None:
            continue
        per_row = rows and all(_has_rows(v, expected.values) for v in expected.values)
        found[key] = worst(differences(event.values, expected.values, rows=per_row))
        if _decided_otherwise(event, expected):
            return Comparison(found, key)
    return Comparison(found)


def _has_rows(value: Any, together: Sequence[Any]) -> bool:
    first = together[0]
    return isinstance(value, Tensor) and value.dim() > 0 and value.shape[0] == first.shape[0]


def _decided_otherwise(event: Event, expected: Event) -> bool:
    if event.decision is None or expected.decision is None:
        return False
    pairs = zip(event.decision, expected.decision, strict=False)
    return any(_differs(new, old) for new, old in pairs)


def _differs(new: Any, old: Any) -> bool:
    if not isinstance(new, Tensor) or not isinstance(old, Tensor):
        return isinstance(old, bool | int) and bool(new != old)
    if new.shape != old.shape:
        return True
    if old.is_floating_point():
        apart = (new.double() - old.double()).abs()
        return bool((apart >= 0.5).any())
    return not torch.equal(new, old)


def check_form(
    findings: Findings, result: Run, original: Run, probe: Probe, *, dtypes: bool = True
) -> bool:
    """Structure, types, dtypes (if asked), devices, and what could be viewed."""
    words = ("dtype", "device", "layout") if dtypes else ("device", "layout")
    mismatch = next(_form_differences(result.outputs, original.outputs, words), None)
    return findings.add("structure", probe.name, where="outputs", message=mismatch or "")


def _form_differences(new: Any, old: Any, words: Sequence[str]) -> Iterator[str]:
    new_leaves, new_spec = tree_flatten_with_path(new)
    old_leaves, old_spec = tree_flatten_with_path(old)
    if _class(new) is not _class(old) or new_spec != old_spec:
        yield f"the outputs are structured as {new_spec}, not {old_spec}"
        return
    for (path, a), (_, b) in zip(new_leaves, old_leaves, strict=True):
        place = "".join(str(key) for key in path)
        for mismatch in _leaf_form(a, b, words):
            yield f"output{place}: {mismatch}"


def _class(value: Any) -> type:
    """Parameters, and classes of tensors that do nothing of their own, count as tensors.

    A run may put a stand-in in the place of the one, and loses the other on the way.
    """
    return Tensor if isinstance(value, Tensor) else type(value)


def _leaf_form(new: Any, old: Any, words: Sequence[str]) -> Iterator[str]:
    if _class(new) is not _class(old):
        yield f"{an(type(new))}, not {an(type(old))}"
        return
    if not isinstance(old, Tensor):
        return
    for word in words:
        a, b = getattr(new, word), getattr(old, word)
        if a != b:
            yield f"the {word} is {a}, not {b}"
    if new.shape != old.shape:
        yield f"the shape is {tuple(new.shape)}, not {tuple(old.shape)}"
    elif old.layout is torch.strided:
        lost = any(b and not a for a, b in zip(flattens(new), flattens(old), strict=True))
        if lost:
            yield f"strides {new.stride()} cannot be viewed as strides {old.stride()} could"


def check_effects(findings: Findings, result: Run, original: Run, probe: Probe) -> None:
    """What a call does besides returning values: random numbers, written state, shared memory."""
    drawn = ""
    if result.random and original.random and not result.random.same_torch(original.random):
        drawn = "draws other random numbers than the original"
    findings.add("state", probe.name, where="random numbers", message=drawn)
    findings.add("state", probe.name, where="buffers", message=_written_otherwise(result, original))
    message = _arguments_written_otherwise(result, original, probe)
    findings.add("state", probe.name, where="arguments", message=message)
    shared = result.shared - original.shared
    messages = [
        f"output {i} shares memory with {kind} {j}, which the original's does not"
        for kind, i, j in sorted(shared)
    ]
    findings.add("aliasing", probe.name, where="outputs", message="; ".join(messages))


def _written_otherwise(result: Run, original: Run) -> str:
    missing = original.written.keys() - result.written.keys()
    more = result.written.keys() - original.written.keys()
    if missing:
        return f"no longer writes {', '.join(sorted(missing))}"
    return f"writes {', '.join(sorted(more))}, which the original does not" if more else ""


def _arguments_written_otherwise(result: Run, original: Run, probe: Probe) -> str:
    given = tree_leaves((probe.args, dict(probe.kwargs)))
    if tree_structure(result.arguments) != tree_structure(original.arguments):
        return "changes the structure of an argument in another way"
    leaves = (given, tree_leaves(result.arguments), tree_leaves(original.arguments))
    if len(given) != len(leaves[1]):  # Both change it: `check_written` compares the values.
        return ""
    for number, (before, new, old) in enumerate(zip(*leaves, strict=True)):
        if not isinstance(before, Tensor):
            continue
        untouched = not bit_equal(old, before).error
        if untouched and bit_equal(new, before).error:
            return f"writes argument {number}, which the original does not"
        if not untouched and not bit_equal(new, before).error:
            return f"no longer writes argument {number}"
    return ""


def meaning_bound(own_error: float, own: torch.dtype) -> float:
    """What two float64 runs may differ by, given the original's error in its own dtype.

    Rounding scales with the unit in the last place, so the one predicts the other.
    """
    finer = torch.finfo(torch.float64).eps / torch.finfo(own).eps
    return max(SMALLEST_BOUND, MEANING * own_error * finer)


def check_written(
    findings: Findings, result: Run, original: Run, probe: Probe, bound: float
) -> None:
    """In float64: what the runs left in arguments and buffers."""
    found = worst(differences(result.arguments, original.arguments))
    findings.judge("state", probe.name, ("arguments",), found, bound, "relative error")
    for name in sorted(original.written.keys() & result.written.keys()):
        found = worst(differences(result.written[name], original.written[name]))
        findings.judge("state", probe.name, (name,), found, bound, "relative error")


def note_stop(findings: Findings, comparison: Comparison) -> None:
    """Say in the report how far values could be compared."""
    if comparison.stopped_at is not None:
        findings.note(
            f"values are compared up to {where(comparison.stopped_at)}, where rounding decides"
        )


def outputs_error(comparison: Comparison) -> float | None:
    """The error at the outputs, if they could be compared."""
    found = comparison.found.get(OUTPUTS)
    return None if found is None or found.in_kind else found.error

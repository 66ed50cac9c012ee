"""The table of a sweep, and how far each family is from what it must reach."""

import math
import statistics
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import torch

from benchmarks.zoo_measure import Outcome

_HEADER: Final = (
    "model",
    "example",
    "stock trace",
    "calls",
    "FLOPs",
    "warm FLOPs",
    "opaque",
    "norms folded",
    "attentions fused",
    "nodes",
    "guards",
    "verified (nearest to its bound)",
    "other batch size",
    "prepared",
)
_CLOSE: Final = 1e-3
"""Relative L2 that outputs at another batch size may differ by; typically it is 1e-6."""


@dataclass(frozen=True)
class Target:
    """A share that the models of some families must reach."""

    families: tuple[str, ...]
    what: str
    share: Callable[[Outcome], float | None]
    least: float
    of: Callable[[Iterable[float]], float] = min


def warm(outcome: Outcome) -> float | None:
    """The share of FLOPs in graphs once the model has been run."""
    return outcome.flops if outcome.warm_flops is None else outcome.warm_flops


def cacheless(outcome: Outcome) -> float | None:
    return None if outcome.key.endswith("cache") else outcome.flops


TARGETS: Final = (
    Target(("classification", "segmentation"), "calls, each", lambda o: o.calls, 1.0),
    Target(("detection", "video", "flow"), "FLOPs, each", lambda o: o.flops, 0.97),
    Target(("timm",), "FLOPs, median", lambda o: o.flops, 1.0, statistics.median),
    Target(("timm",), "FLOPs, each", lambda o: o.flops, 0.6),
    Target(("timm",), "FLOPs when warm, each", warm, 0.97),
    Target(("transformers",), "FLOPs without a cache, each", cacheless, 0.95),
)


def family_of(outcome: Outcome) -> str:
    return outcome.key.partition("/")[0]


def as_markdown(outcomes: Sequence[Outcome]) -> str:
    """The whole page."""
    return "\n".join(_lines(outcomes)) + "\n"


def _lines(outcomes: Sequence[Outcome]) -> Iterator[str]:
    verified = sum(outcome.verified is True for outcome in outcomes)
    yield from ("# The zoo", "")
    yield f"torch {torch.__version__}, random weights: {len(outcomes)} models, {verified} verified."
    yield "Seconds were taken beside other work: they tell the order of magnitude only."
    yield from ("", "## Targets", "")
    yield from _table(("models", "share", "found", "at least", "met", "below"), _targets(outcomes))
    yield from ("", "## Why modules are opaque", "")
    yield from _table(("kind", "reason", "modules", "models"), _reasons(outcomes))
    for family in dict.fromkeys(map(family_of, outcomes)):
        rows = [outcome for outcome in outcomes if family_of(outcome) == family]
        yield from ("", f"## {family}", "")
        yield from _table(_HEADER, map(_row, sorted(rows, key=lambda o: o.key)))
    yield from _problems(outcomes)


def _table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> Iterator[str]:
    yield f"| {' | '.join(header)} |"
    yield f"|{'---|' * len(header)}"
    for row in rows:
        yield f"| {' | '.join(cell.replace('|', '/') for cell in row)} |"


def _targets(outcomes: Sequence[Outcome]) -> Iterator[tuple[str, ...]]:
    for target in TARGETS:
        members = [outcome for outcome in outcomes if family_of(outcome) in target.families]
        shares = {o.key: share for o in members if (share := target.share(o)) is not None}
        if shares:
            found = target.of(shares.values())
            below = [key.partition("/")[2] for key, share in shares.items() if share < target.least]
            named = ", ".join(below) if target.of is min else str(len(below))
            met = "yes" if found >= target.least else "NO"
            names = f"{', '.join(target.families)} ({len(shares)})"
            yield (names, target.what, _percent(found), _percent(target.least), met, named)


def _reasons(outcomes: Sequence[Outcome]) -> Iterator[tuple[str, ...]]:
    modules: Counter[tuple[str, str]] = Counter()
    models: dict[tuple[str, str], dict[str, None]] = {}
    for outcome in outcomes:
        for leaf in outcome.opaque:
            why = (leaf["kind"], leaf["reason"])
            modules[why] += 1
            models.setdefault(why, {})[outcome.key] = None
    for why, count in modules.most_common():
        names = list(models[why])
        more = f" and {len(names) - 4} more" if len(names) > 4 else ""
        yield (*why, str(count), f"{', '.join(names[:4])}{more}")


def _row(outcome: Outcome) -> tuple[str, ...]:
    name = outcome.key.partition("/")[2]
    own = "" if outcome.folded_by_torch is None else f" (torch: {outcome.folded_by_torch})"
    return (
        f"{name}: {outcome.note}" if outcome.note else name,
        outcome.example,
        {True: "yes", False: "no", None: ""}[outcome.traced],
        _percent(outcome.calls),
        _percent(outcome.flops),
        _percent(outcome.warm_flops),
        _opaque(outcome.opaque),
        f"{outcome.folded} of {outcome.norms}{own}" if outcome.norms else "",
        _attentions(outcome),
        f"{outcome.nodes_before} → {outcome.nodes_after}",
        str(outcome.guards),
        _verified(outcome),
        _other_batch(outcome),
        f"{outcome.prepared:.2f} s",
    )


def _attentions(outcome: Outcome) -> str:
    written, ready = outcome.attentions, outcome.attentions_ready
    parts = [f"{outcome.attentions_fused} of {written}"] if written else []
    return ", ".join([*parts, f"{ready} one call already"] if ready else parts)


def _percent(share: float | None) -> str:
    """Rounded down: 100 % is said of nothing less."""
    return "" if share is None else f"{math.floor(share * 1000) / 10:g} %"


def _opaque(leaves: Sequence[dict[str, Any]]) -> str:
    groups = Counter((leaf["type"], leaf["kind"]) for leaf in leaves)
    return ", ".join(f"{count} {kind} ({why})" for (kind, why), count in groups.most_common())


def _verified(outcome: Outcome) -> str:
    if not outcome.verify:
        return "not run"
    if outcome.verified is None:
        return "not comparable"
    measured = outcome.error is not None and outcome.bound is not None
    worst = f": {outcome.rule} {outcome.error:.1e} ≤ {outcome.bound:.1e}" if measured else ""
    return f"{'yes' if outcome.verified else 'NO'}{worst}"


def _other_batch(outcome: Outcome) -> str:
    if outcome.difference is None:
        return ""
    equal = "equal" if outcome.difference <= _CLOSE else "DIFFERS"
    return f"{equal}, {outcome.other_batch} ({outcome.difference:.0e})"


def _problems(outcomes: Sequence[Outcome]) -> Iterator[str]:
    failed = [outcome for outcome in outcomes if outcome.problem]
    if failed:
        yield from ("", "## What ended early", "")
        for outcome in failed:
            yield f"- {outcome.key}: {outcome.problem.splitlines()[0][:300]}"

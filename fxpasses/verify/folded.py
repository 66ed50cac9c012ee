"""Tensors that passes computed ahead of time: each must be its formula, rounded once."""

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from fxpasses.core import Fold, Folds, Program
from fxpasses.verify.findings import Findings
from fxpasses.verify.regions import tensors_read
from fxpasses.verify.runs import named_tensors
from fxpasses.verify.sites import PassRun, Site, sites_of
from fxpasses.verify.verdict import Blame

ULPS = 0.5


def check_folded(
    findings: Findings,
    optimised: Program,
    sites: Sequence[Site],
    *,
    training: bool,
) -> list[Blame]:
    """Check every folded tensor that the program or a rewrite holds, one at a time."""
    blames: list[Blame] = []
    for name, tensor, fold in _held(optimised, sites):
        worst = ulps_off(tensor, optimised.folds)
        message = "" if worst <= ULPS else f"{worst:.2g} units in the last place off its formula"
        if training and any(source.requires_grad for source in fold.sources):
            message = message or "folded from a weight that needs a gradient"
        findings.add("fold", "weights", error=worst, bound=ULPS, where=name, message=message)
        if message:
            blames.extend(_blame(tensor, sites, f"the folded tensor {name}: {message}"))
    return blames


def _held(optimised: Program, sites: Sequence[Site]) -> Iterator[tuple[str, Tensor, Fold]]:
    seen: set[int] = set()
    tensors = [
        *named_tensors(optimised).items(),
        *((site.applied.id, tensor) for site in sites for tensor in tensors_read(site.region)),
    ]
    for name, tensor in tensors:
        fold = optimised.folds.find(tensor)
        memory = tensor.untyped_storage().data_ptr() if tensor.layout is torch.strided else 0
        if fold is not None and memory not in seen:
            seen.add(memory)
            yield name, tensor, fold


def _blame(tensor: Tensor, sites: Sequence[Site], message: str) -> Iterator[Blame]:
    """The last rewrite that reads the tensor made it, or its last form."""
    memory = tensor.untyped_storage().data_ptr()
    for site in reversed(sites):
        if any(t.untyped_storage().data_ptr() == memory for t in tensors_read(site.region)):
            site.fail(message, "weights")
            applied = site.applied
            yield Blame(applied.id, site.pass_name, applied.node, applied.source, message)
            return


def ulps_off(tensor: Tensor, folds: Folds) -> float:
    """By how many units in the last place of its dtype `tensor` misses its formula at most.

    0 where every element is its formula rounded to nearest.
    """
    exact = folds.exact(tensor)
    if tensor.shape != exact.shape:
        return float("inf")
    held = tensor.detach()
    rounded = exact.to(tensor.dtype)
    if torch.equal(held, rounded) or torch.equal(held.nan_to_num(), rounded.nan_to_num()):
        return 0.0
    return _largest(held, exact)


def _largest(held: Tensor, exact: Tensor) -> float:
    if not held.is_floating_point() or held.numel() == 0:
        return 0.0 if torch.equal(held, exact.to(held.dtype)) else float("inf")
    info = torch.finfo(held.dtype)
    _, exponents = torch.frexp(exact)
    unit = torch.ldexp(torch.full_like(exact, info.eps / 2), exponents)
    unit = unit.clamp(min=info.smallest_normal * info.eps)
    off = torch.where(torch.isfinite(exact), (held.double() - exact).abs() / unit, 0.0)
    return float(off.max())


def sites_by_id(runs: Sequence[PassRun], paths: Sequence[str]) -> dict[str, list[Site]]:
    """The sites of each rewrite."""
    found: dict[str, list[Site]] = {}
    for site in sites_of(runs, paths):
        found.setdefault(site.applied.id, []).append(site)
    return found

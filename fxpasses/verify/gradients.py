"""Gradients of original and result, in float64 on both sides.

In float32 they cannot be judged: one ReLU that changes side moves them a thousand times further
than rounding does.
"""

from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map_only

from fxpasses.core import Folds, Program, widened
from fxpasses.verify.compare import Difference
from fxpasses.verify.distance import misplaced
from fxpasses.verify.findings import Findings
from fxpasses.verify.float64 import float64
from fxpasses.verify.probes import Probe
from fxpasses.verify.runner import modules_of, run_program
from fxpasses.verify.runs import Runs, named_tensors
from fxpasses.verify.state import randomness_restored, untouched
from fxpasses.verify.unavailable import first_line

GRADIENT_BOUND = 1e-9
"""Relative L2 by which the gradient of one parameter may differ."""

FLOOR = 1e-12
"""Differences below this share of the whole gradient do not count: some gradients are zero but
for rounding, such as that of a bias before a batch norm."""

_STEP = 1e-3


@dataclass(eq=False)
class Side:
    """A program whose tensors are float64 stand-ins, known by the tensors that they stand for."""

    program: Program
    folds: Folds
    standins: dict[int, Tensor] = field(default_factory=dict[int, Tensor])
    kept: list[Tensor] = field(default_factory=list[Tensor])

    def standin(self, tensor: Tensor) -> Tensor:
        """A wide leaf, or for a folded tensor its formula of the leaves of its sources."""
        if id(tensor) not in self.standins:
            fold = self.folds.find(tensor)
            if fold is not None and tensor.is_floating_point():
                return fold.formula(*(self.standin(source) for source in fold.sources))
            made = widened(tensor).clone().requires_grad_(tensor.requires_grad)
            self.standins[id(tensor)] = made
            self.kept.append(tensor)  # An id is only good as long as its tensor lives.
        return self.standins[id(tensor)]

    @contextmanager
    def swapped(self) -> Generator[None]:
        """Inside, the modules of the program hold the stand-ins."""
        roots = modules_of(self.program)
        with untouched(roots, clone=False):
            for module in {id(m): m for root in roots for m in root.modules()}.values():
                attributes = vars(module)
                for table in ("_parameters", "_buffers"):
                    held = attributes[table].items()
                    attributes[table] = {k: v if v is None else self.standin(v) for k, v in held}
                for name, value in attributes.items():
                    if isinstance(value, Tensor):
                        attributes[name] = self.standin(value)
            yield


@dataclass(frozen=True, slots=True, eq=False)
class Gradients:
    """One backward: by the id of the parameter of the original, and of the float arguments."""

    parameters: Mapping[int, Tensor | None]
    arguments: Sequence[Tensor | None]

    @property
    def size(self) -> float:
        """The norm of all that is a number."""
        return sum(float(_numbers(g).square().sum()) for g in self.found) ** 0.5

    @property
    def is_finite(self) -> bool:
        return all(bool(torch.isfinite(g).all()) for g in self.found)

    @property
    def found(self) -> list[Tensor]:
        return [g for g in (*self.parameters.values(), *self.arguments) if g is not None]


def check_gradients(
    findings: Findings,
    runs: Runs,
    original: Program,
    optimised: Program,
    example: Probe,
    *,
    steps: int,
    training: bool = True,
) -> None:
    """Compare the gradients of a random projection of the outputs, for some steps of descent.

    Needs float64 copies of the weights for both sides. A result that is not for training gives
    what was folded no gradient, and says so when it is asked; the others are compared.
    """
    folded: set[int] = set()
    if not training:
        folds = optimised.folds
        folded = {id(root) for fold in folds for root in folds.roots(fold.value)}
    wanted = {
        id(t): name
        for name, t in named_tensors(original).items()
        if t.requires_grad and t.is_floating_point() and id(t) not in folded
    }
    findings.note("gradients are compared on float64 copies of the weights")
    ours, theirs = Side(optimised, optimised.folds), Side(original, original.folds)
    for step in range(1, steps + 1):
        both = _both(findings, runs, (ours, theirs), example, wanted, training=training)
        if both is None:
            return
        new, old = both
        probe = example.name if step == 1 else f"{example.name}, step {step}"
        _compare(findings, probe, new, old, wanted)
        if step == 1:
            _check_own_step(findings, runs, original, optimised, example, old)
        if findings.failed:
            return
        if step < steps and not old.is_finite:
            findings.note("gradients are compared for one step alone: some are no numbers")
            return
        rate = _rate(theirs, old)
        for side, found in ((ours, new), (theirs, old)):
            _descend(side, found, rate)


def _both(
    findings: Findings,
    runs: Runs,
    sides: tuple[Side, Side],
    example: Probe,
    wanted: Mapping[int, str],
    *,
    training: bool,
) -> tuple[Gradients, Gradients] | None:
    """The gradients of the result and of the original; None where there is nothing to compare."""
    ours, theirs = sides
    try:
        old = _backward(runs, theirs, example, wanted)
    except Exception as error:  # the original cannot be trained like this
        findings.note(f"gradients are not comparable: {first_line(error)}")
        return None
    try:
        new = _backward(runs, ours, example, wanted)
    except Exception as error:  # whatever the result raises is a finding
        text = f"the result raises {type(error).__name__}: {first_line(error)}"
        findings.add("gradient", example.name, message=text)
        return None
    if new is None and not training:
        return None  # Everything on the way was folded.
    if old is None or new is None:
        text = "" if old is new else "the outputs of one side need no gradients"
        findings.add("gradient", example.name, message=text)
        return None
    return new, old


def _backward(
    runs: Runs, side: Side, example: Probe, wanted: Mapping[int, str]
) -> Gradients | None:
    args, kwargs = example.call()
    leaves: list[Tensor] = []

    def leaf(tensor: Tensor) -> Tensor:
        if not tensor.is_floating_point():
            return tensor
        leaves.append(widened(tensor).requires_grad_())
        return leaves[-1].clone()  # A leaf could not be written in place.

    with randomness_restored(), torch.enable_grad(), side.swapped():
        args, kwargs = tree_map_only(Tensor, leaf, (args, kwargs))
        runs.forwards += 1
        runs.start.restore()
        with float64(own=runs.own_dtype, grad=True):
            outputs = run_program(side.program, args, kwargs)
        loss = _projection(outputs)
        if loss is None:
            return None
        parameters = {key: side.standins[key] for key in wanted if key in side.standins}
        found = _gradients_of(loss, [*parameters.values(), *leaves])
    by_id = dict.fromkeys(wanted) | dict(zip(parameters, found, strict=False))
    return Gradients(by_id, found[len(parameters) :])


def _gradients_of(loss: Tensor, tensors: Sequence[Tensor]) -> list[Tensor | None]:
    """Those of embeddings and of sparse arguments may be sparse, and are made dense."""
    found: Any = torch.autograd.grad(loss, tensors, allow_unused=True)
    return [None if one is None else one.to_dense() for one in found]


def _projection(outputs: Any) -> Tensor | None:
    """The same random combination of all outputs that need a gradient, for either side."""
    total: Tensor | None = None
    for number, leaf in enumerate(tree_leaves(outputs)):
        if not isinstance(leaf, Tensor) or not leaf.requires_grad:
            continue
        generator = torch.Generator(leaf.device).manual_seed(number)
        weights = torch.randn(leaf.shape, generator=generator, device=leaf.device)
        term = (leaf * weights.to(leaf.dtype)).sum()
        term = term.real if term.is_complex() else term
        total = term if total is None else total + term
    return total


def _compare(
    findings: Findings, probe: str, new: Gradients, old: Gradients, wanted: Mapping[int, str]
) -> None:
    floor = FLOOR * old.size
    pairs: Iterator[tuple[str, Tensor | None, Tensor | None]] = (
        (name, new.parameters.get(key), old.parameters.get(key)) for key, name in wanted.items()
    )
    arguments = zip(new.arguments, old.arguments, strict=True)
    named = ((f"argument {i}", a, b) for i, (a, b) in enumerate(arguments))
    for name, mine, theirs in (*pairs, *named):
        found = _difference(mine, theirs, floor)
        findings.judge("gradient", probe, (name,), found, GRADIENT_BOUND, "relative error")


def _difference(mine: Tensor | None, theirs: Tensor | None, floor: float) -> Difference:
    if mine is None or theirs is None:
        if mine is theirs:
            return Difference(0.0)
        present = mine if mine is not None else theirs
        # The gradient of zero that one side does not compute at all is the same gradient.
        if present is not None and float(present.abs().max()) <= floor:
            return Difference(0.0)
        missing = "has no gradient" if mine is None else "has a gradient that it should not have"
        return Difference(float("inf"), missing)
    if elsewhere := misplaced(mine, theirs):
        text = f"NaN or infinity at other places ({elsewhere} of {theirs.numel()} elements)"
        return Difference(float("inf"), text)
    apart = float((_numbers(mine) - _numbers(theirs)).norm())
    size = max(float(_numbers(theirs).norm()), floor / GRADIENT_BOUND)
    return Difference(apart / size if apart else 0.0)


def _numbers(gradient: Tensor) -> Tensor:
    return gradient.nan_to_num(0.0, 0.0, 0.0)


def _check_own_step(
    findings: Findings,
    runs: Runs,
    original: Program,
    optimised: Program,
    example: Probe,
    truth: Gradients,
) -> None:
    """In the model's own dtype: gradients are finite, and there where they should be."""
    found = _own_gradients(runs, optimised, example)
    if found is None:
        return
    message = ""
    folds = optimised.folds
    # The gradients of what was folded go to what it was folded to.
    through_folds = {id(root) for fold in folds for root in folds.roots(fold.value)}
    comparable = truth.parameters.keys() - through_folds - folds.without_gradient
    for key, gradient in found.items():
        if key in comparable and (gradient is None) != (truth.parameters[key] is None):
            message = "a parameter has a gradient on one side only"
    infinite = [key for key, gradient in found.items() if not _is_finite(gradient)]
    if infinite:
        # So may the original's be: in its own dtype, where float64 has numbers.
        own = _own_gradients(runs, original, example) or {}
        if any(_is_finite(own.get(key)) for key in infinite):
            message = "a gradient is not finite"
    findings.add("gradient", f"{example.name}, own dtype", message=message)


def _own_gradients(
    runs: Runs, program: Program, example: Probe
) -> Mapping[int, Tensor | None] | None:
    """Of what is trained, by id; None where nothing is."""
    args, kwargs = example.call()
    with randomness_restored(), torch.enable_grad(), untouched(modules_of(program)):
        runs.forwards += 1
        runs.start.restore()
        loss = _projection(run_program(program, args, kwargs))
        trained = (t for t in named_tensors(program).values() if t.requires_grad and t.is_leaf)
        held = {id(t): t for t in trained}
        if loss is None or not held:
            return None
        found = _gradients_of(loss, list(held.values()))
    return dict(zip(held, found, strict=True))


def _is_finite(gradient: Tensor | None) -> bool:
    return gradient is None or bool(torch.isfinite(gradient).all())


def _rate(side: Side, found: Gradients) -> float:
    """That of a step of a thousandth of the size of the weights."""
    moved = [(side.standins[k], g) for k, g in found.parameters.items() if g is not None]
    size = sum(float(p.detach().square().sum()) for p, _ in moved) ** 0.5
    slope = sum(float(g.square().sum()) for _, g in moved) ** 0.5
    return _STEP * size / slope if slope else 0.0


def _descend(side: Side, found: Gradients, rate: float) -> None:
    """One step against the gradient."""
    with torch.no_grad():
        for key, gradient in found.parameters.items():
            if gradient is not None:
                side.standins[key].sub_(gradient, alpha=rate)

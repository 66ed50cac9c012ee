"""From a captured program to one that passes may change, and from that to what the user gets."""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from typing import Any

from torch import nn

from fxpasses.capture.inside import (
    HOOK_DICTS,
    attributes_of,
    buffers_of,
    modules_of,
    parameters_of,
)
from fxpasses.capture.result.barriers import Barriers, FoldedWeight
from fxpasses.capture.result.entry import Calls, Entry
from fxpasses.capture.result.module import CapturedModule, entry_of, generate_code
from fxpasses.capture.result.steps import count_steps
from fxpasses.capture.twins.twin import Twin, twin
from fxpasses.core import STANDS_FOR, VALUE, Program, Watch
from fxpasses.core.given import an


def fork(program: Program, *, move_graphs: bool = False) -> Program:
    """An independent program: its own graphs and modules over the same tensors.

    Nodes keep their names and metadata. The original stays as it is; with `move_graphs` only its
    modules do, which is enough for `finish`: its graphs become those of the fork, and hooks are
    held in common, as they are in the end.
    """
    root, lineage = twin(program.root, move_graphs=move_graphs, join_hooks=move_graphs)
    # A pass may have cut off the module that calls a graph.
    held = ((path, module) for path, module in program if module in lineage)
    forked = Program(root, {path: lineage.new(module) for path, module in held})
    entry_of(root).lineage = lineage
    _count_anew(forked)
    return forked


def kept(program: Program) -> Program:
    """A fork of a program as passes have made it so far, that knows how its weights were folded."""
    return replace(fork(program), folds=program.folds)


def milestone(program: Program, made_anew: Collection[str] = ()) -> Program:
    """A fork that whatever passes do from now on is compared with.

    In both every node stands for itself from here on: what the values of the captured nodes were
    says nothing of them any more. Nor does what the capture knew of them, in the graphs at the
    paths `made_anew`.
    """
    for _, module in program:
        for node in module.graph.nodes:
            node.meta[STANDS_FOR] = node.name
    made = kept(program)
    for path, module in made:
        for node in module.graph.nodes if path in made_anew else ():
            node.meta.pop(VALUE, None)
    return made


def _count_anew(program: Program) -> None:
    for module in (program.root, *program.graphs.values()):
        entry_of(module).calls = Calls()


def finish(
    work: Program,
    original: Program,
    watches: Sequence[Watch] = (),
    mode_reasons: Sequence[str] = (),
    folded: Sequence[FoldedWeight] = (),
) -> CapturedModule:
    """Make the module that the user gets out of a program that passes have changed.

    The tree of the original becomes its fallback. Both then hold the same opaque modules, so
    that what those count and keep is kept once.

    Args:
        work: A fork of `original`, after all passes.
        original: The program as it was captured.
        watches: Tensors that were folded: calls raise once one of them is written.
        mode_reasons: Why a call in the other mode would be wrong, for `ModeError`.
        folded: What was made of those tensors: a backward that reaches it raises.
    """
    root, entry, before = work.root, entry_of(work.root), entry_of(original.root)
    if not isinstance(root, CapturedModule):
        raise TypeError(f"{an(type(root))} is not a captured module")
    if entry.lineage is not None:
        _restore_own_code(before, entry.lineage)
    entry.lineage = None
    for _, module in work:
        inner = entry_of(module)
        if module is not root and inner.fallback is not None:
            _fix_mode(inner, inner.fallback)
    _fix_mode(entry, root)
    if entry.pattern is not None and before.fallback is not None:
        shared = dict(zip(before.opaque, entry.opaque, strict=True))
        entry.fallback = twin(before.fallback, replace=shared)[0] if shared else before.fallback
        entry.pairs = list(_pairs(root, entry.fallback))
        for mine, other in entry.pairs:
            _hold_together(mine, other)
    _count_anew(work)
    for module in (root, *work.graphs.values()):
        generate_code(module)
    entry.watches = [*entry.watches, *watches]
    entry.mode_reasons = (*entry.mode_reasons, *mode_reasons)
    entry.barriers = Barriers([*entry.barriers.weights, *folded])
    entry.barriers.follow(entry.watches)
    count_steps(entry)
    return root


def _fix_mode(entry: Entry, flagged: nn.Module) -> None:
    """From now on the graph holds for the mode alone that the passes worked for."""
    if not any(module is flagged for module, _ in entry.flags):
        entry.flags.insert(0, (flagged, flagged.training))


# -- what lies below opaque modules is read by their own code, whatever the graphs need


def _restore_own_code(before: Entry, lineage: Twin) -> None:
    roots = before.opaque
    if before.pattern is None and before.fallback is not None:
        roots = [before.fallback]
    seen: set[int] = set()
    stack = list(roots)
    while stack:
        old = stack.pop()
        if id(old) in seen or old not in lineage:
            continue
        seen.add(id(old))
        _restore(old, lineage.new(old), lineage)
        stack.extend(child for child in modules_of(old).values() if child is not None)


def _restore(old: nn.Module, new: nn.Module, lineage: Twin) -> None:
    """Put back what was taken out of `new`, in the order that `old` has."""
    if old is new:
        return
    children, mine = modules_of(old), modules_of(new)
    kept = {k: None if child is None else lineage.new(child) for k, child in children.items()}
    _refill(mine, kept)
    _refill(parameters_of(new), parameters_of(old))
    _refill(buffers_of(new), buffers_of(old))


def _refill(held: dict[str, Any], first: dict[str, Any]) -> None:
    merged = {**first, **held}
    held.clear()
    held.update(merged)


# -- result and fallback are one where they can be


def _pairs(root: nn.Module, fallback: nn.Module) -> Iterator[tuple[nn.Module, nn.Module]]:
    """The modules at the same paths in both trees, where they are not one object."""
    stack = [(root, fallback)]
    seen: set[int] = set()
    while stack:
        mine, other = stack.pop()
        if mine is other or id(mine) in seen:
            continue
        seen.add(id(mine))
        yield mine, other
        theirs = modules_of(other)
        for name, child in modules_of(mine).items():
            match = theirs.get(name)
            if child is not None and match is not None:
                stack.append((child, match))


_HELD_TOGETHER = ("_parameters", "_buffers", *HOOK_DICTS)


def _hold_together(mine: nn.Module, other: nn.Module) -> None:
    """Share the dicts of two modules that hold the same, so that both see later changes."""
    state, others = attributes_of(mine), attributes_of(other)
    for key in _HELD_TOGETHER:
        held, theirs = state.get(key), others.get(key)
        if held is theirs:
            continue
        if isinstance(held, dict) and isinstance(theirs, dict) and _are_alike(held, theirs):
            state[key] = theirs


def _are_alike(held: dict[str, Any], theirs: dict[str, Any]) -> bool:
    """Whether both hold the same objects under the same names."""
    if not held or not theirs:
        return not held and not theirs
    return held.keys() == theirs.keys() and all(held[k] is theirs[k] for k in held)

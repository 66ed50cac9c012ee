"""The rules that every pass is held to, each as what is wrong with one pass on one model."""

import copy
import io
import pickle
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final

import torch
from torch import Tensor, nn
from torch.fx import GraphModule

from fxpasses.core import GraphPass, Numerics, Program
from fxpasses.testing.behaviour import (
    Behaviour,
    behaviour_of,
    difference_between,
    same_bits,
    vanishing_gradients,
)
from fxpasses.testing.failures import Rule
from fxpasses.testing.metadata import wrong_metadata, wrong_refusals
from fxpasses.testing.model import Model
from fxpasses.testing.trial import Done, Finished, Trial

Check = Callable[[Trial], Iterator[str]]


def numerics(trial: Trial) -> Iterator[str]:
    """Judged by the verifier, and by calls of model and result side by side."""
    finished = trial.finished
    if finished.wrong:
        yield finished.wrong
        return
    if trial.verified and trial.fires:
        yield from _not_verified(finished)
    for model in _calls(trial.model):
        if text := _difference(trial, finished.result, model):
            yield text


def _not_verified(finished: Finished) -> Iterator[str]:
    verification = finished.record.verification
    if verification.ok is None:
        yield f"the result cannot be verified: {'; '.join(verification.notes)}"
    for name in verification.unverified:
        yield f"{name} is not verified: no probe reaches it"


def _calls(model: Model) -> Iterator[Model]:
    yield model
    for change in (lambda t: t[:0], lambda t: torch.cat([t, t])):
        resized = model.resized(change)
        if resized is not None:
            yield resized


def _difference(trial: Trial, result: GraphModule, model: Model) -> str | None:
    """How a call of the result differs from the same call of the model, where that has one."""
    text = _compared(trial, result, model, training=trial.model.is_for_training)
    shapes = " and ".join(str(tuple(tensor.shape)) for tensor in model.tensors())
    return f"called with {shapes}: {text}" if text else None


def _compared(
    trial: Trial, result: GraphModule, model: Model, *, training: bool, gradients: bool = False
) -> str | None:
    original, made = trial.original(training=training), copy.deepcopy(result)
    try:
        wanted = behaviour_of(original, original, model, gradients=gradients)
    except Exception:  # a model need not take every size of batch
        return None
    try:
        got = behaviour_of(made, made, model, gradients=gradients)
    except Exception as error:  # the model itself takes this call
        return f"the result raises {type(error).__name__}: {error}"
    return difference_between(
        got,
        wanted,
        trial.graph_pass.numerics,
        lambda: vanishing_gradients(trial.original(training=training), model),
    )


def gradients(trial: Trial) -> Iterator[str]:
    """Judged by the verifier, and by a backward of model and result side by side."""
    graph_pass = trial.graph_pass
    trains = not isinstance(graph_pass, GraphPass) or graph_pass.trains
    if not trains or graph_pass.numerics not in (Numerics.EXACT, Numerics.ROUNDING):
        return
    finished = trial.run(training=True)
    text = finished.wrong or _compared(
        trial, finished.result, trial.model, training=True, gradients=True
    )
    if text:
        yield f"in training: {text}"


def untouched(trial: Trial) -> Iterator[str]:
    yield from trial.finished.changed


def idempotent(trial: Trial) -> Iterator[str]:
    second = trial.passed(times=2).runs[1]
    if second.changed:
        rewrites = [f"{one.id} ({one.why})" for one in second.record.rewrites]
        yield f"a second run makes {', '.join(rewrites) or 'changes'}"


def deterministic(trial: Trial) -> Iterator[str]:
    first, second = trial.once, trial.passed(seed=1)
    for what, look in _LOOKS.items():
        one, other = look(first), look(second)
        if one != other:
            yield f"{what} differ from run to run: {_first_difference(one, other)}"
            return
    tensors = [dict(_tensors(done)) for done in (first, second)]
    for name, tensor in tensors[0].items():
        if not same_bits(tensor, tensors[1][name]):
            yield f"{name} differs from run to run"


_LOOKS: Final[Mapping[str, Callable[[Done], list[str]]]] = {
    "rewrites": lambda done: [one.id for one in done.runs[0].record.rewrites],
    "refusals": lambda done: [f"{r.node}: {r.condition}" for r in done.runs[0].record.refusals],
    "graphs": lambda done: [str(module.graph) for _, module in done.program],
    "weights": lambda done: [name for name, _ in _tensors(done)],
}


def _tensors(done: Done) -> Iterator[tuple[str, Tensor]]:
    root = done.program.root
    yield from (*root.named_parameters(), *root.named_buffers())
    yield from ((name, value) for name, value in vars(root).items() if isinstance(value, Tensor))


def _first_difference(one: list[str], other: list[str]) -> str:
    pairs = zip([*one, "nothing"], [*other, "nothing"], strict=False)
    a, b = next(pair for pair in pairs if pair[0] != pair[1])
    return f"{a} and {b}"


def copies(trial: Trial) -> Iterator[str]:
    """Compared with what copies and pickles of the model without the pass can do."""
    result, another = trial.finished.result, trial.unverified([trial.graph_pass])
    wanted = behaviour_of(another, another, trial.model)
    for how, make in (("copied", copy.deepcopy), ("pickled", _pickled)):
        if _works(make, trial.unverified([])):
            try:
                made = make(result)
            except Exception as error:  # the model without the pass can be copied
                yield f"the result cannot be {how}: {type(error).__name__}: {error}"
            else:
                yield from (f"{how}, {text}" for text in _unlike(made, result, trial.model, wanted))


def _pickled(module: nn.Module) -> Any:
    buffer = io.BytesIO(pickle.dumps(module))
    return pickle.load(buffer)


def _works(make: Callable[[nn.Module], Any], module: nn.Module) -> bool:
    try:
        make(module)
    except Exception:  # a model need not be picklable
        return False
    return True


def _unlike(
    made: GraphModule, result: GraphModule, model: Model, wanted: Behaviour
) -> Iterator[str]:
    if made.code != result.code:
        yield "the code is another"
    keys, expected = list(made.state_dict()), list(result.state_dict())
    if keys != expected:
        yield f"the state_dict has {_first_difference(keys, expected)}"
    for one, other in zip(made.graph.nodes, result.graph.nodes, strict=False):
        if lost := other.meta.keys() - one.meta.keys():
            yield f"{other.name} has lost its {', '.join(sorted(lost))}"
    if text := difference_between(behaviour_of(made, made, model), wanted, Numerics.EXACT):
        yield text


def state_dict(trial: Trial) -> Iterator[str]:
    before, after = (_named(done) for done in (trial.captured.program, trial.once.program))
    names, now = _names(before), _names(after)
    for name, tensor in after.items():
        old = names.get(id(tensor))
        if old is not None and old.isdisjoint(now[id(tensor)]):
            yield f"{min(old)} is called {name} in the result"
        if old is None and name in before and not same_bits(tensor, before[name]):
            yield f"{name} is the name of another tensor in the result"


def _named(program: Program) -> Mapping[str, Tensor]:
    return program.root.state_dict(keep_vars=True)


def _names(state: Mapping[str, Tensor]) -> Mapping[int, set[str]]:
    """The names of each tensor."""
    found: dict[int, set[str]] = {}
    for name, tensor in state.items():
        found.setdefault(id(tensor), set()).add(name)
    return found


CHECKS: Final[Mapping[Rule, Check]] = {
    Rule.NUMERICS: numerics,
    Rule.UNTOUCHED: untouched,
    Rule.GRADIENTS: gradients,
    Rule.METADATA: wrong_metadata,
    Rule.REFUSALS: wrong_refusals,
    Rule.IDEMPOTENT: idempotent,
    Rule.DETERMINISTIC: deterministic,
    Rule.COPIES: copies,
    Rule.STATE_DICT: state_dict,
}


def broken(trial: Trial, rules: Iterable[Rule]) -> Iterator[tuple[Rule, str]]:
    """What is wrong with a pass on a model, by these rules."""
    for rule in rules:
        if rule in CHECKS:
            yield from ((rule, text) for text in CHECKS[rule](trial))

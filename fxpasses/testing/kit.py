"""Hold a pass to everything that passes of this package promise."""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Any, Final, TypeAlias

from torch.fx import GraphModule  # noqa: TC002  read where annotations are

from fxpasses.core import Condition, ForeignPass, GraphPass, foreign
from fxpasses.core.given import instance, shown
from fxpasses.errors import ArgumentError, PassError
from fxpasses.testing import models as default_models
from fxpasses.testing.behaviour import randomness_kept
from fxpasses.testing.failures import Failure, NotConformant, Rule
from fxpasses.testing.forced import forced, optimised
from fxpasses.testing.forced import goes_wrong as how_it_goes_wrong
from fxpasses.testing.model import Model, ModelLike, as_model
from fxpasses.testing.rules import broken
from fxpasses.testing.trial import Trial, Tried
from fxpasses.testing.variants import hostile_variants

PassLike: TypeAlias = "type[GraphPass] | GraphPass | ForeignPass | Callable[[GraphModule], Any]"

_ON_HOSTILE: Final = (Rule.NUMERICS, Rule.UNTOUCHED, Rule.REFUSALS, Rule.STATE_DICT)
"""What holds for a model that is only there to be difficult."""


def check_pass(
    graph_pass: PassLike,
    *,
    models: Iterable[ModelLike] = (),
    options: Mapping[str, Any] | None = None,
    goes_wrong: Mapping[Condition[Any], ModelLike] | None = None,
    still_right: Mapping[Condition[Any], ModelLike] | None = None,
    hostile: Iterable[ModelLike] | None = None,
    without: Collection[Rule] = (),
) -> None:
    """Try a pass on models and hold it to every `Rule`; return if it breaks none.

    Besides on `models`, the pass is tried on variants of them that are made to be difficult, and
    on models that are so by themselves. No runner of tests is needed.

    Args:
        graph_pass: a pass class, a pass, or any callable on a GraphModule.
        models: where it fires, as `(module, inputs)` or `Model`; by default some typical ones.
        options: of the pass, where a class is given.
        goes_wrong: for each condition in `legal_if` a model that only this condition keeps from
            being rewritten, and that a rewrite would break.
        still_right: for conditions in `worthwhile_if`, a model that is refused for them and that
            a rewrite would leave right.
        hostile: models that are difficult by themselves; by default those of
            `fxpasses.testing.models`.
        without: rules that are left out.

    Raises:
        NotConformant: the pass breaks rules. It is an `AssertionError`, and lists all of them.
        ArgumentError: an argument is of another kind than these.
        FxPassesError: a model cannot be captured, or raises on its own inputs.
    """
    tried = _as_pass(graph_pass, options or {})
    own = [as_model(model) for model in models]
    forbidden = {c: as_model(m, "goes_wrong") for c, m in (goes_wrong or {}).items()}
    costly = {c: as_model(m, "still_right") for c, m in (still_right or {}).items()}
    left_out = {instance(rule, "without", Rule, "members of Rule") for rule in without}
    difficult = None if hostile is None else [as_model(model, "hostile") for model in hostile]
    rules = [rule for rule in Rule if rule not in left_out]
    with randomness_kept():
        failures = [
            *_on_own(tried, own, rules),
            *(_on_hostile(tried, difficult) if Rule.HOSTILE in rules else ()),
            *(_on_conditions(tried, forbidden, costly) if isinstance(tried, GraphPass) else ()),
        ]
    found = [one for one in failures if one.rule not in left_out]
    if found:
        raise NotConformant(tried.name, found)


def _as_pass(given: object, options: Mapping[str, Any]) -> Tried:
    if isinstance(given, type) and issubclass(given, GraphPass):
        return given(**options)
    if options:
        raise ArgumentError("options are those of a pass class: pass the class, or no options")
    if isinstance(given, GraphPass | ForeignPass):
        return given
    if callable(given):
        return foreign(given)
    raise ArgumentError(f"{shown(given)} is no pass: pass a GraphPass or a callable")


# -- the models where it fires


def _on_own(tried: Tried, given: list[Model], rules: list[Rule]) -> Iterator[Failure]:
    fired = False
    for model in given or default_models.typical():
        trial = Trial(tried, model)
        failures = list(_failures(trial, rules))
        yield from failures
        if any(failure.rule is Rule.RUNS for failure in failures):
            continue
        fired |= trial.fires
        if given and not trial.fires:
            yield Failure(Rule.FIRES, model.name, _why_not(trial))
        if trial.fires and Rule.HOSTILE in rules:
            yield from _on_hostile(tried, hostile_variants(trial))
    if not given and not fired:
        yield Failure(Rule.FIRES, "", "nothing was rewritten: pass models=[(module, inputs)]")


def _failures(trial: Trial, rules: Iterable[Rule]) -> Iterator[Failure]:
    try:
        _ = trial.once
        for rule, text in broken(trial, rules):
            yield Failure(rule, trial.model.name, text)
    except PassError as error:
        yield Failure(Rule.RUNS, trial.model.name, str(error))


def _on_hostile(tried: Tried, models: Iterable[Model] | None) -> Iterator[Failure]:
    for model in default_models.hostile() if models is None else models:
        for failure in _failures(Trial(tried, model, verified=False), _ON_HOSTILE):
            text = failure.message if failure.rule is Rule.RUNS else str(failure)
            yield Failure(Rule.HOSTILE, model.name, text)


def _why_not(trial: Trial) -> str:
    refusals = trial.once.runs[0].refusals
    reasons = "; ".join(f"{one.node}: {one.condition}, {one.reason}" for one in refusals)
    return f"nothing was rewritten ({reasons or 'the pass finds no site'})"


# -- the models where it must not


def _on_conditions(
    tried: GraphPass,
    forbidden: Mapping[Condition[Any], Model],
    costly: Mapping[Condition[Any], Model],
) -> Iterator[Failure]:
    legal, cost = tried.legal_if, tried.worthwhile_if
    for condition in legal:
        name = condition.__name__
        if condition not in forbidden:
            text = f"nothing shows that {name} is needed: pass goes_wrong={{{name}: model}}"
            yield Failure(Rule.CONDITIONS, "", text)
    for given, declared, kind in ((forbidden, legal, "legal_if"), (costly, cost, "worthwhile_if")):
        for condition, model in given.items():
            name = condition.__name__
            if condition not in declared:
                yield Failure(Rule.CONDITIONS, "", f"{name} is not in {kind} of {tried.name}")
            elif text := _unlike_its_model(tried, condition, model, is_legal=given is costly):
                yield Failure(Rule.CONDITIONS, model.name, text)


def _unlike_its_model(
    tried: GraphPass, condition: Condition[Any], model: Model, *, is_legal: bool
) -> str | None:
    """What a condition does not do on the model that is to show what it is good for."""
    name = condition.__name__
    refused = optimised(tried, model.own())[1].record.refusals
    if name not in [refusal.condition for refusal in refused]:
        others = ", ".join(one.condition for one in refused) or "nothing"
        return f"{name} does not refuse it: {others} does"
    if text := how_it_goes_wrong(tried, model):
        return f"it goes wrong although {name} refuses it: {text}"
    loose = forced(tried, condition)
    text = how_it_goes_wrong(loose, model)
    if is_legal:
        return (
            f"without {name} it goes wrong, so that belongs in legal_if: {text}" if text else None
        )
    if text:
        return None
    return f"{name} is not needed: without it {_instead(loose, model)}"


def _instead(loose: GraphPass, model: Model) -> str:
    refused = optimised(loose, model.own())[1].record
    if refused.rewrites or not refused.refusals:
        return "everything comes out right"
    return f"{refused.refusals[0].condition} refuses the model"

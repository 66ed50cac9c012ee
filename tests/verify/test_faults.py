"""Every seeded fault is caught and blamed on its rewrite, whatever hides it from the outputs."""

import pytest
import torch
from torch import nn

from fxpasses.errors import VerificationError
from fxpasses.verify import Verdict, check
from tests.verify.faults import HIDDEN, IMAGE, RIGHT, WRONG, Plain
from tests.verify.support import Call, Case, Reference, captured

IMAGES = torch.randn(IMAGE, generator=torch.Generator().manual_seed(1))


def verdict_on(case: Case, model: nn.Module, x: torch.Tensor = IMAGES) -> Verdict:
    with torch.no_grad():
        reference = Reference(model(x))
    return check(case.original, case.work, case.done, Call((x,)), reference)


def rewritten(model: nn.Module, change) -> tuple[Case, str]:
    case = captured(model)
    at, do = change(case)
    return case, case.apply(do, at)


@pytest.mark.parametrize("right", RIGHT)
def test_right_rewrites_pass(right: str) -> None:
    model = Plain().eval()
    case, identifier = rewritten(model, RIGHT[right])

    verdict = verdict_on(case, model)

    assert verdict.ok, verdict.failures
    assert verdict.record.unverified == []
    (rewrite,) = case.done[0].record.rewrites
    assert (rewrite.id, rewrite.verified) == (identifier, "site")
    assert verdict.record.forwards <= 8


@pytest.mark.parametrize("wrong", WRONG)
def test_faults_are_blamed_on_their_rewrite(wrong: str) -> None:
    model = Plain().eval()
    case, identifier = rewritten(model, WRONG[wrong])

    verdict = verdict_on(case, model)

    assert [blame.id for blame in verdict.blame] == [identifier]
    with pytest.raises(VerificationError, match=identifier.replace("/", ".")):
        verdict.raise_if_failed()


@pytest.mark.parametrize(("number", "wrong"), list(enumerate(WRONG)))
def test_nothing_downstream_hides_a_fault(number: int, wrong: str) -> None:
    model = HIDDEN[number % len(HIDDEN)]().eval()
    case, identifier = rewritten(model, WRONG[wrong])

    verdict = verdict_on(case, model)

    assert [blame.id for blame in verdict.blame] == [identifier]


def test_the_guilty_rewrite_is_found_among_right_ones() -> None:
    model = Plain().eval()
    case = captured(model)
    for change in (RIGHT["fold norm"], WRONG["gelu by tanh"], RIGHT["linear written out"]):
        at, do = change(case)
        case.apply(do, at)

    verdict = verdict_on(case, model)

    assert [blame.node for blame in verdict.blame] == ["gelu"]
    states = [done.record.rewrites[0].verified for done in case.done]
    assert [state.partition(":")[0] for state in states] == ["site", "no", "site"]

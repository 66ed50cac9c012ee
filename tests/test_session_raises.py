"""What raises while a result is verified: told by type, on whom it falls, and never kept quiet."""

from collections.abc import Iterator
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor, nn
from torch.fx import GraphModule

import fxpasses
from fxpasses.core import Facts, GraphPass, Numerics, Refusal, Step
from fxpasses.errors import VerificationError
from fxpasses.verify import stages

X = torch.randn(3, 4, generator=torch.Generator().manual_seed(2))


class Layers(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        unread = torch.relu(x)
        unread = unread + 1
        return torch.sin(self.layer(x))


class Flaky(Layers):
    """Raises at every so many forwards, which it counts where nobody puts it back."""

    counted: ClassVar = [0]
    every: ClassVar = 3

    def forward(self, x: Tensor) -> Tensor:
        self.counted[0] += 1
        if self.counted[0] % self.every == 0:
            raise LookupError("sometimes")
        return super().forward(x)


def told(model: nn.Module, **options: Any) -> tuple[str, tuple[Any, ...]]:
    """All that a run says of what was raised, and whom it blames."""
    try:
        result = fxpasses.run(model, "inference", (X,), **options)
    except VerificationError as error:
        return str(error), error.blame
    found = fxpasses.report(result).record
    return " ".join([*map(str, found.capture.notes), *found.verification.notes]), ()


@pytest.mark.parametrize("every", [2, 3, 4, 5, 7])
@pytest.mark.parametrize("options", [{}, {"on_failure": "skip"}, {"verify": "full"}])
def test_a_model_that_raises_only_sometimes_is_nobodys_fault(
    every: int, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Flaky, "every", every)
    monkeypatch.setattr(Flaky, "counted", [0])
    text, blame = told(Flaky().eval(), **options)
    assert "LookupError" in text
    assert blame == ()


class Asserts(GraphPass):
    """Wrong: puts in an assertion that never holds, and replaces nothing."""

    name = "asserts"
    numerics = Numerics.EXACT

    def steps(self, module: GraphModule, facts: Facts) -> Iterator[Step | Refusal]:
        for node in list(module.graph.nodes):
            if node.target is torch.sin:
                yield Step(
                    node, "wrong", lambda edit: edit.call_function(torch._assert, False, "never")
                )


@pytest.mark.parametrize("level", [True, "each", "full"])
def test_what_a_rewrite_makes_raise_is_blamed_on_it(level: Any) -> None:
    with pytest.raises(VerificationError, match="AssertionError: never") as caught:
        fxpasses.run(Layers().eval(), ["dce", Asserts(), "dce"], (X,), verify=level)
    assert [blame.id for blame in caught.value.blame] == ["2:asserts@/sin"]


def breaks(module: GraphModule) -> None:
    """Wrong: the shapes do not fit any more."""
    (sine,) = [node for node in module.graph.nodes if node.target is torch.sin]
    sine.target, sine.args = torch.matmul, (sine.args[0], sine.args[0])
    module.recompile()


@pytest.mark.parametrize("passes", [[breaks, "dce"], ["dce", breaks], [breaks, "inference"]])
def test_what_a_foreign_pass_makes_raise_is_blamed_on_it(passes: list[Any]) -> None:
    with pytest.raises(VerificationError) as caught:
        fxpasses.run(Layers().eval(), passes, (X,))
    assert {blame.pass_name for blame in caught.value.blame} == {"breaks"}


def test_it_alone_is_left_out() -> None:
    result = fxpasses.run(Layers().eval(), [breaks, "dce"], (X,), on_failure="skip")
    found = fxpasses.report(result).record
    assert (found.verification.ok, found.verification.undone) == (True, ["breaks"])
    assert found.passes[1].rewrites


class Checks(nn.Module):
    """Its check is at run time, of a kind that a graph keeps."""

    def forward(self, x: Tensor) -> Tensor:
        torch._assert(bool((x != 0).all()), "no zeros")
        return torch.relu(x)


def test_a_model_that_cannot_run_in_float64_is_told_of() -> None:
    class Casts(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            assert x.dtype is torch.float32, "only float32"
            return x * 2

    class Model(Layers):
        def forward(self, x: Tensor) -> Tensor:
            return Casts.apply(super().forward(x))

    result = fxpasses.run(Model().eval(), "inference", (X,))
    notes = fxpasses.report(result).record.verification.notes
    assert any("float64" in note and "only float32" in note for note in notes)


def test_probes_that_the_model_does_not_take_are_named() -> None:
    result = fxpasses.run(Checks().eval(), "inference", (X,))
    notes = fxpasses.report(result).record.verification.notes
    assert any("zeros" in note and "no zeros" in note for note in notes)


def test_a_fault_in_verifying_is_not_made_a_verdict(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*args: Any, **kwargs: Any) -> Any:
        raise ZeroDivisionError("here")

    monkeypatch.setattr(stages, "check_effects", broken)
    with pytest.raises(ZeroDivisionError):
        fxpasses.run(Layers().eval(), "inference", (X,), on_failure="skip")


def test_the_original_raising_is_an_error_of_verify() -> None:
    class Raises(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            raise LookupError("never")

    with pytest.raises(VerificationError, match="the original itself raises LookupError: never"):
        fxpasses.verify(Raises(), Layers(), (X,))

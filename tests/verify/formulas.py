"""Models of one formula, and the verdict on one rewrite in them."""

from typing import Any

import torch
from torch import Tensor, nn

from fxpasses.core import Numerics
from fxpasses.verify import Verdict, check
from tests.verify.faults import replace
from tests.verify.support import Call, Case, Reference, captured

VECTORS = torch.randn(3, 4, generator=torch.Generator().manual_seed(1))


class Function(nn.Module):
    """A model of one formula and a square weight."""

    def __init__(self, formula: Any, size: int = 4) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(size, size))
        self.formula = formula

    def forward(self, x: Tensor) -> Any:
        return self.formula(x, self.weight)


def judged(
    formula: Any, at: str, build: Any, *, x: Tensor = VECTORS, numerics: Any = Numerics.ROUNDING
) -> tuple[Verdict, Case]:
    """The verdict on one rewrite of the node `at`, in the dtype of `x`."""
    model = Function(formula, x.shape[-1]).to(x.dtype)
    case = captured(model)
    case.apply(replace(case, at, build), at, numerics=numerics)
    torch.manual_seed(5)
    with torch.no_grad():
        reference = Reference(model(x.clone()))
    torch.manual_seed(5)
    return check(case.original, case.work, case.done, Call((x,)), reference), case


def site_errors(verdict: Verdict) -> list[str]:
    return [one.message for one in verdict.record.checks if one.name == "site" and not one.ok]

"""Every error and warning of fxpasses. Each says what is wrong, where, and what to do."""

from collections.abc import Sequence
from typing import Any


class FxPassesError(Exception):
    """The base of all errors of fxpasses."""


class ArgumentError(FxPassesError, TypeError):
    """An argument is of a kind that the function does not take."""


class CaptureError(FxPassesError):
    """A model cannot be captured at all: it is no module, or its weights are not known yet."""


class PassError(FxPassesError):
    """A pass raised, broke the graph, or never comes to rest. Chained from its cause."""


class BudgetError(PassError):
    """A pass asked for more than it was allowed: nodes, or bytes of memory."""


class VerificationError(FxPassesError):
    """The optimised model does not compute what the original computes.

    `blame` holds the rewrites and passes that are at fault, where they could be told.
    """

    def __init__(self, message: str, blame: Sequence[Any] = ()) -> None:
        super().__init__(message)
        self.blame = tuple(blame)


class PipelineError(FxPassesError):
    """A pipeline cannot be read, or names a pass, an option or an order that does not exist."""


class RegistryError(FxPassesError):
    """A registry file cannot be read, or two sides claim one name."""


class TargetError(FxPassesError):
    """A target is not there, or cannot run the model."""


class DrawingError(FxPassesError):
    """A picture cannot be drawn in the form that was asked for; other forms can."""


class ResultError(FxPassesError):
    """An optimised module is called in a way that it cannot serve."""


class ModeError(ResultError):
    """Called in training mode (or back), where a pass changed weights for the other mode."""


class GradientError(ResultError):
    """Called where a gradient is wanted that the optimised module cannot give."""


class GuardError(ResultError):
    """Called outside the pattern that the graph holds for, and the module's own code is gone."""


class StaleWeightsError(ResultError):
    """A weight that was folded has been written since."""


class FxPassesWarning(UserWarning):
    """The base of all warnings of fxpasses."""


class UnverifiedWarning(FxPassesWarning):
    """The result could not be verified, and the message says what to pass so that it can."""


class TrainingModeWarning(FxPassesWarning):
    """Passes refuse because the model is in training mode."""

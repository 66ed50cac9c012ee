"""For the tests of a pass author: `check_pass` holds a pass to all that ours promise."""

from fxpasses.testing.failures import Failure, NotConformant, Rule
from fxpasses.testing.forced import forced, goes_wrong
from fxpasses.testing.kit import check_pass
from fxpasses.testing.model import Model

__all__ = ["Failure", "Model", "NotConformant", "Rule", "check_pass", "forced", "goes_wrong"]

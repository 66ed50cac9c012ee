"""fxpasses: graph-transformation compiler passes on torch.fx, explicit, verified and explained.

The names below are loaded when they are first asked for. Some of them (`capture`, `verify`,
`registry`) are also the names of subpackages: `fxpasses.verify` is the function, and
`from fxpasses.verify import ...` reads the subpackage.
"""

import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

from fxpasses import errors

if TYPE_CHECKING:
    from fxpasses.api import (
        Advice,
        Capture,
        Diagram,
        Explanation,
        GraphPass,
        Numerics,
        PassManager,
        Profile,
        Registry,
        Report,
        Rewrite,
        Verdict,
        advise,
        apply,
        capture,
        diff,
        draw,
        explain,
        foreign,
        plan,
        profile,
        register,
        registry,
        release,
        report,
        run,
        verify,
    )

__version__ = "0.1.0"

__all__ = [
    "Advice",
    "Capture",
    "Diagram",
    "Explanation",
    "GraphPass",
    "Numerics",
    "PassManager",
    "Profile",
    "Registry",
    "Report",
    "Rewrite",
    "Verdict",
    "advise",
    "apply",
    "capture",
    "diff",
    "draw",
    "errors",
    "explain",
    "foreign",
    "plan",
    "profile",
    "register",
    "registry",
    "release",
    "report",
    "run",
    "verify",
]


class _Package(ModuleType):
    def __setattr__(self, name: str, value: object) -> None:
        # The import of a subpackage binds it here; a verb of the same name must stay the verb.
        if name in __all__ and isinstance(value, ModuleType):
            return
        super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Package


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from fxpasses import api  # noqa: PLC0415  everything below loads torch

    value = getattr(api, name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})

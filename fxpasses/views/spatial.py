"""What convolutions and pools share: settings that are one number an axis, or one for all."""

import re
from dataclasses import dataclass
from typing import Any

from fxpasses.views.base import View

_RANK = re.compile(r"([123])d")


@dataclass(frozen=True)
class Spatial(View):
    """A call that slides over one to three axes."""

    @property
    def spatial_rank(self) -> int:
        """1 to 3."""
        for name in self._names():
            if found := _RANK.search(name):
                return int(found[1])
        return len(self.operand("stride"))

    def _names(self) -> list[str]:
        """Those that may say the rank: of the function, or of the module's class and its bases."""
        if self.module is not None:
            return [cls.__name__ for cls in type(self.module).__mro__]
        return [str(getattr(self.node.target, "__name__", ""))]

    def each(self, name: str, default: Any) -> tuple[Any, ...]:
        """A setting with one number an axis, where torch also takes one for all."""
        value = self.operand(name)
        value = default if value is None or value == [] else value
        values = tuple(value) if isinstance(value, (tuple, list)) else (value,)
        return values * self.spatial_rank if len(values) == 1 else values

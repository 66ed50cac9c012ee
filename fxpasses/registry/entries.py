"""What a registry knows by name, with where it comes from."""

from dataclasses import dataclass

from fxpasses.registry.files import Effect, Pipeline
from fxpasses.registry.importing import Loaded, imported


@dataclass(frozen=True, slots=True)
class PassEntry:
    """A pass by name, and where it comes from."""

    name: str
    location: "str | Loaded"
    """`package.module:Class`, not imported yet, or the pass itself."""
    origin: str
    """The file, plugin or module that says so."""

    def load(self) -> Loaded:
        """The pass, imported now if it was not before.

        Raises:
            RegistryError: it cannot be imported, or is no pass of that name.
        """
        if isinstance(self.location, str):
            return imported(self.name, self.location, self.origin)
        return self.location


@dataclass(frozen=True, slots=True)
class PipelineEntry:
    """A pipeline by name."""

    name: str
    pipeline: Pipeline
    origin: str


@dataclass(frozen=True, slots=True)
class EffectEntry:
    """What is said of a custom op or module class."""

    name: str
    effect: Effect
    origin: str


@dataclass(frozen=True, slots=True)
class Problem:
    """What is wrong with a plugin, and left out because of it. `str()` of it is one line."""

    origin: str
    reason: str

    def __str__(self) -> str:
        return " ".join(f"{self.origin} {self.reason}".split())

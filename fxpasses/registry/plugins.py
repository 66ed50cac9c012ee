"""Registries of installed packages, found and read without importing anything of them."""

from collections.abc import Iterator
from importlib.metadata import EntryPoint, entry_points
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from fxpasses.errors import RegistryError
from fxpasses.registry.entries import Problem
from fxpasses.registry.files import FILE_NAME, Contents, read

GROUP: Final = "fxpasses.registry"


def plugins() -> Iterator[Contents | Problem]:
    """What each installed plugin says, or what is wrong with it."""
    for entry in sorted(entry_points(group=GROUP), key=lambda e: (e.name, e.value)):
        try:
            yield _contents(entry)
        except RegistryError as error:
            yield Problem(f"the plugin {entry.name}", f"is left out: {error}")


def _contents(entry: EntryPoint) -> Contents:
    for folder in _folders(entry.value):
        if (folder / FILE_NAME).exists():
            return read(folder / FILE_NAME, f"the plugin {entry.name} ({entry.value})")
    raise RegistryError(f"the package {entry.value} has no {FILE_NAME}")


def _folders(package: str) -> list[Path]:
    """Where a package lies. Of a nested one only the top is looked up: the rest are folders."""
    top, *below = package.split(".")
    try:
        spec = find_spec(top)
    except Exception as error:  # the import hooks of other packages may raise anything
        raise RegistryError(f"the package {package} cannot be found: {error}") from error
    if spec is None or spec.submodule_search_locations is None:
        raise RegistryError(f"there is no package {package}")
    return [Path(place, *below) for place in spec.submodule_search_locations]

"""Passes imported by the place that a registry says they are at."""

import importlib
import inspect
from typing import Any, TypeAlias, TypeGuard

from fxpasses.core import ForeignPass, GraphPass, foreign
from fxpasses.errors import RegistryError

Loaded: TypeAlias = "type[GraphPass] | ForeignPass"


def is_pass_class(item: Any) -> TypeGuard[type[GraphPass]]:
    return isinstance(item, type) and issubclass(item, GraphPass)


def undeclared(item: object) -> list[str]:
    """What every pass has to say of itself, and this one does not."""
    return [word for word in ("name", "numerics") if not hasattr(item, word)]


def imported(name: str, location: str, origin: str) -> Loaded:
    """The pass `name` at `package.module:Class`; a function there becomes a foreign pass.

    Raises:
        RegistryError: it cannot be imported, is no pass, or calls itself something else.
    """
    module_name, _, attribute = location.partition(":")
    where = f"the pass {name} of {origin}"
    try:
        found: Any = importlib.import_module(module_name)
    except (Exception, SystemExit) as error:  # whatever the code of another package raises
        raised = f"{type(error).__name__}: {error}"
        raise RegistryError(f"{where} cannot be imported: {raised}") from error
    for part in attribute.split("."):
        if not hasattr(found, part):
            raise RegistryError(f"{where} is not there: {module_name} has no {attribute}")
        found = getattr(found, part)
    if is_pass_class(found) or isinstance(found, ForeignPass):
        return _checked(found, name, where)
    if not callable(found) or isinstance(found, type):
        raise RegistryError(f"{where} is {found!r} at {location}, which is no pass")
    return foreign(found, name=name)


def _checked(found: Loaded, name: str, where: str) -> Loaded:
    if isinstance(found, type) and inspect.isabstract(found):
        missing = ", ".join(sorted(found.__abstractmethods__))
        raise RegistryError(f"{where} is {found.__name__}, which does not define {missing}")
    if missing := undeclared(found):
        raise RegistryError(f"{where} does not declare its {' and '.join(missing)}")
    if found.name != name:
        raise RegistryError(f"{where} calls itself {found.name!r}")
    return found

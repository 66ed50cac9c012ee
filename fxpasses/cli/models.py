"""Models by name: of torchvision, of timm, or what a factory in a module or file makes."""

import importlib
import importlib.util
import inspect
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any, Final

import torch
from torch import nn

from fxpasses.core.given import an
from fxpasses.core.nearest import did_you_mean
from fxpasses.core.plain import Plain
from fxpasses.errors import ArgumentError
from fxpasses.registry.values import Reader

FORMS: Final = "torchvision:NAME, timm:NAME, package.module:FACTORY or file.py:FACTORY"


@dataclass(frozen=True, slots=True)
class Spec:
    """Where a model is, by what name, and with which options."""

    source: str
    name: str
    options: Mapping[str, Plain] = field(default_factory=dict[str, Plain])


def parse(text: str) -> Spec:
    """`source:name{option=value,...}`, with values as in a pipeline.

    Raises:
        ArgumentError: it is of another form.
    """
    place, brace, rest = text.partition("{")
    source, _, name = place.rpartition(":")
    if not source or not name:
        raise ArgumentError(f"MODEL={text!r}: pass {FORMS}")
    if not brace:
        return Spec(source, name)

    def error(message: str) -> ArgumentError:
        return ArgumentError(f"MODEL={text!r}: {message}")

    reader = Reader(brace + rest, "a value", error)
    reader.need("{")
    options = reader.options()
    reader.end()
    return Spec(source, name, options)


def built(text: str, seed: int) -> nn.Module:
    """The model, with weights that follow from `seed`.

    Raises:
        ArgumentError: there is none of that name, or it cannot be made.
    """
    spec = parse(text)
    factory = _factory(spec)
    if isinstance(factory, nn.Module):
        if spec.options:
            raise ArgumentError(f"MODEL={text!r} is a module already, and takes no options")
        return factory
    torch.manual_seed(seed)
    try:
        model: object = factory(**spec.options)
    except (Exception, SystemExit) as error:  # whatever the code of a model raises
        raised = f"{type(error).__name__}: {error}"
        raise ArgumentError(f"MODEL={text!r} cannot be made: {raised}") from error
    if not isinstance(model, nn.Module):
        raise ArgumentError(f"MODEL={text!r} makes {an(type(model))}, not a module")
    return model


def _factory(spec: Spec) -> "Callable[..., Any] | nn.Module":
    if spec.source == "torchvision":
        return _of_torchvision(spec.name)
    if spec.source == "timm":
        return _of_timm(spec.name)
    path = Path(spec.source)
    module = _file(path) if path.suffix == ".py" else _module(spec.source)
    return _attribute(module, spec)


def _of_torchvision(name: str) -> Callable[..., nn.Module]:
    models = _library("torchvision.models")
    _require(name, models.list_models(), "torchvision")
    builder = models.get_model_builder(name)
    # Weights that are not named would be downloaded.
    none = {"weights": None, "weights_backbone": None}
    taken = inspect.signature(builder).parameters
    defaults = {key: value for key, value in none.items() if key in taken}
    return lambda **options: builder(**(defaults | options))


def _of_timm(name: str) -> Callable[..., nn.Module]:
    timm = _library("timm")
    if not timm.is_model(name):
        _require(name, timm.list_models(), "timm")
    return lambda **options: timm.create_model(name, **({"pretrained": False} | options))


def _library(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        package = name.partition(".")[0]
        advice = f"{package} cannot be imported ({error}): pip install {package}"
        raise ArgumentError(advice) from error


def _require(name: str, known: Iterable[str], library: str) -> None:
    names = list(known)
    if name not in names:
        raise ArgumentError(f"{library} has no model {name!r}{did_you_mean(name, names)}")


def _module(name: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except (Exception, SystemExit) as error:  # whatever the code of a model raises
        raised = f"{type(error).__name__}: {error}"
        hint = "" if "." in name or Path(f"{name}.py").exists() else f". MODEL is {FORMS}"
        raise ArgumentError(f"the module {name} cannot be imported, {raised}{hint}") from error


def _file(path: Path) -> ModuleType:
    """The module of a file. What lies beside it can be imported, as when it is run itself.

    It is known by the name of the file, so that what is saved of it can be loaded beside it.
    """
    if not path.is_file():
        raise ArgumentError(f"there is no file {path}")
    name = path.stem if path.stem not in sys.modules else f"fxpasses_model_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None, "the suffix is that of Python"
    assert spec.loader is not None, "a file has a loader"
    sys.path.insert(0, str(path.resolve().parent))
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:  # whatever the code of a model raises
        raised = f"{type(error).__name__}: {error}"
        raise ArgumentError(f"{path} cannot be imported, {raised}") from error
    return module


def _attribute(module: ModuleType, spec: Spec) -> "Callable[..., Any] | nn.Module":
    found: Any = module
    for part in spec.name.split("."):
        if not hasattr(found, part):
            known = [name for name, value in vars(module).items() if callable(value)]
            hint = did_you_mean(spec.name, known)
            raise ArgumentError(f"{spec.source} has no {spec.name!r}{hint}")
        found = getattr(found, part)
    if not callable(found):
        kind = type(found).__name__
        raise ArgumentError(f"{spec.source}:{spec.name} is a {kind}, which makes no model")
    return found

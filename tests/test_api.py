"""The names that the package shows, and what an import of it costs."""

import subprocess
import sys
from types import ModuleType

import pytest

import fxpasses
import fxpasses.api


@pytest.mark.parametrize("name", fxpasses.__all__)
def test_every_public_name_is_there(name: str) -> None:
    value = getattr(fxpasses, name)
    assert name == "errors" or not isinstance(value, ModuleType)
    assert name in dir(fxpasses)


def test_the_package_shows_what_its_api_does() -> None:
    assert sorted(fxpasses.__all__) == sorted([*fxpasses.api.__all__, "errors"])


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'optimize'"):
        _ = fxpasses.optimize


def test_verbs_stay_verbs_when_their_subpackages_are_imported() -> None:
    code = (
        "import fxpasses.capture, fxpasses.verify, fxpasses.registry, fxpasses\n"
        "from fxpasses.verify import check\n"
        "assert callable(fxpasses.capture) and callable(fxpasses.verify)\n"
        "assert isinstance(fxpasses.registry, fxpasses.Registry)\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_errors_share_one_base() -> None:
    errors = [
        value
        for value in vars(fxpasses.errors).values()
        if isinstance(value, type) and issubclass(value, Exception)
    ]
    strays = [
        error
        for error in errors
        if not issubclass(error, fxpasses.errors.FxPassesError | fxpasses.errors.FxPassesWarning)
    ]
    assert len(errors) > 12
    assert strays == []


def test_the_import_loads_nothing_heavy() -> None:
    code = (
        "import sys, fxpasses\n"
        "print([m for m in ('torch','typer','rich','jinja2','networkx','graphviz')"
        " if m in sys.modules])\n"
        "import torch\n"
        "model = torch.nn.Sequential(torch.nn.Linear(2, 2)).eval()\n"
        "str(fxpasses.report(fxpasses.run(model, 'inference', torch.randn(1, 2))))\n"
        "fxpasses.registry.names()\n"
        "print([m for m in ('typer','rich','jinja2','graphviz') if m in sys.modules])\n"
    )
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert done.stdout.split("\n")[:2] == ["[]", "[]"]

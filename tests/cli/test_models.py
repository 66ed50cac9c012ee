"""Models by name, from every place that has them."""

import sys
from pathlib import Path

import pytest
import torch
from torch import nn

from fxpasses.cli.models import Spec, built, parse
from fxpasses.errors import ArgumentError
from tests.cli.models import ConvNorm, instance

HERE = "tests.cli.models"


@pytest.mark.parametrize(
    ("text", "spec"),
    [
        ("torchvision:resnet50", Spec("torchvision", "resnet50")),
        ("timm:resnet18{num_classes=10}", Spec("timm", "resnet18", {"num_classes": 10})),
        ("a.b:C.d{}", Spec("a.b", "C.d")),
        ("./x/model.py:Net", Spec("./x/model.py", "Net")),
        ('C:\\x\\model.py:Net{a="b:c"}', Spec("C:\\x\\model.py", "Net", {"a": "b:c"})),
        ("m:f{a=[1,none], b={c=true}}", Spec("m", "f", {"a": [1, None], "b": {"c": True}})),
    ],
)
def test_a_name_is_read(text: str, spec: Spec) -> None:
    assert parse(text) == spec


@pytest.mark.parametrize("text", ["", "resnet50", ":f", "module:", "m:f{", "m:f{a}", "m:f{a=1}x"])
def test_what_is_no_name_of_a_model_says_what_one_is(text: str) -> None:
    with pytest.raises(ArgumentError, match=r"MODEL="):
        parse(text)


@pytest.mark.parametrize(
    "text", [f"{HERE}:ConvNorm", f"{HERE}:Holder.made", f"{HERE}:instance", f"{HERE}:ConvNorm{{}}"]
)
def test_a_factory_class_or_module_of_a_module(text: str) -> None:
    assert isinstance(built(text, 0), ConvNorm)


def test_options_are_given_to_the_factory_and_equal_seeds_make_equal_weights() -> None:
    first, second = (built(f"{HERE}:ConvNorm{{channels=6,act=sigmoid}}", 3) for _ in range(2))
    assert first.conv.out_channels == 6
    assert first.act is torch.sigmoid
    assert torch.equal(first.conv.weight, second.conv.weight)


def test_a_module_that_is_there_already_stays_itself() -> None:
    assert built(f"{HERE}:instance", 0) is instance


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (f"{HERE}:ConvNrom", r"has no 'ConvNrom'; did you mean ConvNorm\?"),
        (f"{HERE}:Holder.nothing", "has no 'Holder.nothing'"),
        (f"{HERE}:number", "is a int, which makes no model"),
        (f"{HERE}:text", "makes a str, not a module"),
        (f"{HERE}:raising", "cannot be made: OSError: no such weights"),
        (f"{HERE}:leaving", "cannot be made: SystemExit: 3"),
        (f"{HERE}:ConvNorm{{width=3}}", "cannot be made: TypeError: .*width"),
        (f"{HERE}:instance{{a=1}}", "is a module already, and takes no options"),
        ("no.such.module:f", "the module no.such.module cannot be imported, ModuleNotFoundError"),
        ("resnet50:f", "MODEL is torchvision:NAME"),
        ("no_such_file.py:f", "there is no file no_such_file.py"),
        ("torchvision:resnet5", r"torchvision has no model 'resnet5'; did you mean resnet50\?"),
        ("timm:resnet5", r"timm has no model 'resnet5'; did you mean resnet"),
    ],
)
def test_what_cannot_be_made_says_why(text: str, message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        built(text, 0)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a model and what it imports, and everything forgotten afterwards."""
    (tmp_path / "beside_it.py").write_text("WIDTH = 5\n")
    (tmp_path / "my_model.py").write_text(
        "from torch import nn\nfrom beside_it import WIDTH\n"
        "class Net(nn.Linear):\n"
        "    def __init__(self, width: int = WIDTH) -> None:\n"
        "        super().__init__(width, 2)\n"
    )
    (tmp_path / "json.py").write_text("from torch import nn\nNet = nn.ReLU\n")
    (tmp_path / "bad.py").write_text("def\n")
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(sys, "modules", dict(sys.modules))
    return tmp_path


def test_a_factory_in_a_file_that_imports_what_lies_beside_it(folder: Path) -> None:
    model = built(f"{folder}/my_model.py:Net{{width=7}}", 0)
    assert model.in_features == 7
    assert type(model).__module__ == "my_model"
    assert built(f"{folder}/my_model.py:Net", 0).in_features == 5


def test_a_file_with_the_name_of_a_module_hides_it_from_nobody(folder: Path) -> None:
    import json

    assert isinstance(built(f"{folder}/json.py:Net", 0), nn.ReLU)
    assert sys.modules["json"] is json


def test_a_file_that_cannot_be_imported_says_why(folder: Path) -> None:
    with pytest.raises(ArgumentError, match=r"bad\.py cannot be imported, SyntaxError"):
        built(f"{folder}/bad.py:Net", 0)


def test_models_of_libraries_are_built_without_weights() -> None:
    model = built("torchvision:squeezenet1_1{num_classes=3}", 0)
    assert model.num_classes == 3
    assert built("timm:test_resnet{num_classes=3}", 0).num_classes == 3


def test_a_backbone_has_no_weights_either() -> None:
    # Its default would be downloaded.
    built("torchvision:lraspp_mobilenet_v3_large{num_classes=2}", 0)


def test_a_library_that_is_not_there_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "timm", None)
    with pytest.raises(ArgumentError, match=r"timm cannot be imported.*pip install timm"):
        built("timm:resnet18", 0)

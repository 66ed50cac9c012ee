"""The rules that keep the parts apart."""

import ast
import importlib
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from fxpasses.core import GraphPass

CHECKOUT = Path(__file__).resolve().parent.parent
PASSES = sorted((CHECKOUT / "fxpasses" / "passes").glob("[!_]*.py"))
REGISTRY = yaml.safe_load((CHECKOUT / "passes_registry.yaml").read_text(encoding="utf-8"))

# Names of torch that recognise or spell an op: only the vocabulary and the views may say them.
SPELLINGS = ("torch.nn", "torch.nn.functional", "torch.ops", "torchvision", "timm")
# What a pass may still take from torch.nn: the base of all modules, and parameters.
ALLOWED = {"Module", "Parameter", "UninitializedParameter"}


def test_every_layer_imports_only_what_lies_below() -> None:
    tool = Path(sys.executable).parent / "lint-imports"
    done = subprocess.run([tool], cwd=CHECKOUT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("name", sorted(REGISTRY["passes"]))
def test_a_registered_pass_has_one_name_everywhere(name: str) -> None:
    module, _, cls = REGISTRY["passes"][name].partition(":")
    found = getattr(importlib.import_module(module), cls)
    assert issubclass(found, GraphPass)
    assert found.name == name == module.rpartition(".")[2]
    assert cls == "".join(word.capitalize() for word in name.split("_")) or name == "dce"
    assert found.summary()


def test_every_pass_file_is_registered_and_tested() -> None:
    names = {path.stem for path in PASSES}
    assert names == set(REGISTRY["passes"])
    tests = {name: CHECKOUT / f"tests/passes/test_{name}.py" for name in names}
    assert [name for name, path in tests.items() if not path.is_file()] == []
    unchecked = [n for n, path in tests.items() if "check_pass(" not in path.read_text("utf-8")]
    assert unchecked == []


@pytest.mark.parametrize("path", PASSES, ids=lambda path: path.stem)
def test_no_pass_spells_an_op(path: Path) -> None:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    assert [name for name in _named(tree) if _spells_an_op(name)] == []


def _named(tree: ast.AST) -> Iterator[str]:
    """Every dotted name that the file reads, with imported names written out."""
    imported: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            imported.update((a.asname or a.name, a.name) for a in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            imported.update((a.asname or a.name, f"{node.module}.{a.name}") for a in node.names)
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute | ast.Name) and (name := _dotted(node)):
            first, _, rest = name.partition(".")
            whole = imported.get(first, first)
            yield f"{whole}.{rest}" if rest else whole


def _dotted(node: ast.expr) -> str | None:
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute) and (base := _dotted(node.value)):
        return f"{base}.{node.attr}"
    return None


def _spells_an_op(name: str) -> bool:
    owner, _, last = name.rpartition(".")
    return owner in SPELLINGS and last not in {*ALLOWED, "functional"}


def test_the_rule_on_spellings_sees_what_it_forbids() -> None:
    source = "from torch import nn\nimport torch.nn.functional as F\nx = nn.ReLU\ny = F.relu\n"
    assert [name for name in _named(ast.parse(source)) if _spells_an_op(name)] == [
        "torch.nn.ReLU",
        "torch.nn.functional.relu",
    ]

"""What a registry holds is shown whole: what is broken has its line, and hides nothing else."""

import json
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.fx import GraphModule, Node

import fxpasses
from fxpasses.core import Editor, Facts, Numerics, Rewrite
from fxpasses.registry import Registry, listed


class Optioned(Rewrite[Node]):
    """Does nothing, in many ways.

    And says more than that.
    """

    name = "optioned"
    numerics = Numerics.PRECISION
    runs_after = ("dce",)
    rate: float
    dtype: torch.dtype = torch.float16
    sizes: tuple[int, ...] | None = (1, 2)

    def match(self, node: Node, facts: Facts) -> Node | None:
        return None

    def rewrite(self, site: Node, edit: Editor) -> None: ...


@pytest.fixture
def registry(tmp_path: Path) -> Registry:
    registry = Registry.default().child()
    registry.register(Optioned)

    @registry.register(name="sweep", numerics=Numerics.EXACT)
    def sweep(module: GraphModule) -> None:
        """Sweeps."""

    path = tmp_path / "more.yaml"
    path.write_text(
        "version: 1\n"
        "passes: {gone: 'no_such_package.passes:Gone'}\n"
        "pipelines:\n"
        "  twice: {summary: Two rounds., repeat: 2, passes: [{dce: {}}, sweep, -dce]}\n"
        "  wrong: {passes: [dcee]}\n"
        "effects: {'lib::norm': pure}\n"
    )
    registry.load(path)
    return registry


def test_a_pass_is_shown_with_its_numerics_summary_options_and_origin(registry: Registry) -> None:
    (one,) = [one for one in listed(registry).passes if one.name == "optioned"]
    assert (one.summary, one.numerics) == ("Does nothing, in many ways.", "precision")
    assert (one.runs_after, one.trains, one.problem) == (("dce",), False, "")
    assert one.origin.endswith("test_registry_listing.Optioned")
    assert [(o.name, o.takes, o.default) for o in one.options] == [
        ("rate", "a number", None),
        ("dtype", "the name of a dtype", "float16"),
        ("sizes", "a list or none", "[1,2]"),
    ]


def test_a_function_is_shown_too(registry: Registry) -> None:
    (one,) = [one for one in listed(registry).passes if one.name == "sweep"]
    assert (one.summary, one.numerics, one.options) == ("Sweeps.", "exact", ())


def test_a_pass_that_cannot_be_imported_says_why(registry: Registry) -> None:
    broken = [one for one in listed(registry).passes if one.problem]
    assert [one.name for one in broken] == ["gone"]
    assert "cannot be imported: ModuleNotFoundError" in broken[0].problem


def test_a_pipeline_is_shown_as_it_is_written(registry: Registry) -> None:
    shown = {one.name: one for one in listed(registry).pipelines}
    assert shown["twice"].text == "(dce,sweep,-dce)*2"
    assert shown["twice"].summary == "Two rounds."
    assert "did you mean dce?" in shown["wrong"].problem
    assert shown["inference"].problem == ""


def test_the_listing_is_plain_data(registry: Registry) -> None:
    data = json.loads(json.dumps(listed(registry).to_dict()))
    assert [(one["name"], one["effect"]) for one in data["effects"]] == [("lib::norm", "pure")]
    assert {one["name"] for one in data["passes"]} >= {"dce", "gone", "optioned", "sweep"}
    assert data["problems"] == []


@torch.library.custom_op("fxpasses_listing_test::norm", mutates_args=())
def norm(x: Tensor) -> Tensor:
    return x / x.norm()


@norm.register_fake
def _(x: Tensor) -> Tensor:
    return torch.empty_like(x)


class DropsANorm(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        norm(x)
        return x + 1


@pytest.mark.parametrize(("effect", "nodes"), [("pure", 3), ("random", 4)])
def test_a_declared_effect_decides_what_may_be_removed(
    tmp_path: Path, effect: str, nodes: int
) -> None:
    path = tmp_path / "effects.yaml"
    path.write_text(f"version: 1\neffects: {{'fxpasses_listing_test::norm': {effect}}}\n")
    registry = Registry.default().child()
    registry.load(path)
    model, x = DropsANorm().eval(), torch.randn(3)
    assert len(fxpasses.run(model, "dce", x).graph.nodes) == 4
    assert len(fxpasses.run(model, "dce", x, registry=registry).graph.nodes) == nodes

"""What passes refused and what was undone is seen where it stands, with the reason."""

import re
import shutil
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.fx import Node

import fxpasses
from fxpasses import diff
from fxpasses.core import Editor, Facts, Numerics, Rewrite
from fxpasses.diagram.scene import Box, Sign
from fxpasses.views import Activation

IMAGE = torch.randn(2, 3, 8, 8, generator=torch.Generator().manual_seed(0))
REASON = "fuse_conv_bn: add reads conv too [nothing_else_reads_between; right, but not worth it]"


class ReadTwice(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(3, 3, 1), nn.BatchNorm2d(3)

    def forward(self, x: Tensor) -> Tensor:
        y = self.conv(x)
        return (self.norm(y) + y).relu()


class Inside(nn.Module):
    """Of which only the inner module is a graph."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = ReadTwice()

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x) if x.sum() > -1e9 else x


class DropsActivations(Rewrite[Activation]):
    """Leaves out activations, which is wrong."""

    name = "drop_activations"
    numerics = Numerics.EXACT

    def match(self, node: Node, facts: Facts) -> Activation | None:
        return Activation.at(node)

    def rewrite(self, site: Activation, edit: Editor) -> None:
        edit.replace(site.node, site.input)


def compared(model: nn.Module, passes: Any, **options: Any) -> fxpasses.Diagram:
    model.eval()
    result = fxpasses.run(model, passes, IMAGE, **options)
    return diff(model, result, IMAGE)


def box(diagram: fxpasses.Diagram, name: str) -> Box:
    (found,) = [one for one in diagram.scene.boxes.values() if one.full_name == name]
    return found


def test_what_a_pass_refused_says_why() -> None:
    diagram = compared(ReadTwice(), "fuse_conv_bn", verify=False)
    assert (box(diagram, "norm").sign, box(diagram, "norm").reasons) == (Sign.REFUSED, (REASON,))
    assert diagram.text().splitlines()[0] == "ReadTwice, 6 -> 6 nodes, no difference, ! 1 refused"
    lines = diagram.text().splitlines()
    assert lines[lines.index(f"    {REASON}") - 1].startswith("! norm ")
    assert re.search(
        r"class=.norm refused. .*tooltip=.! batch_norm norm&#10;.*&#10;", diagram.dot()
    )
    assert "not worth it" in diagram.dot()


def test_a_graph_of_its_own_has_refusals_of_its_own() -> None:
    diagram = compared(Inside(), "fuse_conv_bn", verify=False)
    assert box(diagram, "inner/norm").reasons == (REASON,)
    assert diagram.scene.refused() == 1


def test_a_node_that_was_changed_may_be_refused_too() -> None:
    class Twice(ReadTwice):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(torch.nn.functional.dropout(x, training=False)) + x

    diagram = compared(Twice(), "simplify,fuse_conv_bn", verify=False)
    assert box(diagram, "norm").refused == 1
    changed = [one for one in diagram.scene.boxes.values() if one.sign is Sign.CHANGED]
    assert [one.title for one in changed] == ["conv"]


def test_a_rewrite_that_was_undone_is_a_failure_at_its_node() -> None:
    diagram = compared(ReadTwice(), [DropsActivations()], on_failure="skip")
    failed = box(diagram, "relu")
    assert failed.sign is Sign.FAILED
    (reason,) = failed.reasons
    assert reason.endswith(" [undone: 1:drop_activations@/relu]")
    assert reason.startswith("declared exact, but moves the value")
    assert "x 1 found wrong and undone" in diagram.text()
    assert "failed" in diagram.dot()


def test_what_became_of_a_node_names_the_rewrite() -> None:
    model = nn.Sequential(nn.Conv2d(3, 3, 1), nn.BatchNorm2d(3)).eval()
    diagram = compared(model, "fuse_conv_bn")
    (gone,) = [
        one
        for one in diagram.scene.boxes.values()
        if one.sign is Sign.REMOVED and one.title == "batch_norm"
    ]
    assert any(note.endswith("[1:fuse_conv_bn@/_1]") for note in gone.notes)


@pytest.mark.skipif(shutil.which("dot") is None, reason="Graphviz is not installed")
def test_a_refusal_is_drawn_with_its_reason() -> None:
    svg = compared(ReadTwice(), "fuse_conv_bn", verify=False).svg()
    assert svg.count('class="node norm refused"') == 1
    assert ">fuse_conv_bn: add reads conv too</text>" in svg

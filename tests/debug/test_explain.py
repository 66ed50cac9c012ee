"""What `explain` tells: conditions met and failed, near misses, and what became of a node."""

import json
import sys
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from typer.testing import CliRunner

import fxpasses
from fxpasses.cli import app
from fxpasses.core import Facts, Numerics, Rewrite
from fxpasses.debug import Explanation, Outcome, Site
from fxpasses.errors import ArgumentError, PassError, PipelineError
from fxpasses.passes.fuse_conv_bn import FuseConvBn
from fxpasses.views import Activation
from tests.test_session import IMAGE, ConvNet


class Mixed(nn.Module):
    """A norm that is folded, one whose layer has two readers, and one behind an activation."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(3, 4, 1), nn.BatchNorm2d(4)
        self.second, self.second_norm = nn.Conv2d(4, 4, 1), nn.BatchNorm2d(4)
        self.third_norm = nn.BatchNorm2d(4)
        self.eval()

    def forward(self, x: Tensor) -> Tensor:
        x = torch.sigmoid(self.norm(self.conv(x)))
        y = self.second(x)
        return self.third_norm(torch.relu(self.second_norm(y))) + y


def explained(passes: Any = "fuse_conv_bn", **options: Any) -> Explanation:
    return fxpasses.explain(Mixed(), passes, (IMAGE,), **options)


def the(explanation: Explanation) -> Site:
    (site,) = explanation.sites
    return site


CONDITIONS = [one.__name__ for one in (*FuseConvBn.legal_if, *FuseConvBn.worthwhile_if)]


def test_what_is_rewritten_meets_every_condition() -> None:
    site = the(explained(node="norm"))

    assert (site.outcome, site.rewrite) == (Outcome.REWRITTEN, "1:fuse_conv_bn@/norm")
    assert [answer.condition for answer in site.answers] == CONDITIONS
    assert all(answer.holds for answer in site.answers)
    assert site.nodes == ("norm", "conv")
    assert site.source is not None
    assert "test_explain.py:" in site.source


def test_what_is_refused_names_what_fails_and_what_holds() -> None:
    site = the(explained(node="second_norm"))

    assert (site.outcome, site.why) == (Outcome.REFUSED, "add reads second too")
    assert [answer.condition for answer in site.answers] == CONDITIONS
    (failed,) = site.failed
    assert (failed.condition, failed.about_cost) == ("nothing_else_reads_between", True)
    assert failed.remedy


def test_a_node_that_a_site_is_made_of_is_explained_by_it() -> None:
    assert the(explained(node="conv")) == the(explained(node="norm"))


def test_conditions_behind_one_that_fails_are_asked_too() -> None:
    site = the(fxpasses.explain(Mixed().train(), "fuse_conv_bn", (IMAGE,), node="norm"))

    failed = [answer.condition for answer in site.failed]
    assert failed[0] == "norm_uses_running_statistics"
    assert "no_parameter_is_trained" in failed
    assert [answer.condition for answer in site.answers] == CONDITIONS


def test_a_node_that_no_pass_looked_at_has_its_near_misses() -> None:
    explanation = explained(node="relu")

    assert explanation.sites == ()
    (miss,) = explanation.near
    assert (miss.pass_name, miss.node) == ("fuse_conv_bn", "third_norm")
    assert miss.matched == ("third_norm is a BatchNorm",)
    assert miss.missing == "relu is no Conv or Linear or Flatten: it computes relu"


def test_a_near_miss_says_how_many_read_what_is_in_the_way() -> None:
    class ReadTwice(Mixed):
        def forward(self, x: Tensor) -> Tensor:
            x = torch.sigmoid(x)
            return self.norm(torch.cat([x, x[:, :1]], 1)) + self.conv(x)

    explanation = fxpasses.explain(ReadTwice(), "fuse_conv_bn", (IMAGE,))

    assert [(miss.node, miss.missing) for miss in explanation.near] == [
        ("norm", "cat is no Conv or Linear or Flatten: it computes cat"),
        ("conv", "sigmoid is no BatchNorm: it computes sigmoid, and 3 nodes read it"),
    ]


def test_the_node_itself_is_described() -> None:
    node = explained(node="norm").node

    assert node is not None
    assert (node.computes, node.value, node.module) == ("batch_norm", "2x4x8x8 f32", "norm")
    assert (node.operands, node.readers) == (("conv",), ("sigmoid",))
    assert node.became == ("conv_1, by fuse_conv_bn (1:fuse_conv_bn@/norm)",)


def test_what_comes_in_its_place_is_followed() -> None:
    explanation = explained("fuse_conv_bn,cse,fuse_conv_bn_relu", node="norm")

    assert [site.pass_name for site in explanation.sites] == ["fuse_conv_bn", "fuse_conv_bn_relu"]
    assert explanation.sites[1].nodes[1:] == ("conv_1",)


def test_a_whole_pass_is_explained() -> None:
    explanation = explained("fuse_conv_bn,dce", pass_name="fuse_conv_bn")

    assert [(site.node, site.outcome) for site in explanation.sites] == [
        ("norm", Outcome.REWRITTEN),
        ("second_norm", Outcome.REFUSED),
    ]
    assert [miss.node for miss in explanation.near] == ["third_norm"]
    assert explanation.passes == ("fuse_conv_bn",)


def test_rounds_that_see_the_same_are_told_once() -> None:
    explanation = explained("(fuse_conv_bn)*3", node="second_norm")

    assert the(explanation).round == 1


def test_a_pass_that_asks_no_conditions_tells_what_it_did() -> None:
    class Twice(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            _ = x.exp()
            return x + 1

    explanation = fxpasses.explain(Twice(), "dce", (IMAGE,), node="exp")

    assert the(explanation).outcome is Outcome.REWRITTEN
    assert the(explanation).answers == ()


def test_a_reason_that_is_no_condition_is_told() -> None:
    class Folds(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x + torch.ones(64, 1).exp()

    passes = "constant_fold{largest_bytes=16}"
    explanation = fxpasses.explain(Folds(), passes, (torch.ones(64, 1),), node="exp")

    site = explanation.sites[0]
    assert site.outcome is Outcome.REFUSED
    assert site.failed[-1].condition == "model_stays_small"


def test_what_is_left_out_by_request_is_told() -> None:
    site = the(explained(node="norm", skip=["1:fuse_conv_bn@/norm"]))

    assert site.outcome is Outcome.LEFT_OUT


def test_a_pass_that_is_not_for_training_says_so_at_every_node() -> None:
    passes = ["fuse_conv_bn", NotForTraining()]
    explanation = fxpasses.explain(ConvNet().train(), passes, (IMAGE,), node="relu")

    (site,) = explanation.of("not_for_training")
    assert site.failed[0].condition == "result_is_not_trained"


def test_graphs_below_an_opaque_model_have_a_path() -> None:
    class Opaque(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = ConvNet(), ConvNet()

        def forward(self, x: Tensor) -> Tensor:
            return self.a(x) + self.b(x) if x.sum() < 1e9 else x

    explanation = fxpasses.explain(Opaque().eval(), "fuse_conv_bn", (IMAGE,), node="a/norm")

    assert the(explanation).path == "a"
    assert explanation.node is not None
    assert explanation.node.module == "a.norm"
    with pytest.raises(ArgumentError, match="node='norm': pass a/norm or b/norm"):
        fxpasses.explain(Opaque().eval(), "fuse_conv_bn", (IMAGE,), node="norm")


def test_of_groups_that_grow_the_last_is_rewritten() -> None:
    class Three(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b, self.c = (nn.Linear(64, 64) for _ in range(3))

        def forward(self, x: Tensor) -> Tensor:
            return self.a(x) + self.b(x).relu() + self.c(x).sigmoid()

    rows = torch.ones(64, 64)
    explanation = fxpasses.explain(Three().eval(), "merge_linears", (rows,))

    (site,) = [one for one in explanation.sites if one.outcome is Outcome.REWRITTEN]
    assert site.nodes == ("a", "b", "c")


# -- passes of others


class NotForTraining(Rewrite[Activation]):
    """Leaves everything as it is."""

    name = "not_for_training"
    numerics = Numerics.EXACT

    def match(self, node: Any, facts: Facts) -> Activation | None:
        return Activation.at(node)

    def rewrite(self, site: Activation, edit: Any) -> None:
        raise AssertionError("no condition holds")


def it_is_known(site: Activation, facts: Facts) -> str | None:
    return "it is not known"


def rests_on_the_first(site: Activation, facts: Facts) -> str | None:
    raise LookupError("of what is not known")


class Rests(NotForTraining):
    """Has a condition that rests on another."""

    name = "rests"
    legal_if = (it_is_known, rests_on_the_first)


class HasABug(NotForTraining):
    """Has a condition that raises."""

    name = "has_a_bug"
    legal_if = (rests_on_the_first, it_is_known)


def test_what_rests_on_a_condition_that_fails_cannot_be_told() -> None:
    site = the(fxpasses.explain(nn.ReLU().eval(), [Rests()], (IMAGE,)))

    assert [answer.holds for answer in site.answers] == [False, None]


def test_a_bug_in_a_condition_stays_an_error() -> None:
    with pytest.raises(PassError, match="of what is not known"):
        fxpasses.explain(nn.ReLU().eval(), [HasABug()], (IMAGE,))


def test_foreign_passes_are_known_by_their_results() -> None:
    def mine(module: Any) -> None: ...

    explanation = fxpasses.explain(ConvNet(), [mine], (IMAGE,), node="relu")

    assert explanation.notes == ("known by their results alone: mine",)


# -- nothing else changes


def test_it_tells_what_a_plan_tells() -> None:
    plan = fxpasses.plan(Mixed(), "inference", (IMAGE,)).record
    explanation = fxpasses.explain(Mixed(), "inference", (IMAGE,))

    rewrites = [one.id for made in plan.passes for one in made.rewrites]
    assert [site.rewrite for site in explanation.sites if site.rewrite] == rewrites
    refused = {
        (made.name, one.node, one.condition) for made in plan.passes for one in made.refusals
    }
    told = {
        (site.pass_name, site.node, answer.condition)
        for site in explanation.sites
        for answer in site.failed
    }
    assert refused <= told


def test_passes_and_profilers_stay_as_they_are() -> None:
    def profiler(*_: Any) -> None: ...

    mine = FuseConvBn()
    sys.setprofile(profiler)
    try:
        fxpasses.explain(Mixed(), [mine], (IMAGE,))
        assert sys.getprofile() is profiler
    finally:
        sys.setprofile(None)
    assert vars(mine) == {}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"node": "nrom"}, "node='nrom': no graph has such a node; did you mean norm"),
        ({"node": 3}, "node=3: pass the name of a node"),
        ({"pass_name": "fuse"}, "pass_name='fuse': the pipeline has no such pass"),
        ({"pass_name": 3}, "pass_name=3: pass the name of a pass"),
    ],
)
def test_names_that_are_not_there_are_told(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        explained(**options)


def test_a_pipeline_that_is_not_there_is_told() -> None:
    with pytest.raises(PipelineError):
        explained("fuse_conv")


# -- as text


def test_its_text_says_it_all_of_one_node() -> None:
    text = str(explained("fuse_conv_bn,dce", node="second_norm"))

    assert "second_norm computes batch_norm, 2x4x8x8 f32" in text
    assert "read by relu" in text
    assert "does not hold: nothing_else_reads_between: add reads second too" in text
    assert "holds: norm_uses_running_statistics, parameters_are_constant" in text
    assert "found nothing of what they look for here: dce" in text


def test_its_json_is_plain() -> None:
    data = json.loads(explained(node="norm").to_json())

    assert data["version"] == 1
    assert data["node"]["name"] == "norm"
    assert data["sites"][0]["answers"][0]["holds"] is True


def test_the_command_explains_a_node_of_a_pass() -> None:
    arguments = ["explain", "tests.cli.models:ConvNorm", "-i", "2x3x6x6"]
    done = CliRunner().invoke(app, [*arguments, "--node", "norm", "--pass", "fuse_conv_bn"])

    assert done.exit_code == 0
    assert "norm with conv: rewritten" in done.stdout
    assert CliRunner().invoke(app, [*arguments, "--node", "nrom"]).exit_code == 2

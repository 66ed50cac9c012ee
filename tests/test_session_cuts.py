"""A pass that changes the meaning by request cuts the pipeline, and a foreign pass its sites."""

from collections.abc import Iterator
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor, nn
from torch.fx import GraphModule, Node

import fxpasses
from fxpasses.core import Editor, Facts, GraphPass, Numerics, Refusal, Rewrite, Step
from fxpasses.core.record import PieceRecord, VerificationRecord
from fxpasses.errors import VerificationError
from fxpasses.verify import runs as verify_runs

X = torch.randn(3, 4, generator=torch.Generator().manual_seed(2))


class Net(nn.Module):
    """Two sines with a relu between them."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        return torch.sin(self.second(torch.relu(torch.sin(self.first(x)))))


class Swap(Rewrite[Node]):
    """Writes `new` for every call of `old`."""

    name: ClassVar[str] = "swap"
    numerics = Numerics.MEANING
    trains = True
    old: Any = torch.relu
    new: Any = torch.tanh

    def match(self, node: Node, facts: Facts) -> Node | None:
        return node if node.target is self.old else None

    def rewrite(self, site: Node, edit: Editor) -> None:
        edit.replace(site, edit.call_function(self.new, *site.args))


class Respell(Rewrite[Node]):
    """Writes the sine as a method."""

    name = "respell"
    numerics = Numerics.EXACT
    trains = True

    def match(self, node: Node, facts: Facts) -> Node | None:
        return node if node.target is torch.sin else None

    def rewrite(self, site: Node, edit: Editor) -> None:
        edit.replace(site, edit.call_method("sin", *site.args))


class Scale(GraphPass):
    """Wrong: multiplies what the node at `at` computes by 1.5."""

    name = "scale"
    numerics = Numerics.ROUNDING
    trains = True
    at: str

    def steps(self, module: GraphModule, facts: Facts) -> Iterator[Step | Refusal]:
        for node in list(module.graph.nodes):
            if node.name == self.at:
                yield Step(node, "wrong", lambda edit, old=node: self._scale(edit, old))

    def _scale(self, edit: Editor, old: Node) -> None:
        edit.replace(old, edit.call_function(torch.mul, edit.copy(old), 1.5))


def swapped(model: nn.Module, x: Tensor, activation: Any = torch.tanh) -> Tensor:
    return torch.sin(model.second(activation(torch.sin(model.first(x)))))


def verification(result: nn.Module) -> VerificationRecord:
    return fxpasses.report(result).record.verification


def told(pieces: list[PieceRecord]) -> list[tuple[list[str], str, bool]]:
    assert all(piece.ok for piece in pieces)
    return [(piece.passes, piece.against, piece.changes_meaning) for piece in pieces]


LEFT = "the graph as 2 swap left it"
LEVELS = pytest.mark.parametrize(
    ("level", "training"), [(True, False), ("each", False), ("full", False), ("full", True)]
)


@LEVELS
def test_what_comes_before_and_after_is_verified(level: Any, training: bool) -> None:
    model = Net().train(training)
    with torch.no_grad():
        expected, before = swapped(model, X), model(X)

    result = fxpasses.run(model, [Respell(), Swap(), "dce", Respell()], (X,), verify=level)

    torch.testing.assert_close(result(X).detach(), expected)
    found = verification(result)
    assert found.ok is True
    assert told(found.pieces) == [(["1 respell"], "", False), (["2 swap"], "", True)]
    difference = float((expected - before).norm() / before.norm())
    assert found.pieces[1].difference == pytest.approx(difference, rel=1e-4)
    text = str(fxpasses.report(result))
    assert "1 respell: verified against the original" in text
    assert "2 swap: changes the meaning by request" in text


def test_a_rewrite_after_the_cut_is_compared_with_what_the_change_left() -> None:
    model = Net().eval()
    result = fxpasses.run(model, ["dce", Swap(), Respell()], (X,))
    assert told(verification(result).pieces) == [
        ([], "", False),
        (["2 swap"], "", True),
        (["3 respell"], LEFT, False),
    ]
    assert torch.equal(result(X), swapped(model, X))
    assert f"3 respell: verified against {LEFT}" in str(fxpasses.report(result))
    checks = verification(result).checks
    assert {check.against for check in checks if check.name == "site"} == {LEFT}


@pytest.mark.parametrize(
    ("passes", "pieces"),
    [
        ([Swap()], [[], ["1 swap"]]),
        ([Swap(), Respell()], [[], ["1 swap"], ["2 respell"]]),
        ([Respell(), Swap()], [["1 respell"], ["2 swap"]]),
        (
            [Swap(), Swap(old=torch.tanh, new=torch.sigmoid), Respell()],
            [[], ["1 swap"], ["2 swap"], ["3 respell"]],
        ),
        ([{"repeat": 3, "passes": [Respell(), Swap()]}], [["1 respell"], ["2 swap"]]),
        (
            [{"repeat": 4, "passes": [Respell(), Swap(), Swap(old=torch.tanh, new=torch.exp)]}],
            [["1 respell"], ["2 swap"], ["3 swap"]],
        ),
        ([Respell(), Swap(old=torch.cos)], []),
        ([Swap(old=torch.cos)], []),
    ],
    ids=[
        "alone",
        "start",
        "end",
        "in a row",
        "repeated",
        "row repeated",
        "refused",
        "only refused",
    ],
)
def test_wherever_the_change_stands(passes: list[Any], pieces: list[list[str]]) -> None:
    found = verification(fxpasses.run(Net().eval(), passes, (X,)))
    assert found.ok is True
    assert [piece.passes for piece in found.pieces][: len(pieces)] == pieces
    assert bool(pieces) or len(found.pieces) == 1


@LEVELS
@pytest.mark.parametrize(
    ("passes", "guilty"),
    [
        ([Scale(at="sin"), Swap(), Respell()], "1:scale@/sin"),
        ([Respell(), Swap(), Scale(at="sin_3")], "3:scale@/sin_3"),
        ([Swap(), Scale(at="sin_1")], "2:scale@/sin_1"),
        ([Swap(), "dce", Scale(at="tanh")], "3:scale@/tanh"),
    ],
)
def test_a_fault_on_either_side_is_blamed_on_its_rewrite(
    passes: list[Any], guilty: str, level: Any, training: bool
) -> None:
    with pytest.raises(VerificationError) as caught:
        fxpasses.run(Net().train(training), passes, (X,), verify=level)
    assert [blame.id for blame in caught.value.blame] == [guilty]


def test_a_fault_after_the_cut_is_undone_where_that_is_asked_for() -> None:
    model = Net().eval()
    passes = [Respell(), Swap(), Scale(at="tanh")]
    result = fxpasses.run(model, passes, (X,), on_failure="skip")
    assert verification(result).undone == ["3:scale@/tanh"]
    assert verification(result).ok is True
    assert torch.equal(result(X), swapped(model, X))


def test_the_forwards_of_all_pieces_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    made = 0
    right = verify_runs.run_program

    def counted(*args: Any, **kwargs: Any) -> Any:
        nonlocal made
        made += 1
        return right(*args, **kwargs)

    monkeypatch.setattr(verify_runs, "run_program", counted)
    passes = [Swap(), Respell(), Swap(old=torch.tanh, new=torch.exp)]
    found = verification(fxpasses.run(Net().eval(), passes, (X,)))

    assert len(found.pieces) == 4
    assert found.forwards == made + 1  # the reference ran along with the capture
    assert sum(piece.forwards for piece in found.pieces) == found.forwards


class Branches(nn.Module):
    """Runs its own code: what is below it is captured."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.other = Net(), Net()

    def forward(self, x: Tensor) -> Tensor:
        y = self.inner(x)
        return self.other(y + 1 if y.sum() > 0 else y)


def test_graphs_below_what_runs_its_own_code_are_cut_as_well() -> None:
    model = Branches().eval()
    found = verification(fxpasses.run(model, ["dce", Swap(), Respell()], (X,)))
    assert (found.ok, found.notes, found.unverified) == (True, [], [])
    with pytest.raises(VerificationError) as caught:
        fxpasses.run(model, [Swap(), Scale(at="tanh")], (X,))
    assert {blame.id for blame in caught.value.blame} == {
        "2:scale@inner/tanh",
        "2:scale@other/tanh",
    }


class SwapsAndScales(Swap):
    """Wrong: also makes the outputs longer."""

    name = "swaps_and_scales"

    def rewrite(self, site: Node, edit: Editor) -> None:
        new = edit.call_function(torch.tanh, *site.args)
        edit.replace(site, edit.call_function(torch.cat, [new, new]))


def test_a_change_of_meaning_keeps_the_form_of_the_outputs() -> None:
    with pytest.raises(VerificationError, match="shape") as caught:
        fxpasses.run(Net().eval(), [SwapsAndScales()], (X,))
    assert [blame.id for blame in caught.value.blame] == ["1:swaps_and_scales@/relu"]


def halve_weights(module: GraphModule) -> None:
    for parameter in module.parameters():
        parameter.data.mul_(0.5)


def test_a_foreign_change_of_meaning() -> None:
    prune = fxpasses.foreign(halve_weights, name="prune", numerics=Numerics.MEANING)
    result = fxpasses.run(Net().eval(), [Respell(), prune, Swap(), Respell()], (X,))
    found = verification(result)
    assert found.ok is True
    assert [piece.passes for piece in found.pieces] == [["1 respell"], ["2 prune"], ["3 swap"]]
    assert found.pieces[1].difference > 0


# -- foreign passes


class ConvNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4)
        self.last = nn.Conv2d(4, 4, 1)
        nn.init.normal_(self.norm.running_mean)
        nn.init.uniform_(self.norm.running_var, 0.5, 2.0)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(torch.relu(self.norm(self.conv(x))))


IMAGE = torch.randn(2, 3, 8, 8, generator=torch.Generator().manual_seed(0))


def zero_weights(module: GraphModule) -> None:
    for parameter in module.parameters():
        parameter.data.zero_()


@pytest.mark.parametrize("later", [["fuse_conv_bn"], ["inference"], ["dce", "fuse_conv_bn", "dce"]])
def test_a_foreign_pass_is_blamed_for_what_it_did(later: list[str]) -> None:
    with pytest.raises(VerificationError) as caught:
        fxpasses.run(ConvNet().eval(), [zero_weights, *later], (IMAGE,))
    assert {blame.pass_name for blame in caught.value.blame} == {"zero_weights"}


def folded(result: nn.Module) -> int:
    """The norms that were folded."""
    passes = fxpasses.report(result).record.passes
    return sum(len(one.rewrites) for one in passes if one.name == "fuse_conv_bn")


def test_only_the_foreign_pass_is_left_out() -> None:
    model = ConvNet().eval()
    result = fxpasses.run(model, [zero_weights, "inference"], (IMAGE,), on_failure="skip")
    assert verification(result).undone == ["zero_weights"]
    assert folded(result) == 1
    torch.testing.assert_close(result(IMAGE), model(IMAGE))


def shift_scales(module: GraphModule) -> None:
    """Doubles what the norm computes and halves it where it is read: relu does not mind."""
    module.norm.weight.data.mul_(2)
    module.norm.bias.data.mul_(2)
    module.last.weight.data.mul_(0.5)


def test_a_foreign_pass_may_move_values_on_the_way() -> None:
    model = ConvNet().eval()
    result = fxpasses.run(model, [shift_scales, "inference"], (IMAGE,))
    assert verification(result).ok is True
    assert folded(result) == 1
    torch.testing.assert_close(result(IMAGE), model(IMAGE))


def test_a_fault_after_a_right_foreign_pass_is_blamed_on_its_rewrite() -> None:
    with pytest.raises(VerificationError) as caught:
        fxpasses.run(ConvNet().eval(), [shift_scales, "fuse_conv_bn", Scale(at="relu")], (IMAGE,))
    assert [blame.id for blame in caught.value.blame] == ["3:scale@/relu"]

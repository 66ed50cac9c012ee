"""What will cost speed is found, with its line and what to do; what will not is left in peace."""

import copy
import json

import pytest
import torch
from torch import Tensor, nn

import fxpasses
from fxpasses import Advice, advise
from fxpasses.advise import Finding, Kind
from fxpasses.advise.advice import TITLES
from fxpasses.advise.syncs import REMEDIES
from fxpasses.capture.tracing.request import REMEDIES as OPAQUE_REMEDIES
from fxpasses.errors import ArgumentError, CaptureError
from fxpasses.ops import Sync, sync_named, sync_of

IMAGE = torch.randn(2, 8, 8, 8, generator=torch.Generator().manual_seed(0))


class Calling(nn.Module):
    """Applies a function behind a convolution."""

    def __init__(self, function: object) -> None:
        super().__init__()
        self.first, self.function = nn.Conv2d(8, 16, 3, padding=1), function

    def forward(self, x: Tensor) -> Tensor:
        y = self.first(x)
        return y, self.function(y)


class Between(nn.Module):
    """Applies a function between two convolutions."""

    def __init__(self, function: object) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(8, 16, 3, padding=1), nn.Conv2d(16, 8, 3, padding=1)
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        return self.second(self.function(self.first(x)))


def found_by(function: object, kind: Kind) -> tuple[Finding, ...]:
    return advise(Calling(function).eval(), IMAGE).of(kind)


def line_of(source: str | None) -> str:
    assert source is not None
    file, _, number = source.rpartition(":")
    with open(file, encoding="utf-8") as lines:
        return lines.readlines()[int(number) - 1]


def opaque_helper(x: Tensor) -> float:
    return x.detach().numpy().sum()


# -- synchronising calls


@pytest.mark.parametrize(
    ("function", "text"),
    [
        (lambda y: y.sum().item(), "item"),
        (lambda y: y.cpu(), "cpu"),
        (lambda y: y.to("cpu"), "to"),
        (lambda y: y.nonzero(), "nonzero"),
        (torch.nonzero, "nonzero"),
        (torch.argwhere, "argwhere"),
        (lambda y: torch.where(y > 0), "where"),
        (lambda y: torch.masked_select(y, y > 0), "masked_select"),
        (torch.unique, "unique"),
        (lambda y: y[y > 0], "mask"),
        (lambda y: y.flatten()[(y > 0).flatten()], "mask"),
        (lambda y: torch.bincount(y.flatten().abs().long()), "bincount"),
        (lambda y: torch.repeat_interleave(y[0, 0, 0], y[0, 0, 0].abs().long()), "interleave"),
        (lambda y: nn.functional.one_hot(y.abs().long()), "one_hot"),
        (lambda y: y.tolist(), "tolist"),
        (opaque_helper, "numpy"),
    ],
)
def test_a_call_that_waits(function: object, text: str) -> None:
    findings = found_by(function, Kind.SYNC)
    assert findings
    assert any(text in one.message for one in findings)
    assert all(one.remedy in REMEDIES.values() for one in findings)
    assert all("test_advise.py" in (one.source or "") for one in findings)


@pytest.mark.parametrize(
    "function",
    [
        lambda y: torch.where(y > 0, y, 0),
        lambda y: y.to(torch.float32),
        lambda y: y.masked_fill(y > 0, 0.0),
        lambda y: y[:, :4],
        lambda y: y[torch.tensor([0, 1])],
        lambda y: y.repeat_interleave(2, 1),
        lambda y: nn.functional.one_hot(y.abs().long().clamp(0, 3), 4),
        lambda y: {"item": 1}["item"],
    ],
)
def test_a_call_that_does_not_wait(function: object) -> None:
    assert found_by(function, Kind.SYNC) == ()


class Deciding(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        if x.sum() > 0:
            x = x + self.scaled(x)
        return x

    def scaled(self, x: Tensor) -> float:
        return x.max().item()


def test_opaque_code_is_read() -> None:
    model = nn.Sequential(nn.Linear(8, 8), Deciding()).eval()
    findings = advise(model, torch.ones(2, 8))
    (branch,) = findings.of(Kind.BRANCH)
    assert (branch.path, branch.remedy) == ("1", OPAQUE_REMEDIES["control_flow"])
    assert "if x.sum() > 0" in line_of(branch.source)
    (sync,) = findings.of(Kind.SYNC)
    assert sync.path == "1"
    assert "return x.max().item()" in line_of(sync.source)
    assert [one.kind for one in findings] == [Kind.SYNC, Kind.BRANCH]


class Counting(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        self.seen = getattr(self, "seen", 0) + 1
        return x * torch.as_tensor([1.0]) + x


def test_every_opaque_leaf_is_advised_on() -> None:
    findings = advise(nn.Sequential(nn.Linear(8, 8), Counting()).eval(), torch.ones(2, 8))
    (leaf,) = findings.of(Kind.OPAQUE)
    assert leaf.message.startswith("python_state: ")
    assert leaf.remedy == OPAQUE_REMEDIES["python_state"]
    (copied,) = findings.of(Kind.COPY)
    assert "calls as_tensor" in copied.message


@pytest.mark.filterwarnings("ignore:.*torch.jit:FutureWarning")
def test_code_that_cannot_be_read_is_a_leaf_like_any() -> None:
    scripted = torch.jit.trace(nn.Linear(8, 8), torch.ones(2, 8))
    findings = advise(nn.Sequential(scripted, nn.Linear(8, 8)).eval(), torch.ones(2, 8))
    assert [(one.kind, one.path) for one in findings] == [(Kind.OPAQUE, "0")]
    assert findings.findings[0].remedy == OPAQUE_REMEDIES["compiled"]


class Hostile(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self._modules["<script>\n"] = nn.Linear(8, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self._modules["<script>\n"](x)


def test_hostile_names_are_text() -> None:
    advice = advise(Hostile().eval(), torch.ones(2, 8))
    assert "<script> : 10 output channels" in advice.text()
    assert "<script>" not in advice._repr_html_()


def test_every_sync_and_every_kind_is_explained() -> None:
    assert set(REMEDIES) == set(Sync)
    assert set(TITLES) == set(Kind)


def test_names_alone() -> None:
    assert sync_named("item") is Sync.VALUE
    assert sync_named("nonzero", "torch") is Sync.DATA_SIZED
    assert sync_named("nonzero", "np") is None
    assert sync_named("items") is None
    assert sync_named("__int__", "x") is None


def test_aten_overloads_wait_too() -> None:
    graph = torch.fx.Graph()
    x = graph.placeholder("x")
    made = [
        graph.call_function(target, (x,))
        for target in (
            torch.ops.aten.nonzero.default,
            torch.ops.aten._local_scalar_dense.default,
            torch.ops.aten.relu.default,
            torch.relu,
            len,
        )
    ]
    assert [sync_of(node) for node in made] == [Sync.DATA_SIZED, Sync.VALUE, None, None, None]


# -- layers


@pytest.mark.parametrize(
    ("layer", "x", "message"),
    [
        (nn.Linear(8, 10), (2, 8), "10 output channels (next: 16)"),
        (nn.Linear(12, 8), (2, 12), "12 input channels (next: 16)"),
        (nn.Conv2d(12, 20, 1), (1, 12, 2, 2), "12 input channels (next: 16) and 20 output"),
        (nn.ConvTranspose2d(8, 20, 1), (1, 8, 2, 2), "20 output channels (next: 24)"),
        (nn.Conv2d(8, 12, 1, groups=4), (1, 8, 2, 2), "12 output channels (next: 16)"),
        (nn.Conv2d(8, 16, 1, groups=2), (1, 8, 2, 2), None),
        (nn.Linear(16, 8), (2, 16), None),
    ],
)
def test_channels(layer: nn.Module, x: tuple[int, ...], message: str | None) -> None:
    model = nn.Sequential(nn.ReLU(), layer).eval()
    findings = advise(model, torch.ones(x)).of(Kind.CHANNELS)
    assert [one.path for one in findings] == ([] if message is None else ["1"])
    assert all(one.message.startswith(message or "") for one in findings)


def test_what_the_model_is_given_it_cannot_choose() -> None:
    model = nn.Sequential(nn.Conv2d(3, 8, 1)).eval()
    assert len(advise(model, torch.ones(1, 3, 4, 4))) == 0


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("train", [True, False])
def test_a_bias_before_a_batch_norm(bias: bool, train: bool) -> None:
    model = nn.Sequential(nn.Conv2d(8, 8, 3, bias=bias), nn.BatchNorm2d(8)).train(train)
    findings = advise(model, IMAGE).of(Kind.BIAS_BEFORE_NORM)
    assert [(one.path, one.message) for one in findings] == (
        [("0", "its bias is taken away by _1")] if bias else []
    )


# -- dtypes and constants


def test_double_precision_is_told_where_it_comes_in() -> None:
    findings = found_by(lambda y: (y.double() * 2).relu(), Kind.FLOAT64)
    assert [one.message for one in findings] == ["double makes float64 of other dtypes"]
    given = advise(nn.Linear(8, 8).double().eval(), torch.ones(2, 8).double()).of("float64")
    assert given[0].message.startswith("the argument input")
    assert found_by(lambda y: y.relu(), Kind.FLOAT64) == ()


class Holding(nn.Module):
    def __init__(self, side: int) -> None:
        super().__init__()
        self.register_buffer("mask", torch.ones(side, side))
        self.plain = torch.ones(side, side)
        self.weight = nn.Parameter(torch.ones(side, side))

    def forward(self, x: Tensor) -> Tensor:
        made = torch.zeros(self.mask.shape[0], 1024)
        return x + self.mask.sum() + self.plain.sum() + self.weight.sum() + made.sum()


def test_large_constants() -> None:
    findings = advise(Holding(1024).eval(), torch.ones(2)).of(Kind.LARGE_CONSTANT)
    remedies = {one.message: one.remedy for one in findings}
    made, mask, plain = (
        "4.0 MiB are made anew in every call",
        "mask holds 4.0 MiB of float32",
        "plain holds 4.0 MiB of float32",
    )
    assert set(remedies) == {made, mask, plain}
    assert "in __init__" in remedies[made]
    assert "register it as a buffer" not in remedies[mask]
    assert "register it as a buffer" in remedies[plain]
    assert len(advise(Holding(8).eval(), torch.ones(2))) == 0


# -- channels-last


def shuffled(y: Tensor) -> Tensor:
    n, c, h, w = y.shape
    return y.view(n, 2, c // 2, h, w).transpose(1, 2).contiguous().view(n, c, h, w)


def normed(y: Tensor) -> Tensor:
    z = nn.functional.layer_norm(y.permute(0, 2, 3, 1), (y.shape[1],))
    return z.permute(0, 3, 1, 2)


@pytest.mark.parametrize(
    ("function", "culprit"),
    [
        (lambda y: y.contiguous(), "contiguous"),
        (lambda y: y.reshape(y.shape[0], -1).reshape(y.shape), "reshape"),
        (lambda y: y.transpose(2, 3).contiguous().transpose(2, 3), "contiguous"),
        (shuffled, "view"),
        (normed, None),
        (lambda y: y + 1, None),
        (lambda y: y.contiguous(memory_format=torch.channels_last), None),
        (lambda y: torch.cat(y.chunk(2, 1), 1), None),
        (lambda y: y * y.mean((2, 3), keepdim=True), None),
    ],
)
def test_lost_layouts(function: object, culprit: str | None) -> None:
    findings = advise(Between(function).eval(), IMAGE).of(Kind.LAYOUT)
    assert [one.message.split()[0] for one in findings] == ([culprit] if culprit else [])
    assert all(one.message.endswith("and second copies") for one in findings)


def test_each_loss_is_told_by_itself() -> None:
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.convs = nn.ModuleList(nn.Conv2d(8, 8, 1) for _ in range(3))

        def forward(self, x: Tensor) -> Tensor:
            y = self.convs[0](x)
            y = y + self.convs[1](shuffled(y))
            return self.convs[2](shuffled(y))

    assert len(advise(Twice().eval(), IMAGE).of(Kind.LAYOUT)) == 2


# -- the whole


def test_a_model_without_fault() -> None:
    model = nn.Sequential(nn.Conv2d(8, 16, 3, bias=False), nn.BatchNorm2d(16), nn.ReLU()).eval()
    advice = advise(model, IMAGE)
    assert (len(advice), list(advice), advice.findings) == (0, [], ())
    assert str(advice) == "Sequential: no finding, example given"


def test_the_text() -> None:
    model = nn.Sequential(nn.Conv2d(8, 12, 1), nn.BatchNorm2d(12)).eval()
    assert str(advise(model, IMAGE)) == (
        "Sequential: 2 findings, example given\n"
        "channels   channels that are no multiple of 8 leave tensor cores and vectors half empty "
        "(1)\n"
        "           0: 12 output channels (next: 16) [no source line]\n"
        "             what to do: round up to a multiple of 8, or pad the weights with zeros\n"
        "bias       a bias that the batch norm behind it takes away again (1)\n"
        "           0: its bias is taken away by _1 [no source line]\n"
        "             what to do: give the layer bias=False: the norm has a bias of its own"
    )


def test_the_data_is_versioned() -> None:
    advice = advise(nn.Sequential(nn.Linear(8, 10)).eval(), torch.ones(2, 8))
    data = json.loads(advice.to_json())
    assert data["version"] == 1
    assert data["model"] == "Sequential"
    (finding,) = data["findings"]
    assert finding["kind"] == "channels"
    assert set(finding) == {"kind", "path", "node", "message", "source", "remedy"}


def test_every_form() -> None:
    advice = advise(nn.Sequential(nn.Linear(8, 10)).eval(), torch.ones(2, 8))
    assert "10 output channels" in advice._repr_html_()
    assert advice.to_markdown().startswith("## Sequential: 1 finding")
    assert advice.__rich__()


def test_many_findings_are_one_screen() -> None:
    model = nn.Sequential(*(nn.Linear(10, 10) for _ in range(100))).eval()
    advice = advise(model, torch.ones(2, 10))
    assert len(advice) == 100
    assert len(advice.text().splitlines()) < 12
    assert len(advice.text(details=True).splitlines()) > 100
    assert "and 95 more" in advice.text()


def test_an_example_is_inferred_or_asked_for() -> None:
    assert advise(nn.Sequential(nn.Conv2d(3, 12, 3)).eval()).example.startswith("inferred: ")

    class Two(nn.Module):
        def forward(self, x: Tensor, y: Tensor) -> Tensor:
            return x + y

    advice = advise(Two().eval())
    assert advice.example == "none"
    assert "pass example_inputs" in advice.text()


def test_nothing_is_changed() -> None:
    model = Calling(lambda y: y + torch.rand(1)).train()
    before, state = copy.deepcopy(model.state_dict()), torch.get_rng_state()
    advise(model, IMAGE)
    assert model.training
    assert torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())


def test_a_result_can_be_asked_about() -> None:
    model = nn.Sequential(nn.Conv2d(8, 12, 1), nn.BatchNorm2d(12)).eval()
    result = fxpasses.run(model, "fuse_conv_bn,dce", IMAGE, verify=False)
    assert {one.kind for one in advise(result, IMAGE)} == {Kind.CHANNELS}


@pytest.mark.parametrize("thing", [None, 3, "model", nn.Linear])
def test_what_is_no_model(thing: object) -> None:
    with pytest.raises(CaptureError):
        advise(thing)


@pytest.mark.parametrize(
    "given",
    [{"example_inputs": 3}, {"example_kwargs": [1]}, {"training": "yes"}],
)
def test_what_is_no_argument(given: dict[str, object]) -> None:
    with pytest.raises(ArgumentError, match=next(iter(given))):
        advise(nn.Linear(8, 8), **given)


def test_the_name_is_a_function() -> None:
    import fxpasses.advise

    assert callable(fxpasses.advise)
    assert issubclass(Advice, object)

"""Sites of convolutions are compared on few places, and nothing is hidden by that."""

from collections.abc import Callable
from importlib import import_module
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.fx import symbolic_trace

from fxpasses.core import Editor
from fxpasses.verify import Verdict, check
from fxpasses.verify.crops import Likeness, cropped
from fxpasses.views import Window, is_affine, window_of
from tests.verify.support import Call, Case, Reference, captured

walk = import_module("fxpasses.verify.walk")
MAPS = torch.randn(1, 3, 40, 40, generator=torch.Generator().manual_seed(1))


class Layer(nn.Module):
    """A convolution behind a relu that leaves little, and in front of a norm."""

    def __init__(self, threshold: float = 0.0) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 8, 1)
        self.conv, self.norm = nn.Conv2d(8, 8, 3, stride=2, padding=1), nn.BatchNorm2d(8)
        self.threshold = threshold
        nn.init.normal_(self.norm.running_mean)
        nn.init.uniform_(self.norm.running_var, 0.5, 2.0)

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(self.conv(torch.relu(self.first(x) - self.threshold)))


def folded(case: Case, change: Callable[..., Tensor] | None = None, **settings: Any) -> None:
    """Fold the norm, the weight changed on the way."""
    root = case.work.graphs[""]
    conv, norm = root.get_submodule("conv"), root.get_submodule("norm")

    def weight(w: Tensor, g: Tensor, v: Tensor) -> Tensor:
        made = w * (g / torch.sqrt(v + norm.eps)).reshape(-1, 1, 1, 1)
        return made if change is None else change(made)

    def bias(b: Tensor, g: Tensor, v: Tensor, m: Tensor, a: Tensor) -> Tensor:
        return (b - m) * g / torch.sqrt(v + norm.eps) + a

    def do(edit: Editor) -> None:
        node = case.named("norm")
        (before,) = node.all_input_nodes
        stats = norm.weight, norm.running_var
        w = edit.fold(weight, conv.weight, *stats)
        b = edit.fold(bias, conv.bias, *stats, norm.running_mean, norm.bias)
        given = before.args[0], edit.constant(w.value, "w"), edit.constant(b.value, "b")
        call = edit.call_function(F.conv2d, *given, **{"stride": 2, "padding": 1, **settings})
        edit.replace(node, call, absorbing=[before])

    case.apply(do, "norm")


def verdict_on(case: Case, model: nn.Module, x: Tensor = MAPS) -> Verdict:
    with torch.no_grad():
        reference = Reference(model(x))
    return check(case.original, case.work, case.done, Call((x,)), reference)


def with_one_tap(w: Tensor, at: tuple[int, ...]) -> Tensor:
    made = w.clone()
    made[at] *= 1 + 1e-9
    return made


# -- what is compared


@pytest.mark.parametrize(
    ("layer", "expected"),
    [
        (nn.Conv2d(3, 3, 1), Window((1, 1), (1, 1))),
        (nn.Conv2d(3, 3, (3, 5), stride=2, padding=1), Window((3, 5), (2, 2))),
        (nn.Conv2d(3, 3, 3, dilation=4, padding="same"), Window((9, 9), (1, 1))),
        (nn.Conv2d(3, 3, 3, padding=1, padding_mode="circular"), None),
        (nn.ConvTranspose2d(3, 3, 3), None),
        (nn.Conv1d(3, 3, 3), None),
        (nn.BatchNorm2d(3).eval(), Window((1, 1), (1, 1))),
        (nn.BatchNorm2d(3), None),
        (nn.Dropout(0.5).eval(), Window((1, 1), (1, 1))),
        (nn.Dropout(0.5), None),
        (nn.ReLU6(), Window((1, 1), (1, 1))),
        (nn.LayerNorm(4), None),
        (nn.MaxPool2d(3), None),
    ],
)
def test_the_window_of_a_call(layer: nn.Module, expected: Window | None) -> None:
    traced = symbolic_trace(nn.Sequential(layer))
    (call,) = (node for node in traced.graph.nodes if node.op == "call_module")

    assert window_of(call, 2) == expected


def test_windows_of_windows() -> None:
    first, then = Window((3,), (2,)), Window((5,), (3,))

    assert first.then(then) == Window((11,), (6,))
    assert first.beside(Window((7,), (2,))) == Window((7,), (2,))
    assert first.beside(then) is None


@pytest.mark.parametrize(
    ("formula", "expected"),
    [
        (lambda x, y: x + y, True),
        (lambda x, y: x * 2, True),
        (lambda x, y: 2 * x, True),
        (lambda x, y: x / 2, True),
        (lambda x, y: 2 / x, False),
        (lambda x, y: x * y, False),
        (lambda x, y: x * x, False),
        (lambda x, y: torch.div(x, 2, rounding_mode="floor"), False),
        (lambda x, y: torch.relu(x), False),
    ],
)
def test_affine_calls(formula: Any, expected: bool) -> None:
    graph = symbolic_trace(formula).graph
    inputs = [node for node in graph.nodes if node.op == "placeholder"]
    (call,) = (node for node in graph.nodes if node.op == "call_function")

    assert is_affine(call, inputs) is expected


def test_every_channel_is_cut_out_around_its_largest_value() -> None:
    maps = torch.zeros(9, 5, 31, 20, dtype=torch.float64)
    places = [(0, 0), (30, 19), (15, 3), (7, 18), (29, 0)]
    for channel, (row, column) in enumerate(places):
        maps[channel + 3, channel, row, column] = -1.0 - channel
    (node,) = (n for n in symbolic_trace(lambda x: x).graph.nodes if n.op == "placeholder")
    window = Window((3, 3), (2, 1))

    small = cropped({node: maps}, Likeness(window, is_affine=False))

    assert small is not None
    # Three places, and two steps more; the rest by the step is that of the whole.
    assert small[node].shape == (3, 5, 7, 5)
    assert small[node].amin((0, 2, 3)).tolist() == [-1.0, -2.0, -3.0, -4.0, -5.0]


def test_small_maps_are_compared_whole() -> None:
    (node,) = (n for n in symbolic_trace(lambda x: x).graph.nodes if n.op == "placeholder")
    alike = Likeness(Window((3, 3), (1, 1)), is_affine=True)

    assert cropped({node: torch.ones(1, 4, 6, 6)}, alike) is None
    assert cropped({node: torch.ones(1, 4, 60)}, alike) is None


# -- what is found


def test_a_right_fold_is_compared_once_and_on_few_places(monkeypatch: pytest.MonkeyPatch) -> None:
    model = Layer().eval()
    case = captured(model)
    folded(case)
    sizes: list[int] = []
    original = walk.in_float64

    def counted(region: Any, index: int, borders: Any, *args: Any, **kwargs: Any) -> Any:
        sizes.extend(border.numel() for border in borders)
        return original(region, index, borders, *args, **kwargs)

    monkeypatch.setattr(walk, "in_float64", counted)

    verdict = verdict_on(case, model)

    assert verdict.ok, verdict.failures
    assert verdict.record.unverified == []
    # Old and new, on the example's values and a sample of made-up ones.
    assert sizes == [2 * 8 * 8 * 8] * 2


FAULTS: dict[str, dict[str, Any]] = {
    "one tap of one channel": {"change": lambda w: with_one_tap(w, (3, 5, 0, 2))},
    "the tap in the corner": {"change": lambda w: with_one_tap(w, (7, 7, 2, 2))},
    "the last channel": {"change": lambda w: torch.cat([w[:-1], w[-1:] * (1 + 1e-9)])},
    "kernels turned": {"change": lambda w: w.transpose(2, 3)},
    "no padding on the right": {"padding": (1, 0)},
    "another dilation": {"dilation": 2, "padding": 2},
}


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("threshold", [0.0, 2.0, 1e3])
def test_no_fault_hides_between_the_places(fault: str, threshold: float) -> None:
    """Also not where the map is zero nearly everywhere, or everywhere."""
    model = Layer(threshold).eval()
    case = captured(model)
    folded(case, **FAULTS[fault])

    verdict = verdict_on(case, model)

    if threshold < 1e3 or verdict.blame:
        assert [blame.node for blame in verdict.blame] == ["norm"]
    else:  # Zeros show no weight.
        assert verdict.record.unverified


def test_what_is_not_affine_is_compared_on_every_probe() -> None:
    """A bound that the example does not reach."""

    class Bounded(Layer):
        def forward(self, x: Tensor) -> Tensor:
            return F.relu6(self.norm(self.conv(x.repeat(1, 3, 1, 1)[:, :8])))

    model = Bounded().eval()
    case = captured(model)

    def unbounded(edit: Editor) -> None:
        node = case.named("relu6")
        norm = node.args[0]
        (conv,) = norm.all_input_nodes
        read = edit.copy(norm, args=(edit.copy(conv),))
        edit.replace(node, edit.call_function(torch.relu, read), absorbing=[norm, conv])

    case.apply(unbounded, "relu6")

    verdict = verdict_on(case, model)

    assert [blame.node for blame in verdict.blame] == ["relu6"]
    assert "both signs" in next(c.probe for c in verdict.failures if c.name == "site")


@pytest.mark.parametrize("is_foreign", [False, True])
def test_what_the_sites_tell_needs_no_second_whole_run_in_float64(
    monkeypatch: pytest.MonkeyPatch, is_foreign: bool
) -> None:
    runs = import_module("fxpasses.verify.runs")
    wide, names = runs.Runs.wide, list[str]()

    def counted(self: Any, program: Any, probe: Any, **how: Any) -> Any:
        names.append(probe.name)
        return wide(self, program, probe, **how)

    monkeypatch.setattr(runs.Runs, "wide", counted)
    model = Layer().eval()
    case = captured(model)
    if is_foreign:
        case.foreign()
    else:
        folded(case)

    verdict = verdict_on(case, model)

    assert verdict.ok, verdict.failures
    composite = "zeros, other values x 10 of both signs in one batch"
    # The original on both; the result on the second, where nothing else tells what was done.
    assert names == ["example", composite, *[composite] * is_foreign]
    assert any(check.probe == composite for check in verdict.record.checks)

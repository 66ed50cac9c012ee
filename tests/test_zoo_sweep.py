"""The sweep over public models: what it measures, keeps, bounds and writes, on small models."""

import os
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from benchmarks import zoo
from benchmarks.zoo_measure import Outcome, difference, measure
from benchmarks.zoo_models import Entry, entries, pictures
from benchmarks.zoo_table import as_markdown


class Plain(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4)

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(self.conv(x))


class Caching(Plain):
    """Half of the convolutions run in a module that keeps something at its first call."""

    def __init__(self) -> None:
        super().__init__()
        self.head = Head()

    def forward(self, x: Tensor) -> Tensor:
        return self.head(super().forward(x))


class Head(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(4, 4, 3, 3))
        self.kept: Tensor | None = None

    def forward(self, x: Tensor) -> Tensor:
        if self.kept is None:
            self.kept = torch.ones(1)
        return torch.conv2d(x, self.weight) * self.kept


class Raising(Plain):
    def forward(self, x: Tensor) -> Tensor:
        raise ValueError("no such model")


class Ending(Plain):
    def forward(self, x: Tensor) -> Tensor:
        os._exit(3)


class Hungry(Plain):
    def forward(self, x: Tensor) -> Tensor:
        return torch.empty(1 << 40)


FAKES = {
    f"fake/{kind.__name__}": Entry("fake", kind.__name__, kind, pictures(8))
    for kind in (Plain, Caching, Raising, Ending, Hungry)
}


def fake(key: str) -> Entry:
    return FAKES[key]


def test_a_model_is_measured() -> None:
    outcome = measure(fake("fake/Plain"), verify=True)
    assert outcome.problem == ""
    assert (outcome.calls, outcome.flops, outcome.warm_flops) == (1.0, 1.0, None)
    assert (outcome.traced, outcome.norms, outcome.folded, outcome.folded_by_torch) == (
        True,
        1,
        1,
        1,
    )
    assert (outcome.nodes_before, outcome.nodes_after) == (4, 3)
    assert outcome.verified is True
    assert outcome.error is not None
    assert outcome.other_batch == "graph"
    assert outcome.difference is not None
    assert outcome.difference < 1e-5
    assert outcome.example == "2x3x8x8"


def test_a_cold_model_is_measured_before_its_first_call() -> None:
    outcome = measure(fake("fake/Caching"), verify=False)
    assert outcome.flops is not None
    assert 0 < outcome.flops < 1
    assert outcome.warm_flops == 1.0
    assert [(leaf["path"], leaf["kind"]) for leaf in outcome.opaque] == [("head", "python_state")]
    assert (outcome.verify, outcome.verified) == (False, None)


def test_what_a_model_raises_is_kept() -> None:
    outcome = measure(fake("fake/Raising"), verify=True)
    assert outcome.problem.startswith("ValueError: no such model (raised in test_zoo_sweep.py:")
    outcome = measure(fake("fake/Raising"), verify=False)
    assert outcome.problem.startswith("CaptureError: the model itself raises on the example: Value")


def test_a_stopped_sweep_goes_on_where_it_was(tmp_path: Path) -> None:
    kept = tmp_path / "state.jsonl"
    plain, raising = fake("fake/Plain"), fake("fake/Raising")
    state = zoo.State(kept)
    state.add(Outcome(plain.key, flops=0.5))
    state.add(Outcome(plain.key, flops=1.0))
    state.add(Outcome(raising.key, problem="ValueError"))

    again = zoo.State(kept)
    assert again.outcomes == state.outcomes
    assert again.outcomes[plain.key].flops == 1.0
    assert not again.lacks(plain, verify=False, retry=True)
    assert again.lacks(plain, verify=True, retry=False)
    assert again.lacks(raising, verify=False, retry=True)
    assert not again.lacks(raising, verify=False, retry=False)
    assert again.lacks(fake("fake/Ending"), verify=False, retry=False)


def test_lines_of_earlier_sweeps_are_read() -> None:
    outcome = zoo.read('{"key": "timm/vit", "flops": 1.0, "norms": 3}')
    assert (outcome.norms, outcome.attentions) == (3, 0)


def test_each_model_has_a_process_with_bounds(tmp_path: Path) -> None:
    zoo._FORKS.set_forkserver_preload(["benchmarks.zoo"])
    state = zoo.State(tmp_path / "state.jsonl")
    chosen = [fake(f"fake/{name}") for name in ("Plain", "Ending", "Hungry")]
    zoo.sweep(chosen, state, zoo.Bounds(120), verify=False, lookup=fake)
    problems = {key: outcome.problem for key, outcome in state.outcomes.items()}
    assert problems.pop("fake/Ending") == "its process ended with 3"
    assert "can't allocate memory" in problems.pop("fake/Hungry")
    assert problems == {"fake/Plain": ""}

    zoo.sweep([fake("fake/Plain")], state, zoo.Bounds(0.0), verify=False, lookup=fake)
    assert state.outcomes["fake/Plain"].problem == "takes more than 0 s"


def test_the_table_says_what_misses_its_target() -> None:
    page = as_markdown(
        [
            Outcome("classification/whole", calls=1.0, flops=1.0),
            Outcome(
                "classification/almost",
                calls=0.9999,
                flops=1.0,
                opaque=[{"type": "Head", "kind": "python_state", "reason": "writes | .kept"}],
            ),
            Outcome("timm/one", note="one_small", flops=1.0, verify=True, verified=False),
            Outcome("timm/other", problem="takes more than 900 s"),
            Outcome("timm/vit", attentions=12, attentions_fused=9, attentions_ready=3),
        ]
    )
    assert (
        "| classification, segmentation (2) | calls, each | 99.9 % | 100 % | NO | almost |" in page
    )
    assert "| timm (1) | FLOPs, median | 100 % | 100 % | yes | 0 |" in page
    assert "| python_state | writes / .kept | 1 | classification/almost |" in page
    assert "| one: one_small | " in page
    assert "| 9 of 12, 3 one call already |" in page
    assert "- timm/other: takes more than 900 s" in page


def test_the_families_are_whole() -> None:
    pytest.importorskip("timm")
    families: dict[str, int] = {}
    keys = [entry.key for entry in entries()]
    for key in keys:
        family = key.partition("/")[0]
        families[family] = families.get(family, 0) + 1
    assert len(set(keys)) == len(keys)
    least = {"classification": 80, "segmentation": 6, "detection": 12, "video": 9, "flow": 2}
    least |= {"quantized": 12, "timm": 98, "transformers": 14}
    assert all(families[name] >= count for name, count in least.items()), families


def test_differences_are_of_structure_shape_and_value() -> None:
    x = torch.tensor([3.0, 4.0])
    assert difference({"a": [x]}, {"a": [x]}) == 0
    assert difference(x, x * 1.1) == pytest.approx(0.1 / 1.1, rel=1e-6)
    assert difference([x], [x, x]) == float("inf")
    assert difference(x, x[None]) == float("inf")
    odd = torch.tensor([float("nan"), 4.0])
    assert difference(odd, odd) == 0
    assert difference(x, odd) == float("inf")

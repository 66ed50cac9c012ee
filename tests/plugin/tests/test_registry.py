"""fxpasses finds the passes and the pipeline by name once the package is installed."""

import torch
from torch import Tensor, nn

import fxpasses


class Gated(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return (x * x.sigmoid()).view(x.size(0), -1).mul(x.size(0))


def test_the_pipeline_runs_both_and_a_pass_of_fxpasses() -> None:
    fast = fxpasses.run(Gated().eval(), "leaner", torch.randn(3, 4))
    record = fxpasses.report(fast).record
    assert [one.name for one in record.passes] == ["fuse_silu", "share_sizes", "dce"]
    assert [len(one.rewrites) for one in record.passes[:2]] == [1, 1]


def test_every_name_of_the_file_is_there() -> None:
    for name in ("fuse_silu", "share_sizes"):
        assert fxpasses.registry.get(name).name == name

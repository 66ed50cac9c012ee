"""Sizes are read once, and again after a tensor was resized."""

import torch
from torch import Tensor, nn

import fxpasses
from example_passes.share_sizes import ShareSizes

X = torch.randn(4, 8, generator=torch.Generator().manual_seed(0))


class ReadsSizes(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        rows, columns = x.size(0), x.size(1)
        return (x + rows).view(x.size(0), 1, x.size(1)) / columns


class ReadsSizesOfAResized(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        y = x + 1
        before = y.size(0)
        y.unsqueeze_(0)
        return y + before * y.size(0)


def sizes_in(result: nn.Module) -> int:
    return result.code.count(".size(")


def test_reads_each_size_once() -> None:
    fast = fxpasses.run(ReadsSizes().eval(), "share_sizes", X)

    assert sizes_in(fast) == 2
    larger = torch.randn(5, 6)
    torch.testing.assert_close(fast(larger), ReadsSizes()(larger))


def test_reads_a_size_again_after_a_write() -> None:
    # Captured, this model would run its own code; a pass has to be right on any graph.
    module = torch.fx.symbolic_trace(ReadsSizesOfAResized())

    result = fxpasses.apply(ShareSizes(), module)

    assert [refusal.condition for refusal in result.refusals] == ["tensor_is_not_written"]
    torch.testing.assert_close(module(X), ReadsSizesOfAResized()(X))


def test_takes_an_option() -> None:
    fast = fxpasses.run(ReadsSizes().eval(), "share_sizes{only_dims=[1]}", X)
    assert sizes_in(fast) == 3

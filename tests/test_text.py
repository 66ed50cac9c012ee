import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.fx import symbolic_trace

from fxpasses.text import graph_text


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3)
        self.act = nn.ReLU()

    def forward(self, x: Tensor) -> Tensor:
        return self.act(self.conv(x)) + 1


class Functional(Model):
    def forward(self, x: Tensor) -> Tensor:
        return torch.add(F.conv2d(x, self.conv.weight, self.conv.bias).relu(), 1)


EXPECTED = """\
%0 = input
%1 = conv(%0)
%2 = relu(%1)
%3 = add(%2)
return %3"""


def test_text_is_alike_for_every_spelling() -> None:
    exported = torch.export.export(Model(), (torch.randn(1, 3, 8, 8),))

    assert graph_text(symbolic_trace(Model())) == EXPECTED
    assert graph_text(symbolic_trace(Functional())) == EXPECTED
    assert graph_text(exported.module(check_guards=False)) == EXPECTED


def test_what_is_no_op_stands_under_its_own_name() -> None:
    def forward(x: Tensor) -> tuple[Tensor, Tensor]:
        return torch.fft.fft(x), x.erfinv_().no_such_method()

    text = graph_text(symbolic_trace(forward))

    assert text.splitlines()[1:] == [
        "%1 = fft_fft(%0)",
        "%2 = erfinv(%0)",
        "%3 = no_such_method(%2)",
        "return %1, %3",
    ]

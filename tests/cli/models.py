"""Models that the command line is asked to build, and what is none."""

import torch
from torch import Tensor, nn


class ConvNorm(nn.Module):
    """A convolution and the norm that follows it."""

    def __init__(self, channels: int = 4, act: str = "relu") -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(3, channels, 3), nn.BatchNorm2d(channels)
        self.act = {"relu": torch.relu, "sigmoid": torch.sigmoid}[act]
        nn.init.uniform_(self.norm.running_var, 0.5, 2.0)

    def forward(self, x: Tensor) -> Tensor:
        return self.act(self.norm(self.conv(x)))


class Many(nn.Module):
    """Takes arguments of several kinds."""

    def forward(
        self, ids: Tensor, scale: Tensor | None = None, images: list[Tensor] = (), power: int = 1
    ) -> Tensor:
        total = ids.float().sum() ** power
        for image in images:
            total = total + image.sum()
        return total if scale is None else total * scale


class Branches(nn.Module):
    """Decides on data."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(4, 4), nn.ReLU())

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x) if x.sum() > 0 else x


class Takes2(nn.Module):
    """Cannot be called with what can be inferred."""

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return x + y


class Holder:
    made = staticmethod(ConvNorm)


instance = ConvNorm()
number = 3


def text() -> str:
    return "no module"


def raising() -> nn.Module:
    raise OSError("no such weights")


def leaving() -> nn.Module:
    raise SystemExit(3)

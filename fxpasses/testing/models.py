"""Models that every pass is tried on: a few typical ones, and many that are hard to get right."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fxpasses.testing.model import Model


def _drawn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def _settled(module: nn.Module) -> nn.Module:
    """In evaluation, with weights and statistics that are the same each time and not trivial."""
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for tensor in (*module.parameters(), *module.buffers()):
            if tensor.is_floating_point():
                tensor.uniform_(0.1, 1.0, generator=generator)
    return module.eval()


class _Convolutions(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem, self.norm = nn.Conv2d(3, 4, 3, padding=1, bias=False), nn.BatchNorm2d(4)
        self.inner, self.inner_norm = nn.Conv2d(4, 4, 3, padding=1), nn.BatchNorm2d(4)
        self.drop, self.head = nn.Dropout(0.1), nn.Linear(4, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.norm(self.stem(x)), inplace=True)
        x = F.relu(self.inner_norm(self.inner(x)) + x)
        return self.head(self.drop(x.mean((2, 3))))


class _Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(9, 8), nn.Embedding(6, 8)
        self.norm, self.into, self.out = nn.LayerNorm(8), nn.Linear(8, 24), nn.Linear(8, 8)

    def forward(self, words: Tensor) -> Tensor:
        x = self.words(words) + self.places(torch.arange(words.shape[1]))
        q, k, v = self.into(self.norm(x)).chunk(3, -1)
        x = x + self.out(F.scaled_dot_product_attention(q, k, v))
        return F.gelu(x) @ self.words.weight.t()


class _Constants(nn.Module):
    mask: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.weight, self.unused = nn.Parameter(torch.ones(4, 4)), nn.Linear(4, 4)
        self.register_buffer("mask", torch.ones(4), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        self.unused(x)
        table = torch.arange(4, dtype=x.dtype) / 4
        scale = (self.weight * self.mask).softmax(-1).sum(0)
        return torch.tanh(x * 1.0 + 0.0) * scale + table.exp()


def typical() -> list[Model]:
    """An image model, a text model, and one with constants, in evaluation."""
    words = torch.arange(10).reshape(2, 5) % 9
    return [
        Model(_settled(_Convolutions()), (_drawn(2, 3, 6, 6),), name="convolutions"),
        Model(_settled(_Attention()), (words,), name="attention"),
        Model(_settled(_Constants()), (_drawn(3, 4),), name="constants"),
    ]


# -- hard to get right


class _Layers(nn.Module):
    """A convolution, a norm and a linear layer that the models below call in unusual ways."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm, self.linear = nn.Conv2d(4, 4, 1), nn.BatchNorm2d(4), nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Any:
        return self.linear(self.norm(self.conv(x)))


class _Shared(_Layers):
    def forward(self, x: Tensor) -> Tensor:
        y = self.norm(self.conv(x))
        return self.norm(self.conv(y)) + self.conv(y) + self.linear(self.linear(y))


class _Tied(_Layers):
    def __init__(self) -> None:
        super().__init__()
        self.other, self.second = nn.Conv2d(4, 4, 1), nn.BatchNorm2d(4)
        self.other.weight, self.second.weight = self.conv.weight, self.norm.weight
        self.second.running_mean = self.norm.running_mean

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(self.conv(x)) * self.second(self.other(x)) + self.conv.weight.sum()


class _ReadTwice(_Layers):
    def forward(self, x: Tensor) -> dict[str, Any]:
        y = self.conv(x)
        z = self.norm(y)
        return {"inner": y, "both": (z, F.relu(z) + y), "rows": y.shape[0]}


class _Views(_Layers):
    def forward(self, x: Tensor) -> Tensor:
        y = self.conv(x)
        y.view(-1, 4)[:, 0].add_(1)
        z = self.norm(y)
        rows = z.flatten(1)
        rows[:, ::2] = 0.5
        return F.relu(z, inplace=True) + rows.view_as(z)


class _WritesItsInput(_Layers):
    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        y = self.conv(x)
        x.mul_(2)
        return self.norm(y), x.transpose(0, 1)


class _WritesItsBuffer(_Layers):
    calls: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("calls", torch.zeros(4))

    def forward(self, x: Tensor) -> Tensor:
        before = self.calls * 2
        self.calls.add_(1)
        return self.linear(x) + before + self.calls * 2


class _ReturnsConstants(_Layers):
    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        ones = torch.ones(4)
        return self.linear(x) + ones, ones, self.norm.bias, ones.view(2, 2)


class _ReturnsSizes(_Layers):
    def forward(self, x: Tensor) -> Any:
        y = self.linear(self.norm(self.conv(x)))
        return y, y.shape, x.size(1), y.shape[0] * 2, x.dim()


class _ReturnsNothing(_Layers):
    def forward(self, x: Tensor) -> dict[str, Any]:
        y = self.norm(self.conv(x))
        return {"values": F.relu(y), "loss": None, "states": (None, [y, None])}


class _ReturnsItsInput(_Layers):
    def forward(self, x: Tensor) -> Any:
        return x, self.linear(x), (x.view(-1), [x])


class _Random(_Layers):
    def forward(self, x: Tensor) -> Tensor:
        torch.rand(2)
        noise = torch.rand(4)
        return F.dropout(self.linear(x), 0.5, training=True) + noise + torch.rand_like(x)


class _Checks(_Layers):
    def forward(self, x: Tensor) -> Tensor:
        torch._assert_async(torch.isfinite(x).all())  # noqa: SLF001  # pyright: ignore[reportPrivateUsage, reportPrivateImportUsage]  as models do
        return self.linear(x)


class _Branches(_Layers):
    """Runs its own code, and its layers are graphs of their own."""

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm(self.conv(x))
        return self.linear(y) if y.sum() > 0 else y


class _Named(nn.Module):
    """Names that are none, or that are code."""

    def __init__(self) -> None:
        super().__init__()
        layers = nn.Conv2d(4, 4, 1), nn.BatchNorm2d(4), nn.Linear(4, 4)
        for name, layer in zip(("for", "1 - 1", '"); x #\n'), layers, strict=True):
            self.add_module(name, layer)

    def forward(self, x: Tensor, *, lambda_: Tensor | None = None) -> Tensor:
        for layer in self.children():
            x = layer(x)
        return x if lambda_ is None else x * lambda_


def _doubled(module: nn.Module, args: Any, result: Tensor) -> Tensor:  # noqa: ARG001  a hook
    return result * 2


def _hooked() -> nn.Module:
    module = _settled(_Layers())
    for layer in module.children():
        layer.register_forward_hook(_doubled)
    module.register_forward_hook(_doubled)
    return module


def _with_nothing() -> nn.Module:
    module = _settled(_Layers())
    with torch.no_grad():
        module.get_parameter("norm.weight").zero_()
        module.get_buffer("norm.running_var")[0] = torch.inf
    return module


def hostile() -> list[Model]:
    """Models that are legal, and that a pass with a condition too few gets wrong."""
    x = _drawn(2, 4, 4, 4)
    kinds = {
        "shared layers": _Shared,
        "tied weights": _Tied,
        "values read twice": _ReadTwice,
        "views that are written": _Views,
        "an input that is written": _WritesItsInput,
        "a buffer that is written": _WritesItsBuffer,
        "constants that are returned": _ReturnsConstants,
        "sizes that are returned": _ReturnsSizes,
        "results that are None": _ReturnsNothing,
        "an input that is returned": _ReturnsItsInput,
        "random numbers": _Random,
        "a check": _Checks,
        "a branch on data": _Branches,
    }
    models = [Model(_settled(kind()), (x,), name=name) for name, kind in kinds.items()]
    return [
        *models,
        Model(_settled(_Named()), (x,), {"lambda_": x}, name="names that are none"),
        Model(_hooked(), (x,), name="hooks"),
        Model(_with_nothing(), (x,), name="zeros and infinities in weights"),
        Model(_settled(_Layers()), (x[:0],), name="an empty batch"),
        Model(_settled(_Convolutions()).train(), (_drawn(2, 3, 6, 6),), name="training mode"),
        Model(_settled(_Layers()).bfloat16(), (x.bfloat16(),), name="half precision"),
    ]

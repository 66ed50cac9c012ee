"""Modules that passes put in the place of several: fused units, known to the vocabulary.

In plain torch they compute what the calls that they stand for do, bit by bit; a target can lower
each of them to one kernel.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, Final, TypeAlias

import torch.nn.functional as F
from torch import Tensor, nn

Numbers: TypeAlias = tuple[int, ...]

ACTIVATIONS: Final[Mapping[str, tuple[str, ...]]] = {
    "relu": (),
    "relu6": (),
    "leaky_relu": ("negative_slope",),
    "elu": ("alpha",),
    "gelu": ("approximate",),
    "silu": (),
    "mish": (),
    "sigmoid": (),
    "tanh": (),
    "hardsigmoid": (),
    "hardswish": (),
    "hardtanh": ("min_val", "max_val"),
}
"""The activations that a unit can have, functions of torch by name, with their options."""

_WITHOUT_IN_PLACE_FORM: Final = frozenset(("gelu", "sigmoid", "tanh"))

_CONVOLUTIONS: Final = (F.conv1d, F.conv2d, F.conv3d)
_TRANSPOSED: Final = (F.conv_transpose1d, F.conv_transpose2d, F.conv_transpose3d)


class Unit(nn.Module, ABC):
    """A layer with weights and what follows it: `activation(layer(input) + residual)`.

    The parameters are the unit's own, or are given with each call, where they are kept elsewhere.
    """

    weight: nn.Parameter | None
    bias: nn.Parameter | None

    def __init__(
        self,
        weight: nn.Parameter | None = None,
        bias: nn.Parameter | None = None,
        *,
        adds: bool = False,
        activation: str | None = None,
        options: Mapping[str, Any] | None = None,
    ) -> None:
        """A unit around these very parameters.

        Args:
            weight: of the layer; None where each call is given it.
            bias: of the layer, if it has one.
            adds: whether a residual is added before the activation.
            activation: one of `ACTIVATIONS`.
            options: what it takes besides its input.
        """
        super().__init__()
        self.register_parameter("weight", weight)
        self.register_parameter("bias", bias)
        self.adds = adds
        self.activation = activation
        # Plain data that can be compared.
        self.options = tuple((options or {}).items())

    def forward(
        self,
        input: Tensor,  # noqa: A002  as torch's layers call it
        residual: Tensor | None = None,
        *,
        weight: Tensor | None = None,
        bias: Tensor | None = None,
    ) -> Tensor:
        """The layer of `input`, plus `residual`, activated.

        Args:
            input: of the layer.
            residual: what is added, where the unit adds.
            weight: in the place of the unit's own, together with `bias`.
            bias: see `weight`; None for none.
        """
        if weight is None:
            assert self.weight is not None, "the unit has no weight, and is given none"
            weight, bias = self.weight, self.bias
        out = self._layer(input, weight, bias)
        if self.adds:
            assert residual is not None, "the unit adds, and is given nothing to add"
            out = out + residual
        if self.activation is None:
            return out
        # Nothing else reads what the layer made; a backward may.
        written = self.activation not in _WITHOUT_IN_PLACE_FORM and not out.requires_grad
        in_place = {"inplace": True} if written else {}
        return getattr(F, self.activation)(out, **dict(self.options), **in_place)

    @abstractmethod
    def _layer(self, given: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """What the layer makes of its input."""

    def extra_repr(self) -> str:
        shown = [*self._settings(), *(["add"] if self.adds else [])]
        if self.activation is not None:
            options = ", ".join(f"{name}={value!r}" for name, value in self.options)
            shown.append(f"{self.activation}({options})" if options else self.activation)
        return ", ".join(shown)

    @abstractmethod
    def _settings(self) -> list[str]:
        """What the layer inside shows of itself."""


class ConvUnit(Unit):
    """A convolution of any rank, transposed or not, with what follows it."""

    def __init__(  # noqa: PLR0913  settings by keyword
        self,
        weight: nn.Parameter | None = None,
        bias: nn.Parameter | None = None,
        *,
        stride: Numbers,
        padding: Numbers | str,
        dilation: Numbers,
        groups: int = 1,
        padding_mode: str = "zeros",
        transposed: bool = False,
        output_padding: Numbers | None = None,
        **following: Any,
    ) -> None:
        """A unit around these very parameters; settings have one number for each axis.

        Args:
            weight: see `Unit`; needed where the padding mode is not `zeros`.
            bias: see `Unit`.
            stride: of the convolution, as all that follow.
            padding: numbers, or `same` or `valid`.
            dilation: between the taps of the kernel.
            groups: of channels.
            padding_mode: `zeros`, `reflect`, `replicate` or `circular`.
            transposed: whether it is a transposed convolution.
            output_padding: of a transposed convolution.
            following: `adds`, `activation` and `options`, see `Unit`.
        """
        super().__init__(weight, bias, **following)
        self.stride = stride
        self.padding = padding
        self.dilation = dilation
        self.groups = groups
        self.padding_mode = padding_mode
        self.transposed = transposed
        self.output_padding = output_padding or (0,) * len(stride)

    def _layer(self, given: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        rank, padding = len(self.stride), self.padding
        if self.transposed:
            return _TRANSPOSED[rank - 1](
                given,
                weight,
                bias,
                self.stride,
                padding,  # pyright: ignore[reportArgumentType]  numbers where it is transposed
                self.output_padding,
                self.groups,
                self.dilation,
            )
        if self.padding_mode != "zeros":
            given = F.pad(given, self._border(weight), mode=self.padding_mode)
            padding = (0,) * rank
        return _CONVOLUTIONS[rank - 1](
            given, weight, bias, self.stride, padding, self.dilation, self.groups
        )

    def _border(self, weight: Tensor) -> list[int]:
        """How far the input is padded on both sides of each axis, the last axis first."""
        border: list[int] = []
        for axis in reversed(range(len(self.stride))):
            if isinstance(self.padding, str):
                missing = (weight.shape[2 + axis] - 1) * self.dilation[axis]
                missing = missing if self.padding == "same" else 0
                border += [missing // 2, missing - missing // 2]
            else:
                border += [self.padding[axis]] * 2
        return border

    def _settings(self) -> list[str]:
        shown: list[str] = []
        if self.weight is not None:
            ends = [self.weight.shape[1] * self.groups, self.weight.shape[0]]
            if self.transposed:
                ends = [self.weight.shape[0], self.weight.shape[1] * self.groups]
            shown += [*map(str, ends), f"kernel_size={tuple(self.weight.shape[2:])}"]
        shown.append(f"stride={self.stride}")
        usual = {
            "padding": (0,) * len(self.stride),
            "dilation": (1,) * len(self.stride),
            "output_padding": (0,) * len(self.stride),
            "groups": 1,
            "padding_mode": "zeros",
            "transposed": False,
        }
        unusual = {name: getattr(self, name) for name in usual}
        shown += [f"{k}={v!r}" for k, v in unusual.items() if v != usual[k]]
        return [*shown, *_bias_of(self)]


class LinearUnit(Unit):
    """A linear layer with what follows it."""

    def _layer(self, given: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        return F.linear(given, weight, bias)

    def _settings(self) -> list[str]:
        if self.weight is None:
            return []
        return [str(self.weight.shape[1]), str(self.weight.shape[0]), *_bias_of(self)]


def _bias_of(unit: Unit) -> list[str]:
    return [] if unit.weight is None or unit.bias is not None else ["bias=False"]

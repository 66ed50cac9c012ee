"""What a device can compute in one kernel, as tables: data only, no device is asked.

An activation is named as the op is; `gelu` by its approximation, too: `gelu_tanh`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

Activations: TypeAlias = frozenset[str]

_NONE: Final[Activations] = frozenset()


@dataclass(frozen=True, slots=True)
class Fusible:
    """The activations that one kernel computes together with a layer of one kind."""

    alone: Activations = _NONE
    """Right behind the layer."""
    added: Activations = _NONE
    """Behind a sum of the layer's output and a residual of the same shape and dtype."""

    def __or__(self, other: "Fusible") -> "Fusible":
        return Fusible(self.alone | other.alone, self.added | other.added)


@dataclass(frozen=True, slots=True)
class Target:
    """A kind of device: what follows a layer in one kernel, by the op of the layer."""

    name: str
    layers: Mapping[str, Fusible] = field(default_factory=dict[str, Fusible])

    def fuses(
        self,
        layer: str,
        activation: str,
        options: Mapping[str, Any],
        *,
        adds: bool,
    ) -> bool:
        """Whether one kernel computes the layer, a sum where it `adds`, and the activation.

        Args:
            layer: its op: `conv`, `conv_transpose` or `linear`.
            activation: its op.
            options: what it takes besides its input.
            adds: whether a residual is added in between.
        """
        kernels = self.layers.get(layer, Fusible())
        return _named(activation, options) in (kernels.added if adds else kernels.alone)


def _named(activation: str, options: Mapping[str, Any]) -> str:
    is_tanh = options.get("approximate") == "tanh"
    return f"{activation}_tanh" if is_tanh else activation


# oneDNN, through `torch.ops.mkldnn`: measured in torch 2.14, each against the plain ops.
_ONEDNN: Final[Activations] = frozenset(
    {
        *("relu", "relu6", "leaky_relu", "hardtanh", "sigmoid", "tanh", "silu"),
        *("hardswish", "hardsigmoid", "gelu", "gelu_tanh"),
    }
)
CPU: Final = Target(
    "cpu",
    {
        "conv": Fusible(_ONEDNN, added=frozenset({"relu"})),
        "conv_transpose": Fusible(_ONEDNN),
        "linear": Fusible(_ONEDNN),
    },
)

# `aten.cudnn_convolution_relu` and `_add_relu`; `aten._addmm_activation`, whose gelu is by tanh.
CUDA: Final = Target(
    "cuda",
    {
        "conv": Fusible(frozenset({"relu"}), added=frozenset({"relu"})),
        "linear": Fusible(frozenset({"relu", "gelu_tanh"})),
    },
)


def _together(*targets: Target) -> dict[str, Fusible]:
    layers: dict[str, Fusible] = {}
    for target in targets:
        for layer, fusible in target.layers.items():
            layers[layer] = layers.get(layer, Fusible()) | fusible
    return layers


PORTABLE: Final = Target("portable", _together(CPU, CUDA))
"""What any of them can: for results that are lowered later, or not at all."""

_BY_NAME: Final = {target.name: target for target in (CPU, CUDA)}


def target_named(name: str | None) -> Target:
    """The target that runs on a type of device; None: wherever it may be."""
    return _BY_NAME.get(name or "", PORTABLE)

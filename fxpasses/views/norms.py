"""Norms."""

from dataclasses import dataclass
from types import FunctionType
from typing import ClassVar, Final

import torch
from torch import Tensor, nn

from fxpasses.ops import Op, kept
from fxpasses.views.base import View

_DEFAULT_EPS: Final = 1e-5


@dataclass(frozen=True)
class Norm(View):
    """A norm of any kind."""

    ops: ClassVar[frozenset[Op] | None] = frozenset(
        (Op.BATCH_NORM, Op.INSTANCE_NORM, Op.LAYER_NORM, Op.GROUP_NORM, Op.RMS_NORM)
    )

    @property
    def eps(self) -> float | None:
        """Added before the root. None in an RMS norm: the smallest step of the dtype."""
        return self.operand("eps", None if self.op is Op.RMS_NORM else _DEFAULT_EPS)

    @property
    def is_affine(self) -> bool:
        return self.has("weight") or self.has("bias")

    @property
    def weight(self) -> Tensor | None:
        """The scale, where there is one and it is constant."""
        return self.tensor("weight")

    @property
    def bias(self) -> Tensor | None:
        """The offset, where there is one and it is constant."""
        return self.tensor("bias")


@dataclass(frozen=True)
class BatchNorm(Norm):
    """`(input - running_mean) / sqrt(running_var + eps) * weight + bias`, channel by channel."""

    ops: ClassVar[frozenset[Op] | None] = frozenset((Op.BATCH_NORM,))

    @property
    def eps(self) -> float:
        return self.operand("eps", _DEFAULT_EPS)

    @property
    def momentum(self) -> float | None:
        """None: the cumulative average."""
        return self.operand("momentum")

    @property
    def is_frozen(self) -> bool:
        """Whether the class knows running statistics alone, in training too."""
        module = self.module
        return module is not None and not isinstance(
            module,
            (nn.modules.batchnorm._NormBase,),  # pyright: ignore[reportPrivateUsage]  # noqa: SLF001  the only common base
        )

    def accepts_only_rank(self, rank: int) -> bool:
        """Whether the call is sure to raise on inputs of any other rank."""
        check = getattr(type(self.module), "_check_input_dim", None)
        return isinstance(check, FunctionType) and _accepted_ranks(check) == frozenset((rank,))

    @property
    def uses_running_statistics(self) -> bool:
        """Whether the call is sure not to measure its batch."""
        if self.is_frozen:
            return True
        has_statistics = self.has("running_mean") and self.has("running_var")
        return has_statistics and self.operand("training") is False

    @property
    def running_mean(self) -> Tensor | None:
        return self.tensor("running_mean")

    @property
    def running_var(self) -> Tensor | None:
        return self.tensor("running_var")

    @property
    def has_constant_parameters(self) -> bool:
        """Whether statistics, scale and offset are known tensors, or absent."""
        return self.are_constant("running_mean", "running_var", "weight", "bias")


@kept
def _accepted_ranks(check: FunctionType) -> frozenset[int]:
    """The ranks of inputs that the check of a batch norm lets pass."""
    return frozenset(rank for rank in range(7) if _accepts(check, rank))


def _accepts(check: FunctionType, rank: int) -> bool:
    try:
        check(nn.Module(), torch.empty([1] * rank, device="meta"))
    except ValueError:
        return False
    except AttributeError:  # asks the module itself
        return True
    return True

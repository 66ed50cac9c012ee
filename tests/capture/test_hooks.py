"""Models whose forward registers or removes hooks: their own code runs."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import fxpasses
from fxpasses.capture import OpaqueKind, capture, twin

X = torch.randn(2, 3, generator=torch.Generator().manual_seed(0))


def twice(_module: nn.Module, _args: Any, out: Tensor) -> Tensor:
    return out * 2


class Base(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 3)


class Watches(Base):
    """Has a hook for the time of one call."""

    def forward(self, x: Tensor) -> Tensor:
        handle = self.layer.register_forward_hook(twice)
        y = self.layer(x)
        handle.remove()
        return y


class WatchesInABlock(Base):
    def forward(self, x: Tensor) -> Tensor:
        with self.layer.register_forward_pre_hook(lambda _module, args: (args[0] + 1,)):
            return self.layer(x)


class Registers(Base):
    """Has one hook more after each call."""

    def forward(self, x: Tensor) -> Tensor:
        self.layer.register_forward_hook(twice)
        return self.layer(x)


class Removes(Base):
    """The second call differs from the first."""

    def __init__(self) -> None:
        super().__init__()
        self.handle = self.register_forward_hook(twice)

    def forward(self, x: Tensor) -> Tensor:
        self.handle.remove()
        return self.layer(x)


@pytest.mark.parametrize("example", [(X,), None])
@pytest.mark.parametrize("nested", [False, True])
@pytest.mark.parametrize("kind", [Watches, WatchesInABlock, Registers])
def test_a_forward_that_registers_hooks_is_opaque(
    kind: type[Base], example: Any, *, nested: bool
) -> None:
    torch.manual_seed(0)
    model = (nn.Sequential(kind(), nn.ReLU()) if nested else kind()).eval()
    found = capture(model, example)
    assert [(leaf.kind, leaf.reason) for leaf in found.opaque] == [
        (OpaqueKind.PYTHON_STATE, "registers a hook")
    ]
    result = fxpasses.run(model, "fuse_conv_bn,dce", example, verify=example is not None)
    assert not any(module._forward_hooks for module in model.modules())
    for _ in range(2):
        assert torch.equal(result(X), model(X))


def test_a_forward_that_removes_a_hook_is_opaque() -> None:
    model = nn.Sequential(Removes()).eval()
    found = capture(model, (X,))
    assert [leaf.kind for leaf in found.opaque] == [OpaqueKind.HOOKED]
    assert len(model[0]._forward_hooks) == 1


def test_a_handle_that_a_module_holds_removes_the_hook_of_its_own_copy() -> None:
    model = Removes().eval()
    made, _ = twin(model)
    made.handle.remove()
    assert not made._forward_hooks
    assert len(model._forward_hooks) == 1
    outer = nn.Sequential(Removes()).eval()
    torch.testing.assert_close(fxpasses.run(outer, "dce", (X,))(X), outer(X))


def test_hooks_can_be_registered_again_after_a_trace() -> None:
    capture(Registers().eval(), (X,))
    layer = nn.Linear(1, 1)
    handle = layer.register_forward_hook(twice)
    assert len(layer._forward_hooks) == 1
    handle.remove()
    assert not layer._forward_hooks

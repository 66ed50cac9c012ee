"""Real models with random weights, drawn so that no part of them is hidden.

A freshly built network hides faults: its norms do nothing yet, its residual branches and layer
scales start at zero. `randomised` redraws what would hide something and measures the statistics
of the norms, so that a wrong rewrite anywhere moves the output.
"""

import copy
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

SEED = 0


def randomised(model: nn.Module, *calibration: object, seed: int = SEED) -> nn.Module:
    """Redraw norms, biases, layer scales and whatever is zero; calibrate running statistics.

    Args:
        model: changed in place and returned, in eval mode.
        calibration: positional arguments of one call, with at least two samples; without them
            the running statistics are drawn, not measured.
        seed: of all that is drawn.
    """
    draw = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            _redraw(name, parameter, draw)
        for module in model.modules():
            if isinstance(module, _BatchNorm):
                _redraw_norm(module, draw)
    model.eval()
    if calibration:
        _calibrate(model, calibration, draw)
    return model


def _redraw(name: str, parameter: Tensor, draw: torch.Generator) -> None:
    constant = bool((parameter == parameter.flatten()[0]).all())
    if constant and parameter.numel() > 1:
        if name.endswith("bias") or bool((parameter == 0).all()):
            parameter.normal_(0, 0.05, generator=draw)
        else:
            parameter.uniform_(0.5, 1.5, generator=draw)


def _redraw_norm(norm: _BatchNorm, draw: torch.Generator) -> None:
    if norm.running_mean is not None and norm.running_var is not None:
        norm.running_mean.normal_(0, 0.1, generator=draw)
        norm.running_var.uniform_(0.5, 1.5, generator=draw)


def _calibrate(model: nn.Module, calibration: tuple[object, ...], draw: torch.Generator) -> None:
    """Let one call measure the statistics, then move them a little off."""
    norms = [module for module in model.modules() if isinstance(module, _BatchNorm)]
    momenta = [norm.momentum for norm in norms]
    for norm in norms:
        norm.reset_running_stats()
        norm.train()
        norm.momentum = None
    with torch.no_grad():
        model(*calibration)
    for norm, momentum in zip(norms, momenta, strict=True):
        norm.eval()
        norm.momentum = momentum
        if norm.running_mean is not None and norm.running_var is not None:
            spread = norm.running_var.sqrt()
            norm.running_mean += 0.1 * spread * torch.randn(spread.shape, generator=draw)
            norm.running_var *= 0.8 + 0.4 * torch.rand(spread.shape, generator=draw)


def calibrated(model: nn.Module, *calibration: object, seed: int = SEED) -> nn.Module:
    """Running statistics measured on a copy: `model` itself, which is returned, is not run."""
    draw = torch.Generator().manual_seed(seed)
    norms = [module for module in model.modules() if isinstance(module, _BatchNorm)]
    if norms and calibration:
        run = copy.deepcopy(model)
        _calibrate(run, calibration, draw)
        measured = [module for module in run.modules() if isinstance(module, _BatchNorm)]
        for norm, source in zip(norms, measured, strict=True):
            norm.load_state_dict(source.state_dict())
    return model


def images(batch: int, size: int, seed: int = SEED) -> Tensor:
    """Normal noise of shape [batch, 3, size, size]."""
    draw = torch.Generator().manual_seed(seed)
    return torch.randn(batch, 3, size, size, generator=draw)


def built(factory: Callable[..., nn.Module], *calibration: object, **options: object) -> nn.Module:
    """`factory(**options)` under a fixed seed, randomised, in eval mode."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(SEED)
        model = factory(**options).eval()
    return randomised(model, *calibration)

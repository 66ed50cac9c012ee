"""Verification holds little more than one forward in float64 and the largest rewritten region."""

import torch
from torch import nn

from benchmarks.memory import bytes_of_float64_forward, peak_bytes, verification_of

SMALL = 2**20
"""Bytes for whatever is not worth counting."""


def conv_norm(inputs: int, outputs: int) -> list[nn.Module]:
    norm = nn.BatchNorm2d(outputs)
    for tensor in (*norm.parameters(), norm.running_mean, norm.running_var):
        assert tensor is not None
        nn.init.uniform_(tensor, 0.5, 1.5)
    return [nn.Conv2d(inputs, outputs, 3, padding=1), norm, nn.ReLU()]


def test_large_weights_are_wide_one_at_a_time() -> None:
    torch.manual_seed(1)
    model = nn.Sequential(*(layer for _ in range(4) for layer in conv_norm(256, 256))).eval()
    x = torch.randn(2, 256, 2, 2)
    weight = model[0].weight.numel()

    peak = peak_bytes(verification_of(model, x))

    # One weight in float64, and as it should be rounded.
    region = weight * (8 + 4)
    assert weight * 8 <= peak <= bytes_of_float64_forward(model, x) + region + SMALL


def test_large_activations_are_freed_as_soon_as_nothing_reads_them() -> None:
    torch.manual_seed(1)
    layers = [*conv_norm(4, 8), *conv_norm(8, 8), *conv_norm(8, 8)]
    model = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1)).eval()
    x = torch.randn(4, 4, 128, 128)
    sample = 8 * 128 * 128 * 8
    value = len(x) * sample

    peak = peak_bytes(verification_of(model, x))

    # What the site reads, the old value and the new; and of one sample what a kernel of 3 x 3 reads
    # for all outputs, what it makes of it, and an argument.
    assert peak <= 3 * value + (9 + 1 + 1) * sample + SMALL
    assert peak < bytes_of_float64_forward(model, x)

"""Twelve real models: captured whole, every foldable norm folded, verified, and equal elsewhere."""

import pytest
import torch
from torch import nn
from torch.fx import GraphModule

import fxpasses
from benchmarks.models import built
from tests.zoo.models import SUBJECTS, Subject, leaves

PASSES = "fuse_conv_bn,constant_fold,dce"

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("subject", SUBJECTS, ids=lambda subject: subject.name)
def test_a_real_model(subject: Subject) -> None:
    model = subject.build()
    keys = list(model.state_dict())
    versions = [tensor._version for tensor in model.state_dict(keep_vars=True).values()]

    result = fxpasses.run(model, PASSES, subject.example())

    assert list(model.state_dict()) == keys
    assert [t._version for t in model.state_dict(keep_vars=True).values()] == versions
    is_verified(result)
    every_foldable_norm_is_folded(subject, result)
    is_captured(subject, result)
    other_sizes_are_equal(subject, model, result)


def is_verified(result: GraphModule) -> None:
    verification = fxpasses.report(result).record.verification
    assert verification.ok is True, str(fxpasses.report(result))
    assert verification.undone == []
    assert verification.forwards <= 8


def every_foldable_norm_is_folded(subject: Subject, result: GraphModule) -> None:
    (fuse, *_) = fxpasses.report(result).record.passes
    assert fuse.name == "fuse_conv_bn"
    assert len(fuse.rewrites) == subject.foldable, str(fxpasses.report(result))


def is_captured(subject: Subject, result: GraphModule) -> None:
    capture = fxpasses.report(result).record.capture
    assert capture.calls_covered is not None
    assert capture.flops_covered is not None
    assert capture.calls_covered >= subject.calls_covered, str(fxpasses.report(result))
    assert capture.flops_covered >= subject.flops_covered, str(fxpasses.report(result))


def other_sizes_are_equal(subject: Subject, model: nn.Module, result: GraphModule) -> None:
    with torch.no_grad():
        for name, call in {"the example": subject.example(), **subject.others()}.items():
            expected, found = leaves(model(*call)), leaves(result(*call))
            assert [leaf.shape for leaf in found] == [leaf.shape for leaf in expected], name
            for one, other in zip(found, expected, strict=True):
                scale = float(other.double().norm())
                assert float((one.double() - other.double()).norm()) <= 1e-3 * scale, name
    calls = fxpasses.report(result).calls
    assert calls is not None
    assert calls["graph"] + calls["fallback"] >= 1 + len(subject.others())


def test_attention_that_fills_a_cache_is_captured_in_part() -> None:
    (levit,) = [subject for subject in SUBJECTS if subject.name.startswith("levit")]
    never_run = built(levit.factory)
    result = fxpasses.run(never_run, PASSES, levit.example())
    record = fxpasses.report(result).record
    assert record.capture.calls_covered is not None
    assert 0.6 <= record.capture.calls_covered < 1
    assert record.verification.ok is True

"""A detector is captured piece by piece: its root and its heads run their own code."""

import copy
import pickle

import pytest
import torch

from fxpasses.capture import calls_of, capture, finish, fork

detection = pytest.importorskip("torchvision.models.detection")


@pytest.fixture(scope="module")
def model():
    torch.manual_seed(0)
    made = detection.fasterrcnn_mobilenet_v3_large_320_fpn(
        weights=None, weights_backbone=None, min_size=64, max_size=96, box_detections_per_img=5
    )
    return made.eval()


def same(a, b) -> bool:
    return all(
        list(x) == list(y) and all(torch.allclose(x[k], y[k], atol=1e-4) for k in x)
        for x, y in zip(a, b, strict=True)
    )


def test_a_detector_is_captured_with_its_children(model) -> None:
    images = [torch.rand(3, 64, 80), torch.rand(3, 70, 60)]
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}

    captured = capture(model, (images,))

    paths = set(captured.program.graphs)
    assert {"backbone", "rpn.head", "roi_heads.box_head", "roi_heads.box_predictor"} <= paths
    assert captured.coverage().flops > 0.97
    result = finish(fork(captured.program), captured.program)
    assert list(result.state_dict()) == list(before)
    for given in (images, images[:1], [torch.rand(3, 50, 50)]):
        with torch.no_grad():
            expected = model(given)
            assert same(result(given), expected)
            assert same(copy.deepcopy(result)(given), expected)
            assert same(pickle.loads(pickle.dumps(result))(given), expected)
    assert calls_of(result.backbone.forward.serve)["graph"] == 3
    assert all(torch.equal(model.state_dict()[name], tensor) for name, tensor in before.items())

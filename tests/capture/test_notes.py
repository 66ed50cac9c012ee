"""What a capture says of a model besides what is opaque."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import fxpasses
from fxpasses.capture import NoteKind, capture
from fxpasses.core.record import Record

pytestmark = [
    pytest.mark.filterwarnings("ignore:torch.ao.quantization is deprecated"),
    pytest.mark.filterwarnings("ignore:torch.quantize_per_tensor"),
]

ROWS = torch.randn(2, 4, generator=torch.Generator().manual_seed(0))


def dynamic() -> nn.Module:
    """Two layers with weights in torch's packed form, one of them nested."""
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Sequential(nn.Linear(4, 3))).eval()
    return torch.ao.quantization.quantize_dynamic(model, {nn.Linear})


class WithTensor(nn.Module):
    """Holds a quantised tensor, as a buffer or as a plain attribute."""

    def __init__(self, *, as_buffer: bool) -> None:
        super().__init__()
        table = torch.quantize_per_tensor(ROWS, 0.1, 8, torch.quint8)
        if as_buffer:
            self.register_buffer("table", table)
        else:
            self.table = table

    def forward(self, x: Tensor) -> Tensor:
        return x + self.table.dequantize()


@pytest.mark.parametrize(
    ("model", "text"),
    [
        (dynamic, "2 modules hold quantised weights, which no pass rewrites: 0"),
        (lambda: WithTensor(as_buffer=True), "1 module holds quantised weights"),
        (lambda: WithTensor(as_buffer=False), "1 module holds quantised weights"),
    ],
)
def test_quantised_weights_are_noted(model: Any, text: str) -> None:
    (note,) = capture(model(), (ROWS,)).notes
    assert note.kind is NoteKind.QUANTIZED
    assert note.text.startswith(text)
    assert "before it is quantised" in note.remedy


def test_many_quantised_modules_make_one_note() -> None:
    layers = nn.Sequential(*(nn.Linear(4, 4) for _ in range(6))).eval()
    found = capture(torch.ao.quantization.quantize_dynamic(layers, {nn.Linear}), (ROWS,))
    assert [str(note) for note in found.notes] == [
        "6 modules hold quantised weights, which no pass rewrites: 0, 1, 2, and 3 more"
    ]


def test_a_float_model_has_no_note() -> None:
    assert capture(nn.Sequential(nn.Linear(4, 4), nn.Dropout()).eval(), (ROWS,)).notes == ()


def test_a_quantised_model_is_kept_as_it_is_and_its_report_says_so() -> None:
    model = dynamic()
    result = fxpasses.run(model, "fuse_conv_bn,dce", (ROWS,))
    assert torch.equal(result(ROWS), model(ROWS))
    report = fxpasses.report(result)
    assert "quantised weights" in str(report)
    assert "before it is quantised" in str(report)
    record = Record.from_dict(report.record.as_dict())
    assert [note.kind for note in record.capture.notes] == ["quantized"]

"""What a report says: every fact of a run, on one screen, and as data."""

import json
import re

import pytest
import torch
from torch import nn
from torch.fx import symbolic_trace

import fxpasses
from fxpasses.core.record import (
    CaptureRecord,
    CheckRecord,
    OpaqueRecord,
    PassRecord,
    Record,
    RefusalRecord,
    RewriteRecord,
    VerificationRecord,
)
from fxpasses.errors import ResultError
from fxpasses.page import Report
from fxpasses.page.numbers import count, place, share, size

IMAGE = torch.randn(2, 3, 8, 8, generator=torch.Generator().manual_seed(0))


def a_record() -> Record:
    rewrite = RewriteRecord(
        "1:fold@/bn1", "", "bn1", "one op less", "m.py:3", ["bn1"], ["conv_1"], ["bn1"]
    )
    rewrite.error, rewrite.bound, rewrite.verified = 2e-16, 1e-12, "site"
    refusals = [
        RefusalRecord(
            "",
            f"bn{i}",
            "norm_is_fixed",
            "the norm measures each batch",
            False,
            "m.py:9",
            "call model.eval() first",
        )
        for i in range(5)
    ]
    refusals.append(
        RefusalRecord(
            "b", "x", "is_small", "the result is too large", True, "/a/site-packages/n.py:1"
        )
    )
    return Record(
        model="Net",
        pipeline="fold,dce",
        torch="2.x",
        capture=CaptureRecord(
            example="given",
            graphs={"": 12, "head": 3},
            opaque=[
                OpaqueRecord("head", "Head", "control_flow", "a branch on data", "m.py:7", "decide")
            ],
            calls_covered=0.994,
            flops_covered=1.0,
            guards=1,
            traces=2,
        ),
        passes=[
            PassRecord(
                1,
                "fold",
                {"limit": 8},
                "rounding",
                status="changed",
                rewrites=[rewrite],
                refusals=refusals,
                nodes_before=12,
                nodes_after=11,
                bytes_folded=2048,
                seconds=0.5,
            ),
            PassRecord(2, "dce", {}, "exact", status="failed", error="dce raised KeyError: 1"),
        ],
        verification=VerificationRecord(
            level="sites",
            ok=True,
            rule="meaning at the sites",
            checks=[
                CheckRecord("site", "example", ok=True, error=2e-16, bound=1e-12, where="bn1"),
                CheckRecord("site", "example x 10", ok=True, error=1e-16, bound=1e-12, where="bn1"),
                CheckRecord("structure", "zeros", ok=True),
            ],
            forwards=6,
            own_error=3e-7,
            unverified=["1:fold@/bn2"],
        ),
        nodes_before=15,
        nodes_after=14,
        bytes_rewritten=2048,
        seconds={"capture": 0.25, "passes": 0.5, "verify": 12.0},
        notes=["a note"],
    )


EXPECTED = """\
Net, eval mode, torch 2.x
pipeline   fold,dce
result     15 -> 14 nodes, 2.0 KiB of weights rewritten
time       capture 0.25 s, passes 0.50 s, verify 12 s
captured   2 graphs; covered: 99.4 % of calls, 100 % of FLOPs
           example given; sizes=guards, 1 guard, 2 traces
opaque     control_flow: 1 module runs as written
             head (Head): a branch on data [m.py:7]
             what to do: decide
passes     #  pass          outcome  rewrites  refused     nodes   folded  numerics    time
           1  fold limit=8  changed         1        6  12 -> 11  2.0 KiB  rounding  0.50 s
           2  dce           failed          0                  0           exact     0.00 s
           2 dce failed: dce raised KeyError: 1
refused    fold, 5 sites: the norm measures each batch [norm_is_fixed]
             m.py:9: bn0, bn1, bn2, and 2 more
             what to do: call model.eval() first
           fold, 1 site: the result is too large (right, but not worth it) [is_small]
             n.py:1: b/x
verified   yes (level sites, 6 forwards)
           meaning at the sites
           the original's own error against float64: 3.0e-07
           check      passed  worst error  allowed
           site       2 of 2      2.0e-16  1.0e-12
           structure  1 of 1
           no probe reaches 1 rewrite: 1:fold@/bn2
calls      3 by the graph, 1 by the module's own code
             1: another rank
notes      a note"""


def test_the_text() -> None:
    calls = {"graph": 3, "fallback": 1, "reasons": {"another rank": 1}}
    assert str(Report(a_record(), calls)) == EXPECTED


def test_details_show_everything() -> None:
    text = str(Report(a_record(), details=True))
    assert "1:fold@/bn1: one op less [m.py:3] verified: site 2.0e-16 <= 1.0e-12" in text
    assert "bn0, bn1, bn2, bn3, bn4" in text
    assert "nodes: 12 in (the model), 3 in head" in text
    assert "more" not in text


def test_a_failed_check_is_shown() -> None:
    record = a_record()
    record.verification.ok = False
    record.verification.checks.append(
        CheckRecord("meaning", "zeros", ok=False, error=0.5, bound=1e-9, where="out", message="off")
    )
    text = str(Report(record))
    assert "verified   NO" in text
    assert "meaning FAILED on zeros at out 5.0e-01 against 1.0e-09: off" in text


def test_the_data_is_versioned_and_reads_back() -> None:
    record = a_record()
    data = json.loads(Report(record, {"graph": 1, "fallback": 0, "reasons": {}}).to_json())
    assert data.pop("calls") == {"graph": 1, "fallback": 0, "reasons": {}}
    assert data["version"] == 1
    assert Record.from_dict(data) == record


@pytest.mark.parametrize("thing", [nn.Linear(1, 1), symbolic_trace(nn.ReLU()), 7])
def test_what_is_no_result(thing: object) -> None:
    with pytest.raises(ResultError, match=r"fxpasses\.run"):
        fxpasses.report(thing)


def test_a_record_of_another_version() -> None:
    module = symbolic_trace(nn.ReLU())
    module.meta["fxpasses"] = {"version": 99}
    with pytest.raises(ResultError, match="version 99"):
        fxpasses.report(module)


def test_a_real_run_on_one_screen() -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU()).eval()
    fast = fxpasses.run(model, "fuse_conv_bn,constant_fold,dce", IMAGE)
    fast(IMAGE)
    report = fxpasses.report(fast)
    text = str(report)
    assert len(text.splitlines()) < 40
    assert re.search(r"1  fuse_conv_bn +changed +1 ", text)
    assert "100 % of calls" in text
    assert "calls      1 by the graph, 0 by the module's own code" in text
    assert json.loads(report.to_json())["passes"][0]["name"] == "fuse_conv_bn"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (size(0), "0 B"),
        (size(1536), "1.5 KiB"),
        (size(3 << 30), "3.0 GiB"),
        (share(1.0), "100 %"),
        (share(0.99999), "over 99.9 %"),
        (share(None), "not measured"),
        (count(0, "graph"), "no graph"),
        (count(1234, "node"), "1,234 nodes"),
        (place(None), "no source line"),
        (place("/x/site-packages/timm/a.py:3"), "timm/a.py:3"),
    ],
)
def test_numbers_are_short(text: str, expected: str) -> None:
    assert text == expected

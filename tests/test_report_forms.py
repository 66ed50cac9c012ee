"""A report in its other forms: terminal, notebook, Markdown, files; and what to do about it all."""

import io
import json
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest
import torch
from rich.console import Console
from torch import Tensor, nn

import fxpasses
from fxpasses.capture import OpaqueKind
from fxpasses.capture.tracing.request import REMEDIES
from fxpasses.core import Rewrite
from fxpasses.core.plain import printable
from fxpasses.core.record import CaptureRecord, OpaqueRecord, PassRecord, Record, RefusalRecord
from fxpasses.errors import ArgumentError
from fxpasses.page import Report
from tests.test_report import a_record

HOSTILE = '<script>alert("x")</script> | `a` *b* [c](d) & \x1b[31m\u202e\n# e'
OUR_PASSES = sorted(path.stem for path in Path(fxpasses.__file__).parent.glob("passes/[!_]*.py"))
IMAGE = torch.randn(2, 3, 8, 8, generator=torch.Generator().manual_seed(0))


def a_hostile_report() -> Report:
    record = Record(
        model=HOSTILE,
        pipeline=HOSTILE,
        capture=CaptureRecord(opaque=[OpaqueRecord(HOSTILE, HOSTILE, HOSTILE, HOSTILE, HOSTILE)]),
        passes=[
            PassRecord(
                1,
                HOSTILE,
                {},
                "exact",
                status="failed",
                error=HOSTILE,
                refusals=[RefusalRecord("", HOSTILE, HOSTILE, HOSTILE, False, HOSTILE, HOSTILE)],
            )
        ],
        notes=[HOSTILE],
    )
    return Report(record)


class Elements(HTMLParser):
    """The tags of a document and its text."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.texts: list[str] = []
        self.open: list[str] = []
        self.feed(html)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        if tag != "meta":
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open[-1:] != ["style"]:
            self.texts.append(data.strip())


def printed(report: Report, **how: object) -> str:
    stream = io.StringIO()
    Console(file=stream, **how).print(report)
    return stream.getvalue()


def words(text: str) -> list[str]:
    return re.findall(r"[\w.]+", text)


def test_every_form_says_the_same() -> None:
    report = Report(a_record())
    said = words(report.text())
    assert words(printed(report, width=200)) == said
    assert words(" ".join(Elements(report._repr_html_()).texts)) == said
    assert words(report.to_markdown()) == said


def test_the_terminal_shows_tones_and_reads_no_markup() -> None:
    record = a_record()
    record.notes = ["a [bold]note[/bold] :smile:"]
    text = printed(Report(record), width=120, force_terminal=True, color_system="standard")
    assert "\x1b[36mwhat to do: call model.eval() first" in text
    assert "a [bold]note[/bold] :smile:" in text


def test_a_terminal_of_eighty_columns_breaks_no_word_and_says_what_it_leaves_out() -> None:
    run = PassRecord(
        position=1,
        name="constant_fold",
        options={"largest_bytes": 1_048_576},
        status="unchanged",
        numerics="rounding",
        nodes_before=1234,
        nodes_after=1111,
        bytes_folded=44_564_480,
        seconds=0.5,
    )
    text = printed(Report(Record("Net", "cleanup", passes=[run])), width=80)
    for word in ("constant_fold", "largest_bytes=1048576", "unchanged", "1,234 -> 1,111"):
        assert word in text
    assert "left out, for lack of room: time" in text
    assert "left out" not in printed(Report(Record("Net", "cleanup", passes=[run])), width=120)


def test_a_narrow_terminal_loses_nothing() -> None:
    text = printed(Report(a_record()), width=50)
    assert all(len(line) <= 50 for line in text.splitlines())
    assert "…" not in text


def test_markdown_is_read_as_it_is_meant() -> None:
    text = Report(a_record()).to_markdown()
    assert text.startswith("## Net, eval mode, torch 2.x\n\n**pipeline**: fold,dce\n")
    assert "| # | pass | outcome |" in text.replace("\\#", "#")
    assert "| ---: | --- | --- | ---: |" in text
    assert "\n- control_flow: 1 module runs as written\n  - head (Head): a branch on data" in text


@pytest.mark.parametrize("form", ["text", "to_markdown", "to_html", "_repr_html_"])
def test_hostile_names_are_text(form: str) -> None:
    text = getattr(a_hostile_report(), form)()
    assert "\x1b" not in text
    assert "\u202e" not in text
    if form != "text":
        assert "<script" not in text


def test_a_hostile_name_makes_no_element() -> None:
    assert set(Elements(a_hostile_report()._repr_html_()).tags) <= {
        "div",
        "h4",
        "style",
        "table",
        "td",
        "th",
        "tr",
    }


def test_a_hostile_name_makes_no_markdown() -> None:
    text = a_hostile_report().to_markdown()
    assert not re.search(r"(?<!\\)[`|\[]a?`? \\?\*b", text)
    assert "\\[c\\](d)" in text
    assert not re.search(r"^# e", text, re.MULTILINE)


def test_what_is_printable() -> None:
    assert printable("plain ä 模") == "plain ä 模"
    assert printable("a\nb\tc\x1b[0m\x00") == "a b c\\x1b[0m\\x00"


def test_the_page_needs_nothing_from_outside() -> None:
    html = Report(a_record()).to_html()
    assert "http" not in html
    assert "url(" not in html
    assert "<script" not in html
    assert len(html) < 10_000


@pytest.mark.parametrize(
    ("name", "start"),
    [("r.txt", "Net, eval"), ("r.md", "## Net"), ("r.html", "<!DOCTYPE html>"), ("r.JSON", "{")],
)
def test_the_suffix_names_the_form(tmp_path: Path, name: str, start: str) -> None:
    Report(a_record()).save(tmp_path / name)
    text = (tmp_path / name).read_text(encoding="utf-8")
    assert text.startswith(start)
    assert text.endswith("\n")
    if start == "{":
        assert json.loads(text)["version"] == 1


@pytest.mark.parametrize("path", ["report", "report.pdf", 7, None])
def test_what_is_no_path_of_a_report(path: object) -> None:
    with pytest.raises(ArgumentError, match=r"path (ends|is) .*: (end it in \.txt|pass the name)"):
        Report(a_record()).save(path)


def test_details_are_asked_of_any_form(tmp_path: Path) -> None:
    report = Report(a_record())
    for form in (report.text, report.to_markdown, report.to_html):
        assert "bn4" not in form()
        assert "bn4" in form(details=True)
    assert "bn4" not in Report(a_record(), details=True).text(details=False)
    report.save(tmp_path / "r.txt", details=True)
    assert "bn4" in (tmp_path / "r.txt").read_text()
    with pytest.raises(ArgumentError, match="details"):
        report.text(details="all")


def test_a_later_round_that_changes_nothing_takes_no_room() -> None:
    record = a_record()
    record.passes[1].status, record.passes[1].error = "unchanged", None
    again = PassRecord(1, "fold", {}, "rounding", round=2, refusals=record.passes[0].refusals[:1])
    record.passes.append(again)
    text = Report(record).text()
    assert "1 pass changed nothing in later rounds" in text
    assert "(round 2)" not in text
    assert "fold, 1 site: the norm measures each batch" in text
    assert "fold (round 2)" in Report(record).text(details=True)


def test_many_opaque_modules_keep_to_their_room() -> None:
    record = a_record()
    record.capture.opaque = [
        OpaqueRecord(f"m{kind}.{n}", "M", f"kind_{kind}", f"reason {n}", None, "do")
        for kind in range(3)
        for n in range(40)
    ]
    text = Report(record).text()
    assert len(text.splitlines()) < 60
    assert text.count("what to do: do") == 3
    assert "kind_1: 40 modules run as written" in text


# -- what to do


class Branching(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x + 1 if x.sum() > 0 else x


def test_every_kind_of_opaque_module_has_a_remedy() -> None:
    assert set(REMEDIES) == set(OpaqueKind)
    assert all(remedy and not remedy.endswith(".") for remedy in REMEDIES.values())


@pytest.mark.parametrize("name", OUR_PASSES)
def test_every_condition_of_a_pass_has_a_remedy(name: str) -> None:
    cls = fxpasses.registry.get(name)
    conditions = (*getattr(cls, "legal_if", ()), *getattr(cls, "worthwhile_if", ()))
    assert set(cls.remedies) == set(conditions)
    assert all(cls.remedies.values())


def test_a_refusal_comes_with_what_to_do() -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4))
    plan = fxpasses.plan(model.train(), "fuse_conv_bn", IMAGE)
    (refusal,) = plan.record.passes[0].refusals
    assert "model.eval()" in refusal.remedy
    assert f"what to do: {refusal.remedy}" in " ".join(plan.text().split())


def test_an_opaque_module_comes_with_what_to_do() -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 3), Branching()).eval()
    plan = fxpasses.plan(model, "dce", IMAGE)
    (leaf,) = plan.record.capture.opaque
    assert leaf.remedy == REMEDIES[OpaqueKind.CONTROL_FLOW]
    assert f"what to do: {leaf.remedy}" in " ".join(plan.text().split())
    (opaque,) = fxpasses.capture(model, IMAGE).opaque
    assert opaque.remedy == leaf.remedy


def test_a_pass_without_remedies_is_reported_without() -> None:
    def is_wanted(site: object, facts: object) -> str:
        return "it is not wanted"

    class Refusing(Rewrite):
        """Refuse."""

        name, numerics, legal_if = "refusing", fxpasses.Numerics.EXACT, (is_wanted,)

        def match(self, node: object, facts: object) -> object:
            return node if node.op == "output" else None

        def rewrite(self, site: object, edit: object) -> None:
            raise AssertionError

    plan = fxpasses.plan(nn.Sequential(nn.ReLU()).eval(), [Refusing()], IMAGE)
    assert "refusing, 1 site: it is not wanted [is_wanted]" in plan.text()
    assert "what to do" not in plan.text()


def test_a_large_model_is_one_screen() -> None:
    torchvision = pytest.importorskip("torchvision")
    model = torchvision.models.resnet50().eval()
    fast = fxpasses.run(model, "inference", torch.randn(1, 3, 32, 32), verify=False)
    assert len(fxpasses.report(fast).text().splitlines()) <= 40
    assert len(fxpasses.report(fast).text(details=True).splitlines()) > 60
    plan = fxpasses.plan(model.train(), "inference", torch.randn(2, 3, 32, 32))
    assert len(plan.text().splitlines()) <= 40


def test_a_record_is_plain_data() -> None:
    fast = fxpasses.run(nn.Sequential(nn.ReLU()).eval(), [], IMAGE)
    kinds: set[type] = set()

    def look(value: object) -> None:
        kinds.add(type(value))
        children = value.values() if isinstance(value, dict) else value
        for child in children if isinstance(value, dict | list) else ():
            look(child)

    look(fast.meta["fxpasses"])
    assert kinds <= {dict, list, str, int, float, bool, type(None)}

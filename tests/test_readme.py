"""Every Python block of the README runs, in order, and its two commands name what exists."""

import re
from pathlib import Path

import pytest

CHECKOUT = Path(__file__).resolve().parent.parent
README = (CHECKOUT / "README.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```python\n(.*?)^```", README, re.DOTALL | re.MULTILINE)


def test_every_block_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {}
    assert BLOCKS
    for number, block in enumerate(BLOCKS, start=1):
        exec(compile(block, f"README.md, block {number}", "exec"), names)


@pytest.mark.parametrize("mark", ["main job", "tests"])
def test_a_command_is_one_line(mark: str) -> None:
    (section,) = re.findall(
        rf"<!-- {mark} -->\n```sh\n(.*?)\n```\n<!-- /{mark} -->", README, re.DOTALL
    )
    assert "\n" not in section
    for script in re.findall(r"[\w/]+\.py", section):
        assert (CHECKOUT / script).is_file()


def test_the_table_of_passes_is_complete() -> None:
    from fxpasses import registry

    for entry in registry.passes():
        assert f"| `{entry.name}` |" in README

"""The registry: names in layers, files read strictly, plugins that nothing is imported of."""

import importlib.metadata
import sys
import threading
import warnings
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import pytest
from torch.fx import GraphModule, Node

import fxpasses
from fxpasses.core import Editor, Facts, ForeignPass, GraphPass, Group, Numerics, Rewrite
from fxpasses.errors import FxPassesWarning, PipelineError, RegistryError
from fxpasses.registry import Registry
from fxpasses.registry import files as files_module
from fxpasses.registry import plugins as plugins_module
from fxpasses.registry.files import own_file, read


def a_pass(name: str) -> type[Rewrite[Node]]:
    class Made(Rewrite[Node]):
        """Does nothing."""

        numerics = Numerics.EXACT

        def match(self, node: Node, facts: Facts) -> Node | None:
            return None

        def rewrite(self, site: Node, edit: Editor) -> None: ...

    Made.name = name
    Made.__qualname__ = f"Made_{name}_{id(Made)}"
    return Made


def file(folder: Path, text: str, name: str = "passes_registry.yaml") -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / name
    path.write_text(text)
    return path


# -- registering


def test_a_class_is_known_by_its_name() -> None:
    registry = Registry()
    kind = registry.register(a_pass("mine"))
    assert registry.get("mine") is kind
    assert registry.names() == ["mine"]


def test_a_function_becomes_a_foreign_pass() -> None:
    registry = Registry()

    @registry.register
    def tidy(module: GraphModule) -> None: ...

    @registry.register(name="sweep", numerics=Numerics.EXACT)
    def other(module: GraphModule) -> None: ...

    assert registry.get("tidy") == ForeignPass("tidy", tidy, Numerics.ROUNDING)
    assert registry.get("sweep") == ForeignPass("sweep", other, Numerics.EXACT)


def test_a_clash_names_both_sides() -> None:
    registry = Registry()
    first, second = registry.register(a_pass("mine")), a_pass("mine")
    message = f"mine is claimed by .*{second.__qualname__} and by .*{first.__qualname__}"
    with pytest.raises(RegistryError, match=message):
        registry.register(second)
    assert registry.get("mine") is first


def test_what_is_defined_again_replaces_itself() -> None:
    registry = Registry()
    first, second = a_pass("mine"), a_pass("mine")
    second.__qualname__ = first.__qualname__
    registry.register(first)
    registry.register(second)
    assert registry.get("mine") is second


@pytest.mark.parametrize("name", ["", "two words", "-minus", "3d", "a,b", "<lambda>"])
def test_what_is_no_name_is_an_error(name: str) -> None:
    with pytest.raises(RegistryError, match="is no name"):
        Registry().register(a_pass(name))


def test_an_unknown_name_is_an_error_with_the_nearest_match() -> None:
    registry = Registry()
    registry.register(a_pass("mine"))
    with pytest.raises(RegistryError, match=r"there is no pass 'mime'; did you mean mine\?"):
        registry.get("mime")


# -- layers


def test_a_child_sees_its_parent_and_keeps_its_own() -> None:
    parent = Registry()
    kind = parent.register(a_pass("shared"))
    child = parent.child()
    child.register(a_pass("own"))
    assert child.get("shared") is kind
    assert child.names() == ["shared", "own"]
    assert parent.names() == ["shared"]
    with pytest.raises(RegistryError, match="there is no pass 'own'"):
        parent.get("own")
    with pytest.raises(PipelineError, match="there is no pass or pipeline 'own'"):
        parent.resolve("own")


def test_a_child_cannot_take_a_name_of_its_parent() -> None:
    parent = Registry()
    parent.register(a_pass("shared"))
    with pytest.raises(RegistryError, match="shared is claimed by"):
        parent.child().register(a_pass("shared"))


def test_what_a_parent_takes_later_clashes_when_it_is_asked_for() -> None:
    parent = Registry()
    child = parent.child()
    own = child.register(a_pass("mine"))
    inherited = parent.register(a_pass("mine"))
    with pytest.raises(
        RegistryError, match=f"{own.__qualname__} and by .*{inherited.__qualname__}"
    ):
        child.get("mine")
    assert parent.get("mine") is inherited


def test_a_pass_that_is_known_already_may_be_registered_again() -> None:
    parent = Registry()
    kind = parent.register(a_pass("shared"))
    child = parent.child()
    assert child.register(kind) is kind
    assert child.names() == ["shared"]


def test_effects_of_a_child_add_to_its_parents() -> None:
    parent = Registry()
    parent.declare("lib::a", "pure")
    child = parent.child()
    child.declare("lib::b", ("out",))
    child.declare("lib::a", "pure")
    assert child.effects == {"lib::a": "pure", "lib::b": ("out",)}
    assert parent.effects == {"lib::a": "pure"}
    with pytest.raises(RegistryError, match="that lib::a is random, a declaration that it is pure"):
        child.declare("lib::a", "random")


# -- files

GOOD = """
version: 1
passes:
  unused: "fxpasses.core.rewrite:Rewrite"
pipelines:
  listed: [unused]
  full: {summary: "In full.", repeat: 3, passes: [listed, {repeat: 2, passes: [unused]}]}
effects:
  "lib::a": pure
  "lib::b": random
  "lib::c": {writes: [out, other]}
"""


def test_a_file_is_read(tmp_path: Path) -> None:
    registry = Registry()
    path = file(tmp_path, GOOD)
    registry.load(path)
    assert registry.names() == ["unused", "listed", "full"]
    assert registry.effects == {"lib::a": "pure", "lib::b": "random", "lib::c": ("out", "other")}
    full = next(entry for entry in registry.pipelines() if entry.name == "full")
    assert (full.pipeline.summary, full.pipeline.repeat) == ("In full.", 3)
    assert full.origin == str(path)
    assert [entry.location for entry in registry.passes()] == ["fxpasses.core.rewrite:Rewrite"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("- a", "the file is .* where a mapping is expected"),
        ("", "the file is empty"),
        ("passes: {}", "the file names no version: put `version: 1` on its first line"),
        ("passes: [a\nversion: 1", "while parsing a flow sequence in line 1, column 9, expected"),
        ("version: 2", "version is 2, where 1 is expected"),
        ("version: '1'", "version is '1', where 1 is expected"),
        ("version: true", "version is True, where 1 is expected"),
        ("version: 1\npases: {}", r"the file has the unknown key 'pases'; did you mean passes\?"),
        ("version: 1\nversion: 1", "the key 'version' is there twice.*line 2"),
        ("version: 1\npasses: {a: 'b:C', a: 'd:E'}", "the key 'a' is there twice.*line 2"),
        ("version: 1\npasses: [a]", "passes is .'a'., where a mapping is expected"),
        ("version: 1\npasses: {a: 3}", "passes.a is 3, where 'package.module:Class' is expected"),
        ("version: 1\npasses: {a: pkg.module}", "passes.a is 'pkg.module', where"),
        ("version: 1\npasses: {a: 'pkg.module:'}", "passes.a is"),
        ("version: 1\npasses: {a: 'pkg-x:C'}", "passes.a is"),
        ("version: 1\npasses: {a b: 'x:C'}", "passes.a b is no name"),
        ("version: 1\npasses: {3: 'x:C'}", "the key 3 is no text.*line 2"),
        ("version: 1\npipelines: {a: 3}", "pipelines.a is 3, where a mapping is expected"),
        ("version: 1\npipelines: {a: {}}", "pipelines.a has no passes"),
        ("version: 1\npipelines: {a: {passes: [3]}}", r"pipelines.a.passes\[0\] is 3"),
        ("version: 1\npipelines: {a: {passes: 'x,'}}", "pipelines.a.passes: expected the name"),
        ("version: 1\npipelines: {a: {passes: [x], repeat: 0}}", "pipelines.a.repeat is 0"),
        ("version: 1\npipelines: {a: {passes: [x], repeat: true}}", "pipelines.a.repeat is True"),
        ("version: 1\npipelines: {a: {passes: [x], summary: 3}}", "pipelines.a.summary is 3"),
        ("version: 1\npipelines: {a: {pass: [x]}}", r"unknown key 'pass'; did you mean passes\?"),
        ("version: 1\npipelines: {a: [{x: [1]}]}", "the options of x are"),
        ("version: 1\neffects: {a: clean}", "effects.a is 'clean', where pure, random or writes"),
        ("version: 1\neffects: {a: {writes: x}}", "effects.a is"),
        ("version: 1\neffects: {a: {writes: [1]}}", "effects.a is"),
        ("version: 1\neffects: {a: {writes: [], more: 1}}", "effects.a is"),
        (
            "version: 1\nx: !!python/object/apply:os.system [ls]",
            "could not determine a constructor",
        ),
        ("version: [1", "while parsing a flow sequence"),
        ("version: " + "[" * 3000, "nested too deep"),
        ("version: !!int one", "invalid literal for int"),
        ("version: !!timestamp 2020", "could not determine a constructor"),
        (
            "version: 1\npasses: {a: 'x:C'}\npipelines: {a: [a]}",
            "a is claimed by a pass and by a pipeline",
        ),
    ],
)
def test_what_is_not_understood_is_an_error_with_file_and_place(
    tmp_path: Path, text: str, message: str
) -> None:
    registry = Registry()
    path = file(tmp_path, text)
    with pytest.raises(RegistryError, match=message) as caught:
        registry.load(path)
    assert str(path) in str(caught.value)
    assert registry.names() == []


def test_a_file_that_is_not_there_or_no_text_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(RegistryError, match="cannot be read: No such file"):
        read(tmp_path / "none.yaml")
    (tmp_path / "bytes.yaml").write_bytes(b"\xff\xfe\xff")
    with pytest.raises(RegistryError, match=r"bytes.yaml"):
        read(tmp_path / "bytes.yaml")


def test_a_clash_of_files_adds_nothing(tmp_path: Path) -> None:
    registry = Registry()
    first = file(tmp_path, "version: 1\npasses: {a: 'x:A', b: 'x:B'}", "first.yaml")
    second = file(tmp_path, "version: 1\npasses: {c: 'y:C', b: 'y:B'}", "second.yaml")
    registry.load(first)
    with pytest.raises(RegistryError, match=f"b is claimed by {second} and by {first}"):
        registry.load(second)
    assert registry.names() == ["a", "b"]


# -- imports


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An installed package with passes, not imported yet."""
    file(tmp_path / "outside_passes", "", "__init__.py")
    file(
        tmp_path / "outside_passes",
        "from fxpasses.core import Numerics, Rewrite, foreign\n"
        "class Good(Rewrite):\n"
        "    '''Good.'''\n"
        "    name = 'good'\n"
        "    numerics = Numerics.EXACT\n"
        "    def match(self, node, facts): return None\n"
        "    def rewrite(self, site, edit): pass\n"
        "    class Inner: pass\n"
        "class Nameless(Good):\n"
        "    name = None\n"
        "class Undeclared(Rewrite):\n"
        "    def match(self, node, facts): return None\n"
        "    def rewrite(self, site, edit): pass\n"
        "class Half(Rewrite):\n"
        "    name = 'wanted'\n"
        "    numerics = Numerics.EXACT\n"
        "    def match(self, node, facts): return None\n"
        "def function(module): pass\n"
        "made = foreign(function, name='made')\n"
        "number = 3\n",
        "passes.py",
    )
    file(tmp_path / "outside_passes", "raise ValueError('at import')\n", "broken.py")
    file(tmp_path / "outside_passes", "raise SystemExit(3)\n", "leaving.py")
    file(tmp_path / "outside_passes" / "nested", "", "__init__.py")
    monkeypatch.syspath_prepend(tmp_path)
    yield tmp_path / "outside_passes"
    for name in [name for name in sys.modules if name.startswith("outside_passes")]:
        del sys.modules[name]


def listing(**passes: str) -> str:
    lines = (f"  {name}: '{location}'" for name, location in passes.items())
    return "\n".join(("version: 1", "passes:", *lines))


def test_a_pass_is_imported_when_it_is_asked_for(package: Path) -> None:
    registry = Registry()
    registry.load(file(package, listing(good="outside_passes.passes:Good")))
    assert registry.names() == ["good"]
    assert "outside_passes" not in sys.modules
    (found,) = registry.resolve("good").items
    assert type(found).__name__ == "Good"
    assert isinstance(found, GraphPass)


def test_functions_and_foreign_passes_are_imported_too(package: Path) -> None:
    registry = Registry()
    locations = {"mine": "outside_passes.passes:function", "made": "outside_passes.passes:made"}
    registry.load(file(package, listing(**locations)))
    mine, made = registry.get("mine"), registry.get("made")
    assert isinstance(mine, ForeignPass)
    assert isinstance(made, ForeignPass)
    assert (mine.name, made.name) == ("mine", "made")


@pytest.mark.parametrize(
    ("location", "message"),
    [
        ("outside_passes.broken:Good", "cannot be imported: ValueError: at import"),
        ("outside_passes.nowhere:Good", "cannot be imported: ModuleNotFoundError"),
        ("outside_passes.leaving:Good", "cannot be imported: SystemExit: 3"),
        ("outside_passes.passes:Nothing", "is not there: outside_passes.passes has no Nothing"),
        ("outside_passes.passes:Undeclared", "does not declare its name and numerics"),
        ("outside_passes.passes:Nameless", "calls itself None"),
        ("outside_passes.passes:Half", "is Half, which does not define rewrite"),
        ("outside_passes.passes:number", "3 at .* which is no pass"),
        ("outside_passes.passes:Good.Inner", "which is no pass"),
        ("outside_passes.passes:Good", "calls itself 'good'"),
    ],
)
def test_what_cannot_be_imported_says_why(package: Path, location: str, message: str) -> None:
    registry = Registry()
    path = file(package, listing(wanted=location))
    registry.load(path)
    with pytest.raises(RegistryError, match=f"the pass wanted of {path} .*{message}"):
        registry.get("wanted")


# -- plugins


def installed(monkeypatch: pytest.MonkeyPatch, *entries: tuple[str, str]) -> Registry:
    """A registry as the default one is, where these plugins are installed."""
    points = [EntryPoint(name, value, "fxpasses.registry") for name, value in entries]

    def entry_points(*, group: str) -> list[EntryPoint]:
        return points if group == "fxpasses.registry" else []

    monkeypatch.setattr(plugins_module, "entry_points", entry_points)
    return Registry.default.__wrapped__(Registry)  # the cached factory, called anew


def test_a_plugin_is_read_and_nothing_of_it_imported(
    package: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file(package, listing(good="outside_passes.passes:Good") + "\npipelines: {all_good: [good]}")
    registry = installed(monkeypatch, ("outside", "outside_passes"))
    entry = next(entry for entry in registry.passes() if entry.name == "good")
    assert entry.origin == "the plugin outside (outside_passes)"
    assert "all_good" in registry.names()
    assert not [name for name in sys.modules if name.startswith("outside_passes")]
    assert len(list(registry.resolve("all_good").passes())) == 1


def test_a_plugin_may_be_a_nested_package(package: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file(package / "nested", listing(good="outside_passes.passes:Good"))
    registry = installed(monkeypatch, ("outside", "outside_passes.nested"))
    assert "good" in registry.names()
    assert "outside_passes" not in sys.modules


@pytest.mark.parametrize(
    ("value", "text", "message"),
    [
        ("no_such_package", None, "there is no package no_such_package"),
        ("outside_passes", None, "the package outside_passes has no passes_registry.yaml"),
        ("outside_passes.nowhere", None, "has no passes_registry.yaml"),
        ("outside_passes", "version: 9", "version is 9"),
        ("outside_passes", "version: [", "while parsing"),
        ("", None, "cannot be found"),
        ("json.tool", None, "has no passes_registry.yaml"),
    ],
)
def test_a_broken_plugin_is_one_warning_and_breaks_nothing(
    package: Path, monkeypatch: pytest.MonkeyPatch, value: str, text: str | None, message: str
) -> None:
    good = package.parent / "good_plugin"
    file(good, "", "__init__.py")
    file(good, listing(good="outside_passes.passes:Good"))
    if text is not None:
        file(package, text)
    registry = installed(monkeypatch, ("bad", value), ("fine", "good_plugin"))
    with pytest.warns(FxPassesWarning, match=message) as caught:
        names = registry.names()
    assert len(caught) == 1
    assert "the plugin bad is left out" in str(caught[0].message)
    assert "\n" not in str(caught[0].message)
    assert "good" in names
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert registry.get("good").name == "good"


def test_plugins_that_claim_one_name_are_an_error_when_it_is_asked_for(
    package: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = package.parent / "other_plugin"
    file(other, "", "__init__.py")
    file(package, listing(good="outside_passes.passes:Good"))
    file(other, listing(good="other_plugin:Good", fine="outside_passes.passes:function"))
    registry = installed(monkeypatch, ("a", "outside_passes"), ("b", "other_plugin"))
    message = (
        r"good is claimed by the plugin b \(other_plugin\) and by the plugin a \(outside_passes\)"
    )
    for ask in (registry.get, registry.resolve, registry.child().get):
        with pytest.raises(RegistryError, match=message):
            ask("good")
    assert registry.get("fine").name == "fine"


def test_what_plugins_contradict_each_other_in_is_not_declared(
    package: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = package.parent / "other_plugin"
    file(other, "", "__init__.py")
    file(package, "version: 1\neffects: {'lib::a': pure, 'lib::b': pure, 'lib::c': random}")
    file(other, "version: 1\neffects: {'lib::a': {writes: [x]}, 'lib::b': pure}")
    registry = installed(monkeypatch, ("a", "outside_passes"), ("b", "other_plugin"))
    message = (
        r"the plugin b \(other_plugin\) is left out in part: .* says that lib::a is a writer of x, "
        r"the plugin a \(outside_passes\) that it is pure; neither counts"
    )
    with pytest.warns(FxPassesWarning, match=message):
        assert registry.effects == {"lib::b": "pure", "lib::c": "random"}
    registry.declare("lib::a", "random")
    assert registry.child().effects["lib::a"] == "random"


def test_a_name_that_one_plugin_gives_twice_leaves_only_that_plugin_out(
    package: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file(package, listing(good="outside_passes.passes:Good") + "\npipelines: {good: [dce]}")
    registry = installed(monkeypatch, ("a", "outside_passes"))
    with pytest.warns(FxPassesWarning, match="the plugin a is left out.* by a pass and by a pipe"):
        assert "dce" in registry.names()
    assert "good" not in registry.names()


def test_a_warning_that_is_an_error_loses_no_plugin(
    package: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file(package, listing(good="outside_passes.passes:Good"))
    registry = installed(monkeypatch, ("bad", "no_such_package"), ("fine", "outside_passes"))
    with pytest.raises(FxPassesWarning, match="the plugin bad is left out"):
        registry.names()
    assert registry.get("good").name == "good"
    assert [problem.origin for problem in registry.problems()] == ["the plugin bad"]


def test_import_hooks_that_raise_break_nothing(
    package: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def find_spec(name: str) -> None:
        raise AttributeError("a hook of somebody else")

    monkeypatch.setattr(plugins_module, "find_spec", find_spec)
    registry = installed(monkeypatch, ("bad", "outside_passes"))
    with pytest.warns(FxPassesWarning, match="cannot be found: a hook of somebody else"):
        assert "dce" in registry.names()


def test_threads_that_ask_at_once_all_see_everything() -> None:
    registry = Registry.default.__wrapped__(Registry)  # the cached factory, called anew
    gate = threading.Barrier(4)

    def ask(_: int) -> list[str]:
        gate.wait()
        return registry.names()

    with ThreadPoolExecutor(4) as threads:
        answers = list(threads.map(ask, range(4)))
    assert answers[0]
    assert all(answer == answers[0] for answer in answers)


# -- the default


def test_the_default_is_one_and_adding_to_it_reads_nothing() -> None:
    assert Registry.default() is Registry.default()
    assert Registry.default().child().names() == Registry.default().names()


def test_every_pass_of_our_own_can_be_imported() -> None:
    for entry in Registry.default().passes():
        if entry.origin == "fxpasses":
            assert Registry.default().get(entry.name).name == entry.name


def test_every_pipeline_of_our_own_resolves() -> None:
    registry = Registry.default()
    for entry in registry.pipelines():
        group = registry.resolve(entry.name)
        assert isinstance(group, Group)
        assert entry.pipeline.summary


def test_the_file_of_a_checkout_lies_at_the_top_level() -> None:
    package = Path(fxpasses.__file__).parent
    assert own_file() == package.parent / "passes_registry.yaml"
    assert own_file().exists()


def test_the_file_of_a_wheel_lies_in_the_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    inside = file(tmp_path / "fxpasses", "version: 1")
    file(tmp_path, "version: 1")

    class Installed:
        __file__ = str(tmp_path / "fxpasses" / "__init__.py")

    monkeypatch.setattr(files_module, "fxpasses", Installed)
    assert own_file() == inside


def test_entry_points_are_those_of_the_installed_packages() -> None:
    assert isinstance(list(importlib.metadata.entry_points(group="fxpasses.registry")), list)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        fresh: Any = Registry.default.__wrapped__(Registry)  # the cached factory, called anew
        fresh.names()

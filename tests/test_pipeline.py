"""Pipelines as text, lists and mappings: one tree, checked before anything runs."""

from collections.abc import Mapping, Sequence
from dataclasses import field
from enum import StrEnum
from typing import Any, Literal

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.fx import GraphModule, Node

from fxpasses.core import Editor, Facts, ForeignPass, Group, Numerics, Rewrite, foreign
from fxpasses.errors import PipelineError, RegistryError
from fxpasses.registry import Registry, parse
from fxpasses.registry.documents import dump, load
from fxpasses.registry.syntax import NAME, Entry, Minus, Named, Repeated
from fxpasses.registry.tree import entries_of
from fxpasses.registry.values import text_of_options
from fxpasses.registry.writing import data_of, text_of

# The same examples every time, and however slow the machine is.
GENERATED = settings(deadline=None, derandomize=True, database=None)


class Base(Rewrite[Node]):
    """Does nothing."""

    name = "base"
    numerics = Numerics.EXACT

    def match(self, node: Node, facts: Facts) -> Node | None:
        return None

    def rewrite(self, site: Node, edit: Editor) -> None: ...


class Fuse(Base):
    """Fuses."""

    name = "fuse"


class Clean(Base):
    """Cleans."""

    name = "clean"


class Last(Base):
    """Comes last."""

    name = "last"
    runs_after = ("fuse",)


class Shade(StrEnum):
    LIGHT = "light"
    DARK = "dark"


class Optioned(Base):
    """Has an option of every type."""

    name = "optioned"
    flag: bool = False
    count: int = 3
    rate: float = 0.5
    word: str = "relu"
    maybe: int | None = None
    either: int | str = 1
    dtype: torch.dtype = torch.float32
    shade: Shade = Shade.LIGHT
    choice: Literal["a", "b", 3] = "a"
    sizes: tuple[int, ...] = ()
    pair: tuple[int, str] = (1, "x")
    names: list[str] = field(default_factory=list)
    kinds: frozenset[str] = frozenset()
    mapping: Mapping[str, str] = field(default_factory=dict)
    nested: dict[str, list[int]] = field(default_factory=dict)
    by_number: dict[int, str] = field(default_factory=dict)
    anything: Any = None
    sequence: Sequence[float] = ()


class Needy(Base):
    """Needs an option."""

    name = "needy"
    amount: int

    def __post_init__(self) -> None:
        if self.amount < 0:
            raise ValueError("amount has to be positive")


@pytest.fixture
def registry(tmp_path: Any) -> Registry:
    registry = made()
    path = tmp_path / "passes_registry.yaml"
    path.write_text(
        "version: 1\n"
        "pipelines:\n"
        "  inference:\n"
        "    summary: For inference.\n"
        "    repeat: 4\n"
        "    passes: [fuse, optioned: {count: 7}, clean]\n"
        "  small: {passes: [clean]}\n"
        "  nested: {passes: [inference, last]}\n"
        "  loop: {passes: [small, loop]}\n"
        "  ring: {passes: [ring_2]}\n"
        "  ring_2: {passes: [ring]}\n"
        "  less: {passes: 'inference,-optioned'}\n"
    )
    registry.load(path)
    return registry


def made() -> Registry:
    registry = Registry()
    for kind in (Fuse, Clean, Last, Optioned, Needy):
        registry.register(kind)
    registry.register(tidy)
    return registry


def tidy(module: GraphModule) -> None: ...


TIDY = ForeignPass("tidy", tidy, Numerics.ROUNDING)


# -- the grammar


@pytest.mark.parametrize(
    ("text", "entries"),
    [
        ("", ()),
        ("  ", ()),
        ("a", (Named("a"),)),
        ("a,b", (Named("a"), Named("b"))),
        (" a , b ", (Named("a"), Named("b"))),
        ("a,-b", (Named("a"), Minus("b"))),
        ("(a,b)*4", (Repeated((Named("a"), Named("b")), 4),)),
        ("( a , ( b ) * 2 ) * 3", (Repeated((Named("a"), Repeated((Named("b"),), 2)), 3),)),
        ("pkg.a", (Named("pkg.a"),)),
        ("a{}", (Named("a"),)),
        ("a{x=1}", (Named("a", {"x": 1}),)),
        ("a{x=-1,y=2.5,z=-1e-3}", (Named("a", {"x": -1, "y": 2.5, "z": -0.001}),)),
        ("a{x=true,y=false,z=none}", (Named("a", {"x": True, "y": False, "z": None}),)),
        ("a{x=relu,y=a-b.c:d/e+f}", (Named("a", {"x": "relu", "y": "a-b.c:d/e+f"}),)),
        ('a{x="two, {words}",y="true"}', (Named("a", {"x": "two, {words}", "y": "true"}),)),
        (r'a{x="\"\\\n\u00e9"}', (Named("a", {"x": '"\\\né'}),)),
        (
            "a{x=[1,[b],{c=2}],y=[],z={}}",
            (Named("a", {"x": [1, ["b"], {"c": 2}], "y": [], "z": {}}),),
        ),
        ('a{m={"two words"=1}}', (Named("a", {"m": {"two words": 1}}),)),
        (
            "a{x=inf,y=-inf,z=info}",
            (Named("a", {"x": float("inf"), "y": float("-inf"), "z": "info"}),),
        ),
        ("a\n,\tb", (Named("a"), Named("b"))),
    ],
)
def test_text_is_read(text: str, entries: tuple[Entry, ...]) -> None:
    assert parse(text) == entries


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (",", "expected the name of a pass.* at character 1 of ',', found ','"),
        ("a,", "character 3 of 'a,', found 'the end'"),
        ("a b", "expected a comma or the end at character 3"),
        ("a{x}", "expected '=' at character 4"),
        ("a{x=}", "expected a value at character 5"),
        ("a{x=1", "expected '}' at character 6"),
        ("a{x=1,x=2}", "x is given twice"),
        ("a{x=[1", "expected ']'"),
        ("a{1=2}", "expected the name of an option"),
        ('a{x="open}', 'expected a text that ends in "'),
        (r'a{x="\q"}', "is no text"),
        ("(a)", r"expected '\*'"),
        ("(a)*", "expected a number of rounds"),
        ("(a)*0", "repeated 0 times"),
        ("(a)*-1", "repeated -1 times"),
        ("(a*2", r"expected '\)'"),
        ("()*2", "expected the name of a pass"),
        ("--a", "the name of a pass to leave out"),
        ("-", "the name of a pass to leave out"),
        ("a;b", "expected a comma or the end"),
        ("3", "expected the name of a pass"),
        ("a{x=1}}", "expected a comma or the end"),
        ("a{x=" + "9" * 5000 + "}", "a number of 5000 digits is too long"),
        ("(a)*" + "9" * 5000, "a number of 5000 digits is too long"),
    ],
)
def test_text_outside_of_the_grammar_shows_where(text: str, message: str) -> None:
    with pytest.raises(PipelineError, match=message):
        parse(text)


# -- what the entries mean


def resolve(registry: Registry, passes: Any) -> Group:
    return registry.resolve(passes)


def test_names_become_passes(registry: Registry) -> None:
    assert resolve(registry, "fuse,tidy,clean") == Group((Fuse(), TIDY, Clean()))
    assert resolve(registry, "(fuse,clean)*3") == Group((Group((Fuse(), Clean()), 3),))


def test_a_pipeline_name_expands(registry: Registry) -> None:
    inference = Group((Fuse(), Optioned(count=7), Clean()), 4, "inference")
    assert resolve(registry, "inference,last") == Group((inference, Last()))
    assert resolve(registry, "nested") == Group((Group((inference, Last()), 1, "nested"),))


@pytest.mark.parametrize(
    ("text", "left"),
    [
        ("fuse,clean,-fuse", "clean"),
        ("fuse,clean,-fuse,fuse", "clean,fuse"),
        ("inference,-optioned", "(fuse,clean)*4"),
        ("less", "((fuse,clean)*4)*1"),
        ("nested,-optioned,-last", "((fuse,clean)*4)*1"),
        ("(fuse,clean,-fuse)*2", "(clean)*2"),
        ("fuse,(clean,-fuse)*2", "(clean)*2"),
        ("fuse,-fuse", ""),
        ("(fuse)*3,-fuse,clean", "clean"),
        ("inference,clean,-inference", "clean"),
        ("clean,-fuse", "clean"),
        ("-fuse,fuse", "fuse"),
    ],
)
def test_minus_removes_all_of_that_name_to_its_left(
    registry: Registry, text: str, left: str
) -> None:
    assert registry.to_text(resolve(registry, text)) == left


def test_lists_mappings_and_objects_mean_the_same_tree(registry: Registry) -> None:
    items = [
        "fuse",
        {"optioned": {"count": 7, "sizes": (1, 2), "dtype": torch.float16, "shade": Shade.DARK}},
        {"repeat": 2, "passes": ["clean", {"tidy": None}]},
        "clean,fuse,-fuse",
        Fuse(),
        Clean,
        tidy,
        Group((Fuse(), Clean()), 2),
    ]
    text = (
        "optioned{count=7,dtype=float16,shade=dark,sizes=[1,2]},(clean,tidy)*2,clean,"
        "fuse,clean,tidy,(fuse,clean)*2"
    )
    assert resolve(registry, items) == resolve(registry, text)


def test_minus_reaches_into_groups_that_were_given(registry: Registry) -> None:
    assert resolve(registry, [Group((Fuse(), Clean()), 2), "-fuse"]) == Group(
        (Group((Clean(),), 2),)
    )


@pytest.mark.parametrize("nothing", ["", [], ()])
def test_an_empty_pipeline_is_one(registry: Registry, nothing: Any) -> None:
    assert resolve(registry, nothing) == Group(())


def test_one_pass_or_function_is_a_pipeline(registry: Registry) -> None:
    assert resolve(registry, Fuse()) == Group((Fuse(),))
    assert resolve(registry, tidy) == Group((TIDY,))
    assert resolve(registry, foreign(tidy, name="x")) == Group((foreign(tidy, name="x"),))
    group = Group((Fuse(),), 3)
    assert resolve(registry, group) is group


@pytest.mark.parametrize(
    ("passes", "message"),
    [
        ("fuze", r"passes: there is no pass or pipeline 'fuze'; did you mean fuse\?"),
        ("inferense", r"did you mean inference\?"),
        ("zzzzzzzz", "there is no pass or pipeline 'zzzzzzzz'"),
        ("fuse,-claen", r"no pass or pipeline 'claen' to leave out; did you mean clean\?"),
        ("fuse{x=1}", "fuse has no option 'x'"),
        ("optioned{coumt=1}", r"optioned has no option 'coumt'; did you mean count\?"),
        ("inference{x=1}", "inference is a pipeline and takes no options"),
        ("tidy{x=1}", "tidy is a function and takes no options"),
        ("loop", "the pipeline loop contains itself: loop > loop"),
        ("ring", "the pipeline ring contains itself: ring > ring_2 > ring"),
        ("needy", "needy needs the option amount"),
        ("needy{amount=-1}", "needy does not take .* amount has to be positive"),
        ("last,fuse", "last has to run after fuse: put fuse before it"),
        (["fuse", 3], r"passes\[1\] is 3, which is neither a name, a pass nor a function"),
        (["fuse", None], r"passes\[1\] is None"),
        ([["fuse"], ["fuze"]], "no pass or pipeline 'fuze'"),
        (["a b"], r"passes\[0\]: expected a comma"),
        ([{"fuse": {}, "clean": {}}], r"passes\[0\] is .* where one name with its options"),
        ([{}], r"passes\[0\] is"),
        ([{"fuse": 3}], r"passes\[0\]: the options of fuse are 3"),
        ([{3: {}}], r"passes\[0\]: 3 is no name"),
        ([{"repeat": 0, "passes": []}], r"passes\[0\].repeat is 0"),
        ([{"repeat": True, "passes": []}], r"passes\[0\].repeat is True"),
        ([{"repeat": 2, "passes": [3]}], r"passes\[0\].passes\[0\] is 3"),
        ([{"optioned": {"anything": object()}}], "where plain data is expected"),
        (GraphModule, "which is neither a name"),
        (3, "passes is 3"),
    ],
)
def test_mistakes_are_named_with_the_nearest_match(
    registry: Registry, passes: Any, message: str
) -> None:
    with pytest.raises(PipelineError, match=message):
        resolve(registry, passes)


# -- options


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("flag=true", True),
        ("count=4", 4),
        ("rate=2", 2.0),
        ("rate=1e-3", 0.001),
        ("rate=inf", float("inf")),
        ("word=gelu", "gelu"),
        ('word="3"', "3"),
        ("maybe=none", None),
        ("maybe=3", 3),
        ("either=2", 2),
        ("either=two", "two"),
        ("dtype=bfloat16", torch.bfloat16),
        ("dtype=torch.int8", torch.int8),
        ("shade=dark", Shade.DARK),
        ("choice=b", "b"),
        ("choice=3", 3),
        ("sizes=[1,2]", (1, 2)),
        ("pair=[2,y]", (2, "y")),
        ("names=[a,b]", ["a", "b"]),
        ("kinds=[a,b,a]", frozenset({"a", "b"})),
        ("mapping={relu=silu}", {"relu": "silu"}),
        ("nested={a=[1,2],b=[]}", {"a": [1, 2], "b": []}),
        ('by_number={"3"=relu}', {3: "relu"}),
        ("anything={a=[1,none]}", {"a": [1, None]}),
        ("sequence=[1,2.5]", (1.0, 2.5)),
    ],
)
def test_options_are_of_the_type_of_their_field(
    registry: Registry, option: str, value: object
) -> None:
    (graph_pass,) = resolve(registry, f"optioned{{{option}}}").items
    found = getattr(graph_pass, option.partition("=")[0])
    assert found == value
    assert type(found) is type(value)


@pytest.mark.parametrize(
    ("option", "expected"),
    [
        ("flag=1", "option flag of optioned is 1, where true or false is expected"),
        ("count=true", "where an integer is expected"),
        ("count=1.5", "where an integer is expected"),
        ("rate=fast", "where a number is expected"),
        ("rate=true", "where a number is expected"),
        ("word=3", "where a text is expected"),
        ("maybe=x", "where an integer or none is expected"),
        ("either=[1]", "where an integer or a text is expected"),
        ("dtype=float13", "where the name of a dtype is expected"),
        ("dtype=nn", "where the name of a dtype is expected"),
        ("shade=darc", r"where one of light, dark; did you mean dark\? is expected"),
        ("choice=c", "where 'a' or 'b' or 3"),
        ("choice=true", "where 'a' or 'b' or 3"),
        ("sizes=3", "where a list is expected"),
        ("sizes=[a]", "where an integer is expected"),
        ("pair=[1]", "where a list of 2 is expected"),
        ("names=a", "where a list is expected"),
        ("mapping=[a]", "where a mapping is expected"),
        ("mapping={a=1}", "where a text is expected"),
        ("by_number={a=relu}", "where an integer is expected"),
    ],
)
def test_a_mistyped_option_says_what_is_expected(
    registry: Registry, option: str, expected: str
) -> None:
    with pytest.raises(PipelineError, match=expected):
        resolve(registry, f"optioned{{{option}}}")


# -- back to text

TEXTS = st.text(max_size=8) | st.sampled_from(
    ["true", "none", "inf", "nan", "inf:x", "-1", "3", "1e5", 'a"b', "a\\", "\n", "é", "\ud800", ""]
)
FLOATS = st.floats(allow_nan=False)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | FLOATS | TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=6,
)
OPTIONED = st.builds(
    Optioned,
    flag=st.booleans(),
    count=st.integers(),
    rate=FLOATS,
    word=TEXTS,
    maybe=st.none() | st.integers(),
    either=st.integers() | TEXTS,
    dtype=st.sampled_from([torch.float32, torch.bfloat16, torch.int8, torch.complex64]),
    shade=st.sampled_from(Shade),
    choice=st.sampled_from(["a", "b", 3]),
    sizes=st.lists(st.integers(), max_size=3).map(tuple),
    pair=st.tuples(st.integers(), TEXTS),
    names=st.lists(TEXTS, max_size=3),
    kinds=st.frozensets(TEXTS, max_size=3),
    mapping=st.dictionaries(TEXTS, TEXTS, max_size=3),
    nested=st.dictionaries(TEXTS, st.lists(st.integers(), max_size=2), max_size=2),
    by_number=st.dictionaries(st.integers(), TEXTS, max_size=2),
    anything=VALUES,
    sequence=st.lists(FLOATS, max_size=3).map(tuple),
)
NAMES = st.from_regex(NAME, fullmatch=True)
PASSES = st.sampled_from([Fuse(), Clean(), TIDY]) | OPTIONED
GROUPS = st.recursive(
    PASSES,
    lambda inner: st.builds(
        Group, st.lists(inner, min_size=1, max_size=3).map(tuple), st.integers(1, 9)
    ),
    max_leaves=6,
)
PIPELINES = st.lists(GROUPS, max_size=4).map(lambda items: Group(tuple(items)))


@GENERATED
@given(PIPELINES)
def test_a_pipeline_comes_back_from_its_text(group: Group) -> None:
    registry = made()
    text = registry.to_text(group)
    assert registry.resolve(text) == group
    assert registry.to_text(registry.resolve(text)) == text


@GENERATED
@given(PIPELINES)
def test_a_pipeline_comes_back_from_its_list_and_from_its_yaml(group: Group) -> None:
    registry = made()
    data = registry.to_list(group)
    assert registry.resolve(data) == group
    assert load(registry.to_yaml(group)) == data


@GENERATED
@given(PIPELINES)
def test_text_list_and_yaml_are_one_tree(group: Group) -> None:
    registry = made()
    entries = parse(registry.to_text(group))
    assert entries_of(registry.to_list(group), "passes") == entries
    assert entries_of(load(registry.to_yaml(group)), "passes", plain_only=True) == entries
    assert parse(text_of(entries)) == entries


ENTRIES = st.recursive(
    st.builds(Minus, NAMES)
    | st.builds(Named, NAMES, st.dictionaries(TEXTS.filter(bool), VALUES, max_size=2)),
    lambda inner: st.builds(
        Repeated, st.lists(inner, min_size=1, max_size=3).map(tuple), st.integers(1, 9)
    ),
    max_leaves=6,
)


@GENERATED
@given(st.lists(ENTRIES, max_size=4).map(tuple))
def test_any_tree_comes_back_from_text_list_and_yaml(entries: tuple[Entry, ...]) -> None:
    data = data_of(entries)
    assert parse(text_of(entries)) == entries
    assert entries_of(data, "passes", plain_only=True) == entries
    assert entries_of(load(dump(data)), "passes", plain_only=True) == entries


@GENERATED
@given(VALUES)
def test_a_value_comes_back_from_yaml(value: Any) -> None:
    assert load(dump(value)) == value


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1e-5", 1e-5),
        ("1.5e3", 1500.0),
        (".5", 0.5),
        ("-.inf", float("-inf")),
        ("010", 10),
        ("+3", 3),
        ("no", "no"),
        ("on", "on"),
        ("1:30", "1:30"),
        ("2020-01-01", "2020-01-01"),
        ("1_000", "1_000"),
        ("True", True),
        ("~", None),
        ("", None),
        ("'1e-5'", "1e-5"),
    ],
)
def test_yaml_takes_for_a_number_what_looks_like_one(text: str, value: object) -> None:
    found = load(f"key: {text}")["key"]
    assert found == value
    assert type(found) is type(value)


@GENERATED
@given(st.dictionaries(TEXTS, VALUES, max_size=4))
def test_options_come_back_from_their_text(options: dict[str, Any]) -> None:
    (entry,) = parse(f"a{{{text_of_options(options)}}}")
    assert entry == Named("a", options)


@GENERATED
@given(st.text())
def test_no_text_makes_the_reader_fail_in_another_way(text: str) -> None:
    registry = made()
    try:
        group = registry.resolve(text)
    except PipelineError:
        return
    assert registry.resolve(registry.to_text(group)) == group


@GENERATED
@given(st.text('ab,{}=()*-1"[] ', max_size=20))
def test_no_near_miss_makes_the_reader_fail_in_another_way(text: str) -> None:
    try:
        parse(text)
    except PipelineError:
        return


def test_groups_of_nothing_are_not_written(registry: Registry) -> None:
    group = Group((Fuse(), Group((Group(()),), 3)))
    assert registry.to_text(group) == "fuse"
    assert registry.to_list(group) == ["fuse"]


def test_options_whose_types_are_not_there_are_an_error_that_says_so(registry: Registry) -> None:
    class Untyped(Base):
        """Has an option of a type that only a type checker knows."""

        name = "untyped"
        amount: "Nowhere" = 1  # noqa: F821

    registry.register(Untyped)
    with pytest.raises(PipelineError, match="options of untyped cannot be read, name 'Nowhere'"):
        registry.resolve("untyped")


def test_only_options_off_their_defaults_are_written(registry: Registry) -> None:
    assert registry.to_text(Group((Optioned(), Optioned(count=4)))) == "optioned,optioned{count=4}"


def test_the_repeat_of_the_outermost_group_is_written(registry: Registry) -> None:
    assert registry.to_text(Group((Fuse(), Clean()), 3)) == "(fuse,clean)*3"
    assert registry.to_text(Group((), 3)) == ""


def test_a_foreign_pass_is_shown_by_its_name(registry: Registry) -> None:
    assert registry.to_text(Group((Fuse(), foreign(len)))) == "fuse,len"


def test_an_error_of_the_registry_stays_one(registry: Registry) -> None:
    with pytest.raises(RegistryError, match="there is no pass 'fuze'"):
        registry.get("fuze")

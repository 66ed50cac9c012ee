"""Nodes made by `add_node` are those that torch makes."""

import gc
import threading

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.fx import Graph

from fxpasses.core import add_node
from fxpasses.core.garbage import collections_paused

PATHS = ["conv1", "layer1.0.conv1", "0", "a..b", "Conv", "layer.ReLU", "_x", "__add__", "ä.b", "if"]


def both(op: str, targets: list[str]) -> tuple[list[str], list[str]]:
    names: tuple[list[str], list[str]] = [], []
    for found, add in zip(names, (add_node, Graph.create_node), strict=True):
        graph = Graph()
        x = graph.placeholder("x")
        found.extend(add(graph, op, target, (x,), {"k": x}).name for target in targets)
    return names


@given(st.lists(st.sampled_from(PATHS), max_size=8))
def test_names_are_torchs(targets: list[str]) -> None:
    ours, theirs = both("call_module", targets)
    assert ours == theirs


@given(st.lists(st.text("abAB_.01", min_size=1, max_size=6), max_size=8))
def test_names_of_any_path_are_torchs(targets: list[str]) -> None:
    ours, theirs = both("call_method", targets)
    assert ours == theirs


def test_operands_and_users_are_set() -> None:
    graph = Graph()
    x, y = graph.placeholder("x"), graph.placeholder("y")
    node = add_node(graph, "call_function", torch.add, (x, 1), {"other": [y]}, "total")
    assert (node.name, node.args, dict(node.kwargs)) == ("total", (x, 1), {"other": [y]})
    assert list(x.users) == [node]
    assert list(y.users) == [node]
    graph.output(node)
    graph.lint()


class TestPausedCollections:
    def test_pauses_nest_and_end_with_the_last(self) -> None:
        assert gc.isenabled()
        with collections_paused():
            with collections_paused():
                assert not gc.isenabled()
            assert not gc.isenabled()
        assert gc.isenabled()

    def test_an_error_ends_the_pause(self) -> None:
        with pytest.raises(KeyError), collections_paused():
            raise KeyError
        assert gc.isenabled()

    def test_what_the_caller_has_switched_off_stays_off(self) -> None:
        gc.disable()
        try:
            with collections_paused():
                pass
            assert not gc.isenabled()
        finally:
            gc.enable()

    def test_threads_wait_for_each_other(self) -> None:
        entered, leave = threading.Event(), threading.Event()

        def hold() -> None:
            with collections_paused():
                entered.set()
                leave.wait(10)

        thread = threading.Thread(target=hold)
        thread.start()
        assert entered.wait(10)
        with collections_paused():
            pass
        assert not gc.isenabled()
        leave.set()
        thread.join()
        assert gc.isenabled()

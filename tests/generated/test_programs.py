"""Random models through random pipelines: none comes out wrong, and none crashes.

`FXPASSES_EXAMPLES=10000 pytest tests/generated` tries as many.
"""

import os
import random
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, note, seed, settings
from hypothesis import strategies as st
from torch.fx import GraphModule

from fxpasses.ops import Op, op_of
from fxpasses.registry import Registry
from fxpasses.testing import Model
from tests.generated.checking import PASSES, changing, pipeline, wrong
from tests.generated.lines import written

EXAMPLES = int(os.environ.get("FXPASSES_EXAMPLES", "2000"))
PARTS = 8
"""Each a test of its own, so that they can run side by side."""
VERIFIED = 16
"""Every so many of them are verified, too."""


@pytest.mark.parametrize("part", range(PARTS))
def test_what_comes_out_does_what_went_in(part: int) -> None:
    @seed(part)
    @settings(
        max_examples=EXAMPLES // PARTS,
        database=None,
        deadline=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(st.data())
    def check(data: st.DataObject) -> None:
        def choose(options: Any) -> Any:
            return data.draw(st.sampled_from(options))

        torch.manual_seed(0)
        module, inputs = written(choose)
        passes, verify = pipeline(choose), choose(range(VERIFIED)) == 0
        module.train(choose(range(5)) == 0)
        note(f"{module}\n{[tuple(x.shape) for x in inputs]} through {passes!r}")
        assert wrong(Model(module, inputs), passes, verify=verify) is None

    check()


def test_every_registered_pass_is_tried() -> None:
    assert {name.partition("{")[0] for name in PASSES} == {
        entry.name for entry in Registry.default().passes() if entry.origin == "fxpasses"
    }


def test_programs_give_every_pass_something_to_do() -> None:
    idle = set(PASSES)
    for number in range(100):
        if not idle:
            return
        torch.manual_seed(0)
        module, inputs = written(random.Random(number).choice)
        idle -= changing(Model(module.eval(), inputs), sorted(idle))
    assert idle == set()


def test_a_wrong_pass_is_found() -> None:
    def drops_activations(graph_module: GraphModule) -> None:
        for node in graph_module.graph.nodes:
            if op_of(node) in (Op.RELU, Op.SIGMOID, Op.TANH):
                node.replace_all_uses_with(node.all_input_nodes[0])
        graph_module.recompile()

    found: list[str] = []
    for number in range(40):
        torch.manual_seed(0)
        module, inputs = written(random.Random(number).choice)
        try:
            found += [wrong(Model(module.eval(), inputs), [drops_activations]) or ""]
        except RuntimeError as error:  # what follows may take what an activation makes alone
            found.append(str(error))
    assert any(found)

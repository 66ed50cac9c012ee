"""A thread's own random numbers: what it would draw, and nothing moves for anybody else."""

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from fxpasses.core.randomness import own_draws, own_generator

ONES = torch.ones(2, 8)
DRAWS: dict[str, Callable[[], Tensor]] = {
    "rand": lambda: torch.rand(3),
    "randn": lambda: torch.randn(3),
    "randint": lambda: torch.randint(9, (4,)),
    "randint from": lambda: torch.randint(2, 9, (4,)),
    "randperm": lambda: torch.randperm(5),
    "rand_like": lambda: torch.rand_like(ONES),
    "randn_like": lambda: torch.randn_like(ONES),
    "randint_like": lambda: torch.randint_like(ONES, 5),
    "bernoulli": lambda: torch.bernoulli(ONES / 2),
    "bernoulli_": lambda: ONES.clone().bernoulli_(0.5),
    "uniform_": lambda: ONES.clone().uniform_(),
    "normal_": lambda: ONES.clone().normal_(),
    "normal": lambda: torch.normal(ONES, 1.0),
    "multinomial": lambda: torch.multinomial(ONES, 3),
    "poisson": lambda: torch.poisson(3 * ONES),
    "binomial": lambda: torch.binomial(9 * ONES, ONES / 2),
    "dropout": lambda: F.dropout(ONES),
    "alpha_dropout": lambda: F.alpha_dropout(ONES, training=True),
    "native_dropout": lambda: torch.native_dropout(ONES, 0.5, train=True)[0],
    "rrelu": lambda: F.rrelu(-ONES, training=True),
    "gumbel_softmax": lambda: F.gumbel_softmax(ONES),
    "attention": lambda: F.scaled_dot_product_attention(ONES, ONES, ONES, dropout_p=0.5),
    "custom": lambda: torch.ops.fxpasses_randomness.noise(ONES),
}


@torch.library.custom_op("fxpasses_randomness::noise", mutates_args=())
def noise(x: Tensor) -> Tensor:
    return x + torch.rand(x.shape)


@pytest.mark.parametrize("name", DRAWS)
def test_what_is_drawn_is_what_would_be_drawn_and_the_process_stays(name: str) -> None:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        before = torch.get_rng_state()
        with own_draws():
            own = [DRAWS[name]() for _ in range(2)]
            own_state = torch.get_rng_state()
        assert torch.equal(torch.get_rng_state(), before)
        expected = [DRAWS[name]() for _ in range(2)]
        assert torch.equal(torch.get_rng_state(), own_state)
    assert all(map(torch.equal, own, expected))
    assert not torch.equal(*own)


def test_a_generator_that_is_given_is_drawn_from() -> None:
    with own_draws():
        given = torch.rand(3, generator=torch.Generator().manual_seed(2))
    assert torch.equal(given, torch.rand(3, generator=torch.Generator().manual_seed(2)))


def test_a_block_inside_another_begins_where_that_stands_and_leaves_it_there() -> None:
    with own_draws():
        torch.manual_seed(4)
        with own_draws():
            inner = torch.rand(3)
        outer = torch.rand(3)
    assert torch.equal(inner, outer)


def test_torchs_functions_speak_of_the_process_again_at_the_end() -> None:
    with own_generator(), own_generator():
        assert torch.random.default_generator is not torch.default_generator
    assert torch.random.default_generator is torch.default_generator

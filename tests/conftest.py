"""What holds for every test: one thread, one seed, nothing global left changed."""

from collections.abc import Iterator

import pytest
import torch

# A package of its own, whose tests run once it is installed.
collect_ignore = ["plugin"]


@pytest.fixture(autouse=True)
def same_conditions() -> Iterator[None]:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    before = torch.get_default_dtype(), torch.is_grad_enabled()
    yield
    assert (torch.get_default_dtype(), torch.is_grad_enabled()) == before

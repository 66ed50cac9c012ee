"""Models and weights of every odd kind: each is a clear error, or handled right."""

import io
import pickle
import warnings
from collections.abc import Callable
from contextlib import redirect_stdout
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn

import fxpasses
from fxpasses.errors import ArgumentError, CaptureError, GuardError, PipelineError

PASSES = "fuse_conv_bn,constant_fold,dce"
IMAGE = torch.randn(2, 3, 6, 6, generator=torch.Generator().manual_seed(0))


def conv_net() -> nn.Sequential:
    norm = nn.BatchNorm2d(4)
    norm.running_mean = torch.tensor([0.5, -1.0, 2.0, 0.0])
    norm.running_var = torch.tensor([0.5, 2.0, 1.0, 4.0])
    return nn.Sequential(nn.Conv2d(3, 4, 3), norm, nn.ReLU()).eval()


# -- what is no model, or has no weights yet


@pytest.mark.parametrize("thing", [nn.Linear, torch.relu, None, "model", conv_net().state_dict()])
def test_what_is_no_module(thing: Any) -> None:
    with pytest.raises(CaptureError, match=r"pass an instance|pass a torch\.nn\.Module"):
        fxpasses.run(thing, PASSES, IMAGE)


def test_lazy_weights() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = nn.Sequential(nn.LazyConv2d(4, 3), nn.ReLU())
    with pytest.raises(CaptureError, match="lazy"):
        fxpasses.run(model, PASSES, IMAGE)


def test_meta_weights() -> None:
    with pytest.raises(CaptureError, match="meta"):
        fxpasses.run(nn.Conv2d(3, 4, 3, device="meta"), PASSES, IMAGE)


class Branching(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(x) * 2 if x.shape[0] == 2 else self.linear(x)


def test_a_result_with_an_example_that_its_graph_does_not_hold_for() -> None:
    fast = fxpasses.run(Branching().eval(), "dce", torch.ones(2, 3))
    with pytest.raises(CaptureError, match="the model is a result, and its graph does not hold"):
        fxpasses.run(fast, "dce", torch.ones(5, 3))


def test_a_result_out_of_a_pickle_says_where_its_own_code_is() -> None:
    fast = pickle.loads(pickle.dumps(fxpasses.run(Branching().eval(), "dce", torch.ones(2, 3))))
    with pytest.raises(GuardError, match="a pickle leaves it out"):
        fast(torch.ones(5, 3))


# -- wrapped models: the message says which module to pass instead


def test_a_scripted_model() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = torch.jit.script(conv_net())
    with pytest.raises(CaptureError, match="pass the module that it was made from"):
        fxpasses.run(model, PASSES, IMAGE)


def test_a_compiled_model() -> None:
    model = torch.compile(conv_net(), backend="eager")
    with pytest.raises(CaptureError, match="_orig_mod"):
        fxpasses.run(model, PASSES, IMAGE)


def test_a_model_in_a_distributed_wrapper(tmp_path: Any) -> None:
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/s", rank=0, world_size=1)
    try:
        model = nn.parallel.DistributedDataParallel(conv_net()).eval()
        with pytest.raises(CaptureError, match="pass the module inside"):
            fxpasses.run(model, PASSES, IMAGE)
    finally:
        dist.destroy_process_group()


def test_a_data_parallel_wrapper() -> None:
    with pytest.raises(CaptureError, match="pass the module inside"):
        fxpasses.run(nn.DataParallel(conv_net()), PASSES, IMAGE)


@pytest.mark.parametrize("wrap", [torch.jit.script, lambda m: torch.compile(m, backend="eager")])
def test_a_wrapped_part_runs_as_it_is(wrap: Callable[[nn.Module], nn.Module]) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = nn.Sequential(conv_net(), wrap(nn.ReLU6())).eval()
        fast = fxpasses.run(model, PASSES, IMAGE)
        torch.testing.assert_close(fast(IMAGE), model(IMAGE))
    record = fast.meta["fxpasses"]
    assert len(record["passes"][0]["rewrites"]) == 1
    assert [leaf["path"] for leaf in record["capture"]["opaque"]] == ["1"]


# -- dtypes and layouts


@pytest.mark.parametrize(
    "dtype", [torch.float16, torch.bfloat16, torch.float64], ids=["half", "bfloat", "double"]
)
def test_other_floating_dtypes(dtype: torch.dtype) -> None:
    model, image = conv_net().to(dtype), IMAGE.to(dtype)
    fast = fxpasses.run(model, PASSES, image)
    assert fast(image).dtype is dtype
    assert len(fast.meta["fxpasses"]["passes"][0]["rewrites"]) == 1
    difference = (fast(image).double() - model(image).double()).norm()
    assert difference <= 8 * torch.finfo(dtype).eps * model(image).double().norm()


class ComplexLinear(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(4, 6, dtype=torch.complex64))

    def forward(self, x: Tensor) -> Tensor:
        return torch.view_as_real(x @ self.weight.conj().t())


def test_complex_weights() -> None:
    model, x = ComplexLinear(), torch.randn(2, 6, dtype=torch.complex64)
    fast = fxpasses.run(model, PASSES, x)
    torch.testing.assert_close(fast(x), model(x))


class SparseProduct(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("table", torch.eye(6).to_sparse())

    def forward(self, x: Tensor) -> Tensor:
        return torch.sparse.mm(self.table, x)


def test_sparse_weights() -> None:
    model, x = SparseProduct(), torch.randn(6, 2)
    fast = fxpasses.run(model, PASSES, x)
    torch.testing.assert_close(fast(x), model(x))


def test_a_sparse_example() -> None:
    class Dense(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x.to_dense() * 2

    model, x = Dense(), torch.eye(3).to_sparse()
    fast = fxpasses.run(model, PASSES, x)
    torch.testing.assert_close(fast(x), model(x))


class Quantised(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return torch.quantize_per_tensor(x, 0.1, 8, torch.quint8).dequantize() + 1


def test_quantised_tensors() -> None:
    model = Quantised()
    fast = fxpasses.run(model, PASSES, IMAGE)
    assert torch.equal(fast(IMAGE), model(IMAGE))


def test_weights_on_several_devices_that_the_model_itself_rejects() -> None:
    model = nn.Sequential(nn.Conv2d(3, 3, 1), nn.Conv2d(3, 3, 1, device="meta"))
    with pytest.raises(CaptureError, match="meta"):
        fxpasses.run(model, PASSES, IMAGE)


# -- the model's own errors and side effects


def test_an_example_that_the_model_rejects_shows_the_models_own_error() -> None:
    with pytest.raises(CaptureError, match="channels"):
        fxpasses.run(conv_net(), PASSES, torch.randn(1, 5, 8, 8))


def test_the_wrong_number_of_arguments() -> None:
    with pytest.raises(CaptureError, match="argument"):
        fxpasses.run(conv_net(), PASSES, (IMAGE, IMAGE))


class Picky(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        raise ValueError("I only take what I like")


def test_a_forward_that_raises_shows_its_own_error() -> None:
    with pytest.raises(CaptureError, match="ValueError: I only take what I like") as caught:
        fxpasses.run(Picky(), PASSES, IMAGE)
    assert isinstance(caught.value.__cause__, ValueError)


def _hook_that_raises(*_: object) -> None:
    raise ValueError("the hook says no")


@pytest.mark.parametrize(
    "place",
    [
        lambda model: model[0].register_forward_hook(_hook_that_raises),
        lambda model: model[0].register_forward_pre_hook(_hook_that_raises),
    ],
    ids=["behind", "before"],
)
def test_a_hook_that_raises_shows_its_own_error(place: Callable[[nn.Module], object]) -> None:
    model = conv_net()
    place(model)
    with pytest.raises(CaptureError, match="the hook says no"):
        fxpasses.run(model, PASSES, IMAGE)


def test_a_hook_of_the_model_itself_stays_on_the_result() -> None:
    model = conv_net()
    model.register_forward_hook(_hook_that_raises)
    fast = fxpasses.run(model, PASSES, IMAGE)
    with pytest.raises(ValueError, match="the hook says no"):
        fast(IMAGE)


class Talks(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 3, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = self.conv(x)
        print("shape", tuple(x.shape))
        return x.relu()


def test_a_forward_that_prints() -> None:
    model = Talks()
    with redirect_stdout(io.StringIO()):
        fast = fxpasses.run(model, PASSES, IMAGE)
        result = fast(IMAGE)
        torch.testing.assert_close(result, model(IMAGE))


CALLS: list[int] = []


class WritesAGlobal(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        CALLS.append(1)
        return x + 1


def test_a_forward_that_writes_a_global() -> None:
    model = WritesAGlobal()
    CALLS.clear()
    fast = fxpasses.run(model, PASSES, IMAGE)
    CALLS.clear()
    assert torch.equal(fast(IMAGE), model(IMAGE))
    assert len(CALLS) == 2


@pytest.mark.parametrize(
    "wrong",
    [
        {"training": "yes"},
        {"training": 1},
        {"registry": "dce"},
        {"copy": "no"},
        {"fallback": "no"},
        {"guard_weights": "off"},
        {"stop_after": "1"},
        {"stop_after": -1},
        {"stop_after": 1.5},
        {"stop_after": True},
    ],
    ids=str,
)
def test_settings_of_another_kind_are_refused(wrong: dict[str, Any]) -> None:
    ((name, value),) = wrong.items()
    with pytest.raises(ArgumentError, match=f"{name}={value!r}"):
        fxpasses.run(nn.Linear(2, 2).eval(), "dce", (torch.ones(1, 2),), **wrong)


class Nameless(fxpasses.GraphPass):
    """Declares nothing."""

    def steps(self, module, facts):
        return iter(())


@pytest.mark.parametrize("item", [Nameless(), Nameless, fxpasses.GraphPass])
def test_a_pass_must_declare_its_name(item: Any) -> None:
    with pytest.raises(PipelineError, match=r"does not declare|is no pass"):
        fxpasses.run(nn.Linear(2, 2).eval(), [item], (torch.ones(1, 2),))


def test_a_bare_tensor_is_the_one_argument_of_capture() -> None:
    captured = fxpasses.capture(nn.Linear(2, 2).eval(), torch.ones(1, 2))
    assert list(captured.program.graphs) == [""]

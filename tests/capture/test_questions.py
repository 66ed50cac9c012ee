"""What a model asks of a tensor decides for such tensors only: every question, one by one."""

import abc
import collections.abc
import typing
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_any, tree_map_, tree_map_only

from fxpasses.capture import calls_of, capture, release
from fxpasses.capture.result.questions import QUESTIONS, Kept
from fxpasses.errors import GuardError
from tests.capture.tracing import module

X = torch.linspace(-1, 1, 6).reshape(2, 3)
PARAMETER = nn.Parameter(X.clone())
BUFFER = nn.Buffer(X.clone())
COMPLEX = torch.complex(X, X)
STRIDED = torch.ones(3, 2).t()


def marked(**attributes: Any) -> Tensor:
    made = X.clone()
    for name, value in attributes.items():
        setattr(made, name, value)
    return made


def nested() -> Tensor:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that it is a prototype
        return torch.nested.nested_tensor([X[0], X[1]])


def result(question: Callable[[Tensor], Any], example: Any) -> Any:
    """A model whose way depends on the answer, and its capture."""

    def forward(self: Any, x: Any) -> Tensor:
        answer = question(x)
        tensor = x if isinstance(x, Tensor) else x[0]
        return tensor * 2 if answer else tensor * 3

    model = module(forward)
    return model, capture(model, (example,))


# name of the question, how it is asked, two tensors that answer otherwise (one where all that an
# ordinary pattern fixes is the same for both: then the answers are)
ROWS: dict[str, tuple[Callable[[Tensor], Any], Tensor, Tensor]] = {
    "dtype": (lambda x: x.dtype == torch.float32, X, X.double()),
    "layout": (lambda x: x.layout == torch.strided, X, X.to_sparse()),
    "itemsize": (lambda x: x.itemsize == 4, X, X.double()),
    "element_size": (lambda x: x.element_size() == 4, X, X.double()),
    "is_floating_point": (lambda x: x.is_floating_point(), X, X.long()),
    "is_complex": (lambda x: x.is_complex(), X, COMPLEX),
    "is_signed": (lambda x: x.is_signed(), X, X.abs().to(torch.uint8)),
    "is_cuda": (lambda x: x.is_cuda, X, X.to("meta")),
    "is_cpu": (lambda x: x.is_cpu, X, X.to("meta")),
    "is_mps": (lambda x: x.is_mps, X, X.to("meta")),
    "is_xpu": (lambda x: x.is_xpu, X, X.to("meta")),
    "is_meta": (lambda x: x.is_meta, X, X.to("meta")),
    "is_sparse": (lambda x: x.is_sparse, X, X.to_sparse()),
    "is_sparse_csr": (lambda x: x.is_sparse_csr, X, X),
    "is_quantized": (lambda x: x.is_quantized, X, X),
    "is_mkldnn": (lambda x: x.is_mkldnn, X, X.to_mkldnn()),
    "is_vulkan": (lambda x: x.is_vulkan, X, X),
    "is_ipu": (lambda x: x.is_ipu, X, X),
    "is_maia": (lambda x: x.is_maia, X, X),
    "is_mtia": (lambda x: x.is_mtia, X, X),
    "type": (lambda x: x.type() == "torch.FloatTensor", X, X.double()),
    "class": (lambda x: isinstance(x, nn.Parameter), X, PARAMETER),
    ".attribute": (lambda x: getattr(x, "foo", 0), X, marked(foo=1)),
    "device": (lambda x: x.device.index is None, X, X.to("meta")),
    "get_device": (lambda x: x.get_device() < 0, X, X.to("meta")),
    "is_nested": (lambda x: x.is_nested, X, nested()),
    "is_conj": (lambda x: x.is_conj(), COMPLEX, COMPLEX.conj()),
    "is_neg": (lambda x: x.is_neg(), X, torch.conj(COMPLEX).imag),
    "shape": (lambda x: x.shape[0] == 2, X, X[:1]),
    "size": (lambda x: x.size(0) == 2, X, X[:1]),
    "ndim": (lambda x: x.ndim == 2, X, X[0]),
    "dim": (lambda x: x.dim() == 2, X, X[0]),
    "ndimension": (lambda x: x.ndimension() == 2, X, X[0]),
    "numel": (lambda x: x.numel() == 6, X, X[:1]),
    "nelement": (lambda x: x.nelement() == 6, X, X[:1]),
    "nbytes": (lambda x: x.nbytes == 24, X, X[:1]),
    "stride": (lambda x: x.stride(0) == 3, X, STRIDED),
    "is_contiguous": (lambda x: x.is_contiguous(), X, STRIDED),
    "storage_offset": (lambda x: x.storage_offset() == 0, X, X[1:]),
    "__len__": (lambda x: len(x) == 2, X, X[:1]),
    "requires_grad": (lambda x: x.requires_grad, X, PARAMETER),
    "is_leaf": (lambda x: x.is_leaf, X, PARAMETER * 2),
    "grad": (lambda x: x.grad is None, X, PARAMETER),
    "grad_fn": (lambda x: x.grad_fn is None, X, PARAMETER * 2),
    "retains_grad": (lambda x: x.retains_grad, X, PARAMETER),
    "output_nr": (lambda x: x.output_nr == 0, X, (PARAMETER * 2).unbind(0)[1]),
    "_version": (lambda x: x._version == 0, X, torch.zeros(2, 3).add_(1)),
    "_base": (lambda x: x._base is None, X.clone(), X.clone()[:]),
    "_backward_hooks": (lambda x: x._backward_hooks is None, X, PARAMETER),
    "names": (lambda x: x.names[0] is None, X, X),
    "has_names": (lambda x: x.has_names(), X, X),
    "is_inference": (lambda x: x.is_inference(), X, X),
    "is_shared": (lambda x: x.is_shared(), X, X.clone().share_memory_()),
    "is_pinned": (lambda x: x.is_pinned(), X, X),
    "data_ptr": (lambda x: x.data_ptr() == X.data_ptr(), X, X.clone()),
    "numpy": (lambda x: x.numpy()[0, 0] < 0, X, -X),
    "untyped_storage": (lambda x: x.untyped_storage().nbytes() == 24, X, X[:1].clone()),
    "storage": (lambda x: len(x.untyped_storage()) == 24, X, X[:1].clone()),
    "__array__": (lambda x: hasattr(x, "__array__"), X, X),
    "__dlpack__": (lambda x: hasattr(x, "__dlpack__"), X, X),
    "repr": (lambda x: len(repr(x)) > 80, X, X[:1]),
    "id": (lambda x: id(x) == id(X), X, X.clone()),
}  # fmt: skip


def test_every_question_of_the_table_is_tried() -> None:
    assert ROWS.keys() == QUESTIONS.keys()


@pytest.mark.parametrize("name", QUESTIONS)
def test_an_answer_holds_for_such_calls_only(name: str) -> None:
    question, example, other = ROWS[name]
    if name in ("names", "has_names") and not hasattr(Tensor, name):
        pytest.skip("torch has given it up")
    model, found = result(question, example)
    assert bool(found.opaque) is (QUESTIONS[name] is Kept.NOT)
    for given in (example, other, example):
        if given.device.type != "meta":
            assert same_tensor(found.program.root(given), model(given))
    if not found.opaque:
        found.program.root(other)
        counted = calls_of(found.program.root)
        assert counted["fallback"] or question(example) == question(other)


def same_tensor(a: Tensor, b: Tensor) -> bool:
    if a.is_nested:
        return all(map(torch.equal, a.unbind(), b.unbind()))
    plain_a, plain_b = (t.to_dense() if t.layout != torch.strided else t for t in (a, b))
    return torch.equal(plain_a, plain_b)


@pytest.mark.parametrize("name", [n for n, kept in QUESTIONS.items() if kept is Kept.WHERE_READ])
def test_what_is_not_asked_is_no_part_of_the_pattern(name: str) -> None:
    _, example, other = ROWS[name]
    if other.is_nested or other.device.type == "meta":
        pytest.skip("no call of the same pattern")
    found = capture(module(lambda s, x: x * 2), (example,))
    found.program.root(other)
    assert calls_of(found.program.root)["graph"] == 1


FUNCTIONS: dict[str, tuple[Callable[[Tensor], Any], Tensor, Tensor]] = {
    "is_floating_point": (torch.is_floating_point, X, X.long()),
    "is_complex": (torch.is_complex, X, COMPLEX),
    "is_conj": (torch.is_conj, COMPLEX, COMPLEX.conj()),
    "numel": (lambda x: torch.numel(x) == 6, X, X[:1]),
    "is_inference": (torch.is_inference, X, X),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_function_asks_what_the_method_of_its_name_does(name: str) -> None:
    question, example, other = FUNCTIONS[name]
    model, found = result(question, example)
    assert bool(found.opaque) is (QUESTIONS[name] is Kept.NOT)
    for given in (example, other, example):
        assert torch.equal(found.program.root(given), model(given))


@dataclass
class Case:
    """One way to ask for a class."""

    asks: Callable[[Any], Any]
    captured: bool = True
    others: tuple[Any, ...] = (X, PARAMETER, BUFFER)


class Sub(nn.Parameter):
    pass


@typing.runtime_checkable
class HasFoo(typing.Protocol):
    foo: int


class Registered(abc.ABC):  # noqa: B024 - a parameter is one by registration
    pass


Registered.register(nn.Parameter)

CLASSES = {
    "isinstance": Case(lambda x: isinstance(x, nn.Parameter)),
    "isinstance_of_several": Case(lambda x: isinstance(x, (int, nn.Parameter))),
    "isinstance_of_a_union": Case(lambda x: isinstance(x, int | nn.Parameter)),
    "isinstance_of_buffer": Case(lambda x: isinstance(x, nn.Buffer)),
    "isinstance_of_a_subclass": Case(lambda x: isinstance(x, Sub)),
    "isinstance_of_an_abc": Case(lambda x: isinstance(x, Registered)),
    "isinstance_of_a_dtype": Case(lambda x: isinstance(x, torch.FloatTensor), others=(X.double(),)),
    "isinstance_of_a_protocol": Case(lambda x: isinstance(x, HasFoo), False, (marked(foo=1),)),
    "isinstance_of_typing": Case(lambda x: isinstance(x, typing.Hashable)),
    "type_is": Case(lambda x: type(x) is Tensor),
    "type_is_not": Case(lambda x: type(x) is not nn.Parameter),
    "name_of_type": Case(lambda x: type(x).__name__ == "Parameter"),
    "issubclass": Case(lambda x: issubclass(type(x), nn.Parameter)),
    "class_attribute": Case(lambda x: x.__class__ is Tensor),
    "name_of_class": Case(lambda x: x.__class__.__name__ == "Parameter"),
    "class_by_getattr": Case(lambda x: getattr(x, "__class__") is Tensor, False),  # noqa: B009
    "of_a_copy": Case(lambda x: isinstance(x * 1, nn.Parameter)),
    "of_what_may_be_the_input": Case(lambda x: isinstance(x.contiguous(), nn.Parameter), False),
    "hasattr": Case(lambda x: hasattr(x, "foo"), others=(marked(foo=1), marked(bar=1))),
    "getattr": Case(lambda x: getattr(x, "foo", None), others=(marked(foo=1), marked(foo=0))),
    "hasattr_of_a_copy": Case(lambda x: hasattr(x + 1, "foo"), False, others=(marked(foo=1),)),
    "text": Case(lambda x: "grad" in str(x), False),
    "formatted": Case(lambda x: len(f"{x}") > 80, False, (X[:1],)),
    "joined_text": Case(lambda x: len(f"{x} {x}") > 160, False, (X[:1],)),
    "percent": Case(lambda x: len("%s" % x) > 80, False, (X[:1],)),  # noqa: UP031
    "text_of_a_size": Case(lambda x: f"{x.shape[0]}x" == "2x", others=(X[:1],)),
    "text_of_a_shape": Case(lambda x: str(x.shape) == "torch.Size([2, 3])", others=(X[:1],)),
}  # fmt: skip


@pytest.mark.parametrize("name", CLASSES)
@pytest.mark.parametrize("wrapped", [False, True], ids=["plain", "in_a_list"])
def test_other_ways_to_ask(name: str, wrapped: bool) -> None:
    case = CLASSES[name]
    wrap = (lambda x: [x]) if wrapped else (lambda x: x)
    unwrap = (lambda x: x[0]) if wrapped else (lambda x: x)
    for example in (X, *case.others[:1]):
        model, found = result(lambda x: case.asks(unwrap(x)), wrap(example))
        assert not (case.captured and found.opaque)
        for given in (example, *case.others, X):
            assert torch.equal(found.program.root(wrap(given)), model(wrap(given)))


UNCONCERNED = {
    "tensor": lambda x: isinstance(x, Tensor),
    "list": lambda x: isinstance(x, (list, tuple)),
    "abc": lambda x: isinstance(x, collections.abc.Iterable),
    "is_tensor": torch.is_tensor,
}


@pytest.mark.parametrize("name", UNCONCERNED)
def test_what_every_tensor_answers_alike_costs_nothing(name: str) -> None:
    model, found = result(UNCONCERNED[name], X)
    for given in (PARAMETER, BUFFER):
        assert torch.equal(found.program.root(given), model(given))
    assert calls_of(found.program.root)["fallback"] == 0


def test_what_the_model_holds_answers_as_in_eager() -> None:
    def forward(self: Any, x: Tensor) -> Tensor:
        for held in (self.weight, self.state, self.plain):
            x = x * 2 if isinstance(held, nn.Parameter) else x + 1
            x = x * 3 if type(held) is Tensor else x + 2
            x = x * 5 if isinstance(held, nn.Buffer) else x + 3
            x = x * 7 if getattr(held, "no_decay", False) else x + 4
        return x

    weight, state = nn.Parameter(X.clone()), nn.Buffer(X.clone())
    weight.no_decay = state.no_decay = True
    model = module(forward, weight=weight, state=state, plain=X.clone())
    for args in ((X,), None):
        found = capture(model, args)
        assert not found.opaque
        assert torch.equal(found.program.root(X), model(X))
        assert calls_of(found.program.root)["graph"] == 1


def test_without_an_example_a_question_is_part_of_the_pattern_too() -> None:
    model = module(lambda s, x: x * 2 if isinstance(x, nn.Parameter) else x * 3)
    found = capture(model)
    for given in (X, PARAMETER, marked(_is_param=True)):
        assert torch.equal(found.program.root(given), model(given))
    assert calls_of(found.program.root)["fallback"] == 2


def test_a_result_that_is_captured_again_keeps_what_was_asked() -> None:
    model = module(lambda s, x: x * 2 if isinstance(x, nn.Parameter) else x * 3)
    again = capture(capture(model, (X,)).program.root, (X,)).program.root
    for given in (X, PARAMETER):
        assert torch.equal(again(given), model(given))


def test_a_message_may_tell_of_a_tensor() -> None:
    def forward(self: Any, x: Tensor) -> Tensor:
        if x.dim() > 5:
            raise ValueError(f"a tensor of {x.shape} is too big: {x}")
        assert x.dtype == torch.float32, f"{x} has another type"
        return x * 2

    assert not capture(module(forward), (X,)).opaque


def asserts(self: Any, x: Tensor) -> Tensor:
    torch._assert(x.shape[-1] == 3, f"expected 3, got {x.shape[-1]} of {x}")
    return x * 2


def asserts_after_an_effect(self: Any, x: Tensor) -> Tensor:
    self.seen.add_(1)
    torch._assert(x.shape[-1] == 3, f"expected 3, got {x.shape[-1]}")
    return x * 2


@pytest.mark.parametrize("args", [(X,), None], ids=["example", "names"])
def test_an_assertion_that_fails_is_the_models_own(args: Any) -> None:
    model = module(asserts)
    root = capture(model, args).program.root
    wide = torch.zeros(2, 4)
    with pytest.raises(AssertionError) as own:
        model(wide)
    with pytest.raises(AssertionError) as came:
        root(wide)
    assert str(came.value) == str(own.value)
    assert torch.equal(root(X), model(X))
    assert calls_of(root)["graph"] == 1


def test_an_assertion_without_the_own_code_says_that_it_is_one() -> None:
    root = capture(module(asserts), (X,)).program.root
    release(root)
    with pytest.raises(GuardError, match=r"an assertion .* fails: expected 3, got \.\.\. of"):
        root(torch.zeros(2, 4))


def test_an_assertion_behind_an_effect_does_not_repeat_it() -> None:
    model = module(asserts_after_an_effect, seen=nn.Buffer(torch.zeros(1)))
    root = capture(model, (X,)).program.root
    with pytest.raises(AssertionError, match=r"expected 3, got \.\.\."):
        root(torch.zeros(2, 4))
    assert root.seen.item() == 1


def walks_a_tree(self: Any, x: Tensor) -> Any:
    doubled = tree_map_only(Tensor, lambda t: t * 2, {"x": x, "n": 3})
    tree_map_(lambda t: t.add_(1) if isinstance(t, Tensor) else t, (x,))
    return doubled, tree_any(lambda t: isinstance(t, nn.Parameter), x), x


@pytest.mark.parametrize("args", [(X,), None], ids=["example", "names"])
def test_torch_s_walks_over_trees_find_the_tensors(args: Any) -> None:
    root = capture(module(walks_a_tree), args).program.root
    torch.testing.assert_close(root(X.clone()), walks_a_tree(None, X.clone()), rtol=0, atol=0)

"""Every spelling of every op computes what its first spelling does, and has the effects told."""

import gc
import importlib
import inspect
import operator
import re
import warnings
import weakref
from collections.abc import Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._ops import OpOverload
from torch.fx import Graph, GraphModule, Interpreter, Node, symbolic_trace
from torch.utils import _pytree as pytree

from fxpasses.analysis.effects import effects_of
from fxpasses.core import Effects
from fxpasses.ops import (
    COMMUTATIVE,
    ELEMENTWISE,
    QUESTIONS,
    VOCABULARY,
    Op,
    Schema,
    index_by,
    named_parts,
    op_of,
    plain_tensors,
    schemas_of_function,
    schemas_of_method,
    spell,
)
from fxpasses.ops.metadata import PATTERN_OPERAND
from fxpasses.ops.schemas import MISSING, Parameter
from fxpasses.ops.signatures import canonical_name, fits_exactly
from tests.op_examples import EXAMPLES, Example

OUT = torch.empty(0)
"""Stands for a tensor that takes a result."""

_PRODUCTS = ("mm", "bmm", "addmm", "baddbmm")
_ON_A_GPU = (
    *(
        f"aten.{op}.{form}"
        for op in ("mm", "bmm", "addmm", "baddbmm")
        for form in ("dtype", "dtype_out")
    ),
    *(".cuda", "Tensor.TensorBase.cuda", "aten.cuda.default"),
)
_OF_TORCHSCRIPT = (
    *("aten.sort.Tensor", "aten.copy.Dict_Tensor", "aten.einsum.sublist"),
    *("aten.copy_.Tensor", "aten.copy_.int", "aten.copy_.float"),
    *("aten.eq.Tensor_list", "aten.ne.Tensor_list"),
    *(f"aten.tensor.{kind}" for kind in ("default", "bool", "complex", "float", "int")),
    *(f"aten.to.prim_{kind}" for kind in ("Device", "dtype", "other")),
)
_DRAWN_OTHERWISE = (f"aten.bernoulli.{kind}" for kind in ("float_out", "Tensor", "Tensor_out"))
UNTRIED = frozenset((*_ON_A_GPU, *_OF_TORCHSCRIPT, *_DRAWN_OTHERWISE))
"""Overloads that a graph of tensors on a CPU cannot call, and those made for `bernoulli_`."""


@dataclass(frozen=True)
class Call:
    """One spelling with the operands of one example, ready to be put into a graph."""

    spelling: str
    kind: str
    target: Any
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    example: Example
    training: bool = False


@dataclass(frozen=True)
class Outcome:
    op: Op | None
    effects: Effects
    result: Any
    written: frozenset[str]
    wrote_state: bool
    drew: bool
    raised: bool


# -- every spelling


def calls_of(op: Op) -> Iterator[Call]:
    spellings = VOCABULARY[op]
    for function in (*spellings.functions, *installed(spellings.function_names)):
        yield from _calls(f"{_place(function)}", "call_function", function, EXAMPLES[op])
    for overload in overloads_of(spellings.aten):
        yield from _calls(str(overload), "call_function", overload, EXAMPLES[op])
    for method in spellings.methods:
        yield from _calls(f".{method}", "call_method", method, EXAMPLES[op])
    for cls in (*spellings.modules, *installed(spellings.classes)):
        for example in EXAMPLES[op]:
            yield from _module_calls(cls, example)


def spellings_of(op: Op) -> set[str]:
    spellings = VOCABULARY[op]
    return {
        *map(_place, (*spellings.functions, *installed(spellings.function_names))),
        *(str(f) for f in overloads_of(spellings.aten) if "Dimname" not in str(f._schema)),
        *(f".{method}" for method in spellings.methods),
        *(cls.__qualname__ for cls in (*spellings.modules, *installed(spellings.classes))),
    }


def overloads_of(names: tuple[str, ...]) -> Iterator[Any]:
    for name in names:
        packet = getattr(torch.ops.aten, name, None)
        for overload in packet.overloads() if packet is not None else ():
            found = getattr(packet, overload)
            if schemas_of_function(found)[0].deals_with_tensors:
                yield found


def installed(names: tuple[str, ...]) -> Iterator[Any]:
    for name in names:
        module, _, cls = name.rpartition(".")
        try:
            yield getattr(importlib.import_module(module), cls)
        except ImportError:
            continue


def _place(function: Any) -> str:
    module = getattr(function, "__module__", None) or "Tensor"
    return f"{module}.{getattr(function, '__qualname__', function)}"


def _calls(spelling: str, kind: str, target: Any, examples: Sequence[Example]) -> Iterator[Call]:
    of = schemas_of_method if kind == "call_method" else schemas_of_function
    name = target if kind == "call_method" else getattr(target, "__name__", "")
    for example in examples:
        if not _is_meant(example, name.split(".")[0]):
            continue
        for schema in of(target):
            if schema.is_out_form and not isinstance(target, OpOverload):
                continue  # Python has `out=` for some of them only
            found = _arguments(schema, example)
            if spelling in UNTRIED or found is None or not fits_exactly(schema, *found):
                continue
            if _needs_tensor(kind, target) and not isinstance(found[0][0], Tensor):
                continue
            yield Call(spelling, kind, target, *found, example)


def _needs_tensor(kind: str, target: Any) -> bool:
    """Methods have a tensor for their receiver, and what is written in place has to be one."""
    if kind == "call_method" or target in _OF_TENSOR:
        return True
    name = getattr(target, "__name__", "")
    return (
        getattr(operator, name, None) is target
        and hasattr(Tensor, f"__{name}__")
        and (name.startswith("i") and name != "invert")
    ) or target is operator.imatmul


_OF_TENSOR = {getattr(Tensor, n) for n in dir(Tensor) if callable(getattr(Tensor, n))}


def _is_meant(example: Example, name: str) -> bool:
    rank = re.search(r"([123])d", name)
    if example.only and name.strip("_") not in {only.strip("_") for only in example.only}:
        return False
    return rank is None or example.rank is None or int(rank[1]) == example.rank


def _arguments(schema: Schema, example: Example) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
    """The call with as many positional arguments as can be."""
    left = dict(example.operands)
    args: list[Any] = []
    kwargs: dict[str, Any] = {}
    positional = True
    for parameter in schema.parameters:
        name = canonical_name(schema, parameter.name)
        name = parameter.name if name not in left and parameter.name in left else name
        if name in left:
            value = left.pop(name)
        elif parameter.default is MISSING and not parameter.variadic:
            if not parameter.optional and not _is_out(parameter):
                return None
            value = OUT if _is_out(parameter) else None
        else:
            positional = False
            continue
        if parameter.variadic:
            args.extend(value)
        elif positional and not parameter.keyword_only:
            args.append(value)
        else:
            kwargs[parameter.name] = value
    return None if left else (tuple(args), kwargs)


def _is_out(parameter: Parameter) -> bool:
    return parameter.written and parameter.keyword_only


# -- modules


def _module_calls(cls: type[nn.Module], example: Example) -> Iterator[Call]:
    if not _is_meant(example, cls.__name__):
        return
    if example.modules is not None and cls not in example.modules:
        return
    made = _module(cls, example)
    if made is None:
        return
    module, args = made
    measures = example.operands.get("training", example.operands.get("use_input_stats"))
    for training in (False, True) if measures is None else (measures,):
        yield Call(
            cls.__qualname__,
            "call_module",
            deepcopy(module).train(training),
            args,
            {},
            example,
            training,
        )


def _module(cls: type[nn.Module], example: Example) -> tuple[nn.Module, tuple[Any, ...]] | None:
    left = dict(example.operands)
    forward = list(inspect.signature(cls.forward).parameters)[1:]
    known = inspect.signature(cls.__init__).parameters
    args = []
    for name in forward:
        operand = {"hidden_states": "input", "x": "input"}.get(name, name)
        if operand in left:
            args.append(left.pop(operand))
    tensors = {k: left.pop(k) for k, v in list(left.items()) if isinstance(v, Tensor)}
    for name in ("training", "use_input_stats"):
        left.pop(name, None)
    settings = {k: v for k, v in {**left, **example.settings}.items() if k in known}
    if example.modules is not None:
        settings = dict(example.modules[cls])
    elif left.keys() - known.keys():
        return None
    if "bias" in known and "bias" in tensors and isinstance(known["bias"].default, bool):
        settings["bias"] = True
    required = {n for n, p in known.items() if p.default is p.empty and "VAR" not in p.kind.name}
    if required - {"self", *settings}:
        return None
    made = cls(**settings)
    for name, value in tensors.items():
        if not hasattr(made, name):
            return None
        held = made._parameters if name in made._parameters else made._buffers
        held[name] = nn.Parameter(value.clone()) if held is made._parameters else value.clone()
    return made, tuple(args)


# -- running one


def run(call: Call, reference: Any) -> Outcome:
    """One call as a graph of one node, on copies of the operands."""
    graph = Graph()
    root = nn.Module()
    tensors: dict[str, Tensor] = {}

    results = iter(leaf for leaf in pytree.tree_leaves(reference) if isinstance(leaf, Tensor))

    def placed(value: Any) -> Any:
        if value is OUT:
            value = torch.empty_like(next(results))
        if not isinstance(value, Tensor):
            return value
        tensors[f"t{len(tensors)}"] = value.clone(memory_format=torch.preserve_format)
        return graph.placeholder(f"t{len(tensors) - 1}")

    args = pytree.tree_map(placed, call.args)
    kwargs = pytree.tree_map(placed, dict(call.kwargs))
    target = call.target
    if call.kind == "call_module":
        root.add_module("called", target)
        target = "called"
    node = graph.create_node(call.kind, target, args, kwargs)
    graph.output(node)
    graph_module = GraphModule(root, graph)
    node = _the_call(graph_module)
    effects = effects_of(node)
    return _observed(graph_module, node, effects, tensors)


def _the_call(graph_module: GraphModule) -> Node:
    (node,) = [n for n in graph_module.graph.nodes if n.op.startswith("call_")]
    return node


def _observed(
    graph_module: GraphModule, node: Node, effects: Effects, tensors: dict[str, Tensor]
) -> Outcome:
    state = dict(graph_module.state_dict(keep_vars=True))
    versions = {name: t._version for name, t in tensors.items()}
    copies = {name: t.clone() for name, t in tensors.items()}
    held = {name: (t._version, t.detach().clone()) for name, t in state.items()}
    torch.manual_seed(3)
    random_before = torch.get_rng_state()
    result, raised = None, False
    try:
        with torch.no_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # some spellings are deprecated
            result = Interpreter(graph_module).run(*tensors.values())
    except (RuntimeError, AssertionError):
        if not effects.raises:
            raise
        raised = True
    changed = {n for n, t in tensors.items() if t._version != versions[n]}
    changed |= {n for n, t in tensors.items() if not _same(t, copies[n])}
    wrote_state = any(
        t._version != held[n][0] or not torch.equal(t, held[n][1]) for n, t in state.items()
    )
    drew = not torch.equal(random_before, torch.get_rng_state())
    return Outcome(op_of(node), effects, result, frozenset(changed), wrote_state, drew, raised)


def _same(mine: Tensor, other: Tensor) -> bool:
    return mine.shape == other.shape and torch.equal(mine.nan_to_num(), other.nan_to_num())


def difference(call: Call, outcome: Outcome, expected: Any) -> str | None:
    """How the result differs from the one that is expected."""
    ours, theirs = pytree.tree_leaves(outcome.result), pytree.tree_leaves(expected)
    if len(ours) != len(theirs):
        return f"{len(ours)} results in place of {len(theirs)}"
    for mine, other in zip(ours, theirs, strict=True):
        if not isinstance(mine, Tensor):
            if mine != other:
                return f"{mine} in place of {other}"
        elif mine.shape != other.shape:
            return f"shape {tuple(mine.shape)} in place of {tuple(other.shape)}"
        elif call.example.values and not _close(mine, other):
            return f"off by {float((mine.double() - other.double()).abs().max())}"
    return None


def _close(mine: Tensor, other: Tensor) -> bool:
    # In-place forms keep the dtype of their input, and `out=` that of the given tensor.
    wide = torch.complex128 if other.is_complex() else torch.float64
    return torch.allclose(mine.to(wide), other.to(wide), rtol=1e-5, atol=1e-6, equal_nan=True)


def _writes_unseen(call: Call) -> bool:
    """What is written is no value: the place in the gradient's graph, or memory left as it was."""
    name = str(getattr(call.target, "__name__", call.target))
    return name.startswith("detach_") or not call.example.values


def misjudged(call: Call, outcome: Outcome) -> Iterator[str]:
    """Where the effects that were told differ from those that were seen."""
    effects = outcome.effects
    claimed = frozenset(node.name for node in effects.writes)
    if effects.unknown:
        yield "nothing is known of its effects"
    if claimed != outcome.written and not _writes_unseen(call):
        yield f"writes {set(outcome.written)}, said to write {set(claimed)}"
    if effects.writes_state != outcome.wrote_state:
        yield f"writes state: {outcome.wrote_state}, said {effects.writes_state}"
    if effects.random != outcome.drew:
        yield f"draws: {outcome.drew}, said {effects.random}"
    if outcome.raised != call.example.raises:
        yield f"raises: {outcome.raised}"
    if not effects.raises and call.example.raises:
        yield "not said to raise"


def shown(operands: Any) -> str:
    return str(pytree.tree_map_only(Tensor, lambda t: f"<{tuple(t.shape)}>", operands))


# -- the tests


def test_every_op_has_spellings_and_an_example() -> None:
    assert set(VOCABULARY) == set(Op)
    assert set(EXAMPLES) == set(Op)


@pytest.mark.parametrize("op", Op)
def test_every_spelling_computes_the_same(op: Op) -> None:
    wrong: list[str] = []
    tried: set[str] = set()
    references: dict[int, Any] = {}
    for call in calls_of(op):
        where = f"{call.spelling}({shown(call.args)}, {shown(call.kwargs)}, {call.training})"
        expected = call.example.expected
        if expected is None:
            expected = references.get(id(call.example))
        try:
            outcome = run(call, expected)
        except (RuntimeError, TypeError, ValueError, IndexError, AssertionError) as error:
            wrong.append(f"{where}: {type(error).__name__}: {str(error).splitlines()[0]}")
            continue
        tried.add(call.spelling)
        if expected is None:
            expected = references[id(call.example)] = outcome.result
        wrong += [f"{where}: {what}" for what in misjudged(call, outcome)]
        if outcome.op is not (op if call.example.seen_as == "itself" else call.example.seen_as):
            wrong.append(f"{where}: is {outcome.op}")
        if what := difference(call, outcome, expected):
            wrong.append(f"{where}: {what}")
    untried = spellings_of(op) - tried - UNTRIED
    wrong += [f"{missed} was never tried" for missed in sorted(untried)]
    assert not wrong, "\n\n".join(wrong)


def test_a_spelling_that_two_ops_claim_is_an_error() -> None:
    claimed = {Op.RELU: spell("relu"), Op.GELU: spell("relu")}

    with pytest.raises(ValueError, match="spells both relu and gelu"):
        index_by(claimed, lambda spellings: spellings.functions)


@pytest.mark.parametrize("op", sorted(COMMUTATIVE))
def test_operands_of_commutative_ops_may_change_places(op: Op) -> None:
    function = VOCABULARY[op].functions[0]
    a, b = EXAMPLES[op][0].operands.values()

    assert torch.equal(function(a, b), function(b, a))


@pytest.mark.parametrize("op", sorted(ELEMENTWISE - {Op.CAST, Op.IDENTITY}))
def test_elementwise_ops_look_at_one_place_alone(op: Op) -> None:
    call = next(c for c in calls_of(op) if c.example.seen_as == "itself")

    def first(value: Any) -> Any:
        return value[..., :1] if isinstance(value, Tensor) else value

    part = replace(call, args=tuple(map(first, call.args)))

    assert _close(run(part, None).result, first(run(call, None).result))


def op_of_call(kind: str, target: Any, *args: Any) -> Op | None:
    """The op of a call; text in `args` names an input `x` or its size `n`."""
    graph = Graph()
    x = graph.placeholder("x")
    inputs = {"x": x, "n": graph.call_method("size", (x, 0))}
    return op_of(graph.create_node(kind, target, tuple(inputs.get(a, a) for a in args)))


def test_packets_and_what_nothing_lists() -> None:
    assert op_of_call("call_function", torch.ops.aten.relu, "x") is Op.RELU
    assert op_of_call("call_function", torch.ops.aten.add, "x", 1) is Op.ADD
    assert op_of_call("call_function", print, "x") is None
    assert op_of_call("call_method", "type", "x") is None
    assert op_of_call("call_method", "type", "x", torch.half) is Op.CAST


def test_a_size_given_to_max_may_be_an_axis() -> None:
    assert op_of_call("call_function", torch.max, "x", "n") is None
    assert op_of_call("call_function", torch.max, "x", "x") is Op.MAXIMUM
    assert op_of_call("call_function", torch.max, "x", 1) is Op.MAX


def test_nothing_holds_on_to_classes() -> None:
    module = symbolic_trace(nn.Sequential(nn.Identity()))
    outer = symbolic_trace(nn.Sequential(nn.Identity()))
    outer.set_submodule("0", module)
    (node,) = [n for n in outer.graph.nodes if n.op == "call_module"]
    cls = weakref.ref(type(module))

    assert op_of(node) is None
    assert effects_of(node).unknown

    del module, outer, node
    gc.collect()
    assert cls() is None


def test_no_module_asks_for_metadata() -> None:
    asking = {Op.GETATTR, *QUESTIONS, *PATTERN_OPERAND}

    assert [op for op in asking if VOCABULARY[op].modules or VOCABULARY[op].classes] == []


def test_modules_are_walked_in_torchs_order_each_once() -> None:
    shared = nn.Sequential(nn.ReLU(), nn.Tanh())
    root = nn.ModuleDict({"a": nn.Sequential(shared, nn.Identity()), "b": shared, "c": nn.GELU()})
    root["a"].add_module("gone", None)

    assert list(named_parts(root)) == list(root.named_modules())


def test_plain_tensors_are_neither_parameters_nor_buffers() -> None:
    module = nn.BatchNorm1d(2)
    module.plain = plain = torch.ones(1)
    module.settings = [torch.ones(1)]

    assert plain_tensors(module) == [("plain", plain)]

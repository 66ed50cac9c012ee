"""What running a node does besides computing its value.

Three sources, in this order: rules for the ops of the vocabulary, the schemas of all overloads
that a call may mean, and what the user declared of custom ops and modules. What none of them
knows may do anything.
"""

from collections.abc import Callable, Iterable, Mapping
from functools import cache, reduce
from types import FunctionType, MappingProxyType
from typing import Any, Final, TypeAlias

import torch
from torch import Tensor, nn
from torch._ops import OpOverload, OpOverloadPacket
from torch.fx import Node
from torch.fx.node import map_arg

from fxpasses.core import VALUE, Effects
from fxpasses.ops import (
    DROPOUTS,
    KNOWN_FUNCTIONS,
    NN_CLASSES,
    PURE_METHODS,
    SILENT_WRITERS,
    TRUSTED_NAMESPACES,
    Op,
    Schema,
    arguments_of,
    bind_schema,
    choose,
    computes_as,
    computing_names,
    forward_arguments,
    is_number,
    is_plain,
    is_pure,
    is_raising,
    kept,
    module_of,
    named,
    op_of,
    op_of_function,
    op_of_module,
    qualified_name,
    schemas_of,
    schemas_of_function,
    schemas_of_method,
)

Declared: TypeAlias = Mapping[str, "str | tuple[str, ...]"]
"""`ns::op`, or `package.module.Class`, to `pure`, `random` or the names of written arguments."""

NONE: Final = Effects()
UNKNOWN: Final = Effects(unknown=True)
_NOTHING_DECLARED: Final[Declared] = MappingProxyType({})


def effects_of(node: Node, declared: Declared = _NOTHING_DECLARED) -> Effects:
    """What running `node` does besides computing its value; an over-estimate where in doubt."""
    match node.op:
        case "call_module":
            return _of_module(node, declared)
        case "call_function":
            return _of_function(node, declared)
        case "call_method":
            return _of_method(node)
        case _:
            return NONE


def both(first: Effects, second: Effects) -> Effects:
    return Effects(
        writes=tuple(dict.fromkeys((*first.writes, *second.writes))),
        writes_state=first.writes_state or second.writes_state,
        random=first.random or second.random,
        raises=first.raises or second.raises,
        unknown=first.unknown or second.unknown,
    )


# -- modules


def _of_module(node: Node, declared: Declared) -> Effects:
    module = module_of(node)
    if (known := _of_known_module(module, node)) is not None:
        return known
    said = declared.get(qualified_name(type(module)))
    if is_plain(module) and said is not None:
        return _declared(said, arguments_of(node))
    return UNKNOWN


def _of_known_module(module: nn.Module, node: Node, *, inner: bool = False) -> Effects | None:
    """The effects of a call of one of torch's own layers, or of a class that computes the same.

    An `inner` one is not what `node` calls, but lies in it.
    """
    op = op_of_module(module)
    if op is not None and op not in _RULES and not vars(module).get("inplace"):
        return NONE  # as the rules below would find
    if op is not None:
        given = None if inner else forward_arguments(module, node.args, node.kwargs)
        return _of_known_op(op, _settings(module) | (given or {}), node)
    if not is_plain(module):
        return None
    if computes_as(type(module), NN_CLASSES) is None or not _activates_purely(module):
        return None
    children = [_of_known_module(child, node, inner=True) for child in module.children()]
    known = [effects for effects in children if effects is not None]
    if len(known) < len(children):
        return None
    return reduce(both, known, Effects(random=_drops_between_layers(module)))


def _activates_purely(module: nn.Module) -> bool:
    """Whether the function that a transformer layer was given, if it was, only computes."""
    activation = getattr(module, "activation", None)
    if activation is None or isinstance(activation, nn.Module):
        return True
    return op_of_function(activation) is not None or is_pure(activation)


def _drops_between_layers(module: nn.Module) -> bool:
    """Attention and recurrent layers drop by a number; others hold a layer for it."""
    share = getattr(module, "dropout", 0)
    return module.training and isinstance(share, (int, float)) and share > 0


_SETTINGS: Final = (
    *("training", "p", "inplace", "max_norm", "track_running_stats", "_random_samples"),
)


def _settings(module: nn.Module) -> dict[str, Any]:
    """What a function would be given as operands, and a module holds."""
    return {name: getattr(module, name, None) for name in _settings_read(type(module))}


@kept
def _settings_read(cls: type[nn.Module]) -> tuple[str, ...]:
    read = computing_names(cls)
    return tuple(name for name in _SETTINGS if name in read)


# -- functions and methods


def _of_function(node: Node, declared: Declared) -> Effects:
    target: Any = node.target
    if is_raising(target):
        return Effects(raises=True)
    op = op_of(node)
    if op is not None:
        return _of_known_call(op, node)
    if isinstance(target, (OpOverload, OpOverloadPacket)):
        return _of_operator(node, target, declared)
    name = qualified_name(target)
    if (said := declared.get(name)) is not None:
        return _declared(said, arguments_of(node))
    if (shares := KNOWN_FUNCTIONS.get(name)) is not None:
        return _of_known_function(arguments_of(node), shares)
    if is_pure(target):
        return Effects(writes=_nodes_in(node.kwargs.get("out")))
    if isinstance(target, FunctionType):
        return UNKNOWN
    return _of_schemas(node, schemas_of_function(target))


def _of_operator(
    node: Node, target: OpOverload[..., Any] | OpOverloadPacket[..., Any], declared: Declared
) -> Effects:
    schemas = schemas_of_function(target)
    found = _of_schemas(node, schemas)
    name = schemas[0].name if schemas else ""
    if name.partition("::")[0] in TRUSTED_NAMESPACES:
        return found
    said = declared.get(name)
    if said is None:
        return both(found, UNKNOWN)
    bound = choose(schemas, node.args, node.kwargs)
    return both(found, _declared(said, {} if bound is None else bound[1]))


def _of_method(node: Node) -> Effects:
    name = str(node.target)
    if not hasattr(Tensor, name) or _is_container(node.args[:1]):
        return UNKNOWN
    op = op_of(node)
    if op is not None:
        return _of_known_call(op, node)
    if name in PURE_METHODS:
        return NONE
    if isinstance(getattr(Tensor, name), FunctionType):
        return UNKNOWN
    return _of_schemas(node, schemas_of_method(name))


def _is_container(receiver: tuple[Any, ...]) -> bool:
    """Whether the receiver is known to be a list or dict, whose methods may write it."""
    return any(
        isinstance(n, Node) and isinstance(n.meta.get(VALUE), (list, dict)) for n in receiver
    )


def _of_known_function(arguments: Mapping[str, Any], shares: Iterable[str]) -> Effects:
    drops = arguments.get("training") is not False and any(arguments.get(s) != 0 for s in shares)
    return Effects(
        writes=_nodes_in(arguments.get("input")) if arguments.get("inplace") else (), random=drops
    )


def _declared(said: str | tuple[str, ...], arguments: Mapping[str, Any]) -> Effects:
    if said == "pure":
        return NONE
    if said == "random":
        return Effects(random=True)
    return Effects(writes=_nodes_in([arguments.get(name) for name in said]))


# -- schemas


def _of_schemas(node: Node, schemas: Iterable[Schema]) -> Effects:
    """What any of the overloads that fit the call does."""
    bound = [
        (schema, arguments)
        for schema in schemas
        if (arguments := bind_schema(schema, node.args, node.kwargs)) is not None
    ]
    if not bound:
        return UNKNOWN
    writes = [_written(schema, arguments) for schema, arguments in bound]
    return Effects(
        writes=_nodes_in(writes),
        random=any(_draws(schema.name) for schema, _ in bound),
    )


def _written(schema: Schema, arguments: Mapping[str, Any]) -> list[Any]:
    named = [arguments[p.name] for p in schema.parameters if p.written and p.name in arguments]
    if schema.name.rpartition("::")[2] in SILENT_WRITERS and arguments.get("training", True):
        named += [arguments.get("running_mean"), arguments.get("running_var")]
    return [*named, arguments.get("out")]


@cache
def _draws(name: str) -> bool:
    """Whether an overload of `namespace::name` draws random numbers."""
    namespace, _, name = name.rpartition("::")
    packet = getattr(getattr(torch.ops, namespace or "aten"), name, None)
    if packet is None:
        return False
    overloads = (getattr(packet, overload) for overload in packet.overloads())
    return any(torch.Tag.nondeterministic_seeded in overload.tags for overload in overloads)


# -- the vocabulary

_Rule: TypeAlias = Callable[[Mapping[str, Any], Node], Effects]
"""From the operands of a call, or the settings of a module."""


def _of_known_call(op: Op, node: Node) -> Effects:
    found = choose(schemas_of(node), node.args, node.kwargs)
    if found is None:
        return UNKNOWN
    written = _nodes_in([node.kwargs.get("out"), _written(*found)])
    operands = tuple(operand for operand in written if not is_number(operand))
    return _of_known_op(op, named(*found), node, operands)


def _of_known_op(
    op: Op, arguments: Mapping[str, Any], node: Node, written: tuple[Node, ...] = ()
) -> Effects:
    """Effects by the rule of the op, and what in-place forms, `inplace=True` and `out=` write."""
    rule = _RULES.get(op)
    own = NONE if rule is None else rule(arguments, node)
    if op in DROPOUTS and not own.random:
        return NONE  # Even in place.
    if arguments.get("inplace"):
        written = _nodes_in(arguments.get("input", node.args[:1]))
    if not written:
        return own
    return Effects(writes=written) if own is NONE else both(own, Effects(writes=written))


def _nodes_in(value: Any) -> tuple[Node, ...]:
    found: dict[Node, None] = {}
    map_arg(value, found.setdefault)
    return tuple(found)


def _drops(arguments: Mapping[str, Any], node: Node) -> Effects:  # noqa: ARG001  a rule
    return Effects(random=arguments.get("training") is not False and arguments.get("p") != 0)


def _drops_attention(arguments: Mapping[str, Any], node: Node) -> Effects:  # noqa: ARG001  a rule
    return Effects(random=arguments.get("dropout_p", 0.0) != 0)


def _random_slopes(arguments: Mapping[str, Any], node: Node) -> Effects:  # noqa: ARG001  a rule
    return Effects(random=arguments.get("training") is not False)


def _draws_regions(arguments: Mapping[str, Any], node: Node) -> Effects:
    names = ("random_samples", "_random_samples")
    return Effects(random=all(arguments.get(n, node.kwargs.get(n)) is None for n in names))


def _updates_statistics(arguments: Mapping[str, Any], node: Node) -> Effects:
    measures = arguments.get("training", arguments.get("use_input_stats")) is not False
    if node.op == "call_module":
        tracks = arguments.get("track_running_stats") is True
        return Effects(writes_state=True) if measures and tracks else NONE
    statistics = (arguments.get("running_mean"), arguments.get("running_var"))
    return Effects(writes=_nodes_in(statistics)) if measures else NONE


def _renormalises(arguments: Mapping[str, Any], node: Node) -> Effects:
    if arguments.get("max_norm") is None:
        return NONE
    if node.op == "call_module":
        return Effects(writes_state=True)
    return Effects(writes=_nodes_in(arguments.get("weight")))


def _is_random(arguments: Mapping[str, Any], node: Node) -> Effects:  # noqa: ARG001  a rule
    return Effects(random=True)


def _raises(arguments: Mapping[str, Any], node: Node) -> Effects:  # noqa: ARG001  a rule
    return Effects(raises=True)


_RULES: Final[Mapping[Op, _Rule]] = {
    Op.BATCH_NORM: _updates_statistics,
    Op.INSTANCE_NORM: _updates_statistics,
    Op.EMBEDDING: _renormalises,
    Op.EMBEDDING_BAG: _renormalises,
    Op.DROPOUT: _drops,
    Op.FEATURE_DROPOUT: _drops,
    Op.ALPHA_DROPOUT: _drops,
    Op.FEATURE_ALPHA_DROPOUT: _drops,
    Op.STOCHASTIC_DEPTH: _drops,
    Op.SDPA: _drops_attention,
    Op.RRELU: _random_slopes,
    Op.FRACTIONAL_MAX_POOL: _draws_regions,
    Op.FRACTIONAL_MAX_POOL_WITH_INDICES: _draws_regions,
    Op.ASSERT: _raises,
    **dict.fromkeys(
        (
            *(Op.GUMBEL_SOFTMAX, Op.RAND, Op.RANDN, Op.RANDINT, Op.RANDPERM, Op.RAND_LIKE),
            *(Op.RANDN_LIKE, Op.RANDINT_LIKE, Op.NORMAL, Op.BERNOULLI, Op.MULTINOMIAL, Op.UNIFORM),
        ),
        _is_random,
    ),
}

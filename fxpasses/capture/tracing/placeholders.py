"""The inputs of a traced root: placeholders, and what stands for them in its forward."""

import inspect
from collections.abc import Callable, Mapping
from typing import Any, Final

from torch import Tensor, nn

from fxpasses.capture.result.forms import tensors_of
from fxpasses.capture.tracing.internals import reserve_name
from fxpasses.capture.tracing.names import is_identifier
from fxpasses.capture.tracing.proxies import Made, Value
from fxpasses.capture.tracing.recorder import Recorder
from fxpasses.capture.tracing.request import OpaqueKind
from fxpasses.capture.tracing.structures import PLAIN, children_of, element, rebuilt, stateful
from fxpasses.capture.tracing.values import UNKNOWN, Taint
from fxpasses.core.given import an

_BY_KEYWORD: Final = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
_PLAIN_TENSORS: Final = (Tensor, nn.Parameter, nn.Buffer)


class _Given:
    """An argument of a call that is traced without an example."""


_GIVEN: Final = _Given()


class Inputs:
    """Placeholders for every parameter of the root's forward, in the order of its signature."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._twice: dict[int, Value] = {}
        self._numbers: dict[int, int] = {}
        self._given = 0
        self._has_default = False
        self.renamed: dict[str, str] = {}

    def lift(self, forward: Callable[..., Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """What to call `forward` with: as the example does, with values for its tensors."""
        signature = inspect.signature(forward)
        request = self._recorder.request
        parameters = signature.parameters.values()
        by_keyword = {p.name for p in parameters if p.kind in _BY_KEYWORD}
        for name in (request.kwargs or {}).keys() - by_keyword:
            # Among the rest of the keywords it must not meet a placeholder of its name.
            reserve_name(self._recorder.graph, name)
        roots = {p.name: self._placeholder(p) for p in parameters}
        if request.args is None:
            args, kwargs = _required(signature)
        else:
            args, kwargs = request.args, dict(request.kwargs or {})
            self._check(args, kwargs)
            tensors = tensors_of((args, kwargs))
            self._numbers = {id(t): i for i, t in reversed(list(enumerate(tensors)))}
        bound = signature.bind(*args, **kwargs)
        lifted = {name: self._lift(roots[name], v) for name, v in bound.arguments.items()}
        return _as_given(signature, lifted, len(args), kwargs)

    def _placeholder(self, parameter: inspect.Parameter) -> Made:
        star = {parameter.VAR_POSITIONAL: "*", parameter.VAR_KEYWORD: "**"}.get(parameter.kind, "")
        recorder = self._recorder
        node = recorder.create_node(
            "placeholder", star + parameter.name, () if star else self._default(parameter), {}
        )
        if node.name != parameter.name or not is_identifier(parameter.name):
            # Generated code would copy one name to another, which may be taken or be a builtin.
            node.target = star + node.name
            if parameter.kind in _BY_KEYWORD:
                self.renamed[parameter.name] = node.name
        return Made(node, recorder, UNKNOWN, Taint.DATA)

    def _default(self, parameter: inspect.Parameter) -> tuple[Any, ...]:
        """In generated code, every parameter behind one with a default must have one.

        It is never used where the model has none: the pattern asks for the argument.
        """
        if parameter.default is not parameter.empty:
            self._has_default = True
            return (_spelled(parameter.default),)
        return (None,) if self._has_default else ()

    def _check(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        odd = stateful((args, kwargs))
        if odd is not None:
            reason = f"is given a {odd} object"
            raise self._recorder.refuse(OpaqueKind.STATEFUL_ARGUMENT, reason)

    def _lift(self, root: Value, example: Any) -> Any:
        if example is _GIVEN:  # without an example, a graph is for tensors alone
            root.is_tensor = True
            self._recorder.asking.add_input(root, self._given, None)
            self._given += 1
            return root
        if isinstance(example, Tensor):
            return self._tensor(root, example)
        children = dict(children_of(example))
        if not children:
            return _fresh(example)
        items: dict[Any, Any] = {}
        for key, item in children.items():
            lazy = element(root, key, UNKNOWN, Taint.SIZE, loose=False, container=example)
            items[key] = self._lift(lazy, item)
        return rebuilt(example, items)

    def _tensor(self, root: Value, example: Tensor) -> Value:
        if type(example) not in _PLAIN_TENSORS:
            reason = f"is given {an(type(example))}, a tensor of its own kind"
            raise self._recorder.refuse(OpaqueKind.UNTRACEABLE_VALUE, reason)
        found = self._twice.get(id(example))
        if found is not None:
            return found
        recorder = self._recorder
        copy = recorder.copied(example)
        recorder.memory.give(copy)
        root.known, root.is_tensor = copy, True
        root.taint = Taint.FIXED if recorder.sizes_are_fixed else Taint.SIZE
        if isinstance(root, Made):
            recorder.note_value(root.node, copy, rank_is_fixed=True)
        self._twice[id(example)] = root
        recorder.asking.add_input(root, self._numbers[id(example)], example)
        return root


def _fresh(example: Any) -> Any:
    """An empty container of the caller's must not be filled by the trace."""
    return type(example)() if type(example) in (list, dict, set) and not example else example


def _required(signature: inspect.Signature) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """A call without an example: every parameter that has no default is given."""
    required = [p for p in signature.parameters.values() if p.default is p.empty]
    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    args = tuple(_GIVEN for p in required if p.kind in positional)
    kwargs = {p.name: _GIVEN for p in required if p.kind is p.KEYWORD_ONLY}
    return args, kwargs


def _as_given(
    signature: inspect.Signature,
    lifted: Mapping[str, Any],
    count: int,
    kwargs: Mapping[str, Any],
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The lifted arguments, each by position or by keyword as the caller gave it."""
    args: list[Any] = []
    rest: Mapping[str, Any] = {}
    for parameter in signature.parameters.values():
        if parameter.kind is parameter.VAR_KEYWORD:
            rest = lifted.get(parameter.name, {})
        elif parameter.kind is parameter.VAR_POSITIONAL:
            args.extend(lifted.get(parameter.name, ()))
        elif parameter.kind is not parameter.KEYWORD_ONLY and len(args) < count:
            args.append(lifted[parameter.name])
    keywords = {name: rest[name] if name in rest else lifted[name] for name in kwargs}
    return tuple(args), keywords


def _spelled(default: Any) -> Any:
    """A default that generated code can spell; any other is never read by a graph."""
    is_plain = type(default) in PLAIN
    is_tuple = type(default) is tuple and all(type(item) in PLAIN for item in default)
    return default if is_plain or is_tuple else None

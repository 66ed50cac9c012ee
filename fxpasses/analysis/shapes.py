"""What is known of the value of a node: as captured, or worked out on fake tensors when asked."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final, cast

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.fx import GraphModule, Node
from torch.fx.node import map_aggregate, map_arg

from fxpasses.core import VALUE, Effects, Known, TensorInfo, attribute

_TORCH_VALUE: Final = "val"  # where torch's own front ends keep fake values


class _Unknown:
    """The value of a node that nothing is known of."""


_UNKNOWN: Final = _Unknown()


@dataclass(frozen=True, slots=True, eq=False)
class _Worked:
    """A value worked out on fake tensors."""

    value: Any
    rank_is_fixed: bool = True


_NOTHING: Final = _Worked(_UNKNOWN)


class Shapes:
    """Known values by node. What the capture noted is taken as it is.

    Nodes that a pass made are run on fake tensors made of what is known of their operands; only
    nodes that have no effects are. What cannot be run is unknown.
    """

    def __init__(
        self,
        module: GraphModule,
        effects: Callable[[Node], Effects],
        visit: Callable[[], None] = lambda: None,
    ) -> None:
        self._module = module
        self._effects = effects
        self._visit = visit
        self._values: dict[Node, _Worked] = {}
        self._mode: FakeTensorMode | None = None

    def known(self, node: Node) -> Known:
        """A TensorInfo, a structure of them, or None where nothing is known or it is no tensor."""
        noted = _noted(node)
        if noted is not None:
            return noted
        worked = self._worked_out(node)
        return _described(worked.value, rank_is_fixed=worked.rank_is_fixed)

    def tensor(self, node: Node) -> TensorInfo | None:
        known = self.known(node)
        return known if isinstance(known, TensorInfo) else None

    def changed(self, nodes: Iterable[Node]) -> None:
        """Forget what was worked out for `nodes` and for what was worked out from them."""
        stack = list(nodes)
        while stack:
            node = stack.pop()
            if node in self._values:
                del self._values[node]
                stack.extend(node.users)

    def _worked_out(self, node: Node) -> "_Worked":
        stack, values = [node], self._values
        while stack:
            top = stack[-1]
            if top in values:
                stack.pop()
                continue
            noted = _noted(top)
            operands = [] if noted is not None else top.all_input_nodes
            missing = [n for n in operands if n not in values]
            if missing:
                stack.extend(missing)
                continue
            self._visit()
            unknown = any(values[n].value is _UNKNOWN for n in operands)
            values[top] = _NOTHING if unknown else self._evaluate(top, noted, operands)
            stack.pop()
        return values[node]

    def _evaluate(self, node: Node, noted: Known, operands: Sequence[Node]) -> "_Worked":
        try:
            if noted is not None:
                return _Worked(self._fake(noted), _rank_is_fixed(noted))
            if node.op == "get_attr":
                value = attribute(self._module, str(node.target))
                return _Worked(
                    self._fake_tensor(TensorInfo.of(value)) if isinstance(value, Tensor) else value
                )
            fixed = all(self._values[n].rank_is_fixed for n in operands)
            return _Worked(self._run(node), fixed)
        except Exception:  # whatever a call raises on fake tensors, its value is unknown
            return _NOTHING

    def _run(self, node: Node) -> Any:
        operands = {n: self._values[n].value for n in node.all_input_nodes}
        if node.op not in ("call_function", "call_method", "call_module"):
            return _UNKNOWN
        effects = self._effects(node)
        if effects.unknown or effects.writes_state:
            return _UNKNOWN
        if effects.writes:
            operands = {n: _alias(value) for n, value in operands.items()}
        args = map_arg(node.args, operands.__getitem__)
        kwargs = map_arg(node.kwargs, operands.__getitem__)
        with self._fake_mode(), torch.no_grad():
            return self._call(node, cast("tuple[Any, ...]", args), cast("dict[str, Any]", kwargs))

    def _call(self, node: Node, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if node.op == "call_method":
            return getattr(args[0], str(node.target))(*args[1:], **kwargs)
        if node.op == "call_module":
            return attribute(self._module, str(node.target))(*args, **kwargs)
        return cast("Callable[..., Any]", node.target)(*args, **kwargs)

    def _fake(self, known: Known) -> Any:
        if isinstance(known, TensorInfo):
            return self._fake_tensor(known)
        if isinstance(known, tuple | list):
            return type(known)(self._fake(part) for part in known)
        if isinstance(known, dict):
            return {key: self._fake(part) for key, part in known.items()}
        return _UNKNOWN

    def _fake_tensor(self, info: TensorInfo) -> Tensor:
        shape, stride = info.example_shape, info.example_stride
        options: dict[str, Any] = {"dtype": info.dtype, "device": info.device}
        with self._fake_mode():
            if len(stride) != len(shape):
                return torch.empty(shape, **options)
            return torch.empty_strided(shape, stride, **options)

    def _fake_mode(self) -> FakeTensorMode:
        if self._mode is None:
            self._mode = FakeTensorMode(allow_non_fake_inputs=True)
        return self._mode


def _alias(value: Any) -> Any:
    """The value as something that an in-place call may change the shape of."""
    return map_aggregate(value, lambda v: v.detach() if isinstance(v, Tensor) else v)


def _noted(node: Node) -> Known:
    known = node.meta.get(VALUE)
    if known is not None:
        return known
    value = node.meta.get(_TORCH_VALUE)
    return None if value is None else _described(value)


def _described(value: Any, *, rank_is_fixed: bool = True) -> Known:
    if isinstance(value, Tensor):
        return _info(value, rank_is_fixed=rank_is_fixed)
    if isinstance(value, tuple | list):
        parts = (_described(part, rank_is_fixed=rank_is_fixed) for part in value)
        return list(parts) if isinstance(value, list) else tuple(parts)
    if isinstance(value, dict):
        return {k: _described(part, rank_is_fixed=rank_is_fixed) for k, part in value.items()}
    return None


def _info(tensor: Tensor, *, rank_is_fixed: bool) -> TensorInfo | None:
    """None where a size is symbolic and has no example."""
    if not isinstance(tensor, FakeTensor):
        return TensorInfo.of(tensor, rank_is_fixed=rank_is_fixed)
    shape, stride = _hints(tensor.shape), _hints(tensor.stride())
    if shape is None or stride is None:
        return None
    rank = tensor.dim() if rank_is_fixed else None
    return TensorInfo(tensor.dtype, tensor.device, rank, shape, stride)


def _hints(sizes: Iterable[Any]) -> tuple[int, ...] | None:
    found: list[int] = []
    for size in sizes:
        hint = size if isinstance(size, int) else getattr(size.node, "hint", None)
        if not isinstance(hint, int):
            return None
        found.append(hint)
    return tuple(found)


def _rank_is_fixed(known: Known) -> bool:
    if isinstance(known, TensorInfo):
        return known.rank is not None
    if isinstance(known, dict):
        return all(_rank_is_fixed(part) for part in known.values())
    return known is None or all(_rank_is_fixed(part) for part in known)

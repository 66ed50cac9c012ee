"""The private corners of torch and of Python that the tracer needs, all in one place."""
# ruff: noqa: SLF001
# pyright: reportPrivateUsage=false, reportAttributeAccessIssue=false
# Each of these has no public way, or one that costs too much at every node.

import sys
from collections.abc import Callable, Generator
from contextlib import AbstractContextManager, contextmanager
from types import FrameType
from typing import Any, Final, cast

import torch
from torch import Tensor, nn
from torch.fx import Graph, Node, _symbolic_trace
from torch.fx._lazy_graph_module import _LazyGraphModule

from fxpasses.core.randomness import default_generator

frame: Final[Callable[[int], FrameType]] = sys._getframe
set_grad_enabled: Final[Callable[[bool], None]] = torch._C._set_grad_enabled
is_grad_enabled: Final[Callable[[], bool]] = torch._C.is_grad_enabled  # the public one is patched
ScriptMethod: Final[type] = torch._C.ScriptMethod
OPERATIONS: Final = (torch._ops.OpOverload, torch._ops.OpOverloadPacket)

REGION_NAMES: Final = (
    "grad mode",
    "inference mode",
    "autocast",
    "autocast",
    "the autocast dtype",
    "saved-tensor hooks (checkpoint)",
    "the default dtype",
    "dispatch modes",
) + ("a backend flag",) * 10


def torch_state() -> tuple[Any, ...]:
    """Everything that a with-block may set for the operations inside it. About 1 us."""
    c: Any = torch._C
    return (
        c.is_grad_enabled(),
        c.is_inference_mode_enabled(),
        c.is_autocast_enabled("cpu"),
        c.is_autocast_enabled("cuda"),
        c.get_autocast_dtype("cpu"),
        c._autograd._top_saved_tensors_default_hooks(True) is not None,
        c.get_default_dtype(),
        c._len_torch_dispatch_stack(),
        c._get_mkldnn_enabled(),
        c._get_cudnn_enabled(),
        c._get_cudnn_deterministic(),
        c._get_cudnn_benchmark(),
        c._get_math_sdp_enabled(),
        c._get_flash_sdp_enabled(),
        c._get_mem_efficient_sdp_enabled(),
        c._get_float32_matmul_precision(),
        c._get_deterministic_algorithms(),
        c._get_cudnn_sdp_enabled(),
    )


def functions_off() -> AbstractContextManager[None]:
    """No function mode sees what runs in this block."""
    return torch._C.DisableTorchFunction()


def innermost_function_mode() -> Any:
    """The function mode that torch asks first; None where there is none."""
    return torch.overrides._get_current_function_mode()


def without_innermost_function_mode() -> AbstractContextManager[Any]:
    return torch.overrides._pop_mode_temporarily()


def function_modes() -> int:
    """How many function modes are on."""
    return torch._C._len_torch_function_stack()


@contextmanager
def modes_off() -> Generator[None]:
    """Neither mode of the tracer has anything to say about what runs in this block."""
    with torch._C._DisableTorchDispatch(), functions_off():
        yield


def generator_states() -> list[Tensor]:
    """The states of this thread's generators: the CPU's, then the GPUs' where they are in use."""
    has_cuda = torch.cuda.is_available() and torch.cuda.is_initialized()
    return [default_generator().get_state(), *(_cuda_states() if has_cuda else ())]


def _cuda_states() -> list[Tensor]:
    return torch.cuda.get_rng_state_all()


def set_generator_states(states: list[Tensor]) -> None:
    default_generator().set_state(states[0])
    if states[1:]:
        torch.cuda.set_rng_state_all(states[1:])


def version_of(tensor: Tensor) -> int | None:
    """How often the memory of a tensor was written; None where nobody counts."""
    return None if tensor.is_inference() else tensor._version


def set_version(tensor: Tensor, version: int | None) -> None:
    """Let the writes since `version` count as none: what they wrote was put back."""
    if version is not None:
        torch._C._autograd._unsafe_set_version_counter((tensor,), (version,))


def schema_of(operation: Any) -> Any:
    return operation._schema


def parameters_of(module: nn.Module) -> dict[str, nn.Parameter | None]:
    return module.__dict__.get("_parameters") or {}


def plain_form(module: nn.Module) -> nn.Module:
    """The module that `torch.compile` was given."""
    return cast("nn.Module", module._orig_mod)


def recompile_if_lazy(module: nn.Module) -> None:
    """Some GraphModules make their code at the first call, which must not be traced."""
    if isinstance(module, _LazyGraphModule):
        module.real_recompile()


def wrapped_functions() -> list[tuple[str, dict[str, Any]]]:
    """Names given to `torch.fx.wrap`, each with the globals that hold it."""
    table: dict[tuple[int, str], dict[str, Any]] = _symbolic_trace._wrapped_fns_to_patch
    return [(name, names) for (_, name), names in list(table.items())]


# -- graphs


def reserve_name(graph: Graph, name: str) -> None:
    """No node of `graph` is ever called `name`."""
    graph._graph_namespace._used_names.add(name)


def last_node(graph: Graph) -> Node:
    return graph._root._prev


def is_erased(node: Node) -> bool:
    return node._erased


def erase_behind(graph: Graph, tail: Node) -> list[Node]:
    """Erase all nodes behind `tail`, with their names, which `erase_node` leaves taken."""
    erased: list[Node] = []
    namespace = graph._graph_namespace
    node = graph._root._prev
    while node is not tail:
        previous = node._prev
        graph.erase_node(node)
        namespace._used_names.discard(node.name)
        namespace._obj_to_name.pop(node, None)
        erased.append(node)
        node = previous
    return erased

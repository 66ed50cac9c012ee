"""What the tracer is asked, and what it answers."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum, auto
from types import MappingProxyType
from typing import Any, Final, Literal, TypeAlias

from torch import Tensor, nn
from torch.fx import Graph

from fxpasses.core.values import Source

Sizes: TypeAlias = Literal["guards", "kinds", "shapes"]
Call: TypeAlias = tuple[tuple[Any, ...], dict[str, Any]]


class OpaqueKind(StrEnum):
    """Why a module runs its own code instead of being part of a graph."""

    CONTROL_FLOW = auto()  # Python decides on a traced value
    REGION = auto()  # torch's state differs from that at entry: no_grad, autocast, backend flags
    PYTHON_STATE = auto()  # attributes, containers, globals, classes or closures change
    READS_CHANGING_STATE = auto()  # reads what an opaque module changes
    RANDOM_STATE = auto()  # seeds, or draws Python or NumPy random numbers
    CUSTOM_AUTOGRAD = auto()  # a gradient of its own, which a graph would lose
    COMPILED = auto()  # TorchScript or torch.compile
    HOOKED = auto()  # has hooks, which must see real values at each call
    STATEFUL_ARGUMENT = auto()  # is given an object that a graph cannot keep
    CHANGES_ARGUMENT = auto()  # changes a list or dict that it is given
    WRITES_PARAMETER = auto()  # writes a parameter of the model in place
    UNTRACEABLE_VALUE = auto()  # a value that cannot be an argument of a node
    NEW_MODULE = auto()  # makes a module with weights while it runs
    CAUGHT_REFUSAL = auto()  # the model catches the error by which the tracer refuses
    GUARD_AFTER_EFFECT = auto()  # branches on a size after an effect, which a miss would repeat
    FUSED_KERNEL = auto()  # torch has another kernel for it where nothing needs a gradient
    PARAMETRIZED = auto()  # its parameters are computed by `torch.nn.utils.parametrize`
    ERROR = auto()  # its code raised on traced values


REMEDIES: Final[Mapping[OpaqueKind, str]] = MappingProxyType(
    {
        OpaqueKind.CONTROL_FLOW: "choose with torch.where, or decide on sizes and settings rather "
        "than on values; else move the branch out of the module that holds the heavy layers",
        OpaqueKind.REGION: "put no_grad, autocast and torch's settings around the call of the "
        "model, not into its forward",
        OpaqueKind.PYTHON_STATE: "return what forward now writes to attributes, lists or globals, "
        "or keep it in a buffer",
        OpaqueKind.READS_CHANGING_STATE: "pass the value on as an argument, or keep it in a "
        "buffer, rather than in an attribute that changes",
        OpaqueKind.RANDOM_STATE: "draw by torch's functions, and seed outside of forward",
        OpaqueKind.CUSTOM_AUTOGRAD: "write the forward in plain torch operations, or make it one "
        "operator by torch.library.custom_op",
        OpaqueKind.COMPILED: "give the module as it was before TorchScript or torch.compile",
        OpaqueKind.HOOKED: "remove the hooks before the run, and register them on the result",
        OpaqueKind.STATEFUL_ARGUMENT: "pass the tensors that the object holds, in a tuple or a "
        "dict, rather than the object",
        OpaqueKind.CHANGES_ARGUMENT: "return a new list or dict rather than change the given one",
        OpaqueKind.WRITES_PARAMETER: "keep what forward writes in a buffer, not in a parameter",
        OpaqueKind.UNTRACEABLE_VALUE: "hand on tensors, numbers, and tuples, lists and dicts of "
        "them; leave NumPy arrays and objects of other classes inside of one module",
        OpaqueKind.NEW_MODULE: "make modules and parameters in __init__",
        OpaqueKind.CAUGHT_REFUSAL: "ask for what may fail rather than catch its exception",
        OpaqueKind.GUARD_AFTER_EFFECT: "decide on sizes at the top of forward, before anything "
        "is written or drawn at random",
        OpaqueKind.FUSED_KERNEL: "use torch's layer itself, which expand_composites can write out, "
        "rather than a subclass that calls its forward",
        OpaqueKind.PARAMETRIZED: "for inference, write the weights out first: "
        "torch.nn.utils.parametrize.remove_parametrizations",
        OpaqueKind.ERROR: "look at the error: move the code that needs real values into a module "
        "of its own, beside the heavy layers",
    }
)
"""What to do about each kind; there is one for every kind."""


@dataclass(frozen=True, slots=True)
class Opaque:
    """A module that runs its own code.

    `path` is relative to the root of the trace ("" is the root itself), `type` the class name.
    """

    path: str
    type: str
    kind: OpaqueKind
    reason: str
    source: Source | None = None

    @property
    def remedy(self) -> str:
        """What whoever owns the model can do about it."""
        return REMEDIES[self.kind]


class NoteKind(StrEnum):
    """What of a model a graph keeps in another way than one might think."""

    PRINTS = auto()  # a print runs once, in the trace
    SHARED_MEMORY = auto()  # arguments of the example share memory, and that matters
    QUANTIZED = auto()  # weights in a packed form of their own, which no pass reads


@dataclass(frozen=True, slots=True)
class Note:
    """Something of a captured model that its owner should know: nothing is lost by it."""

    kind: NoteKind
    text: str
    remedy: str = ""

    def __str__(self) -> str:
        return self.text


class Refused(Exception):  # noqa: N818 - not an error: the answer "no"
    """The root cannot be one graph. The base of the two errors of `trace`.

    `outside` is as in `Trace`.
    """

    outside: Sequence[Tensor] = ()


class Untraceable(Refused):
    """The root itself does what no graph can represent: it is opaque.

    With an example, the root's own code has been run on it: `outputs` is what it returned and
    `calls` what was called below it, or `error` what it raised. With `left_traces` it could not
    be run, since it came upon traced values: it can be where the root is in `force_opaque` from
    the start.
    """

    def __init__(self, kind: OpaqueKind, reason: str, source: Source | None = None) -> None:
        super().__init__(reason)
        self.kind = kind
        self.reason = reason
        self.source = source
        self.outputs: Any = None
        self.calls: dict[str, Call] = {}
        self.error: Exception | None = None
        self.left_traces = False


class Outside(Refused):
    """Globals, classes or closures changed somewhere: trace again with `strict`."""

    def __init__(self, places: tuple[str, ...]) -> None:
        super().__init__(f"changes {', '.join(places)}")
        self.places = places


def _nothing() -> Mapping[str, Opaque]:
    return MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Request:
    """What to trace.

    `root` is a twin that the trace may dirty, and that is of no use afterwards. Its tensors are
    the caller's and are never written. `args` and `kwargs` are the example, None to trace by
    names alone. `traced_functions` are traced through although `torch.fx.wrap` names them.
    `force_opaque` lists paths that are never inlined. `live` lists attributes
    (`path.name`) that change: who reads one is opaque. `strict` compares globals at each module's
    exit, so that the innermost module that changes them is found; `places` are those that
    `Outside` named. A refused root's own code is run on the example if `run_refused`. A root is
    traced `without_gradients` to be run so: its forward must switch them off for all that it
    computes, and on again. `copies`
    are tensors of the caller's with those that `root` holds in their place, which may be written.
    """

    root: nn.Module
    args: tuple[Any, ...] | None = None
    kwargs: Mapping[str, Any] | None = None
    sizes: Sizes = "guards"
    leaf_functions: tuple[Callable[..., Any] | str, ...] = ()
    traced_functions: tuple[Callable[..., Any], ...] = ()
    force_opaque: Mapping[str, Opaque] = field(default_factory=_nothing)
    live: frozenset[str] = frozenset()
    strict: bool = False
    places: tuple[str, ...] = ()
    run_refused: bool = True
    without_gradients: bool = False
    copies: Sequence[tuple[Tensor, Tensor]] = ()


@dataclass(slots=True)
class Trace:
    """A graph of the root, and what is needed to make a module of it.

    Targets of `call_module` and `get_attr` nodes are paths from the root. They use nothing but
    identifiers: what has another name is reached through an alias, listed with the rest in
    `constants` (tensors) and `unregistered` (modules), to be put into the root's `__dict__`.
    `opaque` lists the innermost modules that run their own code, `calls` the first call of each
    module below them. `changing` are the paths of attributes that change: where `request.live`
    lacks one of them, the trace has to be made again. `asked` tells of tensors of the call, by
    their number, what the graph takes for granted because the model has asked for it.
    `outside` are tensors of the program around the model that modules' own code has written, and
    that were put back.
    """

    graph: Graph
    opaque: list[Opaque]
    calls: dict[str, Call]
    outputs: Any
    constants: list[tuple[str, Tensor]]
    unregistered: list[tuple[str, nn.Module]]
    renamed: dict[str, str]
    reads_grad_mode: bool
    reads_training: tuple[str, ...]
    guards: int
    late_guards: int
    """Those that follow an effect, which has to be taken back where one of them misses."""
    changing: frozenset[str]
    notes: tuple[Note, ...] = ()
    reads_device: bool = True
    settings: frozenset[str] = frozenset()
    """What of torch's settings the model has asked for."""
    effect: str = ""
    """What a second run of the same call would repeat, as far as the example has shown."""
    writes_given: bool = False
    asked: Mapping[int, Mapping[str, Any]] = field(default_factory=dict[int, Mapping[str, Any]])
    outside: Sequence[Tensor] = ()
